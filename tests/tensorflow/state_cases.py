"""Says for each case what became of it; judged by test_state.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Keras imports them where they are, which takes a third of the time of this process.
sys.modules["sklearn"] = sys.modules["pandas"] = None  # type: ignore[assignment]

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from hpcext.training.keras import Callback  # noqa: E402
from hpcext.training.session import Session as PlainSession  # noqa: E402
from hpcext.training.tensorflow import Session  # noqa: E402
from hpcext.training.tensorflow.cluster import join  # noqa: E402
from hpcext.training.tensorflow.data import Skipped  # noqa: E402


def say(name, value):
    print(f"{name}: {value}")


def refused(name, act):
    try:
        act()
    except Exception as error:
        say(name, f"{type(error).__name__} {' '.join(str(error).split())}")
    else:
        say(name, "accepted")


def there_and_back(name, make, change):
    """Save what `make` gives, in one session; restore it into another one in the next."""
    first = make()
    change(first)
    save(name, what=first, unsaved=True)
    second = make()
    Session(checkpoint_dir=Path(name), what=second, unsaved=True)
    return first, second


def save(name, **state):
    for _ in Session(checkpoint_dir=Path(name), **state).epochs(0):
        pass


def network(*units, inputs=4):
    layers = [keras.layers.Dense(each, name=f"dense_{i}") for i, each in enumerate(units)]
    return keras.Sequential([keras.Input((inputs,)), *layers])


def step(model, optimizer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((2, model.input_shape[1]))) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(grads, model.trainable_variables)


def late():
    model, optimizer = network(3), keras.optimizers.Adam()
    step(model, optimizer)
    slots = [v.numpy() for v in optimizer.variables]
    save("late", optimizer=optimizer, unsaved=model)
    fresh = keras.optimizers.Adam()
    session = Session(checkpoint_dir=Path("late"), optimizer=fresh, unsaved=True)
    saved = session.training.state.capture()["optimizer"]["values"]
    equal = all(np.array_equal(a, b) for a, b in zip(slots, saved, strict=True))
    say("late, before it is built", equal and not fresh.built)
    # The same step from the same weights, in a function: it must begin with the saved slots.
    twin = network(3)
    twin.set_weights(model.get_weights())
    tf.function(step)(twin, fresh)
    tf.function(step)(twin, fresh)
    step(model, optimizer)
    step(model, optimizer)
    pairs = zip(model.get_weights(), twin.get_weights(), strict=True)
    close = all(np.allclose(a, b, atol=1e-6) for a, b in pairs)
    say("late, what its first step used", close and int(fresh.iterations) == 3)
    other = keras.optimizers.Adam()
    Session(checkpoint_dir=Path("late"), optimizer=other, unsaved=True)
    refused("late, of another model", lambda: step(network(3, inputs=5), other))


class Nest(tf.Module):
    def __init__(self):
        super().__init__()
        self.below = {"list": [tf.Variable(0.0), network(2)], "drop": keras.layers.Dropout(0.5)}


def kinds():
    for name, value, other in (
        ("bfloat16", tf.ones(3, tf.bfloat16) / 3, tf.zeros(3, tf.bfloat16)),
        ("int64", tf.constant([2**40, -1]), tf.zeros(2, tf.int64)),
        ("bool", tf.constant([True, False]), tf.constant([False, False])),
        ("scalar", tf.constant(0.1), tf.constant(0.0)),
    ):
        first, second = there_and_back(
            name, lambda other=other: tf.Variable(other), lambda v, value=value: v.assign(value)
        )
        say(name, np.array_equal(first.numpy(), second.numpy()) and first.dtype == second.dtype)

    def stir(nest):
        nest.below["list"][0].assign(7.0)
        nest.below["drop"](tf.ones(3), training=True)

    first, second = there_and_back("nested", Nest, stir)
    weights = [nest.below["list"][1].get_weights()[0] for nest in (first, second)]
    seeds = [nest.below["drop"].variables[0].numpy().tolist() for nest in (first, second)]
    say(
        "nested",
        float(second.below["list"][0]) == 7.0
        and np.array_equal(*weights)
        and seeds[0] == seeds[1]
        and seeds[0][1] == 1,
    )
    first, second = there_and_back(
        "checkpoint",
        lambda: tf.train.Checkpoint(v=tf.Variable(0), net=network(2)),
        lambda checkpoint: checkpoint.v.assign(5),
    )
    say("checkpoint", int(second.v) == 5)
    first, second = there_and_back(
        "seed",
        lambda: keras.random.SeedGenerator(3),
        lambda seed: keras.random.normal((), seed=seed),
    )
    say(
        "seed generator",
        float(keras.random.normal((), seed=first)) == float(keras.random.normal((), seed=second)),
    )

    def wait(callback):
        callback.wait, callback.best, callback.best_weights = 2, 0.5, [np.arange(3.0)]

    _, second = there_and_back("callback", lambda: keras.callbacks.EarlyStopping("loss"), wait)
    kept = np.array_equal(second.best_weights[0], np.arange(3.0))
    say("callback", f"wait={second.wait} best={second.best} weights={kept}")


def draw(generator):
    data = tf.data.Dataset.range(50).shuffle(50)
    return {
        "operation": float(tf.random.normal(())),
        "global generator": float(tf.random.get_global_generator().normal(())),
        "generator": float(generator.normal(())),
        "seed": float(np.random.random()),
        "shuffle": [int(number) for number in data],
    }


def random_numbers():
    make = lambda: tf.random.Generator.from_seed(1)  # noqa: E731
    generator = make()
    session = Session(checkpoint_dir=Path("random"), generator=generator, seed=4)
    draw(generator)
    for _ in session.epochs(0):
        pass
    expected = draw(generator)
    draw(generator)
    again = make()
    tf.random.set_seed(99)
    session = Session(checkpoint_dir=Path("random"), generator=again, seed=4)
    # Global sources go on from here; what was drawn before would be that of a first attempt.
    next(session.epochs(1))
    for name, value in draw(again).items():
        say(f"random, {name}", value == expected[name])


class Named(tf.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, value in parts.items():
            setattr(self, name, tf.Variable(value))


def misfits():
    save("shape", model=network(3, 2))
    # A kernel of the same shape comes first: it must not be taken either.
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Columns(3)])
    before = other.get_weights()
    refused("shape", lambda: Session(checkpoint_dir=Path("shape"), model=other))
    same = all(np.array_equal(a, b) for a, b in zip(before, other.get_weights(), strict=True))
    say("shape, then", "unchanged" if same else "changed")
    save("name", model=Named(a=1.0))
    refused("name", lambda: Session(checkpoint_dir=Path("name"), model=Named(b=1.0)))
    save("number", model=Named(a=1.0, b=1.0))
    refused(
        "number", lambda: Session(checkpoint_dir=Path("number"), model=Named(a=1.0, b=1.0, c=1.0))
    )
    for _ in PlainSession(checkpoint_dir=Path("format"), w=np.zeros(2)).epochs(0):
        pass
    refused("format", lambda: Session(checkpoint_dir=Path("format"), w=np.zeros(2)))


class Columns(keras.layers.Layer):
    """A kernel of (3, 2), and a bias that does not go with it."""

    def __init__(self, length):
        super().__init__()
        self.kernel = self.add_weight(shape=(3, 2), name="kernel")
        self.bias = self.add_weight(shape=(length,), name="bias")

    def call(self, x):
        return x @ self.kernel


def forgetful(model):
    """It trains with an optimizer that its session is not given."""
    optimizer = keras.optimizers.Adam()
    session = Session(model=model)
    for _ in session.epochs(1):
        for x in session.batches([np.ones((3, 4), "float32")]):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            optimizer.apply(
                tape.gradient(loss, model.trainable_variables), model.trainable_variables
            )


def refusals():
    lazy = keras.Sequential([keras.layers.Dense(2)], name="lazy")
    refused("unbuilt model", lambda: Session(model=lazy))
    refused("empty module", lambda: Session(model=tf.Module()))
    refused("no state", lambda: Session(thing=object()))
    refused("copies", lambda: Session(weights=network(2).get_weights()))
    other = network(2)
    built = keras.optimizers.Adam()
    built.build(other.trainable_variables)
    refused("no model", lambda: Session(optimizer=built))
    refused("another model", lambda: Session(model=network(2), optimizer=built))
    refused("forgetful", lambda: forgetful(other))
    for given in ({"unsaved": other}, {"unsaved": True}, {"c": tf.train.Checkpoint(m=other)}):
        Session(optimizer=built, **given)
    session = Session()
    refused("length without load", lambda: session.dataset(3, 2))
    refused("lengths", lambda: session.dataset((np.zeros(2), np.zeros(3)), 2))
    model = network(2)
    refused("not compiled", lambda: Callback(model))
    model.compile("sgd", "mse")
    callback = Callback(model)
    refused("fit, generator", lambda: callback.fit(iter_pairs()))
    refused("fit, steps", lambda: callback.fit(np.zeros((2, 4)), steps_per_epoch=1))
    x, y = next(iter_pairs())
    callback.fit(x, y, epochs=2, verbose=0)
    refused("fit twice", lambda: callback.fit(x, y, epochs=2, verbose=0))
    longer = callback.fit(x, y, epochs=3, verbose=0)
    say("fit longer", f"{callback.session.step} steps, epochs {longer.epoch}")
    refused("fit itself", lambda: model.fit(*next(iter_pairs()), callbacks=[callback], verbose=0))
    os.environ["WORLD_SIZE"] = "2"
    refused("alone", join)
    launched = {"RANK": "0", "LOCAL_WORLD_SIZE": "1", "HPCEXT_LAUNCHER": f"pid:{os.getpid()}:1"}
    os.environ.update(launched, HPCEXT_RENDEZVOUS=f"tcp:127.0.0.1:{Path.cwd()}")
    try:
        join()
    except SystemExit as ended:
        say("several nodes", ended)
    for name in ("WORLD_SIZE", "HPCEXT_RENDEZVOUS", *launched):
        del os.environ[name]


def iter_pairs():
    yield np.zeros((2, 4)), np.zeros((2, 2))


def together():
    """Ten batches, the last of them smaller, four at a time."""
    model = network(2)
    model.compile("sgd", "mse", steps_per_execution=4)
    callback = Callback(model, checkpoint_dir=Path("together"))
    x = np.ones((29, 4))
    history = callback.fit(x, np.ones((29, 2)), batch_size=3, epochs=2, verbose=0)
    say("together", f"{callback.session.step} steps, epochs {history.epoch}")
    again = Callback(model, checkpoint_dir=Path("together"))
    history = again.fit(x, np.ones((29, 2)), batch_size=3, epochs=3, verbose=0, threads=2)
    say("together, more epochs", f"{again.session.step} steps, epochs {history.epoch}")
    rerun = Callback(model, checkpoint_dir=Path("together"))
    for epochs in (2, 3):
        rerun.fit(x, np.ones((29, 2)), batch_size=3, epochs=epochs, verbose=0)
    say("together, again", f"{rerun.session.step} steps")


def data():
    batches = tf.data.Dataset.range(10).batch(3)
    rest = [batch.numpy().tolist() for batch in Skipped(batches, 2) if batch is not None]
    say("skipped", rest)
    refused("too short", lambda: Skipped(batches, 5))
    session = Session(seed=2)
    loaded = session.dataset(7, 2, load=lambda rows: {"x": tf.cast(rows, tf.float32) * 2})
    seen = []
    for _ in session.epochs(1):
        for batch in session.batches(loaded):
            seen += batch["x"].numpy().tolist()
    say("loaded", sorted(seen) == [0, 2, 4, 6, 8, 10, 12] and seen != sorted(seen))
    session = Session()
    shuffled = tf.data.Dataset.range(4).shuffle(4).batch(2)
    for _ in session.epochs(3):
        for _ in session.batches(shuffled):
            pass


if __name__ == "__main__":
    for part in (late, kinds, random_numbers, misfits, refusals, together, data):
        part()
