"""What the death of a rank costs: replaced in place, under torchrun, and under torchft.

Three ranks train one model (Adam, gloo on the CPU). Time after time the last one is killed:

- *replaced*: ``hpcext launch --replace``; the others make the step again, and a new rank joins;
- *elastic*: torchrun starts all ranks again, which go on from a snapshot of every ten steps;
- *torchft*: torchft 0.2, one replica for each rank, started again by the benchmark (left out unless
  ``--torchft`` names a directory with it: ``pip install --target DIR torchft``).

All figures are taken from what rank 0 wrote itself, a line after each optimizer step. *Lost*: from
the end of the last step whose work was kept to the end of the first one after the death, less the
median step; what is done again counts. *Again*: steps that were made and thrown away. *Joined*: the
longest step while the new rank joined, less the median step.

*Overhead*: how much longer the median step is with ``--replace``. Two ranks, so that on two cores
each has one; both ways are trained by turns, and each pair of neighbours says how much longer a
step takes with it. What is judged is the mean of the pairs and its standard error.

With ``--shard`` the model is one of FSDP2, whose ranks have copies of each other's shards, and the
other two ways are left out.

Run: ``python benchmarks/lost_ranks.py [--quick] [--parameters 25000000] [--times 3] [--turns 8]
[--torchft DIR | --shard [--every STEPS]]``; with ``--times 0`` the overhead alone.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rescaling import TORCHRUN, TRAIN, Line, read

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from site_of_test import Site

RANKS, OVERHEAD_RANKS = 3, 2
STEADY_STEPS = 12
WAIT_S = 180.0
GOAL_S, GOAL_STEPS, GOAL_OVERHEAD = 5.0, 1, 0.03
TORCHFT = Path(__file__).parent / "lost_ranks_torchft.py"


class Death(NamedTuple):
    """What one death cost."""

    lost_s: float
    again: int
    joined_s: float
    step_s: float


class Bench:
    """One training, in a directory of its own."""

    def __init__(self, directory: Path, parameters: int, *more: str) -> None:
        self.directory = directory
        self.parameters = parameters
        self._more = more
        self.accounts = directory / "accounts"
        self.accounts.mkdir(parents=True)

    def train(self, *more: str) -> list[str]:
        """The command of a rank, after the interpreter."""
        size = ["--parameters", str(self.parameters), "--accounts", str(self.accounts)]
        return [str(TRAIN), *size, *self._more, *more]

    def steady(self, since_s: float = 0.0) -> list[Line]:
        """Wait until all ranks have made some steps since then; all of them."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            lines = read(self.accounts)
            latest = lines[-STEADY_STEPS:]
            if len(latest) == STEADY_STEPS and all(
                line.ranks == RANKS and line.time_s > since_s for line in latest
            ):
                return lines
            time.sleep(0.25)
        raise RuntimeError(f"no {STEADY_STEPS} steps by {RANKS} ranks; see {self.directory}")

    def last_rank(self) -> int:
        """The process that is the last rank now."""
        found = []
        for path in self.accounts.iterdir():
            lines = path.read_text().rpartition("\n")[0].splitlines()
            if lines and lines[-1].split()[2] == str(RANKS - 1):
                found.append((float(lines[-1].split()[1]), int(path.name)))
        return max(found)[1]

    def deaths(self, times: int, again: Callable[[], object] = lambda: None) -> list[Death]:
        """Kill the last rank so often."""
        killed = []
        self.steady()
        for _ in range(times):
            killed.append(time.time())
            os.kill(self.last_rank(), signal.SIGKILL)
            again()
            self.steady(killed[-1])
        return [death(read(self.accounts), at_s) for at_s in killed]


def death(lines: Sequence[Line], at_s: float) -> Death:
    """What the death at that time cost."""
    last: dict[int, Line] = {}
    for line in lines:
        # A step that was done again counts where it was done last.
        last[line.step] = line
    kept = [last[step] for step in sorted(last)]
    before = [line for line in kept if line.time_s < at_s][-STEADY_STEPS:]
    step_s = statistics.median(b.time_s - a.time_s for a, b in itertools.pairwise(before))
    near = [
        (b.time_s - a.time_s, a, b)
        for a, b in itertools.pairwise(kept)
        if a.time_s < at_s + step_s and b.time_s > at_s
    ]
    lost_s, old, new = max(near)
    again = sum(old.time_s < line.time_s < new.time_s for line in lines)
    after = [line for line in kept if line.time_s >= new.time_s]
    whole = next(place for place, line in enumerate(after) if line.ranks == RANKS)
    joins = after[max(0, whole - 1) : whole + 2]
    joined_s = max((b.time_s - a.time_s for a, b in itertools.pairwise(joins)), default=step_s)
    return Death(lost_s - step_s, again, joined_s - step_s, step_s)


def launched(bench: Bench, replace: int, work: Callable[[], Any], ranks: int = RANKS) -> Any:
    """Train under ``hpcext run`` and ``hpcext launch``, and do something meanwhile."""
    site = Site(bench.directory)
    site.environ["OMP_NUM_THREADS"] = "1"
    launch = [sys.executable, "-m", "hpcext", "launch", "--replace", str(replace), sys.executable]
    site.write_jobs({"name": "train", "command": [*launch, *bench.train()], "gpus": ranks})
    words = ("run", str(site.jobs), "--gpus", str(ranks), "--dir", str(site.pilot))
    process = site.start(*words)
    try:
        found = work()
        site.run("cancel", str(site.pilot), "train")
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=WAIT_S)
    return found


def replaced(bench: Bench, times: int) -> list[Death]:
    """Replaced in place."""
    found: list[Death] = launched(bench, times, lambda: bench.deaths(times))
    return found


def elastic(bench: Bench, times: int) -> list[Death]:
    """Started again by torchrun."""
    snapshot = str(bench.directory / "snapshot.pt")
    command = [
        *TORCHRUN, "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "100",
        "--monitor-interval", "0.1", *bench.train("--snapshot", snapshot),
    ]  # fmt: skip
    # In a store that outlives them ranks may find the addresses of those before, and wait for ever.
    with started(command, bench, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}):
        return bench.deaths(times)


def torchft(bench: Bench, times: int, place: Path) -> list[Death]:
    """Replicas of torchft."""
    paths = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    environ = {"PYTHONPATH": paths, "LOGLEVEL": "ERROR", "TORCHFT_LOG": "error"}
    serve = [sys.executable, str(TORCHFT), "--serve", str(bench.directory / "address")]
    replicas: list[started] = []

    def begin(number: int) -> None:
        words = bench.train()[1:]
        address = (bench.directory / "address").read_text()
        command = [sys.executable, str(TORCHFT), *words, "--number", str(number)]
        replicas.append(started([*command, "--lighthouse", address], bench, environ))
        replicas[-1].__enter__()

    with started(serve, bench, environ):
        while not (bench.directory / "address").exists():
            time.sleep(0.1)
        try:
            for number in range(RANKS):
                begin(number)
            return bench.deaths(times, lambda: begin(RANKS - 1))
        finally:
            for replica in replicas:
                replica.__exit__()


class started:
    """A program, until the context ends."""

    def __init__(
        self, command: Sequence[str], bench: Bench, environ: dict[str, str] | None = None
    ) -> None:
        self._command, self._bench, self._environ = command, bench, environ or {}

    def __enter__(self) -> subprocess.Popen[bytes]:
        with (self._bench.directory / "log").open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self._environ},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def step_of(bench: Bench, replace: int, steps: int) -> float:
    """The median step of a training that nobody disturbs."""

    def measure() -> float:
        while len(lines := read(bench.accounts)) < steps:
            time.sleep(0.25)
        pairs = itertools.pairwise(lines[steps // 4 : steps])
        return statistics.median(b.time_s - a.time_s for a, b in pairs)

    found: float = launched(bench, replace, measure, OVERHEAD_RANKS)
    return found


def overhead(
    directory: Path, parameters: int, turns: int, steps: int, kind: Sequence[str]
) -> Iterator[str]:
    """The lines about overhead."""
    more, last_s = [], 0.0
    for turn in range(turns + 1):
        replace = 9 * (turn % 2)
        step_s = step_of(Bench(directory / f"overhead-{turn}", parameters, *kind), replace, steps)
        if turn:
            with_s, without_s = (step_s, last_s) if replace else (last_s, step_s)
            more.append(with_s / without_s - 1)
        last_s = step_s
    mean = statistics.mean(more)
    error = statistics.stdev(more) / len(more) ** 0.5 if len(more) > 1 else math.inf
    # Neighbours share a training, so the error is somewhat larger than this.
    if mean + 2 * error <= GOAL_OVERHEAD:
        said = "reached"
    else:
        said = "MISSED" if mean - 2 * error > GOAL_OVERHEAD else "NOT SHOWN"
    yield f"steps of {last_s:.3f} s, {OVERHEAD_RANKS} ranks; longer by {mean:+.1%} with --replace"
    yield f"standard error {error:.1%} of {len(more)} pairs; at most {GOAL_OVERHEAD:.0%}: {said}"


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):6.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small model, once")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--turns", type=int, default=8, help="pairs of trainings for the overhead")
    parser.add_argument("--torchft", type=Path, help="directory where torchft is installed")
    parser.add_argument("--shard", action="store_true", help="a model of FSDP2")
    parser.add_argument("--every", default="0", help="steps from one copy of shards to the next")
    args = parser.parse_args()
    kind = ("--shard",) if args.shard else ()
    os.environ["COPY_EVERY"] = args.every
    parameters, times = (100_000, 1) if args.quick else (args.parameters, args.times)
    with tempfile.TemporaryDirectory(prefix="b-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        print(f"{parameters} parameters, {RANKS} ranks, Adam, gloo; {times} deaths each")
        print(f"{'':10} {'step':>7} {'lost s: median (range)':>24} {'again':>6} {'joined s':>20}")
        ways: dict[str, Callable[[], list[Death]]] = {
            "replaced": lambda: replaced(Bench(directory / "replaced", parameters, *kind), times),
            "elastic": lambda: elastic(Bench(directory / "elastic", parameters), times),
        }
        if not times:
            ways.clear()
        elif args.shard:
            del ways["elastic"]
        elif args.torchft:
            bench = Bench(directory / "torchft", parameters)
            ways["torchft"] = lambda: torchft(bench, times, args.torchft.absolute())
        for way, of in ways.items():
            found = of()
            again = max(each.again for each in found)
            print(
                f"{way:10} {statistics.median(each.step_s for each in found):7.3f} "
                f"{spread([each.lost_s for each in found]):>24} {again:6} "
                f"{spread([each.joined_s for each in found]):>20}",
                flush=True,
            )
            if way == "replaced":
                most = max(each.lost_s for each in found)
                reached = most <= GOAL_S and again <= GOAL_STEPS
                print(f"{'':10} at most {GOAL_S:g} s and {GOAL_STEPS} step: "
                      f"{'reached' if reached else 'MISSED'}")  # fmt: skip
        turns, steps = (1, 40) if args.quick else (args.turns, 60)
        for line in overhead(directory, parameters, turns, steps, kind):
            print(line)


if __name__ == "__main__":
    main()
