"""A training script without a framework: order, noise and weights from NumPy."""

from __future__ import annotations

import argparse
import random
import signal

import numpy as np
from script import Traces, digest

from hpcext.training.session import Session

SAMPLES, BATCH = 80, 8


class Decay:
    """A schedule of the user's own."""

    def __init__(self):
        self.rate = 0.1
        self.history = ()

    def step(self):
        self.rate *= 0.5
        self.history = (*self.history, np.float64(self.rate))

    def state_dict(self):
        return {"rate": self.rate, "history": self.history, 7: b"seven", "none": None}

    def load_state_dict(self, state):
        assert state[7] == b"seven"
        assert state["none"] is None
        self.rate, self.history = state["rate"], state["history"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--every", type=int)
    parser.add_argument("--dir")
    parser.add_argument("--big", type=int, default=0, help="bytes more to save")
    parser.add_argument("--finish-at", type=int)
    parser.add_argument("--break-at", type=int)
    args, _ = parser.parse_known_args()
    traces = Traces()
    rng = np.random.default_rng(3)
    x = np.random.default_rng(4).normal(size=(SAMPLES, 5))
    w = {"first": rng.normal(size=(5, 3)), "bias": np.zeros(3, dtype=np.float32)}
    decay = Decay()
    session = Session(
        w=w,
        decay=decay,
        rng=rng,
        ballast=np.zeros(args.big, dtype=np.uint8),
        seed=6,
        checkpoint_dir=args.dir,
        checkpoint_every_s=None,
        checkpoint_every_steps=args.every,
        samples_per_step=BATCH,
        on_suspend=[lambda: 1 / 0, lambda: traces.note("callback")],
    )
    traces.note("resumed", session.resumed, session.step)
    for epoch in session.epochs(args.epochs):
        # Drawn before the loop: on resumption it must be the same order.
        order = rng.permutation(SAMPLES).reshape(-1, BATCH)
        for rows in session.batches(order):
            noise = rng.normal(size=(BATCH, 5)) + random.random() + np.random.random()
            w["first"] -= decay.rate * (x[rows] + 0.1 * noise).T @ np.tanh(x[rows] @ w["first"])
            w["bias"] += np.float32(noise.mean())
            traces.step(session.step)
            traces.note("step", session.step, epoch, ",".join(map(str, rows.tolist())))
            if args.break_at and session.step % args.break_at == args.break_at - 1:
                break
            session.report(loss=float(w["first"].mean()), nonsense="text", bad=float("nan"))
        decay.step()
        for turn in session.validation(range(3)):
            rng.normal()
            traces.point(f"validation:{epoch}:{turn}")
        if args.finish_at == epoch:
            session.finish()
    end = [*w.values(), np.array([decay.rate, *decay.history, rng.normal(), random.random()])]
    traces.note("final", digest(*end))
    pending = signal.SIGTSTP in signal.sigpending()
    print("finished", session.step, "pending" if pending else "quiet")


if __name__ == "__main__":
    main()
