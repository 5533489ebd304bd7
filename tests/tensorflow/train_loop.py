"""A custom loop with everything that must come back: dropout, batch norm, an optimizer built late,
augmentation from five sources of random numbers, a validation; alone or as one of several workers.
"""

from __future__ import annotations

import argparse
import random
import sys

import numpy as np
from script import Traces, digest

traces = Traces()
traces.point("import")

# Keras imports them where they are, which takes a third of the time of this process.
sys.modules["sklearn"] = sys.modules["pandas"] = None  # type: ignore[assignment]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpcext.training.tensorflow import Session, strategy  # noqa: E402

SAMPLES, BATCH = 120, 12


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", default="dataset", choices=["dataset", "plain"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--every", type=int)
    parser.add_argument("--still", action="store_true", help="nothing that depends on the workers")
    return parser.parse_known_args()[0]


def network(args):
    between = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    return keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(args.width, activation="relu"),
            *(() if args.still else between),
            keras.layers.Dense(4),
        ]
    )


class Mean(tf.Module):
    """State that no Keras object holds."""

    def __init__(self):
        super().__init__()
        self.parts = [tf.Variable(0.0), tf.Variable([1, 2], dtype=tf.int64)]
        self.half = tf.Variable(tf.ones(3, tf.bfloat16))


def points():
    x = np.random.default_rng(4).normal(size=(SAMPLES, 12)).astype("float32")
    y = (x[:, :4] + 0.5 * x[:, 4:8]).argmax(axis=1).astype("int32")
    return np.arange(SAMPLES), x, y


def main():
    args = arguments()
    workers = strategy()
    keras.utils.set_random_seed(3)
    with workers.scope():
        model = network(args)
        optimizer = keras.optimizers.AdamW(1e-2)
        # Each worker adds to its own part; reading it asks all of them.
        losses_seen = keras.metrics.Mean()
    # Outside: each worker has its own.
    mean, generator = Mean(), tf.random.Generator.from_seed(8)
    session = Session(
        model=model,
        optimizer=optimizer,
        losses=losses_seen,
        mean=mean,
        generator=generator,
        seed=5,
        checkpoint_every_s=None,
        checkpoint_every_steps=args.every,
        on_suspend=[lambda: traces.note("callback")],
    )
    index, x, y = points()

    def step(x, y):
        with tf.GradientTape() as tape:
            scores = model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y, scores, from_logits=True)
            # The workers' gradients are added up, and their batches may differ in size.
            loss = tf.reduce_sum(losses) / BATCH
        losses_seen.update_state(losses)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss

    @tf.function(reduce_retracing=True)
    def train(x, y):
        return workers.run(step, args=(x, y))

    if args.loader == "dataset":
        data = session.dataset((index, x, y), BATCH // session.world_size)
    for epoch in session.epochs(args.epochs):
        if args.loader == "plain":
            # The order is drawn from TensorFlow's global seed, which the session restores.
            data = tf.data.Dataset.from_tensor_slices((index, x, y)).shuffle(SAMPLES).batch(BATCH)
        for rows, inputs, labels in session.batches(data):
            noise = 0.01 * random.random() + 0.01 * np.random.random()
            shape = tf.shape(inputs)
            noise += 0.01 * (generator.normal(shape) + tf.random.normal(shape))
            noise += 0.01 * tf.random.get_global_generator().uniform(shape)
            loss = train(inputs if args.still else inputs + noise, labels)
            traces.step(session.step)
            mean.parts[0].assign_add(tf.reduce_mean(inputs))
            mean.half.assign_add(tf.ones(3, tf.bfloat16))
            traces.note("step", session.step, epoch, ",".join(map(str, rows.numpy().tolist())))
            session.report(loss=loss)
        for turn in session.validation(range(3)):
            random.random()
            traces.point(f"validation:{epoch}:{turn}")
    right = model(x, training=False).numpy().argmax(axis=1) == y
    traces.note("accuracy", float(right.mean()))
    traces.note("losses", *(float(v.numpy()) for v in losses_seen.variables))
    drawn = [random.random(), np.random.random(), float(tf.random.normal([]))]
    drawn.append(float(generator.normal([])))
    held = [v.numpy() for v in (*model.variables, *optimizer.variables, *mean.parts)]
    traces.note("final", digest(*held, mean.half.numpy().astype("float32"), np.array(drawn)))
    for number, variable in enumerate(model.trainable_variables):
        traces.note("weight", number, *variable.numpy().ravel().tolist())


if __name__ == "__main__":
    main()
