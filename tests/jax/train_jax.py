"""A loop with everything that must come back: parameters and slots that are divided among the
devices, random keys, bfloat16, numbers from three sources, a validation; in one process or several.
"""

from __future__ import annotations

import argparse
import os
import random

import numpy as np
from script import Traces, digest

traces = Traces()
traces.point("import")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from hpcext.training.jax import Session, initialize  # noqa: E402

SAMPLES, BATCH = 120, 12


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--every", type=int)
    parser.add_argument("--plain", action="store_true", help="one device, and no sharding")
    parser.add_argument("--still", action="store_true", help="nothing that depends on the rank")
    parser.add_argument("--fail", help="STEP@RANK at which it fails")
    return parser.parse_known_args()[0]


def points():
    x = np.random.default_rng(4).normal(size=(SAMPLES, 12)).astype("float32")
    y = (x[:, :4] + 0.5 * x[:, 4:8]).argmax(axis=1)
    return np.arange(SAMPLES), x, y


def local(array):
    """What this process has of an array."""
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    return np.concatenate([np.asarray(each.data) for each in array.addressable_shards])


def main():
    args = arguments()
    if cache := os.environ.get("SCRIPT_CACHE"):
        # Compiling takes most of the time of an attempt.
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    initialize()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows_divided = NamedSharding(mesh, PartitionSpec("data"))
    same = NamedSharding(mesh, PartitionSpec())
    optimizer = optax.adamw(1e-2)

    def make():
        key, one, two = jax.random.split(jax.random.key(3), 3)
        params = {
            "first": 0.3 * jax.random.normal(one, (12, args.width)),
            "bias": jnp.zeros(args.width),
            "second": 0.3 * jax.random.normal(two, (args.width, 4)),
        }
        half = jnp.zeros((), jnp.bfloat16)
        return {
            "params": params, "slots": optimizer.init(params), "key": key, "half": half, "step": 0,
        }  # fmt: skip

    generator = np.random.default_rng(8)
    session = Session(
        state=make,
        sharding=None if args.plain else lambda each: rows_divided if each.ndim == 2 else same,
        generator=generator,
        seed=5,
        checkpoint_every_s=None,
        checkpoint_every_steps=args.every,
        on_suspend=[lambda: traces.note("callback")],
    )

    def scores(params, x):
        return jax.nn.relu(x @ params["first"] + params["bias"]) @ params["second"]

    # Donated: a checkpoint that is written beside the training must not need these arrays.
    def train(state, x, y, noise):
        key, drop = jax.random.split(state["key"])
        kept = jax.random.bernoulli(drop, 0.8, x.shape)

        def loss_of(params):
            found = scores(params, jnp.where(kept, x, 0.0) + noise)
            return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, slots = optimizer.update(gradients, state["slots"], state["params"])
        return {
            "params": optax.apply_updates(state["params"], updates),
            "slots": slots,
            "key": key,
            "half": state["half"] + jnp.bfloat16(0.125),
            "step": state["step"] + 1,
        }, loss

    train = jax.jit(train, donate_argnums=0)
    data = session.dataset(points(), BATCH, sharding=None if args.plain else rows_divided)
    for epoch in session.epochs(args.epochs):
        for rows, x, y in session.batches(data):
            noise = 0.01 * (random.random() + np.random.random())
            noise = np.float32(0 if args.still else noise + 0.01 * generator.random())
            if args.fail == f"{session.step}@{session.rank}":
                raise ArithmeticError("it fails")
            session.state, loss = train(session.state, x, y, noise)
            traces.step(session.step)
            traces.note("step", session.step, epoch, ",".join(map(str, local(rows).tolist())))
            session.report(loss=loss)
        for turn in session.validation(range(3)):
            random.random()
            traces.point(f"validation:{epoch}:{turn}")
    drawn = np.array([random.random(), np.random.random(), generator.random()])
    state = session.state
    key = jax.random.key_data(state["key"].addressable_data(0))
    arrays = [local(leaf) for leaf in jax.tree.leaves({**state, "key": ()})]
    traces.note("final", digest(*(each.astype("float64") for each in arrays), key, drawn))
    traces.note("devices", len(jax.devices()))
    if not args.plain:
        whole = jax.jit(lambda x: x, out_shardings=same)(state["params"])
        for number, leaf in enumerate(jax.tree.leaves(whole)):
            traces.note("weight", number, *local(leaf).ravel().tolist())


if __name__ == "__main__":
    main()
