"""A training that counts with NumPy, and hangs as it is told: ``train_hanging.py HOW``.

It does so at step 170 of its first attempt, when it has reported how long its steps take: ``lock``
takes a lock twice, ``stop`` waits to be stopped by the test. ``validate`` does not hang, but
validates for longer than is waited for a step.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from hpcext.training.session import Session

HOW, STEPS = sys.argv[1], 200
weights = {"w": np.zeros(4)}
session = Session(w=weights, checkpoint_every_s=None, checkpoint_every_steps=100)
first = os.environ["HPCEXT_ATTEMPT"] == "1"


def take_twice() -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


for _ in session.epochs(1):
    for _ in session.batches(range(STEPS)):
        weights["w"] += 1
        time.sleep(0.01)
        if session.step == 170 and first:
            Path("pid").write_text(str(os.getpid()))
            if HOW == "lock":
                take_twice()
            elif HOW == "stop":
                time.sleep(1000)
    if HOW == "validate":
        for _ in session.validation(range(3)):
            time.sleep(1)
