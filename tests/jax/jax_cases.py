"""Says for each case what became of it; judged by test_jax_state.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hpcext.training.jax import Session, initialize
from hpcext.training.session import Session as PlainSession


def say(name, value):
    print(f"{name}: {value}")


def refused(name, act):
    try:
        act()
    except Exception as error:
        say(name, f"{type(error).__name__} {' '.join(str(error).split())}")
    else:
        say(name, "accepted")


def saved(name, state, **options):
    """A session whose job is done, with this state."""
    session = Session(checkpoint_dir=Path(name), state=state, **options)
    for _ in session.epochs(0):
        pass
    return session


class Pair(NamedTuple):
    a: object
    b: object


def there_and_back(name, value, other):
    saved(name, {"it": value})
    again = Session(checkpoint_dir=Path(name), state={"it": other}).state["it"]
    return isinstance(again, jax.Array) and again.dtype == jnp.asarray(value).dtype, again


def kinds():
    for name, value, other in (
        ("bfloat16", jnp.ones(3, jnp.bfloat16) / 3, jnp.zeros(3, jnp.bfloat16)),
        ("float8", jnp.ones(3, jnp.float8_e4m3fn) * 3, jnp.zeros(3, jnp.float8_e4m3fn)),
        ("bool", jnp.array([True, False]), jnp.array([False, False])),
        ("empty", jnp.zeros((0, 3)), jnp.ones((0, 3))),
        ("number", 7, 0),
        ("numpy", np.arange(3.0, dtype="float32"), np.zeros(3, "float32")),
    ):
        same, again = there_and_back(name, value, other)
        say(name, same and np.array_equal(np.asarray(again), np.asarray(value)))
    key = jax.random.split(jax.random.key(5), 3)
    saved("key", Pair(key, jax.random.key(1, impl="rbg")))
    made = Pair(jax.random.split(jax.random.key(6), 3), jax.random.key(2, impl="rbg"))
    again = Session(checkpoint_dir=Path("key"), state=made).state
    equal = bool((jax.random.key_data(again.a) == jax.random.key_data(key)).all())
    say("key", equal and str(jax.random.key_impl(again.b)) == "rbg")
    say("weak", Session(state=(jnp.asarray(0.5), 1)).state[0].aval.weak_type)
    generator = np.random.default_rng(1)
    saved("beside", jnp.zeros(2), generator=generator, table=np.ones(2))
    fresh, table = np.random.default_rng(2), np.zeros(2)
    Session(checkpoint_dir=Path("beside"), state=jnp.ones(2), generator=fresh, table=table)
    say("beside", fresh.random() == generator.random() and table.tolist() == [1.0, 1.0])


def shardings():
    """Saved on so many devices in one way, restored on others in another way."""
    devices = jax.devices()
    value = np.arange(48.0, dtype="float32").reshape(8, 6)

    def on(count, *spec):
        mesh = Mesh(np.array(devices[:count]).reshape(-1, 2), ("data", "model"))
        return NamedSharding(mesh, PartitionSpec(*spec))

    ways = {
        "rows": on(4, ("data", "model")), "both": on(4, "data", "model"),
        "columns": on(2, None, "model"), "all": on(2),
    }  # fmt: skip
    for name, way in ways.items():
        saved(name, lambda: jnp.asarray(value), sharding=way)
        for other, there in ways.items():
            made = lambda: jnp.zeros_like(value)  # noqa: E731
            again = Session(checkpoint_dir=Path(name), state=made, sharding=there).state
            say(f"{name} to {other}", np.array_equal(again, value) and again.sharding == there)
    again = Session(checkpoint_dir=Path("rows"), state=jnp.zeros((8, 6))).state
    say("rows to one", np.array_equal(again, value) and not again.committed)


def misfits():
    saved("fit", {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    for name, state in (
        ("shape", {"w": jnp.zeros((2, 4)), "b": jnp.zeros(3)}),
        ("type", {"w": jnp.zeros((2, 3), int), "b": jnp.zeros(3)}),
        ("structure", {"w": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}),
    ):
        refused(name, lambda state=state: Session(checkpoint_dir=Path("fit"), state=state))
    saved("impl", jax.random.key(0))
    other = jax.random.key(0, impl="rbg")
    refused("impl", lambda: Session(checkpoint_dir=Path("impl"), state=other))
    for _ in PlainSession(checkpoint_dir=Path("format"), w=np.zeros(2)).epochs(0):
        pass
    refused("format", lambda: Session(checkpoint_dir=Path("format"), state=jnp.zeros(2)))
    saved("x64", jnp.zeros(2))
    jax.config.update("jax_enable_x64", True)
    refused("x64", lambda: Session(checkpoint_dir=Path("x64"), state=jnp.zeros(2, "float32")))
    jax.config.update("jax_enable_x64", False)


def train(step, *, state=None, steps=2, **options):
    """Train by a function of the session and the state that the script was left with."""
    state = {"w": jnp.zeros(2)} if state is None else state
    session = Session(state=state, **options)
    for _ in session.epochs(1):
        for _ in session.batches(range(steps)):
            step(session, state)
    return session


def forgets(session, state):
    state["w"] = state["w"] + 1


def trains_its_own(session, state):
    state["w"] = state["w"] + 1
    session.state = state


def reads_early(session, state):
    """The first step is right; later ones go on from what the script has kept."""
    if session.step == 0:
        state.update(session.state)
    session.state = {"w": state["w"] + 1}


def assign(value):
    def step(session, _):
        before = session.state["w"]
        session.state = value(before)

    return step


def skips(session, _):
    if session.step != 1:
        session.state = {"w": session.state["w"] + 1}


def donates(session, _):
    if session.step == 0:
        session.state = {"w": session.state["w"] + 1}
    else:
        jax.jit(lambda tree: {"w": tree["w"] + 1}, donate_argnums=0)(session.state)


def loops():
    refused("forgets", lambda: train(forgets))
    refused("trains its own", lambda: train(trains_its_own))
    refused("reads early", lambda: train(reads_early))
    refused("grows", lambda: train(assign(lambda w: {"w": jnp.zeros(3)})))
    refused("other type", lambda: train(assign(lambda w: {"w": w.astype("int32")})))
    refused("other structure", lambda: train(assign(lambda w: {"w": w, "v": w})))
    refused("text", lambda: train(assign(lambda w: {"w": "text"})))

    def traced(session, _):
        def inside(w):
            session.state = {"w": w + 1}
            return w

        jax.jit(inside)(session.state["w"])

    refused("traced", lambda: train(traced))
    session = train(skips, steps=3)
    say("skips", session.state["w"].tolist())
    # NumPy's numbers become arrays as they did at the beginning.
    session = train(assign(lambda w: {"w": np.asarray(w) + np.float32(1)}))
    say("from numpy", isinstance(session.state["w"], jax.Array))
    refused("donates", lambda: train(donates, checkpoint_dir=Path("donates")))


def refusals():
    refused("no state", lambda: Session(checkpoint_dir=Path("none")))
    refused("function", lambda: Session(state={"apply": forgets, "w": jnp.zeros(2)}))
    refused("text in it", lambda: Session(state={"name": "net"}))
    refused("objects", lambda: Session(state=np.array([None])))
    refused("nothing", lambda: Session(state={}))
    refused("apart", lambda: Session(state=jnp.zeros(2), opt_state={"m": jnp.zeros(2)}))
    refused("misspelt", lambda: Session(state=jnp.zeros(2), sed=1))
    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    refused("sharding", lambda: Session(state=jnp.zeros(4), sharding=everywhere))
    session = Session(state=jnp.zeros(2))
    data = np.zeros((10, 3)), np.zeros(10)
    refused("length without load", lambda: session.dataset(3, 2))
    refused("lengths", lambda: session.dataset((np.zeros(2), np.zeros(3)), 2))
    refused("batch", lambda: session.dataset(data, 11))
    refused("uneven", lambda: session.dataset(data, 6, sharding=everywhere))
    os.environ["WORLD_SIZE"] = "2"
    refused("alone", lambda: Session(state=jnp.zeros(2)))
    refused("alone, joined", initialize)
    del os.environ["WORLD_SIZE"]
    launched = {"RANK": "0", "WORLD_SIZE": "2", "HPCEXT_RENDEZVOUS": f"file:{Path.cwd()}"}
    os.environ.update(launched, HPCEXT_LAUNCHER=f"pid:{os.getpid()}:1")
    refused("not joined", lambda: Session(state=jnp.zeros(2)))
    refused("too late", initialize)


def data():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    orders = []
    for spec in (None, PartitionSpec("data"), PartitionSpec("model", "data"), PartitionSpec()):
        sharding = None if spec is None else NamedSharding(mesh, spec)
        session = Session(state=jnp.zeros(2), seed=2)
        load = lambda rows: {"x": np.stack([rows, rows], axis=1) * 2.0}  # noqa: E731
        seen = []
        for _ in session.epochs(1):
            for batch in session.batches(session.dataset(18, 4, sharding=sharding, load=load)):
                session.state = session.state + 1
                assert sharding is None or batch["x"].sharding == sharding
                assert batch["x"].dtype == jnp.float32
                seen += batch["x"].tolist()
        orders.append(seen)
    rows = [row for row, _ in orders[0]]
    say("loaded", len(set(rows)) == 16 and set(rows) <= {2.0 * row for row in range(18)})
    say("shuffled", rows != sorted(rows))
    say("in the same order", all(each == orders[0] for each in orders))


if __name__ == "__main__":
    for part in (kinds, shardings, misfits, loops, data, refusals):
        part()
