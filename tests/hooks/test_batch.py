"""hpcext-batch, which stands between Slurm and a suspendable job's script."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

MESSAGE = "hpcext: the job cannot be suspended: {}: {}; it runs as usual\n"


@pytest.fixture(scope="module")
def batch(build) -> Path:
    """Under ASan and UBSan."""
    return build("hpcext-batch", "CFLAGS=-O1 -g -fsanitize=address,undefined")


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def run(batch: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": "/usr/bin:/bin", **environ}
    return subprocess.run([batch, *args], env=given, capture_output=True, text=True, check=False)


def words_of(said: str) -> list[str]:
    return said.split("|")[:-1]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Prints its words and its environment."""
    return program(tmp_path / "slurm_script", '#!/bin/sh\nprintf \'%s|\' "$0" "$@"; env >&2\n')


ARGS = ("--", "a b", "", "$HOME;*", "--lead")


def answering(path: Path, *lines: str) -> str:
    """A stand-in of hpcext, which writes down its words first."""
    kept = f'printf \'%s|\' "$0" "$@" >{path.parent}/words; env >{path.parent}/environ'
    return str(program(path, "\n".join(["#!/bin/sh", kept, *lines, ""])))


def test_it_becomes_what_the_command_has_prepared(
    batch: Path, tmp_path: Path, script: Path
) -> None:
    """Which is a shell script that hears of signals; a remark before it is passed on."""
    becomes = program(tmp_path / "batch.sh", 'echo "became $0"; kill -USR2 $$; echo deaf\n', 0o600)
    command = answering(tmp_path / "hpcext", "echo remark >&2", f"echo {becomes} >&2")
    marks = {"HPCEXT_COMMAND": command, "HPCEXT_SCRIPT": str(script)}
    ended = run(batch, *ARGS, **marks, HPCEXT_LEAD_S="90")
    assert ended.returncode == -signal.SIGUSR2
    assert ended.stdout == f"became {becomes}\n"
    assert ended.stderr == "remark\n"
    expected = [
        command,
        "suspendable",
        "--prepare",
        command,
        "--lead",
        "90",
        "--",
        str(script),
        *ARGS,
    ]
    assert words_of((tmp_path / "words").read_text()) == expected
    environ = (tmp_path / "environ").read_text()
    assert "HPCEXT_COMMAND" not in environ
    assert "HPCEXT_SCRIPT" not in environ
    assert "HPCEXT_LEAD_S=90" in environ


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["echo Traceback >&2", "printf 'no\\033[31m package' >&2", "exit 1"], "no?[31m package"),
        (["exit 2"], "{} ended without a word"),
        (["echo /nowhere/batch.sh >&2"], "/nowhere/batch.sh"),
        (["kill -9 $$"], "{} ended without a word"),
        (["exec sleep 600"], "{} has not answered in 2 s"),
        (["yes 'a long story' | head -n 5000 >&2", "echo why >&2", "exit 3"], "why"),
    ],
)
def test_it_becomes_the_script_if_nothing_is_prepared(
    build, tmp_path: Path, script: Path, lines: list[str], why: str
) -> None:
    hasty = build("hpcext-batch", "CFLAGS=-O1 -g -fsanitize=address,undefined -DPREPARE_S=2")
    command = answering(tmp_path / "hpcext", *lines)
    marks = {"HPCEXT_COMMAND": command, "HPCEXT_SCRIPT": str(script)}
    ended = run(hasty, *ARGS, **marks, HPCEXT_LEAD_S="90")
    assert ended.returncode == 0
    assert words_of(ended.stdout) == [str(script), *ARGS]
    first = ended.stderr.splitlines()[0]
    line = f"the job cannot be suspended: {why.format(command)}; it runs as usual"
    assert first == f"hpcext: {line}"


def test_for_a_trainer_it_becomes_another_one(batch: Path, tmp_path: Path, script: Path) -> None:
    command = program(tmp_path / "hpcext", script.read_text())
    marks = {"HPCEXT_COMMAND": str(command), "HPCEXT_SCRIPT": str(script)}
    ended = run(batch, *ARGS, **marks, HPCEXT_IS_TRAINER="1", HPCEXT_TRAINER="1:4")
    assert ended.returncode == 0
    assert words_of(ended.stdout) == [str(command), "trainer", "1:4", "--", str(script), *ARGS]
    assert "HPCEXT_IS_TRAINER" not in ended.stderr
    missing = run(batch, **marks, HPCEXT_IS_TRAINER="1", HPCEXT_LEAD_S="90")
    assert missing.returncode == 127
    assert missing.stderr.endswith("HPCEXT_SCRIPT and HPCEXT_TRAINER must be set\n")
    command.unlink()
    plain = run(batch, **marks, HPCEXT_IS_TRAINER="1", HPCEXT_TRAINER="1:4")
    assert words_of(plain.stdout) == [str(script)]
    assert plain.stderr.startswith("hpcext: the job cannot be a trainer: ")


@pytest.mark.parametrize(
    "case",
    [
        ("#!/bin/sh\n", 0o644, "Permission denied"),
        ("#!/nowhere/python3\n", 0o755, "No such file or directory"),
        ("neither ELF nor a script\n", 0o755, "Exec format error"),
    ],
)
def test_it_becomes_the_script_if_there_is_no_command(
    batch: Path, tmp_path: Path, script: Path, case: tuple[str, int, str]
) -> None:
    text, mode, why = case
    command = str(program(tmp_path / "hpcext", text, mode))
    ended = run(batch, *ARGS, HPCEXT_COMMAND=command, HPCEXT_SCRIPT=str(script), HPCEXT_LEAD_S="90")
    assert ended.returncode == 0
    assert words_of(ended.stdout) == [str(script), *ARGS]
    assert ended.stderr.startswith(MESSAGE.format(command, why))
    assert "HPCEXT_SCRIPT" not in ended.stderr.removeprefix(MESSAGE.format(command, why))


def test_neither(batch: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    ended = run(batch, HPCEXT_COMMAND=gone, HPCEXT_SCRIPT=gone, HPCEXT_LEAD_S="90")
    why = "No such file or directory"
    assert ended.returncode == 127
    assert ended.stderr == f"{MESSAGE.format(gone, why)}hpcext: {gone}: {why}\n"


def test_started_by_hand(batch: Path) -> None:
    ended = run(batch, HPCEXT_LEAD_S="90")
    assert ended.returncode == 127
    assert ended.stderr == (
        "hpcext: hpcext-batch: started by Slurm's plugin only; "
        "HPCEXT_COMMAND, HPCEXT_SCRIPT and HPCEXT_LEAD_S must be set\n"
    )
