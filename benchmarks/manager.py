"""What a manager costs while nothing happens, and how soon it acts when something does.

Six jobs run on six slots and report; the manager's CPU time is read from /proc by this script.
Then a job is suspended from another process, and the time from the request to the first step of
the job that takes its place is taken from what the jobs wrote themselves.

Run: ``python benchmarks/manager.py [--seconds 30]``
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from site_of_test import Site, wait_for

PAPER_MS_PER_S = 11.8
"""MARBLE §VII-D.2: average time of one monitoring cycle, at one cycle a second."""


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, to the nanosecond: proc(5), schedstat."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def start(site: Site, jobs: int, steps: int, step_s: float, slots: int) -> subprocess.Popen[str]:
    """A manager with so many counting jobs, all of the first `slots` in their stride."""
    del site.environ["HPCEXT_REPORT_INTERVAL_S"]  # as users have it
    names = [f"job{number}" for number in range(jobs)]
    site.write_jobs(*(site.counter(name, steps=steps, step_s=step_s) for name in names))
    process = site.start("run", str(site.jobs), "--gpus", str(slots), "--dir", str(site.pilot))
    for name in names[:slots]:
        wait_for(lambda name=name: site.steps(name), f"the first step of {name}")
    return process


def idle(seconds: float) -> float:
    """Share of a core that the manager uses while its jobs run and report."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        process = start(site, 6, 1_000_000, 0.2, 6)
        time.sleep(3)
        before, began = cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(process.pid) - before) / (time.monotonic() - began)
        process.terminate()
        process.communicate()
        return share


def hand_over(times: int) -> list[float]:
    """Seconds from the last step of one job to the first step of the next on its slot."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        process = start(site, times + 1, 20, 0.02, 1)
        process.communicate()
        spans = sorted(
            (taken[0].time_s, taken[-1].time_s)
            for name in (f"job{number}" for number in range(times + 1))
            if (taken := site.steps(name))
        )
        return [after[0] - 0.02 - before[1] for before, after in itertools.pairwise(spans)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=20)
    args = parser.parse_args()
    share = idle(args.seconds)
    gaps = hand_over(args.jobs)
    print(f"manager, six running jobs, nothing happens: {share:.4%} of a core (goal: under 0.2 %)")
    print(f"  that is {share * 1000:.2f} ms a second; MARBLE: {PAPER_MS_PER_S} ms a second")
    print(
        f"one job's last step to the next one's first, Python's start in it: "
        f"median {statistics.median(gaps) * 1000:.0f} ms, largest {max(gaps) * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
