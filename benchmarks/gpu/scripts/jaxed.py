"""A training in JAX with a session; ``--suspend-at N`` suspends it after that step.

Its result is the number of its steps and all bits of its state.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import machine

# As a supervisor starts a command.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))

with machine.occupied():
    import jax
    import jax.numpy as jnp
    import numpy as np

    from hpcext.training.jax import Session

WIDTH, SAMPLES, BATCH, EPOCHS = 1024, 1024, 64, 2


def make_state() -> dict[str, jax.Array]:
    """Make weights, their momentum, and a key."""
    first, second = jax.random.split(jax.random.key(1))
    weights = {
        "first": 0.1 * jax.random.normal(first, (32, WIDTH)),
        "second": 0.1 * jax.random.normal(second, (WIDTH, 10)),
    }
    zeros = {f"{name}_momentum": jnp.zeros_like(each) for name, each in weights.items()}
    return {**weights, **zeros, "key": jax.random.key(2)}


@jax.jit
def train_step(state: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """Train one step, with dropout."""
    key, drop = jax.random.split(state["key"])

    def loss_of(weights: dict[str, jax.Array]) -> jax.Array:
        hidden = jax.nn.relu(x @ weights["first"])
        hidden *= jax.random.bernoulli(drop, 0.9, hidden.shape)
        chosen = jax.nn.log_softmax(hidden @ weights["second"])
        return -jnp.take_along_axis(chosen, y[:, None], axis=1).mean()

    names = ("first", "second")
    gradients = jax.grad(loss_of)({name: state[name] for name in names})
    momenta = {name: 0.9 * state[f"{name}_momentum"] + gradients[name] for name in names}
    return {
        **{name: state[name] - 0.05 * momenta[name] for name in names},
        **{f"{name}_momentum": momenta[name] for name in names},
        "key": key,
    }


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suspend-at", type=int, default=0)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    x = np.random.default_rng(0).normal(size=(SAMPLES, 32)).astype("float32")
    y = (x[:, :10] ** 2).argmax(axis=1)
    session = Session(state=make_state, seed=1)
    data = session.dataset((x, y), global_batch=BATCH)
    for _ in session.epochs(EPOCHS):
        for xs, ys in session.batches(data):
            session.state = train_step(session.state, xs, ys)
            if session.step + 1 == args.suspend_at and not session.resumed:
                os.kill(os.getpid(), signal.SIGTSTP)
    bits = hashlib.sha256()
    for name, leaf in sorted(session.state.items()):
        bits.update(np.asarray(jax.random.key_data(leaf) if name == "key" else leaf).tobytes())
    told = {"step": session.step, "digest": bits.hexdigest(), "device": str(jax.devices()[0])}
    args.result.write_text(json.dumps({**told, "resumed": session.resumed}))


if __name__ == "__main__":
    main()
