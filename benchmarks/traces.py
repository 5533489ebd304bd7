"""How fast traces are made and read, in how much memory, and how like the real ones they are.

``python benchmarks/traces.py [--data DIR] [--jobs N] [--hours H]``: a log of so many jobs (default:
a million) written, read, and run through the main queue of a machine of 4,608 nodes; so many hours
(a year) of each generated trace, in figures beside the paper's; with the data also the real week of
Summit and Theta's log. Each part is a process of its own: seconds of a core, seconds by the clock
and its peak of memory are beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from hpcext.sim.replay.mainqueue import MainQueue
from hpcext.sim.traces.fragments import MINUTES, IdleStats, idle_stats
from hpcext.sim.traces.generate import MACHINES, generate
from hpcext.sim.traces.idle import read_idle, write_idle
from hpcext.sim.traces.swf import SwfJob, read_swf, swf_stats, write_swf

NODES = 4608
LOAD = 0.9
PAPER = {
    "summit": "events 68, INC 42, DEC 31, 407 nodes, 58 % / 10 % under 10 min (2.1)",
    "summit-2-months": "INC 41.7, DEC 28.6, 524 nodes, 11.1 % (Table 1)",
    "theta": "INC 6.3, DEC 6.2, 547 nodes, 12.5 % (Table 1)",
    "mira": "INC 2.8, DEC 2.4, 5071 nodes, 10.3 % (Table 1)",
}


def jobs(count: int, seed: int = 0) -> Iterator[SwfJob]:
    """Jobs for a machine of 4,608 nodes, submitted at random, that fill nine tenths of it."""
    rng = np.random.default_rng(seed)
    time_s = 0.0
    for first in range(0, count, 10_000):
        size = min(10_000, count - first)
        nodes = np.clip(np.rint(rng.lognormal(2.0, 2.0, size)), 1, NODES // 2).astype(int)
        limit_s = 600 * np.ceil(np.clip(rng.lognormal(7.5, 1.2, size), 60, 86_400) / 600)
        run_s = np.ceil(limit_s * rng.random(size))
        gaps_s = rng.exponential((nodes * run_s).mean() / (LOAD * NODES), size)
        times = np.floor(time_s + np.cumsum(gaps_s))
        time_s = float(times[-1])
        rows = zip(*(each.tolist() for each in (times, nodes, run_s, limit_s)), strict=True)
        for number, (submit_s, count_, run, limit) in enumerate(rows, first + 1):
            yield SwfJob(number, submit_s, -1, run, count_, count_, limit, 1)


def write_log(path: Path, count: int) -> str:
    """Write a log."""
    write_swf(path, jobs(count), {"Version": 2.2, "MaxNodes": NODES, "MaxProcs": NODES})
    return f"{path.stat().st_size / 1e6:.0f} MB"


def read_log(path: Path) -> str:
    """Read it."""
    stats = swf_stats(read_swf(path))
    return f"{stats.jobs} jobs, {stats.proc_s / NODES / (stats.end_s - stats.start_s):.0%} load"


def queue(path: Path, nodes: int = NODES) -> str:
    """Run it through the main queue."""
    main = MainQueue(nodes)
    stats = idle_stats(main.changes(read_swf(path)), nodes=nodes)
    return f"{main.started} jobs, at most {main.most_waiting} waiting; {said(stats)}"


def make(name: str, hours: float) -> str:
    """Generate a trace."""
    machine = MACHINES[name]
    stats = idle_stats(generate(machine, 1, hours), nodes=machine.nodes, end_s=3600 * hours)
    return said(stats)


def make_file(path: Path, hours: float) -> str:
    """Generate one into a file."""
    write_idle(path, generate(MACHINES["summit"], 1, hours))
    return f"{path.stat().st_size / 1e6:.0f} MB"


def look(path: Path, nodes: int | None = None) -> str:
    """Read a trace."""
    return said(idle_stats(read_idle(path), nodes=nodes))


def said(stats: IdleStats) -> str:
    """Figures as in Table 1 and Figure 1."""
    events, inc, dec = (stats.per_hour(each) for each in (stats.events, stats.inc, stats.dec))
    shares = " ".join(
        f"{each.minutes}:{each.by_count:.1%}/{each.by_time:.1%}"
        for each in stats.lengths
        if 5 <= each.minutes <= MINUTES[-4]
    )
    return (
        f"events/h {events:.1f} INC/h {inc:.1f} DEC/h {dec:.1f} eq-nodes {stats.eq_nodes:.0f} "
        f"({stats.ratio:.1%}); fragments under so many minutes {shares}"
    )


def _child(send: Connection, what: Callable[..., str], *args: object) -> None:
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    text = what(*args)
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    send.send((cpu_s, took_s, peak_mib, text))


def measure(label: str, what: Callable[..., str], *args: object) -> None:
    """Do it in a process of its own, and print what it took."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, what, *args))
    child.start()
    send.close()
    cpu_s, took_s, peak_mib, text = receive.recv()
    child.join()
    print(f"{label:32} {cpu_s:7.1f} s ({took_s:.1f} s) {peak_mib:6.0f} MiB  {text}", flush=True)


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--hours", type=float, default=8760)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, trace = Path(folder) / "log.swf", Path(folder) / "idle.csv.gz"
        measure("log: write", write_log, log, args.jobs)
        measure("log: read", read_log, log)
        measure("log: main queue", queue, log)
        measure("summit: generate into a file", make_file, trace, args.hours)
        measure("summit: read the file", look, trace, MACHINES["summit"].nodes)
    for name in MACHINES:
        measure(f"{name}: generate", make, name, args.hours)
        print(f"{'':32} the paper: {PAPER[name]}" if name in PAPER else "")
    if args.data:
        week = args.data / "bftrainer" / "summit_idle_week1.csv.gz"
        measure("the real week", look, week)
        for nodes in (4360, 4392):
            theta = args.data / "swf" / "theta_2023.swf.gz"
            measure(f"theta's log on {nodes} nodes", queue, theta, nodes)


if __name__ == "__main__":
    main()
