"""A custom loop whose ranks are paced, and balanced; writes what each rank did in each step."""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy as np
from balance_sizes import BATCH, SAMPLES
from script import Traces, digest

# Keras imports them where they are, which takes a third of the time of this process.
sys.modules["sklearn"] = sys.modules["pandas"] = None  # type: ignore[assignment]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpcext.training.tensorflow import Session, strategy  # noqa: E402

PACE_S = (0.002, 0.008, 0.004)
"""Seconds per sample of each rank."""


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--mode", default="cpu")
    parser.add_argument("--rule", default="affine")
    parser.add_argument("--ahead", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--weigh", type=int, default=1, help="times in a step")
    parser.add_argument("--eager", action="store_true")
    return parser.parse_known_args()[0]


def main():
    args = arguments()
    traces = Traces()
    workers = strategy()
    keras.utils.set_random_seed(3)
    keras.config.set_floatx("float64")
    with workers.scope():
        words = keras.layers.Embedding(9, 4)
        model = keras.Sequential([keras.Input((), dtype="int64"), words, keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
    session = Session(model=model, optimizer=optimizer, seed=5, checkpoint_every_s=None)
    if not args.plain:
        session.balance(args.mode, rule=args.rule, predictor="ema")
    draw = np.random.default_rng(4)
    x = draw.integers(0, 9, SAMPLES)
    y = draw.normal(size=(SAMPLES, 1))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        for _ in range(args.weigh):
            grads = session.weighted(grads)
        optimizer.apply(grads, model.trainable_variables)
        return loss

    @tf.function(reduce_retracing=True)
    def train(x, y):
        return workers.run(step, args=(x, y))

    data = session.dataset((np.arange(SAMPLES), x, y), global_batch=BATCH, ahead=args.ahead)
    for epoch in session.epochs(args.epochs):
        for rows, inputs, labels in session.batches(data):
            traces.step(session.step)
            counted = rows.numpy().tolist() if session.training.loop.weight() > 0 else []
            time.sleep(PACE_S[session.rank] * len(counted))
            (workers.run(step, args=(inputs, labels)) if args.eager else train(inputs, labels))
            weights = digest(*(v.numpy() for v in model.trainable_variables))
            traces.note("step", session.step, epoch, ",".join(map(str, counted)) or "-", weights)
        for _ in session.validation(range(2)):
            traces.point(f"validation:{epoch}")
    for number, variable in enumerate(model.trainable_variables):
        traces.note("weight", number, *variable.numpy().ravel().tolist())


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        Traces().note("error", error)
        # TensorFlow's workers may wait a minute for each other when one of them fails.
        os._exit(1)
