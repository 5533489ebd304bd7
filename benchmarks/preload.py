"""What warm starts save: from a resumption to the first step, with them and without.

Three jobs of one pilot run the same training (2 million parameters as in ``suspension.py``,
Adam, on a CPU, by PyTorch or another framework): ``usual`` imports everything in each attempt
(``preload = []``), ``learned`` states nothing, and ``preload`` states its modules. Each is
suspended and resumed in turn, while the others are suspended, so that nothing runs beside it. The
time is that from the
start of an attempt's supervisor to the end of its first step, by the training's own clock: it
writes down when a step of a new attempt has ended.

With ``--ranks N`` it is a data-parallel training of N ranks under ``hpcext launch``, and the time
that to the end of the first step of all of them.

Run: ``python benchmarks/preload.py [--times 5] [--framework torch] [--ranks 2]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WROTE = """
import os, sys, time
from pathlib import Path

steps = 0

def stepped():
    global steps
    steps += 1
    if steps == 1 and os.environ.get("RANK", "0") == "0":
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{time.time()}\\n")
    time.sleep(0.02)
"""
"""What each training does after a step."""

TRAIN = {
    "torch": """
import torch

from hpcext.training.torch import Session

model = torch.nn.Linear(1408, 1408)
optimizer = torch.optim.Adam(model.parameters())
dataset = torch.utils.data.TensorDataset(torch.randn(1 << 16, 1).expand(-1, 1408))
session = Session(model=model, optimizer=optimizer, seed=1)
model = session.parallel(model)
loader = torch.utils.data.DataLoader(dataset, batch_size=16, sampler=session.sampler(dataset))
for _ in session.epochs(1000):
    for (x,) in session.batches(loader):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        stepped()
""",
    "tensorflow": """
import numpy as np
import tensorflow as tf

from hpcext.training.tensorflow import Session, strategy

with strategy().scope():
    model = tf.keras.Sequential([tf.keras.Input((1408,)), tf.keras.layers.Dense(1408)])
    optimizer = tf.keras.optimizers.Adam()
session = Session(model=model, optimizer=optimizer, seed=1)
data = session.dataset((np.ones((1 << 12, 1408), np.float32),), batch_size=16)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    found = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(found, model.trainable_variables))

for _ in session.epochs(1000):
    for (x,) in session.batches(data):
        step(x)
        stepped()
""",
    "keras": """
import keras
import numpy as np

from hpcext.training.keras import Callback

class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        stepped()

model = keras.Sequential([keras.Input((1408,)), keras.layers.Dense(1408)])
model.compile("adam", "mse")
x = np.ones((1 << 12, 1408), np.float32)
Callback(model, seed=1).fit(x, x, batch_size=16, epochs=1000, verbose=0, callbacks=[Steps()])
""",
    "jax": """
import jax
import jax.numpy as jnp
import numpy as np

from hpcext.training.jax import Session

def make_state():
    weights = jax.random.normal(jax.random.key(1), (1408, 1408))
    return {"weights": weights, "m": jnp.zeros_like(weights), "v": jnp.zeros_like(weights)}

@jax.jit
def step(state, x):
    grad = jax.grad(lambda weights: jnp.square(x @ weights).mean())(state["weights"])
    m, v = 0.9 * state["m"] + 0.1 * grad, 0.999 * state["v"] + 0.001 * grad**2
    return {"weights": state["weights"] - 0.001 * m / (jnp.sqrt(v) + 1e-8), "m": m, "v": v}

session = Session(state=make_state, seed=1)
data = session.dataset((np.ones((1 << 12, 1408), np.float32),), global_batch=16)
for _ in session.epochs(1000):
    for (x,) in session.batches(data):
        session.state = step(session.state, x)
        jax.block_until_ready(session.state)
        stepped()
""",
}
"""Framework → a training of 2 million parameters by Adam."""

HPCEXT = str(Path(sys.executable).with_name("hpcext"))
NAMES = ("usual", "learned", "preload")


def stated(job: str, framework: str) -> str:
    """Return what a job states of its imports."""
    modules = [framework, f"hpcext.training.{framework}"]
    lists: dict[str, list[str]] = {"usual": [], "preload": modules}
    return f"preload = {json.dumps(lists[job])}\n" if job in lists else ""


def first_steps(directory: Path, name: str) -> list[float]:
    """Return when the attempts of a job have done their first steps, in seconds since the epoch."""
    path = directory / f"{name}.steps"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def hpcext(*words: str) -> None:
    """Run a command of hpcext."""
    subprocess.run([sys.executable, "-m", "hpcext", "--quiet", *words], check=True)


def begun_at(directory: Path, number: int) -> float:
    """Return when the newest attempt of a job has begun, by the record of its supervisor."""
    attempts = sorted((directory / "pilot" / "jobs" / str(number)).glob("attempt-*"))
    return (attempts[-1] / "launch.json").stat().st_mtime


def resumed_s(directory: Path, name: str) -> float:
    """Resume a job, wait for its first step, and suspend it again; return how long that took."""
    before = len(first_steps(directory, name))
    pilot = str(directory / "pilot")
    hpcext("resume", pilot, name)
    while len(found := first_steps(directory, name)) == before:
        time.sleep(0.05)
    began = begun_at(directory, NAMES.index(name) + 1)
    hpcext("suspend", pilot, name, "--wait")
    return found[-1] - began


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--framework", choices=tuple(TRAIN), default="torch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "train.py").write_text(WROTE + TRAIN[args.framework])
        text = ""
        for job in NAMES:
            launch = [HPCEXT, "launch", "--ranks", str(args.ranks)] if args.ranks else []
            words = [
                *launch,
                sys.executable,
                str(directory / "train.py"),
                str(directory / f"{job}.steps"),
            ]
            text += f'[[job]]\nname = "{job}"\ncommand = {json.dumps(words)}\n'
            text += stated(job, args.framework)
        (directory / "jobs.toml").write_text(text)
        pilot = str(directory / "pilot")
        environ = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
        manager = subprocess.Popen(
            [sys.executable, "-m", "hpcext", "--quiet", "run", str(directory / "jobs.toml"),
             "--gpus", "3", "--dir", pilot],
            env=environ, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        while not all(first_steps(directory, job) for job in NAMES):
            time.sleep(0.2)
        for job in NAMES:
            hpcext("suspend", pilot, job, "--wait")
        found: dict[str, list[float]] = {job: [] for job in NAMES}
        for _ in range(args.times):
            for job in NAMES:
                found[job].append(resumed_s(directory, job))
        for job in NAMES:
            hpcext("cancel", pilot, job)
        manager.wait()
    middle = {job: statistics.median(each) for job, each in found.items()}
    print("| job | from the launch to the end of the first step, median | all |\n|---|---|---|")
    for job in NAMES:
        print(
            f"| {job} | {middle[job]:.2f} s | {', '.join(f'{each:.2f}' for each in found[job])} |"
        )
    ratios = [f"{middle['usual'] / middle[job]:.1f} ({job})" for job in NAMES[1:]]
    print(f"\nratio {', '.join(ratios)}")


if __name__ == "__main__":
    main()
