"""What a supervisor costs: at the start, at the end, while nothing happens, at a suspension.

The command under it is ``date``, which says by itself when it ran; beside each figure stands the
same without a supervisor. Idle cost is read from ``/proc/PID/schedstat`` by this script.

Run: ``python benchmarks/supervisor.py [--times 50] [--seconds 20]``
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.executors.local import LocalExecutor
from hpcext.jobspec import JobSpec

DATE = ("date", "+%s.%N")
# Looks as often as a loop with steps of a millisecond, and says when it saw the signal.
POLL = """
import os, signal, time
print("ready", flush=True)
while signal.SIGTSTP not in signal.sigpending(): time.sleep(0.001)
print(time.time(), flush=True)
os._exit(0)
"""


class Bench:
    """One executor, and the last fact of each kind with the instant that it came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.came: dict[str, float] = {}
        self.spec = JobSpec("bench", DATE, workdir="/")
        self._next = 0
        self._news = asyncio.Event()
        self.executor = LocalExecutor(
            directory=path,
            node=v.Node("n", 1),
            indices=(0,),
            spec=lambda job: self.spec,
            emit=self._emit,
            loop=asyncio.get_running_loop(),
        )

    def _emit(self, fact: f.Fact) -> None:
        self.came[type(fact).__name__] = time.time()
        self._news.set()

    def start(self, *argv: str) -> v.Action:
        """Start an attempt of a job of its own."""
        self._next += 1
        self.spec = JobSpec("bench", argv, workdir="/")
        action = v.Action(v.Kind.START, str(self._next), self._next, 1, {"n": 1})
        self.came.clear()
        self.executor.perform(action)
        return action

    async def heard(self, kind: str) -> float:
        """When a fact came."""
        while kind not in self.came:
            self._news.clear()
            await self._news.wait()
        return self.came[kind]

    def said(self, job: str) -> list[str]:
        """What a job wrote, without our heading."""
        log = self.path / job / "log.txt"
        return log.read_text().splitlines()[1:] if log.exists() else []

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that is no fact."""
        while not condition():
            await asyncio.sleep(0.001)


def plain(times: int) -> tuple[list[float], list[float]]:
    """Start and end of ``date`` without a supervisor, seconds."""
    starts, ends = [], []
    for _ in range(times):
        began = time.time()
        with subprocess.Popen(DATE, stdout=subprocess.PIPE, text=True) as process:
            out, _ = process.communicate()
        starts.append(float(out) - began)
        ends.append(time.time() - float(out))
    return starts, ends


async def supervised(bench: Bench, times: int) -> tuple[list[float], list[float]]:
    """From the action to the command, and from the command to the fact of its end, seconds."""
    starts, ends = [], []
    for _ in range(times):
        began = time.time()
        action = bench.start(*DATE)
        ended = await bench.heard("Ended")
        ran = float(bench.said(action.job)[0])
        starts.append(ran - began)
        ends.append(ended - ran)
    return starts, ends


async def told(bench: Bench, times: int) -> list[float]:
    """From the action to a job that looks every millisecond, seconds."""
    delays = []
    for _ in range(times):
        action = bench.start(sys.executable, "-I", "-S", "-c", POLL)
        await bench.until(functools.partial(bench.said, action.job))
        asked = time.time()
        bench.executor.perform(v.Action(v.Kind.SUSPEND, action.job, action.op, 1))
        await bench.heard("Ended")
        delays.append(float(bench.said(action.job)[1]) - asked)
    return delays


async def idle(bench: Bench, seconds: float) -> tuple[float, int, float]:
    """Share of a core, wake-ups, and MiB of memory of a supervisor while its command sleeps."""
    action = bench.start("sleep", "3600")
    await bench.until((bench.path / action.job / "attempt-0001" / "supervisor.json").exists)
    await asyncio.sleep(1)
    pid = _supervisor(bench.path / action.job / "attempt-0001")
    before, began = _ran(pid), time.monotonic()
    await asyncio.sleep(seconds)
    after, took_s = _ran(pid), time.monotonic() - began
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    bench.executor.perform(v.Action(v.Kind.KILL, action.job, action.op, 1))
    await bench.heard("Ended")
    share = (after[0] - before[0]) / 1e9 / took_s
    return share, after[1] - before[1], int(resident.split()[1]) / 1024


def _supervisor(directory: Path) -> int:
    """Pid of the process that was given this directory on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0") if path.exists() else []
        if os.fsencode(directory) in words:
            return int(path.parent.name)
    raise LookupError(directory)


def _ran(pid: int) -> tuple[int, int]:
    """Nanoseconds on a CPU, and how often it was put on one."""
    spent, _, slices = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(spent), int(slices)


def row(name: str, with_: Sequence[float], without: Sequence[float] = ()) -> None:
    """One line of the table, milliseconds."""
    shown = [f"{statistics.median(with_) * 1e3:8.1f} {max(with_) * 1e3:8.1f}"]
    if without:
        shown.append(f"{statistics.median(without) * 1e3:8.1f}")
    print(f"{name:44}", *shown)


async def measure(times: int, seconds: float) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        await supervised(bench, 3)
        starts, ends = await supervised(bench, times)
        delays = await told(bench, times)
        share, wakes, mib = await idle(bench, seconds)
        bench.executor.close()
    plain_starts, plain_ends = plain(times)
    print(f"{'milliseconds':44} {'median':>8} {'largest':>8} {'without':>8}")
    row("START to the command's first words", starts, plain_starts)
    row("the command's last words to Ended", ends, plain_ends)
    row("SUSPEND to a job that looks every ms", delays)
    print(
        f"idle for {seconds:g} s: {share:.4%} of a core, {wakes} wake-ups; {mib:.1f} MiB resident; "
        f"{len(list(Path('/proc').glob('[0-9]*')))} processes on this machine"
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    asyncio.run(measure(args.times, args.seconds))


if __name__ == "__main__":
    main()
