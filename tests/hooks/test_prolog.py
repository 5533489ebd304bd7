"""Prolog and epilog, as slurmd runs them, with what a hostile user could leave in their way."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {kind: ROOT / "spank_hooks" / kind / f"hpcext-{kind}" for kind in ("prolog", "epilog")}
NOBODY = 65534

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="slurmd runs them as root")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Where the directories of jobs are made; the one above is root's."""
    return tmp_path / "hpcext"


def start(kind: str, base: Path, **environ: str) -> subprocess.Popen[str]:
    facts = {"SLURM_JOB_ID": "77", "SLURM_JOB_UID": "1234", **environ}
    return subprocess.Popen(
        [PROGRAMS[kind], base], env=facts, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(kind: str, base: Path, **environ: str) -> None:
    """Whatever happens, the exit status is 0: else Slurm drains the node."""
    process = start(kind, base, **environ)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "")
    # There may be no syslog here.
    assert not err or re.fullmatch(f"hpcext-{kind}: \\w+: [^\n]*\n", err)


def everything(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def check_made(base: Path, job: str = "77", uid: str = "1234") -> None:
    assert everything(base / job) == ["owner"]
    assert (base / job / "owner").read_text() == f"{uid}\n"
    for path, mode in ((base, 0o755), (base / job, 0o755), (base / job / "owner", 0o444)):
        facts = path.lstat()
        assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (0, 0, mode), path


def test_a_directory_is_made_and_removed(base: Path) -> None:
    run("prolog", base)
    check_made(base)
    run("prolog", base, SLURM_JOB_ID="78", SLURM_JOB_UID="0")
    check_made(base, "78", "0")
    run("epilog", base)
    assert everything(base) == ["78", "78/owner"]


def test_run_twice_they_do_the_same(base: Path) -> None:
    run("prolog", base, SLURM_JOB_UID="1")
    run("prolog", base)  # of an earlier job of that id, whose epilog never ran
    check_made(base)
    run("epilog", base)
    run("epilog", base)
    assert everything(base) == []


def test_an_epilog_without_a_prolog_makes_nothing(base: Path) -> None:
    run("epilog", base)
    assert not base.exists()


def test_many_at_once_agree(base: Path) -> None:
    for kind in ("prolog", "epilog"):
        both = [start(kind, base) for _ in range(12)]
        assert [process.communicate() for process in both] == [("", "")] * 12
        assert {process.returncode for process in both} == {0}
        if kind == "prolog":
            check_made(base)
    assert everything(base) == []


def test_umask_and_environment_are_of_no_account(base: Path, tmp_path: Path) -> None:
    (tmp_path / "os.py").write_text("raise SystemExit(1)\n")
    old = os.umask(0o077)
    try:
        run("prolog", base, PYTHONPATH=str(tmp_path), PYTHONHOME="/nonexistent", SPANK_X="1")
    finally:
        os.umask(old)
    check_made(base)


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_UID"])
@pytest.mark.parametrize(
    "value",
    ["", "../x", "7/../..", "-1", "1 ", "1\n2", "٣", "²", "1" * 30, "0x1", ".", "4294967295"],
)
def test_a_value_that_is_not_a_number_is_refused(base: Path, name: str, value: str) -> None:
    run("prolog", base, **{name: value})
    assert not base.exists()
    if name == "SLURM_JOB_ID":
        run("prolog", base)
        run("epilog", base, SLURM_JOB_ID=value)
        check_made(base)


def test_links_are_not_followed(base: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    base.mkdir()
    (base / "77").symlink_to(victim)
    run("prolog", base)
    run("epilog", base)
    base_link = tmp_path / "link"
    base_link.symlink_to(victim)
    run("prolog", base_link)
    run("epilog", base_link)
    assert everything(victim) == ["file"]
    (base / "77").unlink()
    (base / "77").mkdir()
    (base / "77" / "owner").symlink_to(victim / "file")
    (base / "77" / "more").symlink_to(victim)
    run("prolog", base)
    assert (victim / "file").read_text() == "kept"
    assert (base / "77" / "owner").read_text() == "1234\n"
    run("epilog", base)
    assert everything(base) == []
    assert everything(victim) == ["file"]


def test_a_file_in_the_way_is_left(base: Path) -> None:
    base.mkdir()
    (base / "77").write_text("not ours")
    run("prolog", base)
    run("epilog", base)
    assert (base / "77").read_text() == "not ours"


def test_a_base_that_a_user_can_change_is_not_used(base: Path) -> None:
    base.mkdir()
    for mode, owner in ((0o777, 0), (0o770, 0), (0o755, NOBODY)):
        base.chmod(mode)
        os.chown(base, owner, 0)
        run("prolog", base)
        assert everything(base) == []
    (base / "77").mkdir()
    run("epilog", base)
    assert everything(base) == ["77"]


def test_a_directory_that_is_a_users_is_not_used(base: Path) -> None:
    (base / "77").mkdir(parents=True)
    os.chown(base / "77", NOBODY, NOBODY)
    run("prolog", base)
    assert everything(base) == ["77"]


def test_what_lies_in_it_goes_too(base: Path) -> None:
    run("prolog", base)
    (base / "77" / "a" / "b").mkdir(parents=True)
    (base / "77" / "a" / "b" / "c").write_text("x")
    os.mkfifo(base / "77" / "fifo")
    run("epilog", base)
    assert everything(base) == []


def test_what_goes_too_deep_is_left(base: Path) -> None:
    run("prolog", base)
    base.joinpath("77", *["d"] * 40).mkdir(parents=True)
    run("epilog", base)
    assert (base / "77").exists()


def test_it_ends_well_where_python_is_missing_or_too_old(base: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own, with other programs in the places of Python and logger."""
    for body in ("exit 127", "echo SyntaxError >&2; exit 1", "kill -9 $$"):
        other = tmp_path / "other"
        other.write_text(f"#!/bin/sh\n{body}\n")
        other.chmod(0o755)
        places = [Path("/usr/bin/python3").resolve(), Path("/usr/bin/logger")]
        mounts = " && ".join(f'mount --bind "{other}" "{place}"' for place in places)
        script = f'{mounts} && exec "{PROGRAMS["prolog"]}" "{base}"'
        environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77", "SLURM_JOB_UID": "1"}
        words = ["unshare", "-m", "sh", "-c", script]
        ended = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert not base.exists()


def with_dev(dev: Path, program: Path, base: Path, more: str = "true") -> str:
    """Run a program in a mount namespace of its own, with another /dev; what it says."""
    script = f'mount --bind "{dev}" /dev && {more} && exec "{program}" "{base}"'
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77", "SLURM_JOB_UID": "1"}
    words = ["unshare", "-m", "sh", "-c", script]
    ended = subprocess.run(
        words, env=environ, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=500,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0
    return ended.stderr


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_syslog_without_a_reader_does_not_block_the_node(
    base: Path, tmp_path: Path, kind: str
) -> None:
    """Its socket is full; then neither that of Python nor logger may wait for it."""
    dev = tmp_path / "dev"
    dev.mkdir()
    base.write_text("in the way")
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\nexit 127\n")
    other.chmod(0o755)
    python = Path("/usr/bin/python3").resolve()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(dev / "log"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
            full.connect(str(dev / "log"))
            with contextlib.suppress(BlockingIOError):
                while True:
                    full.send(b"x" * 1000, socket.MSG_DONTWAIT)
        # A socket in a directory that is bound is the same socket.
        said = with_dev(dev, PROGRAMS[kind], base)
        assert said.startswith(f"hpcext-{kind}: NotADirectoryError")
        with_dev(dev, PROGRAMS[kind], base, f'mount --bind "{other}" "{python}"')


def test_a_python_that_never_ends_stops_no_node(base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\nexec sleep 600\n")
    other.chmod(0o755)
    # In a second, not in twenty.
    program = tmp_path / "hpcext-prolog"
    text = PROGRAMS["prolog"].read_text()
    assert "/usr/bin/timeout --foreground -k 2 20 " in text
    program.write_text(text.replace(" -k 2 20 ", " -k 2 1 "))
    program.chmod(0o755)
    dev = tmp_path / "dev"
    dev.mkdir()
    python = Path("/usr/bin/python3").resolve()
    with_dev(dev, program, base, f'mount --bind "{other}" "{python}"')
    assert not base.exists()


def test_what_goes_wrong_is_in_syslog(base: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own, whose /dev has a socket of ours."""
    dev = tmp_path / "dev"
    dev.mkdir()
    base.write_text("in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(dev / "log"))
        log.settimeout(30)
        for kind, program in PROGRAMS.items():
            with_dev(dev, program, base)
            said = log.recv(4096).decode()
            assert f"hpcext-{kind}" in said
            assert "NotADirectoryError" in said
