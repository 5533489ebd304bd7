"""A job's own account of what it did, by which a draw is judged: a JSON line for each event.

Standard library only. Written past every layer of hpcext, and to a disk that never fills up.
Each line has the attempt, the rank, the pid, the GPUs and the time; its event is one of

==============  ===================================================================================
``begin``       this process begins; ``found``: the checkpoints that are there
``resumed``     it goes on after ``step``; ``joins``: beside ranks that train
``step``        it has trained ``step``: its samples ``rows`` of ``epoch``, one of ``size`` ranks
``there``       these checkpoints are there now (``found``)
``saved``       what was done until ``step`` is safe
``suspended``   a suspension at ``step`` was acknowledged
``end``         all is done; with sessions, ``found`` too
==============  ===================================================================================
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from hpcext import protocol

SAMPLES, BATCH = 48, 12
STEPS_OF_EPOCH = SAMPLES // BATCH

rank = int(os.environ.get("RANK", "0"))
attempt = protocol.Attempt.from_environ()
assert attempt is not None
_devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
# `hpcext launch` gives each rank the devices of all, those of the ranks before it first.
_gpus = [_devices[rank]] if "HPCEXT_RANK" in os.environ else _devices
_log = os.open(os.environ["ACCOUNT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_found: list[str] = []


def note(event: str, **facts: object) -> None:
    """Write one line, whole or not at all."""
    assert attempt is not None
    line = {
        "event": event,
        "attempt": attempt.attempt,
        "rank": rank,
        "pid": os.getpid(),
        "gpus": _gpus,
        "t": time.monotonic(),
        **facts,
    }
    os.write(_log, json.dumps(line).encode() + b"\n")


def checkpoints(directory: Path) -> list[str]:
    """Names of what is committed in a directory of checkpoints."""
    try:
        return sorted(name for name in os.listdir(directory) if name.startswith("step-"))
    except OSError:
        return []


def look(directory: Path) -> None:
    """Say which checkpoints are there, if they are others than last time."""
    found = checkpoints(directory)
    if found != _found:
        _found[:] = found
        note("there", found=found)


def order(epoch: int) -> Iterator[list[int]]:
    """The samples of an epoch in batches, for jobs that have no sampler of hpcext."""
    rows = list(range(SAMPLES))
    random.Random(epoch).shuffle(rows)
    return (rows[first : first + BATCH] for first in range(0, SAMPLES, BATCH))
