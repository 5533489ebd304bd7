"""What others put in the way of a manager and its user: real files, real uids, real managers."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parsers import START
from site_of_test import Site, wait_for

from hpcext import config, protocol
from hpcext.cli import main as cli
from hpcext.core.errors import HpcextError
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.manager import pilot as pilots
from hpcext.manager import spool

SOMEBODY = 65534
"""Another user."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")


@pytest.fixture
def open_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A place that others can reach, as pytest's own directories cannot be."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        site = Site(Path(name))
        yield site
        for manager in site.started:
            manager.kill()
            manager.wait()
        site.kill_left_behind()


def by_somebody(do: Callable[[], object]) -> str:
    """Do something as another user, in a fork; the error, or nothing."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = ""
        try:
            os.setgroups([])
            os.setresgid(SOMEBODY, SOMEBODY, SOMEBODY)
            os.setresuid(SOMEBODY, SOMEBODY, SOMEBODY)
            do()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def running(site: Site) -> None:
    """A manager with a job that makes steps."""
    site.write_jobs(site.counter("one", steps=100_000, step_s=0.02))
    site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("one"), "a step")


@as_root
def test_another_users_pilot_can_neither_be_read_nor_asked(open_site: Site) -> None:
    running(open_site)
    pilot, state = open_site.pilot, open_site.path / "state" / "hpcext"
    assert "PermissionError" in by_somebody(lambda: os.listdir(pilot))
    for name in ("journal.jsonl", "jobs/1/log.txt", "manager.json"):
        assert "PermissionError" in by_somebody((pilot / name).read_bytes)
    refused = by_somebody(lambda: spool.ask(pilot, "cancel", job="one"))
    assert refused == (
        f"InputError: {pilot}: belongs to uid 0, and you are uid {SOMEBODY}; "
        "only its owner may use a pilot"
    )
    assert "InputError" in by_somebody(lambda: spool.check_private(pilot))
    assert "NoManagerError" in by_somebody(lambda: pilots.load(pilot))
    assert "PermissionError" in by_somebody(lambda: os.listdir(state / "pilots"))
    assert open_site.run("cancel", str(pilot), "one").code == 0


@as_root
def test_a_request_of_somebody_else_is_not_done(open_site: Site) -> None:
    """Even where a user has opened the directory to all: whose file it is decides."""
    running(open_site)
    requests = open_site.pilot / "requests"
    for directory in (open_site.pilot, requests):
        directory.chmod(0o777)
    request = requests / "theirs.json"

    def ask() -> None:
        cancel = {"schema": spool.REQUEST, "verb": "cancel", "job": "one"}
        request.write_text(json.dumps(cancel))

    assert by_somebody(ask) == ""
    wait_for(lambda: not request.exists(), "its removal")
    assert "other users may enter it" in open_site.run("status", str(open_site.pilot)).err
    for directory in (open_site.pilot, requests):
        directory.chmod(0o700)
    (job,) = open_site.document("status", str(open_site.pilot))["jobs"]
    assert job["state"] == "running"
    assert open_site.run("cancel", str(open_site.pilot), "one").code == 0


@as_root
@pytest.mark.parametrize("owner", [0, SOMEBODY])
def test_a_settings_file_of_a_site_must_be_roots_alone(tmp_path: Path, owner: int) -> None:
    site = tmp_path / "hpcext.toml"
    site.write_text("gpus = 1\n")
    os.chown(site, owner, 0)
    site.chmod(0o644 if owner else 0o666)
    with pytest.raises(HpcextError, match="valid: owned by root and writable by root alone"):
        config.read_file(site, must_be_roots=True)
    os.chown(site, 0, 0)
    site.chmod(0o644)
    assert config.read_file(site, must_be_roots=True) == {"gpus": 1}


HOSTILE = {
    "SPANK_HPCEXT_SUSPENDABLE": "$(touch planted)\n\x1b[2J",
    "_SLURM_SPANK_OPTION_hpcext_suspendable": "'; touch planted; '",
    "HPCEXT_PROTOCOL": "99",
    "HPCEXT_JOB_ID": "../../../planted",
    "HPCEXT_ATTEMPT": "-1",
    "HPCEXT_OP": "1e999",
    "HPCEXT_REPORT_DIR": "/proc/1",
    "HPCEXT_CHECKPOINT_DIR": "/dev/null",
    "HPCEXT_NOTIFY": "pid:1:1",
    "HPCEXT_NUM_GPUS": "9" * 400,
    "HPCEXT_RENDEZVOUS": "file:/dev/null",
    "LSB_JOBID": "9" * 400,
    "LSB_MCPU_HOSTS": "a 999999999999 b -1",
    "LSB_DJOB_HOSTFILE": "/dev/zero/none",
    "LSB_JOBFILENAME": "/etc/\x1b[2J",
    "SLURM_JOB_ID": "\u0663",
    "SLURM_STEP_GPUS": "0,-1,,9999999999",
}
"""Variables as a user, or another job above this one, may have set them."""


def test_a_job_in_a_hostile_environment_gets_its_own_variables(site: Site) -> None:
    site.environ |= HOSTILE
    site.write_jobs(site.counter("one", steps=5))
    ended = site.run("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    assert ended.code == 0, ended
    assert [step.step for step in site.steps("one")] == [1, 2, 3, 4, 5]
    assert "\x1b" not in ended.out + ended.err
    assert not list(site.path.rglob("planted"))


@pytest.mark.parametrize(
    "name",
    [
        "../../planted",
        "/planted",
        "a/b",
        "..",
        ".",
        "",
        "-rf",
        "a\nb",
        "\x1b[2J",
        "n" * 65,
        " a",
        "a ",
        "\u202etxt",
        "a\u2066b",
        "a\u200bb",
        "a\u00a0b",
        "\u0301a",
        "\u3164",
        "\ufeff",
        "\ue000",
        "\u2028",
        "=1+1",
        "@a",
        "12",
        "\u0661\u0662",
        "a\x7f",
        "a\u0085",
    ],
)
def test_names_that_lead_elsewhere_or_write_on_a_terminal_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(f'[[job]]\nname = {json.dumps(name)}\ncommand = "true"\n')
    before = sorted(tmp_path.iterdir())
    assert cli.main(["run", str(jobs), "--dir", str(tmp_path / "pilot")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
    assert sorted(tmp_path.iterdir()) == before


def test_what_a_job_says_does_not_write_on_a_terminal(site: Site) -> None:
    """Its log, its metrics and its last words are shown as text."""
    script = site.path / "says.py"
    script.write_text(
        "import sys\nsys.stdout.write('\\x1b[2J\\x1b]0;owned\\x07\\u202e\\n')\n"
        "sys.exit('\\x1b[31mred')\n"
    )
    command = [sys.executable, str(script)]
    site.write_jobs({"name": "one", "command": command, "retries": 0})
    ended = site.run("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    assert ended.code == 1
    told = [ended, site.run("status", str(site.pilot)), site.run("why", str(site.pilot), "one")]
    assert not [each for each in told if "\x1b" in each.out + each.err]
    kept = site.pilot / "jobs" / "1" / "log.txt"
    assert b"\x1b[2J" in kept.read_bytes()  # it is there as it was written, for who wants it


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard link", "symbolic link"])
def test_a_report_that_is_another_file_is_not_taken_over_nor_written_to(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """A job cannot have its manager show, or replace, what the job itself may not see."""
    secret = tmp_path / "secret"
    secret.write_text('{"password": "x"}\n')
    files = AttemptFiles(tmp_path / "jobs", START)
    files.directory.mkdir(parents=True)
    for name in (protocol.REPORT_FILE, protocol.EXIT_FILE, protocol.ORDER_FILE):
        link(secret, files.directory / name)
    assert files.news() == []
    assert files.ends.ended() is None
    files.order("suspend")
    assert secret.read_text() == '{"password": "x"}\n'
    assert not (files.directory / protocol.ORDER_FILE).is_symlink()
