"""What ``hpcext suspendable`` does before Slurm is asked for anything."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from hpcext.allocation import Allocation
from hpcext.backends.slurm import job as slurm_job
from hpcext.backends.slurm.suspend import SlurmSuspendable
from hpcext.cli.main import main
from hpcext.config import load_settings
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.manager import pilot as pilots
from hpcext.manager import places, suspendable
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


def test_that_a_package_is_missing_is_known_before_the_script_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspendable, "NEEDED", (*suspendable.NEEDED, "no_such_package"))
    here = Allocation(7, "", "n1", "n1", "1", 0, ())
    settings = load_settings({"state_dir": str(tmp_path / "state")}, environ={})
    with pytest.raises(HpcextError, match="the Python package no_such_package is missing"):
        suspendable.prepare(SlurmSuspendable(here, ["true"]), 60, settings)
    assert not (tmp_path / "state").exists()


def test_those_packages_are_the_ones_that_are_installed_with_hpcext() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")
    names = {line.split()[0] for line in lines if line and not line.startswith(("#", "tomli"))}
    # The one that is imported by another name.
    assert names - {"nvidia-ml-py"} | {"pynvml"} == set(suspendable.NEEDED)


def test_a_job_that_is_requeued_runs_plainly_where_it_has_no_manager(tmp_path: Path) -> None:
    """It was begun by hpcext, so that its script is the copy; syslog is told as well."""
    script = tmp_path / "spool" / "slurm_script"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "ran with $1"\nexit 7\n')
    told = tmp_path / "bin"
    told.mkdir()
    (told / "logger").write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{tmp_path}/told\n')
    (told / "logger").chmod(0o755)
    environ = {"PATH": f"{told}:/usr/bin:/bin", "XDG_STATE_HOME": str(tmp_path / "state"), **SLURM}
    hpcext = tmp_path / "hpcext"
    hpcext.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcext "$@"\n')
    hpcext.chmod(0o755)
    prepare = [str(hpcext), "suspendable", "--prepare", str(hpcext), "--lead", "50", "--"]
    said = subprocess.run(
        [*prepare, str(script), "a word"], env=environ, capture_output=True, text=True, check=True
    )
    becomes = Path(said.stderr.splitlines()[-1])
    first = becomes.parent / "jobs" / "1" / "attempt-0001"
    (first / "supervisor.json").write_text("{}")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "argparse.py").write_text("raise ImportError('broken')\n")
    script.unlink()
    ended = subprocess.run(
        ["/bin/sh", str(becomes)],
        env={**environ, "PYTHONPATH": str(broken)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (7, "ran with a word\n")
    line = "the job cannot be suspended: it has no manager; it runs as usual"
    assert ended.stderr.splitlines()[-1] == f"hpcext: {line}"
    assert (tmp_path / "told").read_text() == f"-t|hpcext|-p|user.warning|job 7: {line}|"


def test_what_begins_a_script_imports_nothing_slow(tmp_path: Path) -> None:
    """The script waits for it."""
    program = "import hpcext.cli.begin, sys; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    slow = {"argparse", "asyncio", "numpy", "psutil", "rich", "scipy"}
    assert not slow & set(said.stdout.split())


def test_the_shell_of_salloc_is_no_batch_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["suspendable", "--", "true"]) == 2
    assert (
        "works in the batch script of a Slurm job only, and this is not one"
        in capsys.readouterr().err
    )


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
