"""A training whose metric is known beforehand, for sweeps.

``--quality`` is what it reports as ``score`` from the first step on, ``nan`` too; with
``--metric NAME`` under another name; it does ``--steps`` of them, and its last one when the file of
``--gate`` is there. Each attempt says in ``$SETTING_LOG`` at which step it began and ended.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from hpcext.training.session import Session

parser = argparse.ArgumentParser()
parser.add_argument("--quality", type=float, required=True)
parser.add_argument("--metric", default="score")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--gate", type=Path)
args = parser.parse_args()

session = Session(weights=np.zeros(2), seed=1)
sampler = session.sampler(args.steps)
with open(os.environ["SETTING_LOG"], "a", buffering=1) as log:
    log.write(f"{args.quality} began {session.step}\n")
    for _ in session.epochs(1):
        for _ in session.batches(sampler.batched(1)):
            while args.gate and session.step == args.steps - 1 and not args.gate.exists():
                time.sleep(0.05)
            session.report(**{args.metric: args.quality})
    log.write(f"{args.quality} ended {session.step}\n")
