"""What ``hpcext suspendable`` does before Slurm is asked for anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcext.cli.main import main
from hpcext.core.engine import Engine
from hpcext.manager import pilot as pilots
from hpcext.manager import places, slurm_job
from hpcext.policies import find_policy

SLURM = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_JOB_NODELIST": "n1"}
FULL = """
mount -t tmpfs -o size=$1 none "$2"
"$3" -m hpcext suspendable -- "$4"
code=$?
find "$2" -name pilot.json
exit $code
"""


@pytest.mark.parametrize(("size", "what"), [("4k", "pilot.json"), ("8k", "slurm_script")])
def test_on_a_full_disk_it_says_so_and_leaves_no_half_made_pilot(
    tmp_path: Path, size: str, what: str
) -> None:
    """It would be found by the next allocation."""
    state = tmp_path / "state"
    state.mkdir()
    script = tmp_path / "spool" / "slurm_script"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n" + "# long\n" * 1000)
    ended = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", FULL, "sh", size, str(state), sys.executable, str(script)],
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(state), **SLURM},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"hpcext: {state}/")
    assert line.endswith(f"/{what}: No space left on device; free some space and try again")
    assert ended.stdout == ""


def test_the_shell_of_salloc_is_no_batch_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["suspendable", "--", "true"]) == 2
    assert "is for the batch script of a Slurm job, and this is none" in capsys.readouterr().err


def test_a_job_is_not_put_back_into_the_queue_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pilot = pilots.Pilot(
        id="p", name="p", policy="exclusive", node="n1", gpus=(0,), logical=True,
        report_interval_s=1.0, suspend_timeout_s=60.0, began_at=0.0, batch="slurm", alone=True,
    )  # fmt: skip
    requeued: list[int] = []
    monkeypatch.setattr(slurm_job, "requeue", requeued.append)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    for restarts, expected in ((places.MAX_RESTARTS - 1, [7]), (places.MAX_RESTARTS, [])):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        requeued.clear()
        engine = Engine(find_policy("exclusive"))
        places.find(pilot, engine, tmp_path).carry_on(gained=True)
        assert requeued == expected
