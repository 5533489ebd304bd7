"""The script of a pilot's batch job, and a manager in it that has only just begun."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcext.backends import batch_job

MANAGER = """#!/bin/sh
kill -{signal} $PPID
sleep 1
echo lived
"""
"""It does not listen yet, as Python that imports; its script hears of something meanwhile."""


@pytest.mark.parametrize("notice", ["USR1", "USR2"])
def test_a_notice_does_not_end_a_manager_that_does_not_listen_yet(
    tmp_path: Path, notice: str
) -> None:
    """Slurm may send that of --signal a minute early, to a script that has just begun."""
    manager = tmp_path / "manager"
    manager.write_text(MANAGER.format(signal=notice))
    manager.chmod(0o755)
    script = batch_job.write_script(tmp_path, hpcext=[str(manager)])
    ended = subprocess.run(["sh", str(script)], stdout=subprocess.PIPE, text=True, check=False)
    assert (ended.stdout, ended.returncode) == ("lived\n", 0)
