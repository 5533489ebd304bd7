"""A step that a dead rank has broken leaves nothing behind."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from site_of_test import wait_for
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hpcext.rendezvous import Rendezvous
from hpcext.training.coordinator import Coordinator
from hpcext.training.feature import Feature
from hpcext.training.loop import Loop
from hpcext.training.membership import Overtaken
from hpcext.training.torch import Session, mending, stuck
from hpcext.training.torch.group import Member
from hpcext.training.torch.mending import Guard
from hpcext.training.torch.parallel import Parallel
from hpcext.training.torch.state import TorchState
from hpcext.training.torch.weights import Averaging

DIED = RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer")


class Followed(Feature):
    """A part of a session that counts the steps."""

    steps = 0

    def facts(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def restore(self, manifest: Any) -> None:
        self.steps = manifest["steps"]


class Stage:
    """One rank of two of a training, under a launcher that would replace the other."""

    def __init__(self, **more: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.average = AveragedModel(self.model)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=1)
        self.generator = torch.Generator().manual_seed(4)
        objects = {
            "model": self.model, "optimizer": self.optimizer, "schedule": self.schedule,
            "average": self.average, "scaler": self.scaler, "generator": self.generator, **more,
        }  # fmt: skip
        member: Any = SimpleNamespace(
            replaces=True, far=False, mending=False, connecting=False, mends=lambda _multiple: None,
            repair=lambda: None, cut=self.cut, free=lambda: None, abort=lambda: None,
        )  # fmt: skip
        self.framework: Any = SimpleNamespace(
            member=member, models=[Parallel(self.model)], state=TorchState(objects)
        )
        self.followed, self.why = Followed(), ""
        self.coordinator = Coordinator()
        self.coordinator.ranks.size = 2
        self.guarded(lambda: self.why)
        self.guard.began()
        self.step()

    def guarded(self, why_not: Callable[[], str]) -> None:
        """Begin with another guard."""
        self.loop = self.framework.loop = Loop()
        self.framework.coordinator = self.coordinator
        whole: Any = SimpleNamespace(copies=None)
        self.guard = Guard(self.framework, whole, self.followed, why_not)
        self.guard.attach(self.coordinator, self.loop)

    cuts = 0

    def cut(self) -> None:
        """What it says to its launcher."""
        self.cuts += 1

    def begin(self) -> None:
        self.loop.begin_step(lambda turns: turns, 1)
        self.guard.step_begins()

    def step(self, *, dies: bool = False) -> None:
        """What a script does in a step."""
        self.begin()
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(6, 4)).square().mean()
        self.scaler.scale(loss).backward()
        if dies:
            assert self.guard.caught(DIED)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.average.update_parameters(self.model)
        self.schedule.step()
        self.followed.steps += 1
        random.random(), np.random.rand(), torch.rand(1, generator=self.generator)
        if not dies:
            self.guard.step_ends()
            self.loop.end_step()

    def all(self) -> Any:
        state = self.framework.state
        return copy.deepcopy((state.capture(), state.random(), self.followed.steps))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other))


def test_all_is_as_it_was_before_the_step() -> None:
    stage = Stage()
    stage.step()
    before = stage.all()
    stage.step(dies=True)
    assert not same(before, stage.all())
    stage.guard.undo()
    assert same(before, stage.all())
    assert all(parameter.grad is None for parameter in stage.model.parameters())


def test_a_step_that_is_whole_stays() -> None:
    stage = Stage()
    stage.step()
    after = stage.all()
    stage.guard.undo()
    assert same(after, stage.all())


def test_between_two_steps_nothing_is_broken() -> None:
    stage = Stage()
    stage.step()
    assert stage.guard.caught(DIED)
    assert stage.guard.caught(DIED)
    assert stage.cuts == 1, "it is said once"
    assert not stage.guard.broken
    # As in a validation: the next step is none, even if no averaging is tried.
    before = stage.all()
    stage.step(dies=True)
    stage.guard.undo()
    assert same(before, stage.all())


def test_other_errors_are_those_of_the_script() -> None:
    stage = Stage()
    stage.begin()
    assert not stage.guard.caught(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_before_the_second_step_nothing_is_caught() -> None:
    """Nobody has told the launcher yet that a rank can be replaced."""
    assert not Stage().guard.caught(DIED)


def test_one_of_two_optimizers_has_made_its_step() -> None:
    stage = Stage()
    stage.begin()
    stage.model(torch.randn(6, 4)).sum().backward()
    stage.optimizer.step()
    assert stage.guard.caught(DIED)
    with pytest.raises(RuntimeError, match="one of its optimizers has made its step; the job goes"):
        stage.guard.undo()


def test_something_else_has_changed_parameters() -> None:
    stage = Stage()
    stage.begin()
    stage.model(torch.randn(6, 4)).sum().backward()
    assert stage.guard.caught(DIED)
    stage.optimizer.step()
    with torch.no_grad():
        stage.model[0].weight.mul_(0.9)
    with pytest.raises(RuntimeError, match="other than the session's optimizers has changed"):
        stage.guard.undo()


def test_no_optimizer_is_asked_to_step() -> None:
    stage = Stage()
    stage.begin()
    stage.model(torch.randn(6, 4)).sum().backward()
    assert stage.guard.caught(DIED)
    with pytest.raises(RuntimeError, match="a step has several batches"):
        stage.guard.undo()


def test_a_reason_that_comes_later() -> None:
    stage = Stage()
    stage.step()
    stage.why = "the batches of ranks follow measurements"
    stage.step(dies=True)
    with pytest.raises(RuntimeError, match="cannot be made again: the batches of ranks follow"):
        stage.guard.undo()


def test_a_closure_could_not_be_called_in_vain() -> None:
    weight = nn.Parameter(torch.ones(1))
    stage = Stage(lbfgs=torch.optim.LBFGS([weight]))
    stage.begin()
    assert stage.guard.caught(DIED)
    with pytest.raises(RuntimeError, match="a step with a closure"):
        stage.framework.state.objects["lbfgs"].step(weight.sum)


def test_what_a_session_says_of_itself(tmp_path: Path) -> None:
    def session(**options: Any) -> Session:
        model = nn.Linear(2, 1)
        return Session(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **options)

    assert session()._why_not_again() == "nothing is saved"
    saving = session(checkpoint_dir=tmp_path)
    assert saving._why_not_again() == "no model is wrapped by session.parallel(model)"
    saving.device = torch.device("cuda")
    assert saving._why_not_again() == "the ranks communicate by NCCL"


def test_who_is_alone_keeps_nothing() -> None:
    """Nobody else can die."""
    stage = Stage()
    stage.guard.coordinator.ranks.size = 1
    stage.step()
    assert stage.guard._before is None


@pytest.mark.parametrize(("device", "replaces"), [("cpu", True), ("cuda", False)])
def test_no_rank_on_a_gpu_is_replaced(tmp_path: Path, device: str, replaces: bool) -> None:
    """Nor does a model there average its gradients in another way for that."""
    place = Rendezvous(tmp_path, replaces=True)
    member = Member(place, rank=0, size=2, device=torch.device(device))
    assert member.replaces is replaces


def test_a_rank_that_has_just_joined_catches_what_the_others_do() -> None:
    """They go on without ranks that die already; so its first step can be made again, too."""
    stage = Stage()
    stage.guarded(lambda: "")
    stage.guard.began()
    stage.framework.member.mending = True
    before = stage.all()
    stage.step(dies=True)
    stage.guard.undo()
    assert same(before, stage.all())


def test_errors_that_are_the_end_of_a_connection() -> None:
    stage = Stage()
    stage.begin()
    assert stage.guard.caught(RuntimeError("Application timeout caused pair closure"))
    assert stage.guard.caught(Overtaken("group 3 comes to nothing"))


def test_an_averaging_that_never_ends_is_given_up() -> None:
    """With the gradients of this rank, of which the optimizer makes nothing."""
    stage = Stage()
    stage.step()
    before, freed = stage.all(), threading.Event()
    stage.framework.member.free = freed.set
    stage.begin()
    stage.model(torch.randn(6, 4)).sum().backward()
    never = Averaging(gradients := torch.ones(3))
    stage.guard.waits_for(never)
    stage.guard._free(stage.framework.member)
    assert freed.is_set()
    assert torch.equal(never.future.wait(), gradients)
    # What the backend says later changes nothing.
    never.done(None, lambda *_: torch.zeros(3))
    assert torch.equal(never.future.wait(), gradients)
    stage.optimizer.step()
    stage.guard.undo()
    assert same(before, stage.all())


def test_an_averaging_that_has_ended_is_not_given_up() -> None:
    stage = Stage()
    stage.begin()
    ended = Averaging(torch.ones(3))
    stage.guard.waits_for(ended)
    ended.done(None, lambda *_: torch.zeros(3))
    stage.guard._free(stage.framework.member)
    assert torch.equal(ended.future.wait(), torch.zeros(3))
    assert not stage.guard.broken


@pytest.mark.parametrize("waits", [True, False], ids=["in communication", "elsewhere"])
def test_a_rank_that_waits_on_though_its_connections_have_ended_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], waits: bool
) -> None:
    """Or all others would wait for it, for half an hour. A script may do something for long."""
    monkeypatch.setattr(mending, "WATCH_S", 0.01)
    monkeypatch.setattr(mending, "STUCK_S", 0.1)
    if waits:
        monkeypatch.setattr(stuck, "_PLACES", (os.path.dirname(threading.__file__),))
    stage, ends = Stage(), threading.Event()
    aborted: list[int] = []
    member = stage.framework.member
    member.repair, member.abort = object, lambda: aborted.append(1)

    def end(code: int) -> None:
        assert code == 1
        ends.set()
        raise SystemExit

    monkeypatch.setattr(os, "_exit", end)

    def watch() -> None:
        with contextlib.suppress(SystemExit):
            stage.guard._watch(member)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    if waits:
        assert ends.wait(240)
        assert "gloo goes on waiting for a rank that has died" in capfd.readouterr().err
        return
    wait_for(lambda: len(aborted) > 20, "a while")
    assert not ends.is_set()
    member.repair = sys.exit
    thread.join(240)
    assert not thread.is_alive()


def test_what_is_not_protected_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    stage.why = "the batches of ranks follow measurements"
    stage.guarded(lambda: stage.why)
    stage.guard.began()
    for _ in range(3):
        stage.step()
    said = capfd.readouterr().err
    assert said.count("ranks that die are not replaced: the batches of ranks follow") == 1


def test_a_number_of_steps_between_copies_is_refused() -> None:
    with pytest.raises(ValueError, match="copy_every_steps=0: at least 1, or None"):
        Session(copy_every_steps=0)
