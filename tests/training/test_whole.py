"""A session that is not given all of a training says so before anything is lost."""

from __future__ import annotations

import copy
import gc
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import Suspensions
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR, StepLR

from hpcext.training.checkpoint import CheckpointError
from hpcext.training.session import Session as PlainSession
from hpcext.training.torch import Session


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def adam(*models: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for model in models for each in model.parameters()])


def train(session: Session, step: Callable[[torch.Tensor], object]) -> int:
    for _ in session.epochs(1):
        for x in session.batches([torch.ones(2, 3)] * 3):
            step(x)
    return session.step


def stepping(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> Callable[..., None]:
    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


class Both:
    """A user's own object with the state of everything."""

    def __init__(self, model: torch.nn.Module, **more: Any) -> None:
        self.parts = {"model": model, **more}

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, each in self.parts.items():
            each.load_state_dict(state[name])


# At construction.


def test_an_optimizer_without_its_model_is_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match=r"trains 4 of its 4 parameters .* unsaved=\[...\]"):
        Session(optimizer=adam(model))


def test_a_model_that_is_another_one_is_refused() -> None:
    model, head = network(), torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="trains 4 of its 4 parameters"):
        Session(model=copy.deepcopy(model), optimizer=adam(model))
    with pytest.raises(ValueError, match=r"trains 2 of its 6 .*float32\(1, 2\)"):
        Session(model=model, optimizer=adam(model, head))


def test_it_can_be_meant() -> None:
    model, head = network(), torch.nn.Linear(2, 1)
    optimizer = adam(model, head)
    for unsaved in (head, [head], {head}, [head.weight, head.bias], True):
        Session(model=model, optimizer=optimizer, unsaved=unsaved)


def test_what_saves_the_parameters_in_another_way_is_accepted() -> None:
    model = network()
    w = torch.zeros(3, requires_grad=True)
    tied = torch.nn.Linear(2, 2)
    tied_too = torch.nn.Linear(2, 2)
    tied_too.weight = tied.weight
    Session(model=torch.compile(model), optimizer=adam(model))
    Session(all=Both(model), optimizer=adam(model))
    Session(w=w, model=model, optimizer=torch.optim.Adam([w, *model.parameters()]))
    Session(model=torch.nn.ModuleList([tied, tied_too]), optimizer=adam(tied, tied_too))
    Session(model=model, average=torch.optim.swa_utils.AveragedModel(model), optimizer=adam(model))
    frozen, part = network(), network()
    Session(frozen=frozen, model=part, optimizer=torch.optim.SGD(part[0].parameters(), lr=1.0))


def test_a_state_dict_is_refused_where_an_object_is_wanted() -> None:
    model = network()
    optimizer = adam(model)
    states = [
        model.state_dict(),
        optimizer.state_dict(),
        StepLR(optimizer, 1).state_dict(),
        {"model": model.state_dict()},
        [*model.parameters()],
        tuple(model.state_dict().values()),
    ]
    for state in states:
        with pytest.raises(TypeError, match="a copy, so nothing can be restored"):
            Session(thing=state)


def test_arrays_that_cannot_be_put_back_are_refused() -> None:
    array = np.zeros(2)
    with pytest.raises(TypeError, match="a list is a copy"):
        PlainSession(weights=array.tolist())
    array.flags.writeable = False
    with pytest.raises(TypeError, match="the array is read-only"):
        PlainSession(weights=array)


def test_a_scheduler_that_is_not_given_is_refused() -> None:
    model = network()
    optimizer = adam(model)
    first, second = StepLR(optimizer, 1), StepLR(optimizer, 2)
    both = SequentialLR(optimizer, [first, second], [3])
    with pytest.raises(ValueError, match=r"SequentialLR that sets the learning rate of Adam"):
        Session(model=model, optimizer=optimizer)
    Session(model=model, optimizer=optimizer, schedule=both)
    Session(model=model, optimizer=optimizer, all=Both(model, schedule=both))
    Session(model=model, optimizer=optimizer, unsaved=both)
    other = adam(model)
    plateau = ReduceLROnPlateau(other)
    with pytest.raises(ValueError, match="ReduceLROnPlateau"):
        Session(model=model, optimizer=other)
    del plateau
    Session(model=model, optimizer=other)


def test_an_option_that_is_misspelt_is_one_error(tmp_path: Path) -> None:
    """And nothing of it goes on at exit."""
    text = (
        "from hpcext.training.torch import Session\n"
        f"Session(checkpoint_dir={str(tmp_path)!r}, checkpoint_every=10)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "AttributeError" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.endswith("no such option; did you mean checkpoint_every_s?")


# At the first step.


def test_an_optimizer_that_steps_and_is_not_given_is_refused(tmp_path: Path) -> None:
    model = network()
    optimizer = adam(model)
    with pytest.raises(ValueError, match="Adam makes steps but is not given"):
        train(Session(model=model, checkpoint_dir=tmp_path), stepping(model, optimizer))
    assert not list(tmp_path.glob("step-*"))
    meant = Session(model=model, unsaved=optimizer)
    assert train(meant, stepping(model, optimizer)) == 3
    assert train(Session(all=Both(model, o=optimizer)), stepping(model, optimizer)) == 3
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(Session(model=model), stepping(model, plain)) == 3, "has nothing to lose"


def test_what_begins_to_step_later_ends_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network()
    first, late = adam(model), adam(model)
    session = Session(model=model, optimizer=first, checkpoint_dir=tmp_path)

    def step(x: torch.Tensor) -> None:
        optimizers = (first, late) if session.step else (first,)
        stepping(model, *optimizers)(x)

    assert train(session, step) == 3
    # It trains what one that is given does: a wrapper, as far as can be seen.
    assert not capsys.readouterr().err
    head = torch.nn.Linear(3, 1)
    other = adam(head)
    session = Session(model=model, head=head, optimizer=first, checkpoint_dir=tmp_path / "b")

    def two(x: torch.Tensor) -> None:
        stepping(model, first)(x)
        if session.step:
            stepping(head, other)(x)

    assert train(session, two) == 3
    assert capsys.readouterr().err.count("Adam makes steps but is not given") == 1


def test_a_scheduler_made_after_the_session_is_refused() -> None:
    model = network()
    optimizer = adam(model)
    session = Session(model=model, optimizer=optimizer)
    schedule = StepLR(optimizer, 1)
    with pytest.raises(ValueError, match=r"StepLR .* make it before the session"):
        train(session, stepping(model, optimizer))
    assert schedule.last_epoch == 0


def test_all_objects_of_the_process_are_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the session is made, and after the first step, for any number of optimizers."""
    looks: list[int] = []
    every = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: looks.append(1) or every())
    model = network()
    first, second = adam(model[0]), adam(model[1])
    train(Session(model=model, first=first, second=second), stepping(model, first, second))
    assert len(looks) == 2


def test_a_gradient_scaler_that_is_not_given_is_refused() -> None:
    model = network()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu")

    def step(x: torch.Tensor) -> None:
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    with pytest.raises(ValueError, match="the GradScaler is not given"):
        train(Session(model=model, optimizer=optimizer), step)
    assert train(Session(model=model, optimizer=optimizer, scaler=scaler), step) == 3


# Loaders that draw their order from a generator of their own.


def shuffled(generator: torch.Generator) -> torch.utils.data.DataLoader[int]:
    data: Any = range(8)
    return torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, generator=generator)


def drawn(session: Session, generator: torch.Generator) -> list[int]:
    loader, seen = shuffled(generator), []
    for _ in session.epochs(2):
        for samples in session.batches(loader):
            seen += samples.tolist()
    return seen


def test_a_generator_of_a_loader_that_is_not_given_is_refused() -> None:
    generator = torch.Generator()
    with pytest.raises(ValueError, match="order of its samples from a torch"):
        drawn(Session(model=network()), generator)
    assert len(drawn(Session(model=network(), generator=generator), generator)) == 16
    assert len(drawn(Session(model=network(), unsaved=generator), generator)) == 16
    assert len(drawn(Session(model=network(), unsaved=True), generator)) == 16


def test_a_generator_that_is_given_goes_on_in_mid_epoch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    suspensions = Suspensions(monkeypatch)
    seen: list[int] = []

    def train(path: Path | None, stop_at: int = -1) -> list[int]:
        generator = torch.Generator().manual_seed(5)
        session = Session(model=network(), generator=generator, checkpoint_dir=path)
        loader = shuffled(generator)
        before = len(seen)
        for _ in session.epochs(2):
            for samples in session.batches(loader):
                seen.extend(samples.tolist())
                if session.step == stop_at:
                    suspensions.request()
        return seen[before:]

    whole = train(None)
    with suspensions.expected():
        train(tmp_path, stop_at=5)
    train(tmp_path)
    assert seen[16:] == whole


def test_a_generator_of_a_training_of_an_earlier_release_ends_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    generator = torch.Generator()
    drawn(Session(model=network(), unsaved=generator, checkpoint_dir=tmp_path), generator)
    session = Session(model=network(), checkpoint_dir=tmp_path)
    for _ in session.epochs(3):
        assert len([*session.batches(shuffled(generator))]) == 4
    assert capsys.readouterr().err.count("torch.Generator that the session is not given") == 1


# Gradients that are kept from one turn to the next.


def test_gradients_that_turns_accumulate_are_said_to_be_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = network()
    optimizer = adam(model)
    session = Session(model=model, optimizer=optimizer)

    def step(x: torch.Tensor) -> None:
        model(x).square().sum().backward()
        if session.step % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

    assert train(session, step) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "make all passes of a step in one turn, by accumulated(loader, count)" in said


def test_gradients_of_other_loops_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    model, other = network(), network()
    optimizer, of_other = adam(model), adam(other)
    scaler = torch.amp.GradScaler("cpu")

    def in_turns(x: torch.Tensor) -> None:
        # As in a GAN: the gradients of the other model are not used in this turn.
        model(other(x)[:, :1].expand(-1, 3)).square().sum().backward()
        optimizer.step()

    def overflowing(x: torch.Tensor) -> None:
        scaler.scale(model(x).sum() * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()

    both = {"model": model, "other": other, "optimizer": optimizer, "of_other": of_other}
    assert train(Session(**both), in_turns) == 3
    session = Session(model=model, optimizer=optimizer, scaler=scaler)
    assert train(session, overflowing) == 3
    optimizer.zero_grad()
    assert train(Session(model=model, optimizer=optimizer), lambda _: None) == 3
    assert not capsys.readouterr().err


# What does not fit.


class Fails:
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.error:
            raise self.error


def test_another_kind_of_optimizer_is_a_clear_error(tmp_path: Path) -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(Session(model=model, optim=sgd, checkpoint_dir=tmp_path), stepping(model, sgd))
    with pytest.raises(CheckpointError) as caught:
        Session(model=model, optim=adam(model), checkpoint_dir=tmp_path)
    said = str(caught.value)
    assert said.startswith(str(tmp_path))
    assert "the state of 'optim' does not fit: it is the state of another optimizer" in said
    assert "betas" in said
    assert "another checkpoint directory" in said
    Session(
        model=model,
        optim=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        checkpoint_dir=tmp_path,
    )


@pytest.mark.parametrize("error", [KeyError("betas"), IndexError("3"), AssertionError("no")])
def test_whatever_an_object_raises_says_which_it_was(tmp_path: Path, error: Exception) -> None:
    for _ in PlainSession(thing=Fails(None), checkpoint_dir=tmp_path).epochs(0):
        pass
    with pytest.raises(CheckpointError, match=f"'thing' does not fit: {type(error).__name__}: "):
        PlainSession(thing=Fails(error), checkpoint_dir=tmp_path)


# A loop that is none of the session's.


def test_reports_without_a_loop_over_batches_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = PlainSession(weights=np.zeros(2), checkpoint_dir=tmp_path)
    for turn in range(5):
        session.report(loss=turn)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "nothing is saved, and the job cannot be suspended" in said


def test_reports_that_come_of_no_loop_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = PlainSession(weights=np.zeros(2), checkpoint_dir=tmp_path)
    session.report(before=1.0)
    session.report(accuracy=0.5, loss=1.0)
    for _ in session.validation(range(3)):
        session.report(loss=1.0)
    for _ in session.epochs(2):
        for _ in session.batches(range(3)):
            session.report(loss=1.0)
        session.report(accuracy=0.5)
    session.report(accuracy=0.5)
    assert not capsys.readouterr().err
