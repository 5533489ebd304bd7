"""The step that hears a preemption of a suspendable Slurm job, with a srun of our own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stage import Stage
from test_local import Local, in_loop

from hpcext.backends.slurm.script import SlurmScript
from hpcext.core import values as v
from hpcext.executors.walltime import Walltime

SRUNS = {
    # It is there a while after it was asked for, and then waits for the end of its input.
    "listens": '#!/bin/sh\nwhile [ ! -e "$0.go" ]; do sleep 0.05; done\necho\nexec cat\n',
    "fails": '#!/bin/sh\nwhile [ ! -e "$0.go" ]; do sleep 0.05; done\nexit 1\n',
}


@pytest.mark.parametrize(("srun", "noticed"), [("listens", False), ("fails", True)])
@in_loop
async def test_what_began_before_it_listened_is_asked_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, srun: str, noticed: bool
) -> None:
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUNS[srun])
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    looks: list[bool] = []
    looked = asyncio.Event()

    async def look(self: Walltime, *, noticed: bool = False) -> None:
        looks.append(noticed)
        looked.set()

    monkeypatch.setattr(Walltime, "look", look)
    local = Local(stage)
    local.executor.close()
    executor = SlurmScript(
        directory=local.jobs,
        node=v.Node("n", 4),
        indices=(0, 1, 2, 3),
        spec=local.specs.__getitem__,
        emit=local._emit,
        loop=asyncio.get_running_loop(),
        lead_s=600.0,
        job_id=7,
        restarts=0,
        number=7,
    )
    try:
        await looked.wait()
        # That of the begin, which may be long before the step is there.
        assert looks == [False]
        looked.clear()
        Path(f"{program}.go").touch()
        await looked.wait()
        assert looks[1:] == [noticed]
    finally:
        await asyncio.to_thread(executor.close)
