"""A NumPy loop that saves nothing: its last line depends on each of its steps.

``train_saving_nothing.py GATE``: it goes on until that file exists.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import numpy as np


def step_of(state: np.ndarray, step: int) -> np.ndarray:
    """The state after a step."""
    return np.sin(1.1 * state + step)


def digest(steps: int) -> str:
    """What it prints after so many steps."""
    state = np.linspace(0.0, 1.0, 10_000)
    for step in range(steps):
        state = step_of(state, step)
    return hashlib.sha256(state.tobytes()).hexdigest()


def main() -> None:
    state, step = np.linspace(0.0, 1.0, 10_000), 0
    while not Path(sys.argv[1]).exists():
        state = step_of(state, step)
        print("step", step, flush=True)
        step += 1
        time.sleep(0.01)
    print("end", step, hashlib.sha256(state.tobytes()).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
