"""Contract engine of LSF, written from the vendor's documentation: who of a job hears a signal.

What the documentation leaves open is as it was recorded (tests/lsf/recorded): a job's processes are
known when it is some 30 s old, and then each of their process groups hears what is sent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict

from lsf_res import HEARD
from lsf_site import Job, Site

__all__ = ["HEARD", "deliver", "known", "pids", "termination"]


def termination(site: Site, job: Job) -> tuple[tuple[signal.Signals, ...], ...]:
    """What bkill sends, step by step, each when the interval after the last is over."""
    last = (signal.SIGKILL,)
    if site.quirks.parallel_killed_at_once and job.slots > 1:
        return (last,)
    return ((signal.SIGCONT, signal.SIGINT), (signal.SIGTERM,), last)


def deliver(site: Site, job: Job, *signums: signal.Signals) -> None:
    """Send signals to all of a job that is known."""
    for group in known(site, job)[1]:
        for signum in signums:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signum)


def known(site: Site, job: Job) -> tuple[list[int], list[int]]:
    """Processes of a job that its host knows, and their process groups; its leader's first."""
    if not job.group:
        # It has never begun, and group 0 is that of who asks.
        return [], []
    parents, groups = _processes()
    found = {pid for pid, group in groups.items() if group == job.group}
    if time.time() - job.started_at >= site.pim_s:
        below = defaultdict(list)
        for pid, parent in parents.items():
            below[parent].append(pid)
        # A job that submits others may be the reaper of what stands for their hosts.
        engines = {each.engine for each in site.jobs()}
        waiting = list(found)
        while waiting:
            more = [pid for pid in below[waiting.pop()] if pid not in found | engines]
            found.update(more)
            waiting += more
    return sorted(found), list(dict.fromkeys([job.group, *(groups[pid] for pid in sorted(found))]))


def pids() -> list[int]:
    """All processes of this machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """Parent and process group of each process."""
    parents, groups = {}, {}
    for pid in pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[pid], groups[pid] = int(fields[1]), int(fields[2])
    return parents, groups
