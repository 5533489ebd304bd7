"""``model.fit`` with dropout, batch norm, a validation, and callbacks that have a state; alone or
as one of several workers. A layer of the model writes down which samples a step uses."""

from __future__ import annotations

import argparse
import sys

from script import Traces, digest

# Keras imports them where they are, which takes a third of the time of this process.
sys.modules["sklearn"] = sys.modules["pandas"] = None  # type: ignore[assignment]

import keras  # noqa: E402
import numpy as np  # noqa: E402

from hpcext.training.keras import Callback  # noqa: E402

SAMPLES, BATCH = 120, 12
TENSORFLOW = keras.backend.backend() == "tensorflow"
traces = Traces()
now = {"epoch": -1, "step": -1}


def note(rows):
    numbers = ",".join(str(int(row)) for row in np.asarray(rows))
    traces.note("step", now["step"], now["epoch"], numbers)


class Rows(keras.layers.Layer):
    """Takes the first column, the number of the sample, off the others."""

    def call(self, x, training=False):
        if training and TENSORFLOW:
            import tensorflow as tf

            tf.py_function(note, [x[:, 0]], [])
        elif training:
            note(x[:, 0].detach())
        return x[:, 1:]

    def compute_output_shape(self, shape):
        return (shape[0], shape[1] - 1)


class Account(keras.callbacks.Callback):
    """Writes down what happens, has a state of its own, asks for suspensions."""

    def __init__(self):
        super().__init__()
        self.steps = 0
        self.losses = np.zeros(2)
        self.title = "account"

    def on_epoch_begin(self, epoch, logs=None):
        now["epoch"] = epoch
        traces.point(f"epoch:{epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        now["step"] = self.steps

    def on_train_batch_end(self, batch, logs=None):
        traces.step(self.steps)
        self.steps += 1
        self.losses = self.losses + np.array([1, logs["loss"]])

    def on_test_batch_end(self, batch, logs=None):
        traces.point(f"validation:{now['epoch']}:{batch}")

    def on_epoch_end(self, epoch, logs=None):
        traces.note("figures", epoch, *(f"{name}={logs[name]:.6f}" for name in sorted(logs)))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--every", type=int)
    parser.add_argument("--together", type=int, default=1, help="steps per execution")
    parser.add_argument("--still", action="store_true", help="nothing that depends on the workers")
    return parser.parse_known_args()[0]


def network(args):
    layers = [
        keras.Input((13,)),
        Rows(name="rows"),
        keras.layers.Dense(args.width, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(4),
    ]
    if args.still:
        # Each worker normalises its own part of a batch, and drops its own units.
        layers = [each for each in layers if "norm" not in each.name and "drop" not in each.name]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.AdamW(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
        steps_per_execution=args.together,
    )
    return model


def scope():
    if TENSORFLOW:
        from hpcext.training.tensorflow import strategy

        return strategy().scope()
    return keras.name_scope("alone")


def points():
    x = np.random.default_rng(4).normal(size=(SAMPLES, 12)).astype("float32")
    y = (x[:, :4] + 0.5 * x[:, 4:8]).argmax(axis=1).astype("int32")
    return np.hstack([np.arange(SAMPLES, dtype="float32")[:, None], x]), y


def main():
    args = arguments()
    with scope():
        keras.utils.set_random_seed(3)
        model = network(args)
    account = Account()
    rate = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=0.2)
    callback = Callback(
        model,
        account=account,
        rate=rate,
        seed=5,
        checkpoint_every_s=None,
        checkpoint_every_steps=args.every,
    )
    x, y = points()
    history = callback.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=args.epochs,
        validation_data=(x, y),
        validation_batch_size=40,
        callbacks=[account, rate],
        verbose=0,
    )
    figures = [history.history[name] for name in sorted(history.history)]
    held = [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]
    traces.note("final", digest(*held, np.array(figures), account.losses))
    traces.note("epochs", *history.epoch)
    scores = model.predict(x, verbose=0) if callback.session.world_size == 1 else model(x).numpy()
    traces.note("accuracy", float((scores.argmax(axis=1) == y).mean()))
    for number, value in enumerate(model.get_weights()):
        traces.note("weight", number, *value.ravel().tolist())


if __name__ == "__main__":
    main()
