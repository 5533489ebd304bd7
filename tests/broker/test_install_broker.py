"""``hpcext-admin install broker``: what it puts in place, what it refuses, how it goes again."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from running_doors import Running

from hpcext.admin import broker
from hpcext.broker.settings import load
from hpcext.cli import admin
from hpcext.config import Settings
from hpcext.doctor import broker as doctor
from hpcext.doctor.checkup import CheckOptions
from hpcext.harvest import leave

ACCOUNT = "daemon"
DIRECTORIES = {"usr": "usr", "conf-dir": "etc", "unit-dir": "units"}
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="what is root's is what is tested")


class Target(NamedTuple):
    """Directories of an imaginary machine, and how a command of ours ended there."""

    top: Path
    run: Callable[..., tuple[int, str, str]]

    @property
    def settings(self) -> Path:
        return self.top / "etc" / "broker.toml"

    @property
    def unit(self) -> Path:
        return self.top / "units" / "hpcext-broker.service"

    @property
    def state(self) -> Path:
        return self.top / "state"

    def tree(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.top)): path.read_bytes() if path.is_file() else b""
            for path in sorted(self.top.rglob("*"))
        }

    def install(self, *words: str, account: str = ACCOUNT) -> tuple[int, str, str]:
        named = {**DIRECTORIES, "state-dir": "state"}
        where = [f"--{flag}={self.top / name}" for flag, name in named.items()]
        program = f"--broker={self.top / 'hpcext-broker'}"
        return self.run("install", "broker", *where, program, f"--account={account}", *words)

    def uninstall(self, *words: str) -> tuple[int, str, str]:
        return self.run("uninstall", "broker", "--usr", str(self.top / "usr"), *words)

    def status(self) -> tuple[int, str, str]:
        return self.run("status", "broker", "--usr", str(self.top / "usr"))


@pytest.fixture
def target(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    # Not tmp_path: everybody must be able to reach the program.
    top = Path(tempfile.mkdtemp(prefix="hpcext-install-"))
    top.chmod(0o755)
    for name in ("usr", "etc", "units"):
        (top / name).mkdir(mode=0o755)
    (top / "hpcext-broker").write_text("#!/bin/sh\n")
    (top / "hpcext-broker").chmod(0o755)
    monkeypatch.setattr(leave, "SOCKET", top / "socket")

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = admin.main(words)
        return (code, *capsys.readouterr())

    yield Target(top, run)
    shutil.rmtree(top)


def test_a_dry_run_says_what_is_done_and_does_nothing(target: Target) -> None:
    before = target.tree()
    code, said, _ = target.install("--partition=p", "--dry-run", "--json")
    assert (code, target.tree()) == (0, before)
    planned = [(each["do"], each["path"]) for each in json.loads(said)["files"]]
    assert planned == [
        ("write", str(target.settings)),
        ("write", str(target.unit)),
        ("make", str(target.state)),
    ]
    assert target.install("--partition=p")[0] == 0
    new = target.tree().keys() - before.keys()
    files = {str(target.top / name) for name in new if (target.top / name).is_file()}
    manifest = target.top / "usr/lib/hpcext/broker/manifest.json"
    assert files == {str(target.settings), str(target.unit), str(manifest)}


def test_what_is_installed_is_what_a_broker_needs(target: Target) -> None:
    assert target.install("--partition=preemptible")[0] == 0
    found = load(target.settings)
    assert (found.partition, found.state_dir, found.batch) == ("preemptible", target.state, "slurm")
    assert found.everybody.limit is None
    unit = target.unit.read_text()
    start = f"ExecStart={target.top}/hpcext-broker run --file {target.settings}\n"
    for line in (f"User={ACCOUNT}\n", start, f"ReadWritePaths={target.state}\n"):
        assert unit.count(line) == 1
    account = pwd.getpwnam(ACCOUNT)
    state, settings, service = (
        path.stat() for path in (target.state, target.settings, target.unit)
    )
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (*account[2:4], 0o700)
    assert (settings.st_uid, settings.st_gid) == (0, account.pw_gid)
    assert settings.st_mode & 0o777 == 0o640
    assert (service.st_uid, service.st_mode & 0o777) == (0, 0o644)
    read = subprocess.run(
        ["cat", target.settings], user=ACCOUNT, group=ACCOUNT, extra_groups=[], check=True
    )
    assert read.returncode == 0
    others = subprocess.run(
        ["cat", target.settings], user=65534, group=65534, extra_groups=[], check=False
    )
    assert others.returncode != 0


def test_systemd_finds_nothing_wrong_with_the_unit(target: Target) -> None:
    verify = shutil.which("systemd-analyze")
    assert verify is not None, "make test-environment installs it"
    assert target.install("--partition=p")[0] == 0
    done = subprocess.run(
        [verify, "verify", target.unit], capture_output=True, text=True, check=False
    )
    about_ours = [line for line in done.stderr.splitlines() if target.unit.name in line]
    assert (done.returncode, about_ours) == (0, [])


def test_twice_is_once_and_uninstall_leaves_nothing(target: Target) -> None:
    before = target.tree()
    assert target.install("--partition=p")[0] == 0
    once = target.tree()
    # The partition is that of the settings.
    for words in (("--partition=p",), ()):
        code, said, _ = target.install(*words, "--json")
        assert code == 0
        assert {each["do"] for each in json.loads(said)["files"]} == {"keep"}
        assert target.tree() == once
    assert target.install("--partition=q")[0] == 0
    assert load(target.settings).partition == "q"
    code, _, _ = target.uninstall("--dry-run")
    assert code == 0
    assert target.unit.exists()
    assert target.uninstall()[0] == 0
    assert target.tree() == before
    code, _, error = target.uninstall()
    assert code == 2
    assert error.count("\n") == 1
    assert "nothing is installed; give the --usr" in error


def test_an_upgrade_needs_no_options_again(target: Target) -> None:
    """Account, directory and partition are those of what is there."""
    target.install("--partition=p")
    once = target.tree()
    where = [f"--{flag}={target.top / name}" for flag, name in DIRECTORIES.items()]
    program = f"--broker={target.top / 'hpcext-broker'}"
    assert target.run("install", "broker", *where, program)[0] == 0
    assert target.tree() == once


def test_edited_settings_are_the_sites(target: Target) -> None:
    target.install("--partition=p")
    text = target.settings.read_text() + "[users.ann]\nweight = 3\n"
    target.settings.write_text(text)
    code, said, _ = target.install("--partition=p")
    assert code == 0
    assert f"{target.settings} was edited, and stays as it is" in said
    code, _, error = target.install("--partition=q")
    assert code == 2
    assert error == (
        f"hpcext: {target.settings}: has p, and --partition is q; change that file, or give "
        "--partition p\n"
    )
    target.settings.write_text(text + "weigth = 3\n")
    code, _, error = target.install()
    assert code == 2
    assert "weigth" in error
    assert error.count("\n") == 1
    target.settings.write_text(text)
    (target.state / "journal.jsonl").write_text("what was decided\n")
    assert target.uninstall()[0] == 0
    left = {"etc", "etc/broker.toml", "hpcext-broker", "state", "state/journal.jsonl"}
    assert target.tree().keys() == left | {"units", "usr"}
    assert target.settings.read_text() == text
    # And they hold for the next installation.
    assert target.install()[0] == 0
    assert target.settings.read_text() == text


def test_commands_of_the_manual_and_the_page_work(target: Target) -> None:
    manual = (ROOT / "man" / "hpcext-admin.8.rst").read_text()
    page = (ROOT / "docs" / "broker.md").read_text()
    shown = re.findall(r"^    \$ hpcext-admin (\w+ broker.*)", manual, re.M)
    shown += re.findall(r"^# hpcext-admin (\w+ broker.*)", page, re.M)
    assert len(shown) == 5
    for line in shown:
        verb, _, *words = line.split()
        run = {"install": target.install, "status": target.status}[verb]
        # It is not started, as its status says.
        assert run(*words)[0] == (verb == "status"), line
    assert load(target.settings).partition == "preemptible"


def test_what_the_service_would_lack_is_said(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"PATH={broker.SERVICE_PATH}\n" in (broker.unit(broker.Site()).decode())
    monkeypatch.setattr(broker, "PROGRAMS", {"slurm": "sh", "lsf": "no-such-program"})
    _, said, _ = target.install("--partition=p")
    assert "systemctl edit" not in said
    assert "cannot read it" not in said
    _, said, _ = target.install("--batch=lsf", "--dry-run", "--partition=p")
    assert "no-such-program is not in /usr/local/bin:/usr/bin:/bin: systemctl edit" in said
    assert "sacctmgr" not in said
    # As an editor may leave it that writes a file of its own.
    target.settings.write_text(target.settings.read_text() + "[users.ann]\nweight = 3\n")
    os.chown(target.settings, 0, 0)
    _, said, _ = target.install()
    assert f"{ACCOUNT} cannot read it: chgrp to its group, and chmod 640" in said


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "--partition: no partition (valid: the one that harvesters use)"),
        (("--partition=a b",), "--partition: 'a b' (valid: one name)"),
        (("--partition=a\nb",), "(valid: one name)"),
        (("--partition=p", "--account=root"), "--account root: is root, and the broker needs no"),
        (("--partition=p", "--account=nobody"), "--account nobody: is an account of others, too"),
        (("--partition=p", "--account=no-such"), "--account no-such: no such account; make it:"),
        (("--partition=p", "--account=a b"), "--account: 'a b' (valid: the name of an account)"),
        (("--partition=p", "--state-dir=x"), "--state-dir: x (valid: an absolute path"),
        (("--partition=p", "--broker=/none"), "/none: no such command; give its absolute path"),
        (("--partition=p", "--unit-dir=/tmp/a b"), "/tmp/a b (valid: letters, digits and"),
    ],
)
def test_wrong_use_is_one_line(target: Target, words: tuple[str, ...], line: str) -> None:
    before = target.tree()
    code, _, error = target.install(*words)
    assert code == 2
    assert line in error
    assert error.count("\n") == 1
    assert target.tree() == before


def test_a_directory_of_somebody_else_is_refused(target: Target) -> None:
    target.state.mkdir()
    code, _, error = target.install("--partition=p")
    assert code == 2
    assert f"{target.state}: belongs to uid 0 (valid: a directory of {ACCOUNT})" in error
    target.state.rmdir()
    target.state.symlink_to(target.top / "etc")
    code, _, error = target.install("--partition=p")
    assert (code, "is no directory" in error) == (2, True)
    assert not target.unit.exists()


def test_a_path_that_others_can_change_is_refused(target: Target) -> None:
    (target.top / "units").chmod(0o777)
    code, _, error = target.install("--partition=p")
    assert code == 2
    assert f"{target.top / 'units'}: others can write to it" in error
    (target.top / "units").chmod(0o755)
    target.unit.write_text("of the site")
    code, _, error = target.install("--partition=p")
    assert code == 2
    assert f"{target.unit}: is in the way" in error


def test_a_package_is_built_below_a_prefix(target: Target) -> None:
    root = target.top / "root"
    words = ("install", "broker", "--prefix", str(root), "--partition=p")
    assert target.run(*words, "--account=made-by-the-package")[0] == 0
    unit = (root / "etc/systemd/system/hpcext-broker.service").read_text()
    assert "ExecStart=/usr/local/bin/hpcext-broker run --file /etc/hpcext/broker.toml" in unit
    assert "User=made-by-the-package\n" in unit
    # systemd makes it where the package is installed.
    assert "StateDirectory=hpcext-broker\n" in unit
    assert not (root / "var").exists()
    assert str(root) not in unit
    assert target.run("status", "broker", "--prefix", str(root))[0] == 0
    assert target.run("uninstall", "broker", "--prefix", str(root))[0] == 0
    assert [path for path in root.rglob("*") if path.is_file()] == []
    code, _, error = target.run(*words, "--account=root")
    assert (code, "is root" in error) == (2, True)


def test_status_and_doctor_say_whether_it_answers(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert target.status()[0] == 1
    target.install("--partition=p")
    socket = target.top / "run" / "socket"
    text = target.settings.read_text().replace("batch =", f'socket = "{socket}"\nbatch =')
    target.settings.write_text(text)
    code, said, _ = target.status()
    assert code == 1
    assert f"edited  {target.settings}" in said
    assert "systemctl enable --now hpcext-broker" in said
    asked = CheckOptions(Settings(broker=str(socket)))
    [finding] = doctor.check(asked)
    assert (finding.verdict, "is not there" in finding.says) == ("wrong", True)
    document = {"users": [], "decides": True, "partition": "p", "nodes": 3}
    monkeypatch.setattr(Running, "_reply", lambda self, peer, message: document)
    socket.parent.mkdir(mode=0o755)
    running = Running(socket)
    try:
        assert target.status()[0] == 0
        [finding] = doctor.check(asked)
        assert (finding.verdict, finding.says) == (
            "ok",
            f"{socket} answers: it divides 3 nodes of p",
        )
        document["decides"] = False
        [finding] = doctor.check(asked)
        assert finding.verdict == "note"
        code, _, error = target.uninstall()
        assert code == 2
        assert f"{socket}: the broker runs; systemctl disable --now hpcext-broker" in error
        assert target.unit.exists()
    finally:
        running.end()
    target.unit.write_text("changed\n")
    code, said, _ = target.status()
    assert (code, f"changed  {target.unit}" in said) == (1, True)


def test_doctor_knows_a_machine_without_a_broker(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    [finding] = doctor.check(CheckOptions(None))
    assert (finding.verdict, "by the queue" in finding.says) == ("ok", True)
    monkeypatch.setattr(doctor, "UNIT", target.unit)
    target.install("--partition=p")
    [finding] = doctor.check(CheckOptions(None))
    assert (finding.verdict, "one is installed" in finding.says) == ("note", True)
