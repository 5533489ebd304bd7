"""Train a small network on scikit-learn's handwritten digits, with settings to choose; NumPy alone.

``hpcext sweep`` starts it with many settings: docs/sweep.md. Beside the loss it reports ``error``,
the share of the held-out digits that it takes for others, every few steps.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from hpcext.training.session import Session

Array = npt.NDArray[np.float64]

BATCH = 60
TEST = 360
EVERY = 10


def outputs(weights: tuple[Array, Array], pixels: Array) -> tuple[Array, Array]:
    """Activities of the hidden units (n, width), and probabilities of the digits (n, 10)."""
    hidden = np.maximum(pixels @ weights[0], 0)
    scores = hidden @ weights[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    """Train by gradient descent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where to save when run without a manager")
    args = parser.parse_args()

    digits = load_digits()
    order = np.random.default_rng(7).permutation(len(digits.target))
    pixels = np.hstack([digits.data / 16, np.ones((len(order), 1))])[order]
    labels = digits.target[order]
    draw = np.random.default_rng(args.seed)
    first = draw.normal(scale=0.1, size=(pixels.shape[1], args.width))
    second = draw.normal(scale=0.1, size=(args.width, 10))
    session = Session(first=first, second=second, seed=args.seed, checkpoint_dir=args.dir)
    sampler = session.sampler(len(labels) - TEST)
    for _ in session.epochs(args.epochs):
        for rows in session.batches(sampler.batched(BATCH)):
            x, y = pixels[TEST + rows], labels[TEST + rows]
            hidden, guess = outputs((first, second), x)
            session.report(loss=-np.log(guess[np.arange(len(y)), y]).mean())
            slope = (guess - np.eye(10)[y]) / len(y)
            back = x.T @ (slope @ second.T * (hidden > 0))
            second -= args.lr * hidden.T @ slope
            first -= args.lr * back
            if (session.step + 1) % EVERY == 0:
                held_out = outputs((first, second), pixels[:TEST])[1].argmax(axis=1)
                session.report(error=(held_out != labels[:TEST]).mean())


if __name__ == "__main__":
    main()
