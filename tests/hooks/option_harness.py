"""Asks the plugin's options, without Slurm; what is valid, said once more in Python."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hpcext import jobfields
from hpcext.checkpointers import PRESETS
from hpcext.core.errors import InputError


class Answer(NamedTuple):
    """What the harness said to one line."""

    status: int
    lines: list[str]


class Harness:
    """One process of the harness, asked line by line."""

    def __init__(self, program: Path, *before: str) -> None:
        self._process = subprocess.Popen(
            [*before, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )

    def ask(self, *words: str | bytes) -> Answer:
        """Text goes as it is, bytes as what a user wrote."""
        line = " ".join(w if isinstance(w, str) else w.hex() or "-" for w in words)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        said = b""
        while not re.search(rb"^= -?\d+\n\Z", said, re.MULTILINE):
            part = self._process.stdout.read(65536)
            if not part:
                assert self._process.stderr is not None
                raise AssertionError((line, said, self._process.stderr.read().decode()))
            said += part
        *lines, status = said.decode("ascii").splitlines()
        return Answer(int(status[2:]), lines)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what the tools it ran under said."""
        _, said = self._process.communicate(timeout=500)
        return self._process.returncode, said.decode()


def _number(text: bytes, low: int, high: int) -> bool:
    return re.fullmatch(rb"[1-9][0-9]{0,8}", text) is not None and low <= int(text) <= high


def _range(text: bytes, high: int) -> bool:
    parts = text.split(b":")
    numbers = len(parts) == 2 and all(_number(part, 1, high) for part in parts)
    return numbers and int(parts[0]) <= int(parts[1])


def _name(text: bytes) -> bool:
    """As the job file has it for profiles: one rule in two languages."""
    try:
        jobfields.plain_name(text.decode("utf-8", "surrogateescape"))
    except InputError:
        return False
    return True


IS_VALID: dict[str, Callable[[bytes], bool]] = {
    "hpcext-suspendable": lambda value: value == b"(null)" or _number(value, 10, 86400),
    "hpcext-gpus": lambda value: value == b"auto" or _number(value, 1, 1024) or _range(value, 1024),
    "hpcext-scaling": _name,
    "hpcext-trainer": lambda value: _range(value, 10_000),
    "hpcext-checkpoint": lambda value: value in [name.encode() for name in PRESETS],
}
"""Whether a value is valid, by option."""


def check_refusal(line: str, option: str) -> None:
    """One line for a person: what, where, what is valid; nothing that a terminal would obey."""
    assert line.startswith(f"hpcext: --{option}: '")
    assert " (valid: " in line
    assert line.isprintable()
    assert line.isascii()
    assert len(line) < 450
