"""Six adaptive PyTorch trainings on six slots: live under four policies, and simulated.

    python benchmarks/pollux_live.py run DIR [--set mixed] [--policy pollux]
    python benchmarks/pollux_live.py show DIR

`run` has a pilot for each policy, in DIR: its jobs (``pollux_live_train.py``) come one after the
other, adapt their batch under every policy, and sleep as long as a GPU would compute. What is there
already is left out. `show` records each pilot (``hpcext trace pilot``) and simulates its jobs
(``hpcext simulate``), once as they were recorded under that policy and once as they were under
pollux, and prints the mean completion times beside the live ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

TRAIN = Path(__file__).with_name("pollux_live_train.py")
SLOTS = 6
LAUNCH = (sys.executable, "-m", "hpcext")

POLICIES = {
    "pollux": "pollux:interval_s=5,delay_s=3",
    "marble": "marble",
    "optimus": "optimus:interval_s=5",
    "exclusive": "exclusive",
}
"""All that look at intervals look every 5 s: these trainings last a minute and not hours."""

PACE = (0.05, 0.002)


class Kind(NamedTuple):
    """A training: how noisy, how long, and the slots that its user believes it runs best on."""

    noise: float
    samples: int
    optimal: int


NOISY, LONG, PLAIN, SHORT = (
    Kind(100.0, 24_000, 4),
    Kind(40.0, 36_000, 4),
    Kind(0.0, 10_000, 2),
    Kind(20.0, 6_000, 2),
)

SETS = {
    "mixed": ((0, LONG), (0, PLAIN), (8, NOISY), (16, SHORT), (24, PLAIN), (32, NOISY)),
    "crowded": ((0, NOISY), (0, PLAIN), (1, PLAIN), (1, SHORT), (2, NOISY), (2, SHORT)),
}
"""When each of the six jobs comes, in seconds."""


def job_of(name: str, kind: Kind) -> str:
    """Its part of a job file."""
    words = [
        *LAUNCH, "launch", sys.executable, str(TRAIN), "--noise", str(kind.noise),
        "--work", str(kind.samples), "--pace", *map(str, PACE),
    ]  # fmt: skip
    return (
        f"[[job]]\nname = {json.dumps(name)}\ncommand = {json.dumps(shlex.join(words))}\n"
        f"gpus = {{min = 1, max = {SLOTS}, optimal = {kind.optimal}}}\n"
        f"work = {{samples = {kind.samples}}}\n"
    )


def hpcext(*words: object) -> str:
    """What a command prints."""
    done = subprocess.run(
        [*LAUNCH, *map(str, words)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout


def live(folder: Path, name: str, policy: str) -> None:
    """Run a set of jobs in a pilot of its own."""
    folder.mkdir(parents=True)
    jobs = [(at_s, job_of(f"job{n}", kind)) for n, (at_s, kind) in enumerate(SETS[name], 1)]
    first, load = folder / "first.toml", os.getloadavg()[0]
    first.write_text("\n".join(text for at_s, text in jobs if not at_s))
    with (folder / "run.log").open("w") as log:
        pilot = subprocess.Popen(
            [*LAUNCH, "run", str(first), "--gpus", str(SLOTS), "--policy", policy,
             "--dir", str(folder / "pilot")],
            stdout=log, stderr=log, env={**os.environ, "HPCEXT_REPORT_INTERVAL_S": "1"},
        )  # fmt: skip
        began_s = time.monotonic()
        for at_s, text in jobs:
            if not at_s:
                continue
            time.sleep(max(0.0, at_s - (time.monotonic() - began_s)))
            more = folder / "more.toml"
            more.write_text(text)
            hpcext("submit", folder / "pilot", more)
        if pilot.wait():
            raise RuntimeError(f"{name}, {policy}: see {log.name}")
    loads = [round(load, 2), round(os.getloadavg()[0], 2)]
    (folder / "load.json").write_text(json.dumps(loads))


def run(args: argparse.Namespace) -> None:
    """Run what is not there yet."""
    for name in args.set or SETS:
        for policy in args.policy or POLICIES:
            folder = args.dir / name / policy
            if not folder.exists():
                live(folder, name, POLICIES[policy])
                print(f"{name}, {policy}: {jct_s(folder):.1f} s", flush=True)


def status(folder: Path) -> Any:
    """All that a pilot says of its jobs."""
    return json.loads(hpcext("status", folder / "pilot", "--json"))


def jct_s(folder: Path) -> float:
    """Mean completion time of a live pilot."""
    jobs = status(folder)["jobs"]
    return statistics.fmean(job["ended_s"] - job["submitted_s"] for job in jobs)


def simulated_s(recording: Path, policy: str, out: Path) -> float:
    """The same of the jobs of a recording, simulated."""
    if not out.exists():
        hpcext("simulate", recording, "--policy", policy, "--report", out)
    with (out / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return statistics.fmean(float(row["ended_s"]) - float(row["submitted_s"]) for row in rows)


def show(args: argparse.Namespace) -> None:
    """Record, simulate, and print side by side."""
    for name in args.set or SETS:
        found: dict[str, float] = {}
        for policy in POLICIES:
            folder = args.dir / name / policy
            if (folder / "load.json").exists():
                hpcext("trace", "pilot", folder / "pilot", "-o", folder / "recorded.json")
                found[policy] = jct_s(folder)
        for policy, live_s in found.items():
            print(f"{name:8} {policy:10} {line(args.dir / name, policy, live_s)}")
        if pollux_s := found.pop("pollux", None):
            gains = (f"{1 - pollux_s / other_s:.0%} below {it}'s" for it, other_s in found.items())
            print(f"{name:8} pollux's mean JCT is {', '.join(gains)}")


def line(folder: Path, policy: str, live_s: float) -> str:
    """One pilot beside its simulations."""
    parts = [f"live {live_s:6.1f} s"]
    for label, of in (("its own", policy), ("pollux's", "pollux")):
        recording = folder / of / "recorded.json"
        if recording.exists():
            out = folder / policy / f"simulated-{of}"
            sim_s = simulated_s(recording, POLICIES[policy], out)
            off = f"{sim_s / live_s - 1:+.0%}"
            parts.append(f"simulated by {label} recording {sim_s:6.1f} s ({off})")
    changes = sum(len(job["segments"]) - 1 for job in status(folder / policy)["jobs"])
    before, after = json.loads((folder / policy / "load.json").read_text())
    return "; ".join([*parts, f"{changes} changes", f"load {before} to {after}"])


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("dir", type=Path)
    parser.add_argument("--set", choices=tuple(SETS), action="append")
    parser.add_argument("--policy", choices=tuple(POLICIES), action="append")
    args = parser.parse_args()
    (run if args.what == "run" else show)(args)


if __name__ == "__main__":
    main()
