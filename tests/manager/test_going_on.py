"""When a pilot whose allocation ends goes on in the next one, and with which jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcext.config import Settings
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.jobspec import Gpus, JobSpec
from hpcext.manager import pilot as pilots
from hpcext.manager import places

NODE = v.Node(pilots.host(), 1)


@dataclasses.dataclass
class Allocation:
    """One GPU until its time is over, and what becomes of what runs on it."""

    end: Callable[[v.Action], f.Fact]
    """Of an attempt that is to be suspended."""
    drained: bool = False
    """Whether its user drains the pilot first."""
    again: bool = False
    native: bool = False
    told: list[tuple[v.Kind, str]] = dataclasses.field(default_factory=list)
    gained: list[bool] = dataclasses.field(default_factory=list)
    left_s, preempted = None, False

    def executor(self, *, emit: Callable[[f.Fact], None], **_: Any) -> Allocation:
        self.emit = emit
        return self

    def perform(self, action: v.Action) -> None:
        self.told.append((action.kind, action.job))
        if action.kind is v.Kind.START:
            self.emit(f.Started(action.job, action.op, (f"{NODE.name}:0",)))
            self.emit(f.Registered(action.job, action.op, 0, native=self.native))
            if self.drained:
                self.emit(f.Drain())
            self.emit(f.Drain(suspend=True, must=True, left_s=100.0))
        else:
            self.emit(self.end(action))

    def look(self) -> None:
        """Nothing is written here."""

    def close(self) -> None:
        """Nothing to end."""

    def run(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
        """Manage the pilot in it."""
        place = places.Resources(
            (NODE,),
            self.executor,
            lambda *, gained: self.gained.append(gained),
            again=self.again,
        )
        monkeypatch.setattr(places, "find", lambda *_: place)
        return pilots.run(directory, lambda *_: None)[0]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two jobs, of which one runs at a time."""
    return pilots.create(
        [JobSpec(name, ("true",), gpus=Gpus(1, 1)) for name in ("one", "two")],
        pilots.NewPilot(name="p", gpus=(0,), logical=True, requeue=True),
        settings=Settings(policy="exclusive", state_dir=tmp_path / "state"),
        where="here",
    )


def suspended(action: v.Action, **more: Any) -> f.Ended:
    return f.Ended(action.job, action.op, f.Outcome.SUSPENDED, 85, **more)


@pytest.mark.parametrize(
    ("more", "gained"),
    [
        ({"lost_s": 0.0, "saved": True}, True),
        ({"lost_s": 60.0, "lost_exact": False}, True),
        ({"lost_s": 60.0}, False),
        ({"lost_s": 60.0, "anew": True}, False),
    ],
    ids=["saved", "unknown", "nothing newer", "nothing"],
)
def test_what_a_command_saves_by_its_own_means_is_a_gain(
    directory: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], gained: bool
) -> None:
    """It has no steps; and where nobody can say what it saved, it is believed."""
    allocation = Allocation(lambda action: suspended(action, **more), native=True)
    allocation.run(directory, monkeypatch)
    assert allocation.gained == [gained]
    # In the next allocation that is no gain any more.
    again = Allocation(lambda action: suspended(action, lost_s=60.0), native=True)
    again.run(directory, monkeypatch)
    assert again.gained == [False]


@pytest.mark.parametrize("drained", [False, True])
def test_what_is_drained_does_not_go_on_by_itself(
    directory: Path, monkeypatch: pytest.MonkeyPatch, drained: bool
) -> None:
    first = Allocation(suspended, drained=drained)
    first.run(directory, monkeypatch)
    assert len(first.gained) == (not drained)
    # As Slurm does from 24.05 on after a preemption, whatever the manager wants.
    requeued = Allocation(suspended, again=True)
    engine = requeued.run(directory, monkeypatch)
    started = [job for kind, job in requeued.told if kind is v.Kind.START]
    assert started == ([] if drained else ["1"])
    assert engine.world.drained is drained
    # As after hpcext pilot resubmit.
    resubmitted = Allocation(suspended)
    assert not resubmitted.run(directory, monkeypatch).world.drained
    assert (v.Kind.START, "1") in resubmitted.told
