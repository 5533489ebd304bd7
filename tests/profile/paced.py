"""A training whose speed is known: each step is a sleep, of a length that its GPUs decide.

It keeps its own account in ``$PACED_LOG``, for the test to judge by: one line per step, ``GPUS STEP
TIME RESUMED CHECKPOINTS``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy as np

from hpcext.training.session import Session

parser = argparse.ArgumentParser()
parser.add_argument("step_s", help="seconds of a step on 1, 2, ... GPUs: 0.06,0.03")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--samples", type=int, help="in a step")
parser.add_argument("--fail-on", type=int, help="so many GPUs are too many")
parser.add_argument("--gpus", type=int, help="as the command was told: must agree")
args = parser.parse_args()
gpus = int(os.environ["HPCEXT_NUM_GPUS"])
if args.gpus not in (None, gpus):
    sys.exit(f"told {args.gpus} GPUs, given {gpus}")
if gpus == args.fail_on:
    sys.exit(f"out of memory on {gpus} GPUs")

session = Session(
    w=np.zeros(3),
    checkpoint_every_s=None,
    checkpoint_every_steps=20,
    samples_per_step=args.samples,
)
log = open(os.environ.get("PACED_LOG", os.devnull), "a", buffering=1)  # noqa: SIM115
place = os.environ["HPCEXT_CHECKPOINT_DIR"]
time.sleep(0.3)  # a first step that is slow, as those of real trainings are
for _epoch in session.epochs(1):
    for _ in session.batches(range(args.steps)):
        time.sleep(float(args.step_s.split(",")[gpus - 1]))
        log.write(f"{gpus} {session.step + 1} {time.monotonic():.6f} {session.resumed} {place}\n")
