"""What runs on the nodes of an attempt that are not the first: waits until rank 0 is through.

``other_rank.py GATE FILE``: notes its GPUs in FILE, and ends when GATE is there or its attempt was
suspended; ``--fail`` makes it end with 3 instead, as soon as the gate is there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hpcext import protocol

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
attempt = protocol.Attempt.from_environ()
assert attempt is not None
gate, said = Path(sys.argv[1]), Path(sys.argv[2])
with said.open("a") as file:
    node = protocol.node_index()
    file.write(f"{attempt.attempt} {node} {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.getpid()}\n")
while not gate.exists() and not (attempt.report_dir / protocol.SUSPENDED_FILE).exists():
    time.sleep(0.05)
sys.exit(3 if "--fail" in sys.argv else 0)
