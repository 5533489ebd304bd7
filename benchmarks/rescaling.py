"""What a change of the number of ranks costs: in place, by suspending, and under torchrun alone.

The same model, data and optimizer (Adam, gloo on the CPU) go from two ranks to three and back, time
after time, in three ways:

- *in place*: ``hpcext run`` with ``hpcext launch``, then ``hpcext resize``;
- *suspended*: the same with torchrun, whose jobs are suspended and resumed at the other size;
- *elastic*: torchrun's own elastic restart, one agent per rank standing for a node, tuned as far as
  it goes (see ``AGENT``); a node joins, and is killed. Training goes on from a snapshot that it
  writes every few steps.

All figures are taken from what rank 0 of the training wrote itself, a line after each optimizer
step. *Stall*: from the end of the last step whose work was kept to the end of the first one of the
new group, less the median step before; what is done again counts. Three ranks on two cores have
longer steps than two: that counts as a stall of a growth, and makes that of a shrink smaller, even
less than nothing. *Again*: how much of it was work that was thrown away. *Slower*: what the steps
between the request and the stall took more than they had taken before, because the new processes
start on the cores of the old ones. *As learned*: R_up and R_dw in the manager's run document, to be
compared with the *last stall* here.

With ``--shard`` the model is one of FSDP2, and the last way is left out. *Above*: the most memory
that rank 0 had during a change, above the most that it had in steps before or after, beside the
size of its larger shard, with the state of Adam.

Run: ``python benchmarks/rescaling.py [--quick] [--shard]
[--parameters 2000000 25000000] [--times 3]``
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from site_of_test import Site

TRAIN = Path(__file__).parent / "rescaling_train.py"
FEW, MORE = 2, 3
STEADY_STEPS = 15
"""So many steps in a row at one size, before the next change: in the middle of two snapshots."""

WINDOW = 50
WAIT_S = 600.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
AGENT = "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=3"
"""The shortest waits of the c10d rendezvous that still tell a slow node from a dead one."""

GOALS = {2_000_000: (20.0, None), 25_000_000: (3.0, 2.0)}
"""Parameters → how many times less than both others, and most seconds."""

SHARDED = {25_000_000: (10.0, 1.0)}
"""The same for a model of FSDP2."""


class Line(NamedTuple):
    """A step as rank 0 wrote it down."""

    step: int
    time_s: float
    ranks: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of the number of ranks: seconds, and bytes of memory above those of steps."""

    before: int
    after: int
    stall_s: float
    again_s: float
    slower_s: float
    step_s: float
    above_bytes: float


def read(accounts: Path) -> list[Line]:
    """All steps that were ever done, as they were done."""
    lines = []
    for path in accounts.iterdir():
        # The last line may still be on its way.
        for text in path.read_text().rpartition("\n")[0].splitlines():
            step, time_s, rank, ranks, peak = text.split()
            if rank == "0":
                lines.append(Line(int(step), float(time_s), int(ranks), int(peak)))
    return sorted(lines, key=lambda line: line.time_s)


def changes(lines: Sequence[Line], asked: Sequence[float]) -> list[Change]:
    """What each change cost that was asked for at these instants."""
    last: dict[int, Line] = {}
    for line in lines:
        # A step that was done again counts where it was done last.
        last[line.step] = line
    kept = [last[step] for step in sorted(last)]
    found: list[Change] = []
    begin = 0
    for place, (old, new) in enumerate(itertools.pairwise(kept)):
        if old.ranks == new.ranks:
            continue
        asked_s = asked[len(found)]
        ours = kept[begin : place + 1]
        before = [line for line in ours if line.time_s < asked_s][-WINDOW:]
        step_s = statistics.median(b.time_s - a.time_s for a, b in itertools.pairwise(before))
        since = [line for line in ours if line.time_s >= before[-1].time_s]
        latest_s = max(line.time_s for line in lines if line.time_s < new.time_s)
        slower_s = old.time_s - since[0].time_s - (len(since) - 1) * step_s
        stall_s = new.time_s - old.time_s - step_s
        again_s = latest_s - old.time_s
        # The first step of the new group has the memory of the change as well.
        after = kept[place + 2 : place + 12]
        steady = max(
            statistics.median(line.peak_bytes for line in some) for some in (before, after)
        )
        above = new.peak_bytes - steady
        found.append(Change(old.ranks, new.ranks, stall_s, again_s, slower_s, step_s, above))
        begin = place + 1
    return found


@dataclasses.dataclass
class Bench:
    """One training of one size, in one of the three ways."""

    directory: Path
    parameters: int
    times: int
    sharded: bool = False

    def __post_init__(self) -> None:
        self.accounts = self.directory / "accounts"
        self.accounts.mkdir()

    def train(self, *more: str) -> list[str]:
        """The command of a rank, after the interpreter."""
        return [
            str(TRAIN), "--parameters", str(self.parameters),
            "--accounts", str(self.accounts), *["--shard"] * self.sharded, *more,
        ]  # fmt: skip

    def steady(self, ranks: int, process: subprocess.Popen[Any]) -> None:
        """Wait until enough steps in a row were done by so many ranks."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            latest = read(self.accounts)[-STEADY_STEPS:]
            if len(latest) == STEADY_STEPS and all(line.ranks == ranks for line in latest):
                return
            if process.poll() is not None:
                break
            time.sleep(0.25)
        raise RuntimeError(f"no {STEADY_STEPS} steps by {ranks} ranks; see {self.directory}")

    def drive(
        self, process: subprocess.Popen[Any], resize: Callable[[int], object]
    ) -> list[Change]:
        """Change the size time after time; what it cost."""
        asked = []
        self.steady(FEW, process)
        for ranks in (MORE, FEW) * self.times:
            asked.append(time.time())
            resize(ranks)
            self.steady(ranks, process)
        return changes(read(self.accounts), asked)


def managed(bench: Bench, launcher: Sequence[str]) -> tuple[list[Change], dict[str, Any]]:
    """Under ``hpcext run``; the changes, and what the manager says of the job."""
    site = Site(bench.directory)
    site.environ["OMP_NUM_THREADS"] = "1"
    site.write_jobs(
        {
            "name": "train",
            "command": [*launcher, *bench.train()],
            "gpus": {"min": FEW, "max": MORE, "optimal": FEW},
        }
    )
    process = site.start("run", str(site.jobs), "--gpus", str(MORE), "--dir", str(site.pilot))
    try:
        found = bench.drive(
            process,
            lambda ranks: site.run_until_done("resize", str(site.pilot), "train", str(ranks)),
        )
        (job,) = site.document("status", str(site.pilot))["jobs"]
        site.run("cancel", str(site.pilot), "train")
        process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    return found, job


def in_place(bench: Bench) -> tuple[list[Change], dict[str, Any]]:
    """Resized while it trains."""
    return managed(bench, [sys.executable, "-m", "hpcext", "launch", sys.executable])


def suspended(bench: Bench) -> tuple[list[Change], dict[str, Any]]:
    """Suspended, and resumed at the other size."""
    return managed(bench, [*TORCHRUN, "--standalone", "--nproc-per-node", "{gpus}"])


class Agents:
    """The agents of torchrun, one per node; the first has the rendezvous."""

    def __init__(self, bench: Bench) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._bench = bench
        self._log = (bench.directory / "agents.log").open("w")
        self.agents: list[subprocess.Popen[bytes]] = []

    def resize(self, ranks: int) -> None:
        """A node joins, or is killed with all that runs on it."""
        while len(self.agents) < ranks:
            self._join()
        while len(self.agents) > ranks:
            self._kill(self.agents.pop())

    def _join(self) -> None:
        snapshot = str(self._bench.directory / "snapshot.pt")
        command = [
            *TORCHRUN, "--nnodes", f"{FEW}:{MORE}", "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-id", "bench",
            "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-conf", AGENT,
            "--max-restarts", "100",
            *self._bench.train("--snapshot", snapshot),
        ]  # fmt: skip
        # Without the first a node that joins later is refused (PyTorch 2.13).
        environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        self.agents.append(
            subprocess.Popen(
                command,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        )

    def _kill(self, agent: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            node = psutil.Process(agent.pid)
            for process in (node, *node.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        agent.wait()

    def close(self) -> None:
        """End them all."""
        self.resize(0)
        self._log.close()


def elastic(bench: Bench) -> tuple[list[Change], dict[str, Any]]:
    """Restarted by torchrun."""
    agents = Agents(bench)
    try:
        agents.resize(FEW)
        return bench.drive(agents.agents[0], agents.resize), {}
    finally:
        agents.close()


WAYS = {"in place": in_place, "suspended": suspended, "elastic": elastic}


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):6.2f} ({min(values):.2f}-{max(values):.2f})"


HEADING = (
    f"{'':17} {'step':>8} {'stall: median (range)':>22} {'again':>8} {'slower':>8} "
    f"{'last stall':>11} {'as learned':>11}"
)


def rows(way: str, found: Sequence[Change], job: dict[str, Any]) -> Iterator[str]:
    """The lines of the table for one way of one size."""
    for before, after, learned in ((FEW, MORE, "up_s"), (MORE, FEW, "down_s")):
        ours = [change for change in found if (change.before, change.after) == (before, after)]
        middle = {
            name: statistics.median(getattr(change, name) for change in ours)
            for name in ("step_s", "again_s", "slower_s")
        }
        said = job.get(learned)
        yield (
            f"{way:<10} {before} to {after} {1e3 * middle['step_s']:5.0f} ms "
            f"{spread([change.stall_s for change in ours]):>20} s {middle['again_s']:6.2f} s "
            f"{middle['slower_s']:6.2f} s {ours[-1].stall_s:9.3f} s "
            f"{'-' if said is None else f'{said:9.3f} s':>11}"
        )


def measure(parameters: int, times: int, ways: Sequence[str], *, sharded: bool) -> bool:
    """All ways at one size; whether the goals are reached."""
    stalls: dict[tuple[str, int], float] = {}
    for way in ways:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="rescaling-", dir=Path.cwd()) as folder:
            found, job = WAYS[way](Bench(Path(folder), parameters, times, sharded))
        print(f"{way}, {parameters / 1e6:g} M parameters; load average before: {load:.1f}")
        for row in rows(way, found, job):
            print(row, flush=True)
        if sharded and way == "in place":
            shard_bytes = 3 * 4 * parameters / FEW
            above = max(change.above_bytes for change in found)
            print(f"at most {above / 1e6:.0f} MB above; a shard has {shard_bytes / 1e6:.0f} MB")
        for after in (FEW, MORE):
            stalls[way, after] = statistics.median(c.stall_s for c in found if c.after == after)
    goals = SHARDED if sharded else GOALS
    factor, most_s = goals.get(parameters, (0.0, None))
    held = True
    for after in (MORE, FEW) if "in place" in ways else ():
        ours = stalls["in place", after]
        others = {way: stalls[way, after] for way in ways if way != "in place"}
        ratios = {way: stall_s / ours if ours > 0 else math.inf for way, stall_s in others.items()}
        told = ", ".join(f"{ratio:.1f} times less than {way}" for way, ratio in ratios.items())
        print(f"to {after} ranks: {ours:.3f} s in place, {told} (goal: {factor:g} times)")
        held &= all(ratio >= factor for ratio in ratios.values()) and ours < (most_s or ours + 1)
    return held


def main() -> int:
    """Measure, print, and say by the exit status whether the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="+", default=list(GOALS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--shard", action="store_true", help="a model of FSDP2")
    parser.add_argument("--quick", action="store_true", help="the smaller size, once")
    args = parser.parse_args()
    sizes, times = (args.parameters[:1], 1) if args.quick else (args.parameters, args.times)
    print(HEADING)
    ways = [way for way in args.ways if not (args.shard and way == "elastic")]
    held = [measure(parameters, times, ways, sharded=args.shard) for parameters in sizes]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
