"""Attempts that are suspended as they are: what tests of them need.

What stands in for CRIU follows the command line and exit status of criu(8), and says that it is
one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting import digest
from stage import Stage, end
from written import whole_lines

from hpcext.launch.transparent.criu import Criu

COUNTING = str(Path(__file__).parent / "counting.py")
TRANSPARENT = {"transparent": True}

STAND_IN = """#!/bin/sh
# A stand-in of criu, for tests.
log() { echo "(00.000001) $1" >>"$work/$log"; }
for word; do
    case $before in
        --work-dir) work=$word ;;
        --log-file) log=$word ;;
        --images-dir) images=$word ;;
    esac
    before=$word
done
case $1 in
    --version) echo "Version: 4.2.1" ;;
    check) echo "Looks good." ;;
    dump) DUMP ;;
    restore) RESTORE ;;
esac
"""

needs_criu = pytest.mark.skipif(
    bool(why := Criu(os.environ).probe()), reason=f"no CRIU that works here: {why}"
)


def stand_in(stage: Stage, *, dump: str = "exit 1", restore: str = "exit 1") -> str:
    """A program in the place of criu; the PATH with it."""
    text = STAND_IN.replace("DUMP", dump).replace("RESTORE", restore)
    return program(stage, text.replace("REAL", real()))


def program(stage: Stage, text: str) -> str:
    directory = stage.path / "programs"
    directory.mkdir(exist_ok=True)
    (directory / "criu").write_text(text)
    (directory / "criu").chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def real() -> str:
    return str(Criu(os.environ)._program or "/nonexistent")


def begin(
    stage: Stage,
    *words: str,
    attempt: int = 1,
    path: str = "",
    counts: str = COUNTING,
    **changes: Any,
) -> subprocess.Popen[bytes]:
    """Begin an attempt of a program that counts, the second and later ones where it was."""
    environ = write(stage, *words, attempt=attempt, path=path, counts=counts, **changes)
    return subprocess.Popen(
        stage.supervisor_argv(), env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def write(
    stage: Stage,
    *words: str,
    attempt: int = 1,
    path: str = "",
    counts: str = COUNTING,
    **changes: Any,
) -> dict[str, str]:
    """Write the launch file of such an attempt; the environment of its supervisor."""
    if attempt > 1:
        stage.directory = stage.path / "1" / f"attempt-{attempt:04d}"
        stage.directory.mkdir(exist_ok=True)
        changes = {"attempt": attempt, "op": attempt + 6, **changes}
    environ = {**os.environ, "HPCEXT_TEST_MARK": str(stage.path)}
    if path:
        environ["PATH"] = path
    stage.write_launch(sys.executable, counts, *words, checkpoint=TRANSPARENT, **changes)
    launch = stage.read("launch.json")
    launch["environ"]["HPCEXT_REPORT_DIR"] = str(stage.directory)
    (stage.directory / "launch.json").write_text(json.dumps(launch))
    return environ


def steps(stage: Stage) -> list[int]:
    """The steps that it has said, of all attempts."""
    if not stage.log.exists():
        return []
    lines = whole_lines(stage.log)
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def wait_steps(stage: Stage, more: int = 3) -> None:
    """Wait until it has done some more steps."""
    before = len(steps(stage))
    stage.wait_for(lambda: len(steps(stage)) >= before + more, f"{more} more steps")


def suspended(stage: Stage, supervisor: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Suspend an attempt; its end."""
    supervisor.send_signal(signal.SIGTSTP)
    code = end(supervisor)
    document = stage.read("exit.json")
    assert (code == 85) is document["suspended"]
    assert stage.processes() == []
    return document


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """What the end of an attempt says of its work, but for how much its processes hold: some."""
    account = dict(document["checkpoint"])
    assert account.pop("kept_s") > 0
    return account


def completed(
    stage: Stage, supervisor: subprocess.Popen[bytes], digest: Callable[[int], str] = digest
) -> None:
    """Let it come to its end: each step was done once, and its memory is that of all of them."""
    (stage.path / "stop").touch()
    assert end(supervisor) == 0
    done = steps(stage)
    assert done == list(range(len(done)))
    # What its supervisor says of the way back may come later.
    ends = [line.split() for line in whole_lines(stage.log) if line.startswith("end ")]
    assert ends == [["end", str(len(done)), digest(len(done))]]
    assert not (stage.path / "1" / "images").exists()


def declined(stage: Stage, why: str, *, times: int = 1) -> None:
    """Wait until a suspension was declined for a reason."""

    def found() -> bool:
        path = stage.directory / "native.json"
        return path.exists() and stage.read("native.json")["declined"] >= times

    stage.wait_for(found, "a refusal")
    document = stage.read("native.json")
    assert why in document["cannot_save"], document
