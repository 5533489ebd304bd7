"""What warm starts save: from a resumption to the first step, with them and without.

Three jobs of one pilot run the same training (2 million parameters as in ``suspension.py``,
Adam, PyTorch on a CPU): ``usual`` imports everything in each attempt (``preload = []``),
``learned`` states nothing, and ``preload`` states its modules. Each is suspended and resumed in
turn, while the others are suspended, so that nothing runs beside it. The time is that from the
start of an attempt's supervisor to the end of its first step, by the training's own clock: it
writes down when a step of a new attempt has ended.

With ``--ranks N`` it is a data-parallel training of N ranks under ``hpcext launch``, and the time
that to the end of the first step of all of them.

Run: ``python benchmarks/preload.py [--times 5] [--ranks 2]``
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

TRAIN = """
import os, sys, time
from pathlib import Path

import torch

from hpcext.training.torch import Session

model = torch.nn.Linear(1408, 1408)
optimizer = torch.optim.Adam(model.parameters())
dataset = torch.utils.data.TensorDataset(torch.randn(1 << 16, 1).expand(-1, 1408))
session = Session(model=model, optimizer=optimizer, seed=1)
model = session.parallel(model)
loader = torch.utils.data.DataLoader(dataset, batch_size=16, sampler=session.sampler(dataset))
steps = 0
for _ in session.epochs(1000):
    for (x,) in session.batches(loader):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps == 1 and os.environ.get("RANK", "0") == "0":
            with Path(sys.argv[1]).open("a") as file:
                file.write(f"{time.time()}\\n")
        time.sleep(0.02)
"""

HPCEXT = str(Path(sys.executable).with_name("hpcext"))
MODULES = ["torch", "hpcext.training.torch"]
STATED = {"usual": "preload = []\n", "learned": "", "preload": f"preload = {json.dumps(MODULES)}\n"}
NAMES = tuple(STATED)


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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "train.py").write_text(TRAIN)
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
            text += STATED[job]
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
