"""Train a small network on scikit-learn's handwritten digits with JAX.

Runs in one process with all devices (``python digits_jax.py``) or in several processes (``hpcext
launch --ranks 2 python digits_jax.py``). Lines that end in ``# hpcext`` are what it takes to be
suspended and resumed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

from hpcext.training.jax import Session, initialize  # hpcext

BATCH = 60
TEST = 360


def outputs(params: Any, pixels: jax.Array) -> jax.Array:
    """Scores of the digits, of shape (samples, 10)."""
    hidden = jax.nn.relu(pixels @ params["hidden"] + params["bias"])
    return hidden @ params["scores"]


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep per step")
    parser.add_argument("--dir", help="where to save when run without a manager")
    parser.add_argument("--result", type=Path, help="file to write the accuracy to")
    args = parser.parse_args()

    initialize()  # hpcext
    mesh = Mesh(np.array(jax.devices()), ("data",))
    divided = NamedSharding(mesh, PartitionSpec("data"))
    same = NamedSharding(mesh, PartitionSpec())

    digits = load_digits()
    order = np.random.default_rng(7).permutation(len(digits.target))
    images = digits.data[order].astype("float32") / 16
    labels = digits.target[order].astype("int32")
    optimizer = optax.adamw(args.lr)

    def make() -> Any:
        key, one, two = jax.random.split(jax.random.key(args.seed), 3)
        params = {
            "hidden": 0.2 * jax.random.normal(one, (64, args.width)),
            "bias": jnp.zeros(args.width),
            "scores": 0.2 * jax.random.normal(two, (args.width, 10)),
        }
        return {"params": params, "opt": optimizer.init(params), "key": key}

    def train_step(state: Any, pixels: jax.Array, target: jax.Array) -> tuple[Any, jax.Array]:
        key, drop = jax.random.split(state["key"])
        kept = jax.random.bernoulli(drop, 0.9, pixels.shape)

        def loss_of(params: Any) -> jax.Array:
            scores = outputs(params, pixels * kept)
            return optax.softmax_cross_entropy_with_integer_labels(scores, target).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "key": key}, loss

    train = jax.jit(train_step, donate_argnums=0)
    session = Session(state=make, sharding=same, seed=args.seed, checkpoint_dir=args.dir)  # hpcext
    data = session.dataset((images[TEST:], labels[TEST:]), BATCH, sharding=divided)
    for _ in session.epochs(args.epochs):  # hpcext
        for pixels, target in session.batches(data):  # hpcext
            session.state, loss = train(session.state, pixels, target)
            session.report(loss=loss)
            time.sleep(args.pace)

    guess = jax.jit(outputs)(session.state["params"], images[:TEST]).argmax(axis=1)
    accuracy = float((guess == labels[:TEST]).mean())
    session.report(accuracy=accuracy)
    if session.rank == 0:
        print(f"accuracy {accuracy:.4f} on {TEST} held-out digits after {session.step} steps")
        if args.result:
            args.result.write_text(f"{accuracy:.4f}\n")


if __name__ == "__main__":
    main()
