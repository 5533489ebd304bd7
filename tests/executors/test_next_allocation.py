"""What had not begun when its allocation ended, in the next one, which has other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage import Stage
from test_local import Local, in_loop, op

from hpcext.backends.lsf.script import LsfScript
from hpcext.backends.slurm.script import SlurmScript
from hpcext.backends.slurm.steps import Share, SlurmSteps
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.attempt.surroundings import Surroundings

ON_NODE: dict[str, Any] = {"node": v.Node("new", 4), "indices": (0, 1, 2, 3)}
KINDS: dict[str, Callable[..., Any]] = {
    "slurm-script": lambda **common: SlurmScript(number=7, **ON_NODE, **common),
    "lsf-script": lambda **common: LsfScript(**ON_NODE, **common),
    "slurm-steps": lambda **common: SlurmSteps(
        number=7, shares={"new": Share(4, 8, 0)}, addresses={}, **common
    ),
}


@pytest.fixture(autouse=True)
def no_batch_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None answers here, but no step is left, and no node lost."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(SlurmSteps, "_end_step", lambda *_: False)
    monkeypatch.setattr(SlurmSteps, "_lost_nodes", lambda *_: [])


def in_next(stage: Stage, kind: str) -> Local:
    """A manager in the second allocation of a job."""
    local = Local(stage)
    local.executor.close()
    local.executor = KINDS[kind](
        directory=local.jobs,
        spec=local.specs.__getitem__,
        emit=local._emit,
        loop=asyncio.get_running_loop(),
        lead_s=600.0,
        job_id=7,
        restarts=1,
    )
    local.job("1", *stage.plain("short"))
    return local


def begun(local: Local, allocation: str) -> v.Action:
    """The first attempt of a job, of which all was written down and nothing begun."""
    action = v.Action(v.Kind.START, "1", op("1", 1), 1, {"old": 1})
    where = Surroundings(gpus=["old:0"], notices=True, allocation=allocation)
    AttemptFiles(local.jobs, action).write_launch(local.specs["1"], action.alloc, where)
    return action


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_it_does_not_begin_there(stage: Stage, kind: str) -> None:
    """Its nodes are lost, and the engine starts the job again."""
    local = in_next(stage, kind)
    try:
        local.executor.perform(begun(local, "7.0"))
        ended = await local.heard(f.Ended, "1")
    finally:
        local.executor.close()
    assert ended.outcome is f.Outcome.EVICTED
    assert not local.said("importing", "1")


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_what_was_not_even_written_down_is_not_started_on_lost_nodes(
    stage: Stage, kind: str
) -> None:
    local = in_next(stage, kind)
    try:
        local.executor.perform(v.Action(v.Kind.START, "1", op("1", 1), 1, {"old": 1}))
        ended = await local.heard(f.Ended, "1")
    finally:
        local.executor.close()
    assert ended.outcome is f.Outcome.LOST
    assert ended.why.startswith("could not be started: ")
    assert local.kinds("1") == [f.Ended]


@in_loop
async def test_in_the_same_allocation_it_does(stage: Stage) -> None:
    local = in_next(stage, "slurm-script")
    try:
        local.executor.perform(begun(local, "7.1"))
        ended = await local.heard(f.Ended, "1")
    finally:
        local.executor.close()
    assert ended.outcome is f.Outcome.COMPLETED
    assert local.said("importing", "1")
