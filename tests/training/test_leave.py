"""What a training has written is in its files when its process ends at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcext.protocol import EXIT_SUSPENDED
from hpcext.training.leave import at_most

SUSPENDED = """
import csv, os, signal
import numpy as np
from hpcext.training.session import Session
weights = np.zeros(1)
session = Session(weights=weights, checkpoint_dir="saved", checkpoint_every_s=None)
log = csv.writer(open("metrics.csv", "a"))
for epoch in session.epochs(1):
    for number in session.batches(range(200)):
        log.writerow([session.step, number])
        if number == 106 and not session.resumed:
            os.kill(os.getpid(), signal.SIGTSTP)
"""

BLOCKED = """
import ctypes, io, os
from hpcext.training import leave
class Journal(io.TextIOWrapper):
    pass
leave.FLUSH_S = 3.0
end, begin = os.pipe()
stuck = [open(begin, "wb", buffering=1 << 20)]
stuck[0].write(bytes(1 << 19))
closed = open("closed", "w")
closed.close()
journal, plain = Journal(open("journal", "wb")), open("plain", "wb")
journal.write("text")
plain.write(b"bytes")
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
c.fputs(b"of C", ctypes.c_void_p(c.fopen(b"c", b"w")))
leave.leave(3)
"""

FORKED = """
import os
from hpcext.training.leave import leave
log = open("log", "w")
log.write("once")
if os.fork() == 0:
    leave(0)
os.wait()
leave(0)
"""


def run(script: str, cwd: Path) -> int:
    return subprocess.run([sys.executable, "-c", script], cwd=cwd, check=False).returncode


def test_no_line_of_a_suspended_training_is_lost(tmp_path: Path) -> None:
    assert run(SUSPENDED, tmp_path) == EXIT_SUSPENDED
    assert run(SUSPENDED, tmp_path) == 0
    lines = (tmp_path / "metrics.csv").read_text().split()
    assert lines == [f"{number},{number}" for number in range(200)]


def test_all_kinds_of_files_are_written_beside_one_that_takes_nothing(tmp_path: Path) -> None:
    assert run(BLOCKED, tmp_path) == 3
    written = [(tmp_path / name).read_text() for name in ("journal", "plain", "c")]
    assert written == ["text", "bytes", "of C"]


def test_what_a_process_has_written_before_a_fork_is_written_once(tmp_path: Path) -> None:
    assert run(FORKED, tmp_path) == 0
    assert (tmp_path / "log").read_text() == "once"


def test_calls_are_made_where_no_thread_begins_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    made: list[int] = []
    at_most(1.0, [lambda: 1 / 0, lambda: made.append(1)])
    assert made == [1]
