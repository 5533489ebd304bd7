"""A small training for a probe, which counts its steps and fails if it loses one.

Run it as ``python -m hpcext.doctor.counting SECONDS``, the longest time of the training.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from hpcext.training.session import Session

STEP_S = 0.05


def main(most_s: float) -> None:
    """Train for at most `most_s` seconds."""
    steps = int(most_s / STEP_S)
    done = np.zeros(steps, dtype=np.int8)
    session = Session(done=done, checkpoint_every_s=5)
    for _ in session.epochs(1):
        for (step,) in session.batches(session.sampler(steps, shuffle=False).batched(1)):
            time.sleep(STEP_S)
            done[step] += 1
            if not (done[: step + 1] == 1).all() or done[step + 1 :].any():
                sys.exit(f"step {step}: the steps before it were not each done exactly once")


if __name__ == "__main__":
    main(float(sys.argv[1]))
