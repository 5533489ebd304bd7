"""The id of a job's run, which experiment trackers know it by in all of its attempts."""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

from hpcext import documents
from hpcext.executors.attempt.launch_file import CHECKPOINT

RUN_ID_FILE = "run-id"
"""In the directory of a job. A session has one of the same name beside its checkpoints."""

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def of_job(home: Path) -> str:
    """Return the id of a job's run; make one when the job first begins.

    The id of a session's checkpoints goes first, since they may have been copied from another job.

    Parameters
    ----------
    home : pathlib.Path
        The directory of the job.

    Returns
    -------
    str
        32 hexadecimal digits. Empty if the id cannot be stored: the next attempt would not know it.
    """
    own = home / RUN_ID_FILE
    known = _read(home / CHECKPOINT / RUN_ID_FILE) or _read(own)
    if known:
        return known
    made = uuid.uuid4().hex
    try:
        documents.write_file(own, f"{made}\n".encode(), durable=False)
    except OSError:
        return ""
    return made


def _read(path: Path) -> str:
    """Return the id in a file; empty if there is none."""
    with contextlib.suppress(OSError, ValueError):
        text = documents.read_untrusted(path, of_anybody=True).decode("ascii").strip()
        if _RUN_ID.fullmatch(text):
            return text
    return ""
