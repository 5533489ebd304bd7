"""When an LSF job ends: bjobs(1)."""

from __future__ import annotations

import re
import time

from hpcext.batch import runner
from hpcext.batch.slurm import End
from hpcext.core.errors import BatchError

_RUNNING = {"RUN", "USUSP", "SSUSP"}


def end(job_id: str) -> End:
    """A job's state, and when it ends at the latest.

    Raises
    ------
    BatchError
        There is no answer.
    """
    fields = "stat run_time runtimelimit delimiter='|'"
    return parse(runner.run(["bjobs", "-noheader", "-o", fields, job_id]), time.time())


def parse(text: str, now_s: float) -> End:
    """What bjobs says of one job, at an instant."""
    parts = text.strip().split("|")
    if len(parts) != 3:
        raise BatchError(f"bjobs printed {text[:80]!r}")
    state, ran, limit = parts
    kind = "running" if state in _RUNNING else state.lower()
    least = re.match(r"\d+(\.\d+)?", limit)
    if not least:
        return End(kind, None)
    return End(kind, now_s + 60 * float(least[0]) - _seconds(ran))


def _seconds(text: str) -> float:
    """``16038 second(s)`` or ``00:00:01``."""
    number = re.match(r"(\d+) second", text)
    if number:
        return float(number[1])
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts):
        return 0.0
    seconds = 0.0
    for part in parts:
        seconds = 60 * seconds + float(part)
    return seconds
