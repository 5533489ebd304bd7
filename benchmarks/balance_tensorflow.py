"""What balanced batches gain TensorFlow's workers under unequal CPU quotas, beside plain training
and the ideal, in one run.

Run: ``hpcext launch --ranks 4 python benchmarks/balance_tensorflow.py --quotas DIR [--changing N]
[--iterations 300] [--save FILE]``, as ``benchmarks/balance.py``. Each worker trains a small
convolutional network in a custom loop, on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import keras
import numpy as np
import quotas
import tensorflow as tf

from hpcext.training.tensorflow import Session, strategy

BATCH, BLOCK = 256, 20
WAYS = ("plain", "affine", "speeds")


class Limited:
    """A training under a quota, by one way."""

    def __init__(self, way: str, args: argparse.Namespace, quota: quotas.Quota) -> None:
        self.workers = strategy()
        keras.utils.set_random_seed(1)
        with self.workers.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((32, 32, 3)),
                    keras.layers.Conv2D(16, 3, activation="relu"),
                    keras.layers.Conv2D(16, 3, activation="relu"),
                    keras.layers.Conv2D(1, 3),
                ]
            )
            self.optimizer = keras.optimizers.SGD(1e-3)
        self.session = Session(model=self.model, optimizer=self.optimizer, seed=1)
        # Sessions meet in one place: all workers have, before the next one does.
        self.session.training.coordinator.ranks.smallest(0)
        if way != "plain":
            self.session.balance(rule=way)
        images = np.random.default_rng(1).normal(size=(BATCH * 20, 32, 32, 3)).astype("float32")
        self.data = self.session.dataset(images, global_batch=BATCH)
        self.changing, self.quota = args.changing, quota
        self.there_s = 0.0
        self.steps: list[quotas.Step] = []
        self._train = tf.function(self._run, reduce_retracing=True)
        self._turns = self._forever()

    def block(self) -> None:
        """Some steps."""
        for _ in range(BLOCK):
            began_s = time.perf_counter()
            own_s, samples = next(self._turns)
            self.steps.append(quotas.Step(time.perf_counter() - began_s, own_s, samples))

    def _forever(self) -> Iterator[tuple[float, int]]:
        rank, ranks = self.session.rank, self.session.world_size
        for _ in self.session.epochs(10**9):
            for x in self.session.batches(self.data):
                self.quota.set(quotas.cores(rank, len(self.steps), ranks, self.changing))
                began_s = time.perf_counter()
                self._train(x)
                yield self.there_s - began_s, len(x)

    def _run(self, x: tf.Tensor) -> None:
        self.workers.run(self._step, args=(x,))

    def _step(self, x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True)))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        with tf.control_dependencies(gradients):
            tf.numpy_function(self._note, [], [])
        self.optimizer.apply(self.session.weighted(gradients), self.model.trainable_variables)

    def _note(self) -> None:
        self.there_s = time.perf_counter()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    quotas.add_options(parser)
    args = parser.parse_args()
    if args.quotas is None:
        parser.error("--quotas DIR: where to make control groups, such as /sys/fs/cgroup/cpu")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # Two: a collective and what computes do not wait for each other.
    tf.config.threading.set_inter_op_parallelism_threads(2)
    with quotas.quota(args.quotas) as quota:
        ways = {way: Limited(way, args, quota) for way in WAYS}
        for _ in range(args.iterations // BLOCK):
            for training in ways.values():
                training.block()
    session = ways["plain"].session
    rows = {way: quotas.gathered(session, training.steps) for way, training in ways.items()}
    if session.rank == 0:
        quotas.report("TensorFlow", quotas.compare(rows, args.changing), args)


if __name__ == "__main__":
    main()
