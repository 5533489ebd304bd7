"""Train a logistic regression on scikit-learn's handwritten digits with nothing but NumPy.

Lines that end in ``# hpcext`` are what it takes to be suspended and resumed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from hpcext.training.session import Session  # hpcext

Array = npt.NDArray[np.float64]

BATCH = 60
TEST = 360


def data() -> tuple[Array, npt.NDArray[Any]]:
    """The 1,797 digits in a fixed shuffled order: pixels with a constant 1 (n, 65), labels (n,)."""
    digits = load_digits()
    order = np.random.default_rng(7).permutation(len(digits.target))
    pixels = np.hstack([digits.data / 16, np.ones((len(order), 1))])
    return pixels[order], digits.target[order]


def probabilities(weights: Array, pixels: Array) -> Array:
    """Softmax of the scores, shape (n, 10)."""
    scores = pixels @ weights
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result


def main() -> None:
    """Train by gradient descent with momentum, and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep per sample")
    parser.add_argument("--dir", help="where to save when run without a manager")
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    pixels, labels = data()
    weights = np.zeros((pixels.shape[1], 10))
    momentum = np.zeros_like(weights)
    session = Session(w=weights, v=momentum, seed=args.seed, checkpoint_dir=args.dir)  # hpcext
    sampler = session.sampler(len(labels) - TEST)
    for _ in session.epochs(args.epochs):  # hpcext
        for rows in session.batches(sampler.batched(BATCH)):  # hpcext
            x, y = pixels[TEST + rows], labels[TEST + rows]
            guess = probabilities(weights, x)
            right = guess[np.arange(len(y)), y]
            momentum *= 0.9
            momentum -= args.lr * x.T @ (guess - np.eye(10)[y]) / len(y)
            weights += momentum
            time.sleep(args.pace * len(y))
            session.report(loss=-np.log(right).mean())

    held_out = probabilities(weights, pixels[:TEST]).argmax(axis=1)
    accuracy = float((held_out == labels[:TEST]).mean())
    session.report(accuracy=accuracy)
    print(f"accuracy {accuracy:.4f} on {TEST} held-out digits after {session.step} steps")
    if args.result:
        args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
