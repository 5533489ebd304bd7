"""Tests keep their state to themselves; a run that does not, fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import own_state

from hpcext.config import load_settings

TESTS = Path(__file__).parent

SLOPPY = """
import os, pathlib

def test_that_leaves_something(tmp_path):
    state = pathlib.Path.home() / ".local/state/hpcext"
    {body}
"""


def test_the_state_of_tests_is_not_the_users() -> None:
    made = Path(os.environ[own_state.MADE])
    assert load_settings().state_dir == made / "state" / "hpcext"
    assert not load_settings().state_dir.is_relative_to(Path.home() / ".local")
    # Also where only the environment is handed on.
    said = [
        sys.executable,
        "-c",
        "from hpcext import config; print(config.load_settings().state_dir)",
    ]
    assert subprocess.check_output(said, text=True).strip() == str(made / "state" / "hpcext")


def finished(tmp_path: Path, body: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A test session of a user whose home is new."""
    (tmp_path / "test_one.py").write_text(SLOPPY.format(body=body))
    ours_alone = (own_state.MADE, "XDG_STATE_HOME", "XDG_CONFIG_HOME")
    environ = {key: value for key, value in os.environ.items() if key not in ours_alone}
    environ |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(TESTS)}
    (tmp_path / "home/.local/state/hpcext/pilots").mkdir(parents=True)
    ours = ("-p", "conftest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *ours, *words, "test_one.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


def test_a_run_whose_tests_leave_a_pilot_in_the_users_list_fails(tmp_path: Path) -> None:
    ended = finished(tmp_path, "(state / 'pilots' / 'one').symlink_to(tmp_path / 'pilot')")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout
    assert "pilots/one: give them the XDG_STATE_HOME" in ended.stderr


def test_so_does_one_that_leaves_a_profile_and_has_workers(tmp_path: Path) -> None:
    body = "(state / 'job.json').write_text(str(tmp_path))"
    ended = finished(tmp_path, body, "-n", "1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "job.json: give them" in ended.stderr


def test_what_the_user_does_meanwhile_is_the_users_own(tmp_path: Path) -> None:
    ended = finished(tmp_path, "(state / 'pilots' / 'mine').symlink_to('/elsewhere/pilot')")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_other_settings_stay_as_they_are(tmp_path: Path) -> None:
    for name in ("pip", "hpcext"):
        (tmp_path / "home/.config" / name).mkdir(parents=True)
    body = "there = os.listdir(os.environ['XDG_CONFIG_HOME']); "
    body += "assert 'pip' in there and 'hpcext' not in there"
    ended = finished(tmp_path, body)
    assert ended.returncode == 0, ended.stdout + ended.stderr
