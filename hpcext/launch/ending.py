"""What a supervisor can find out about the end of its command: lack of memory, its last words.

Standard library only, as all that a supervisor imports.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcext.numerals import whole

TAIL_BYTES = 64 << 10
"""The number of bytes at the end of a log that are examined."""

LINE_CHARS = 400
"""The length to which lines are cut; the code that shows them escapes them as well."""

AFTER_LINES = 60
"""The most lines of a launcher after the traceback of its rank; more is output of a training."""

LAST_NOTICE_S = 0.1
"""Seconds after the end of a command in which the signal may come that has ended it."""

LAST_SIGTERM_S = 2.0
"""The same of one that died of SIGTERM, while a busy node signals process after process."""

WENT_ON = (
    "its training was asked to save and left, but its command went on and ended with exit code 0, "
    "so the job begins again: have the command stop there with the exit code of the training, or "
    "start the training by exec"
)
"""Why a command has not completed although it seems so."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_COUNTER = re.compile(r"^oom_kill ([0-9]{1,18})$", re.MULTILINE)

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Colours, movements of the cursor, titles of windows (ECMA-48)."""

_RANK = re.compile(r"\[(?:rank|default)[0-9]{1,6}\]:\s?")
"""The prefix that torchrun puts before the lines of a rank."""

_TRACEBACK = "Traceback (most recent call last):"
_LAUNCHERS = ("torch.distributed.elastic.", "SystemExit", "subprocess.CalledProcessError")
"""Exceptions of what started a rank: they tell that the rank failed, but not why."""


def notice_s(exit_code: int | None, *, saves: bool) -> float:
    """Return for how long after its end the notice may come that a command has heard.

    A batch system signals the processes of a job one after the other, and may begin with the
    youngest: what dies of it may do so before its supervisor is told (``proctrack/linuxproc``).

    Parameters
    ----------
    exit_code : int or None
    saves : bool
        Whether that notice is its signal to save and to end, with whatever code.

    Returns
    -------
    float
        Seconds; 0 if it is not likely to have heard one that is not pending yet.
    """
    if exit_code in {-signal.SIGTERM, 128 + signal.SIGTERM}:
        return LAST_SIGTERM_S
    return LAST_NOTICE_S if saves else 0.0


class Ending:
    """The known reasons of a command's failure.

    Parameters
    ----------
    log : pathlib.Path
        Where it prints.
    gpus : str or None
        Its GPUs, as in ``CUDA_VISIBLE_DEVICES``; empty if it has none.

    Attributes
    ----------
    cannot_run : str
        Why it could not be run at all; empty if it was.
    no_directory : bool
        Whether that was because of its working directory, which may be there again later.
    """

    def __init__(self, log: Path, gpus: str | None = "") -> None:
        self._log = log
        self._gpus = gpus
        self._start = 0
        self._began_s = time.monotonic()
        self._oom_kills = oom_kills()
        self.cannot_run = ""
        self.no_directory = False

    def begins(self, log: int) -> None:
        """Note that its part of the log begins at the present end of this open file."""
        self._start = os.fstat(log).st_size

    def failure(self) -> dict[str, Any]:
        """Return what is known as values for ``exit.json``."""
        before, now = self._oom_kills, oom_kills()
        return {
            "cannot_run": self.cannot_run,
            "no_directory": self.no_directory,
            "oom_kills": None if before is None or now is None else now - before,
            "last_line": "" if self.cannot_run else last_line(self._log, self._start),
            **self._faults(),
        }

    def _faults(self) -> dict[str, Any]:
        """Return what is wrong with its GPUs."""
        if self.cannot_run or self._gpus == "":
            return {}
        # Imported here, since hardly any attempt fails.
        from hpcext.launch import gpu_faults  # noqa: PLC0415

        found = gpu_faults.look(self._gpus, self._began_s)
        return {"gpus_broken": found.broken, "gpus_noted": found.noted}


def oom_kills(root: Path = _CGROUPS, own: Path = _OWN) -> int | None:
    """Return how many processes of our cgroup the kernel has killed for lack of memory, so far.

    ``oom_kill`` of ``memory.events`` (cgroups v2, with those below), or of ``memory.oom_control``
    (v1): Linux, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.

    Returns
    -------
    int or None
        None if no file tells.
    """
    for path in _counters(root, own):
        try:
            with open(path, encoding="ascii") as file:
                found = _COUNTER.search(file.read(4096))
        except (OSError, ValueError):
            continue
        if found:
            return whole(found[1])
    return None


def _counters(root: Path, own: Path) -> Iterator[Path]:
    """Yield where the counter may be; in a container our cgroup may be the root that is seen."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, names, path in groups:
        if "memory" in names.split(","):
            yield root / "memory" / path.lstrip("/") / "memory.oom_control"
            yield root / "memory" / "memory.oom_control"
    for _, names, path in groups:
        if not names:
            yield root / path.lstrip("/") / "memory.events"
            yield root / "memory.events"


def last_line(path: Path, start: int = 0) -> str:
    """Return the line of a log that best explains the end of its command; empty without any.

    That is the exception that ended a Python program, even below a launcher; else the last line
    with any text. The log may hold anything that the job wrote.

    Parameters
    ----------
    path : pathlib.Path
    start : int
        Where the log of this attempt begins.
    """
    try:
        data = _tail(path, start)
    except (OSError, ValueError):
        return ""
    text = _SEQUENCE.sub("", data.decode(errors="replace"))
    lines = [_RANK.sub("", line).rstrip() for line in re.split(r"[\r\n]+", text)]
    lines = [line for line in lines if any(map(str.isalnum, line))]
    said = _exception(lines) or (lines[-1] if lines else "")
    return _cut(said.strip())


def _cut(line: str) -> str:
    """Return a line that is not too long: what is left out, from a word on, is marked."""
    if len(line) <= LINE_CHARS:
        return line
    kept = line[: LINE_CHARS - 1]
    words = kept.rpartition(" ")[0]
    # What has hardly any spaces is cut anywhere.
    return f"{words if len(words) > LINE_CHARS // 2 else kept}…"


def _tail(path: Path, start: int) -> bytes:
    # O_NONBLOCK, because a FIFO that the job put there must not block us.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return b""
        # The job may have truncated the log.
        begin = start if start <= facts.st_size else 0
        return os.pread(fd, TAIL_BYTES, max(begin, facts.st_size - TAIL_BYTES))
    finally:
        os.close(fd)


def _exception(lines: Sequence[str]) -> str:
    """Return the exception at the end of the last traceback that is not a launcher's."""
    for number in range(len(lines) - 1, -1, -1):
        if not lines[number].strip().endswith(_TRACEBACK):
            continue
        depth = len(lines[number]) - len(lines[number].lstrip())
        rest = enumerate(lines[number + 1 :], start=number + 1)
        at = next((i for i, each in rest if not each[depth : depth + 1].isspace()), None)
        if at is None or lines[at].lstrip().startswith(_LAUNCHERS):
            continue
        return lines[at] if len(lines) - at <= AFTER_LINES else ""
    return ""
