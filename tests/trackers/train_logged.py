"""A training whose steps a tracker is told: ``train_logged.py TRACKER STEPS [FAIL_AT]``.

It has no word about resuming a run. In its first attempt its steps take long, so that there is time
to suspend it, and it is killed at a step if it is told so.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from hpcext.training.session import Session

STEP_S = 0.2


def mlflow_logger():
    import mlflow

    mlflow.start_run()
    mlflow.log_param("size", os.environ.get("SIZE", "1"))
    return lambda step: mlflow.log_metric("loss", 1 / (step + 1), step=step)


def wandb_logger():
    import wandb

    run = wandb.init(project="trained")
    return lambda step: run.log({"loss": 1 / (step + 1)}, step=step)


def tensorboard_logger():
    from torch.utils.tensorboard import SummaryWriter

    step = os.environ["HPCEXT_RESTART_STEP"]
    writer = SummaryWriter("events", purge_step=int(step) if step else None)

    def log(step):
        writer.add_scalar("loss", 1 / (step + 1), step)
        if os.environ.get("FLUSHED"):
            writer.flush()

    return log


def main():
    tracker, steps = sys.argv[1], int(sys.argv[2])
    fail_at = int(sys.argv[3]) if len(sys.argv) > 3 else None
    first = os.environ["HPCEXT_ATTEMPT"] == "1"
    log = globals()[f"{tracker}_logger"]()
    weights = np.zeros(1)
    done = open("steps", "a", buffering=1)  # noqa: SIM115
    session = Session(weights=weights, checkpoint_every_s=None, checkpoint_every_steps=4)
    for _ in session.epochs(1):
        for _ in session.batches(range(steps)):
            if first and session.step == fail_at:
                os._exit(9)
            weights += 1
            log(session.step)
            print(session.step, file=done)
            time.sleep(STEP_S if first else 0)


if __name__ == "__main__":
    main()
