"""Jobs that stay in memory while they are suspended, as the executor beside them sees it."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest
from stage import Stage
from test_local import Local, in_loop
from written import whole_lines

from hpcext.checkpointers import Checkpointer
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.launch.transparent import residence

COUNTING = str(Path(__file__).parents[1] / "launch" / "counting.py")


def steps(stage: Stage) -> list[int]:
    path = stage.path / "jobs" / "1" / "log.txt"
    lines = whole_lines(path) if path.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


async def more(stage: Stage) -> None:
    before = len(steps(stage))
    while len(steps(stage)) < before + 3:
        await asyncio.sleep(0.02)


@in_loop
async def test_on_a_full_disk_it_waits_and_nothing_is_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps its processes cannot be told of the next attempt."""
    programs = stage.path / "programs"
    programs.mkdir()
    (programs / "criu").write_text("#!/bin/sh\n# A stand-in of criu, for tests.\nexit 1\n")
    (programs / "criu").chmod(0o755)
    local = Local(stage)
    local.job(
        "1",
        sys.executable,
        COUNTING,
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        checkpoint=Checkpointer(transparent=True),
    )
    local.perform(v.Kind.START, "1", 1, alloc={"n": 1})
    await more(stage)
    local.perform(v.Kind.SUSPEND, "1", 1)
    ended = await local.heard(f.Ended, "1", 1)
    assert (ended.outcome, ended.saved) == (f.Outcome.SUSPENDED, True)
    assert ended.kept_s > 0
    done = steps(stage)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(residence, "hand_over", full)
        local.perform(v.Kind.START, "1", 2, alloc={"n": 1})
        put_off = await local.heard(f.Ended, "1", 2)
    assert put_off.outcome is f.Outcome.LOST
    assert put_off.why == "could not be started: No space left on device"
    assert steps(stage) == done
    local.perform(v.Kind.START, "1", 3, alloc={"n": 1})
    await more(stage)
    (stage.path / "stop").touch()
    completed = await local.heard(f.Ended, "1", 3)
    assert completed.outcome is f.Outcome.COMPLETED
    assert steps(stage) == list(range(len(steps(stage))))
