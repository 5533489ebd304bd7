"""What a session does about signals that are not for it, in a process that began as by default."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from hpcext.training.signals import SuspendRequest
# What a runner of tests ignores or blocks, its children would, too.
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))
handled = []
if "handled" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
SuspendRequest(supervised="supervised" in sys.argv)
os.kill(os.getpid(), signal.SIGUSR1)
print("lives", *handled)
"""


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        # As ranks of mpirun are, which passes on what their supervisor is told by.
        (["supervised"], "lives\n"),
        (["supervised", "handled"], "lives 1\n"),
        # Nobody's news.
        ([], ""),
    ],
)
def test_news_of_its_supervisor_end_no_session(words: list[str], printed: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.stdout == printed
