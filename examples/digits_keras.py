"""Train a small CNN on scikit-learn's handwritten digits with ``model.fit`` of Keras.

Runs alone (``python digits_keras.py``) or on several workers (``hpcext launch --ranks 2 python
digits_keras.py``). Lines that end in ``# hpcext`` are what it takes to be suspended and resumed,
the last two of them to train on several workers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

from hpcext.training.keras import Callback  # hpcext
from hpcext.training.tensorflow import strategy  # hpcext

BATCH = 60
TEST = 360


class Pace(keras.callbacks.Callback):
    """Sleeps after each step, as if it were one of a larger model."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Sleep."""
        time.sleep(self.pause_s)


def network(width: int) -> keras.Model:
    """Two convolutions, dropout, one linear layer."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep per step")
    parser.add_argument("--dir", help="where to save when run without a manager")
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    digits = load_digits()
    order = np.random.default_rng(7).permutation(len(digits.target))
    images = digits.images[order, ..., None].astype("float32") / 16
    labels = digits.target[order]

    with strategy().scope():  # hpcext
        keras.utils.set_random_seed(args.seed)
        model = network(args.width)
        model.compile(
            keras.optimizers.AdamW(args.lr),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    callback = Callback(model, seed=args.seed, checkpoint_dir=args.dir)  # hpcext
    callback.fit(  # hpcext
        images[TEST:],
        labels[TEST:],
        batch_size=BATCH,
        epochs=args.epochs,
        validation_data=(images[:TEST], labels[:TEST]),
        callbacks=[Pace(args.pace)],
        verbose=0,
    )
    guess = model(images[:TEST]).numpy().argmax(axis=1)
    accuracy = float((guess == labels[:TEST]).mean())
    callback.session.report(accuracy=accuracy)
    if callback.session.rank == 0:
        steps = callback.session.step
        print(f"accuracy {accuracy:.4f} on {TEST} held-out digits after {steps} steps")
        if args.result:
            args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
