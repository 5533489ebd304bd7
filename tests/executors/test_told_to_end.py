"""What is cancelled in a batch job ends: the manager's word is no notice of the batch system."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from stage import Stage
from test_local import Local, in_loop

from hpcext.backends.lsf.script import LsfScript
from hpcext.backends.slurm.script import SlurmScript
from hpcext.core import facts as f
from hpcext.core import values as v

OF_SLURM: dict[str, Any] = {"job_id": 7, "restarts": 0, "number": 7}
OF_LSF: dict[str, Any] = {"job_id": 7, "restarts": 0}


@pytest.mark.parametrize(
    ("kind", "more"), [(SlurmScript, OF_SLURM), (LsfScript, OF_LSF)], ids=["slurm", "lsf"]
)
@in_loop
async def test_a_session_that_is_cancelled_ends_and_does_not_save_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type, more: dict[str, Any]
) -> None:
    """By SIGTERM from us it would be suspended, and one that is deaf to that would go on."""
    # No batch system answers here: how long the allocation lasts is not known.
    monkeypatch.setenv("PATH", str(tmp_path))
    local = Local(stage)
    local.executor.close()
    local.executor = kind(
        directory=local.jobs,
        node=v.Node("n", 4),
        indices=(0, 1, 2, 3),
        spec=local.specs.__getitem__,
        emit=local._emit,
        loop=asyncio.get_running_loop(),
        lead_s=600.0,
        **more,
    )
    try:
        local.start("1", "deaf")
        await local.registered("1")
        local.perform(v.Kind.KILL, "1")
        ended = await local.heard(f.Ended, "1")
        assert ended.outcome is f.Outcome.FAILED
        said = json.loads((local.directory("1") / "exit.json").read_text())
        assert not said.get("suspended")
        assert said["notice_at"] is None
    finally:
        local.executor.close()
