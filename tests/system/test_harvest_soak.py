"""A harvester whose nodes come and go thousands of times: nothing grows, and no trainer is wronged.

``SOAK_EVENTS=N`` says how many times a node joins or leaves; README.md has the command. Holes end
as soon as something trains in them: leases are cancelled, or a main job of a second takes nodes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from site_of_test import Site
from slurm_cluster import NODES, Cluster
from test_harvest import ended, jobs_of, leases, main_job, nothing_left
from test_pilot import manager

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

EVENTS = int(os.environ.get("SOAK_EVENTS", "2000"))
LONG, SHORT = 5, 4
"""Trainers that last to the end, and short ones that are handed in together."""

HANDED_IN_EVERY = 100
"""Events."""

STALLED_S = 180.0


class ResourceUse(NamedTuple):
    """What the manager uses at some instant."""

    events: int
    rss: int
    files: int
    threads: int
    leases: int


class Traffic:
    """Nodes that join and leave, by the directories of their leases.

    Parameters
    ----------
    place : Site
    """

    def __init__(self, place: Site) -> None:
        self._directory = place.pilot / "leases"
        self._joined: set[str] = set()
        self._left: set[str] = set()

    @property
    def events(self) -> int:
        return len(self._joined) + len(self._left)

    def look(self) -> dict[str, Path]:
        """Node → the lease on which something was started there, of those that go on."""
        there = {path.name: path for path in self._directory.iterdir()}
        self._joined |= {name for name, path in there.items() if (path / "agent.json").exists()}
        self._left |= self._joined - there.keys()
        used = {}
        for path in there.values():
            # It may go while it is looked at.
            if list(path.glob("run-*.json")) and not (path / "leaving").exists():
                used[str(json.loads((path / "lease.json").read_text())["node"])] = path
        return used


def disturb(
    slurm: Cluster, rng: random.Random, used: Sequence[str], main: int | None
) -> int | None:
    """Some of the nodes that train are wanted; the main job that wants them, if there is one."""
    if main is not None and slurm.job(main)["JobState"] in {"PENDING", "RUNNING", "COMPLETING"}:
        return main
    if rng.random() < 0.25:
        return main_job(slurm, rng.randint(1, len(NODES)), "sleep", "1")
    running = leases(slurm)
    for node in used:
        if node in running and rng.random() < 0.8:
            slurm.run("scancel", str(running[node]))
    return None


def quarter(seen: Sequence[ResourceUse], number: int) -> list[ResourceUse]:
    """The second is number 1, the last 3."""
    last = seen[-1].events
    return [each for each in seen if number * last <= 4 * each.events <= (number + 1) * last]


def test_nodes_come_and_go_and_nothing_grows(slurm: Cluster, place: Site) -> None:
    began_s = time.monotonic()
    one = {"nodes": {"min": 1, "max": 1}, "gpus": 6, "suspend_timeout_s": 20, "retries": 1000}
    lasting = [f"long{number}" for number in range(LONG)]
    handed_in: list[str] = []
    place.write_jobs(
        *(place.counter(name, steps=10**6, step_s=0.1, endless=True, **one) for name in lasting)
    )
    # Nobody reads what it says before its end.
    process = place.start(
        "--quiet", "harvest", "start", str(place.jobs), "--partition", "harvest", "--interval", "1",
        "--least", "60", "--dir", str(place.pilot),
    )  # fmt: skip
    slurm.wait_for((place.pilot / "leases").is_dir, "the harvester")
    me = psutil.Process(manager(place))
    traffic, rng = Traffic(place), random.Random(1)
    seen: list[ResourceUse] = []
    main: int | None = None
    moved_s = time.monotonic()
    while traffic.events < EVENTS:
        before = traffic.events
        try:
            used = list(traffic.look())
        except (FileNotFoundError, ValueError):
            continue
        if traffic.events != before:
            moved_s = time.monotonic()
        assert time.monotonic() - moved_s < STALLED_S, slurm.run("squeue", "--all").stdout
        seen.append(
            ResourceUse(
                traffic.events,
                me.memory_info().rss,
                me.num_fds(),
                me.num_threads(),
                len(os.listdir(place.pilot / "leases")),
            )
        )
        if traffic.events // HANDED_IN_EVERY > len(handed_in) // SHORT:
            names = [f"short{len(handed_in) + number}" for number in range(SHORT)]
            handed_in += names
            place.write_jobs(*(place.counter(name, step_s=0.05, **one) for name in names))
            asked = place.run("submit", str(place.pilot), str(place.jobs))
            assert asked.code == 0, asked
        main = disturb(slurm, rng, used, main)
        time.sleep(0.5)
    took_s = time.monotonic() - began_s
    for name in lasting:
        place.open(name)
    ended(process)
    nothing_left(slurm, place)
    jobs = jobs_of(place)
    assert set(jobs) == {*lasting, *handed_in}
    assert {job["state"] for job in jobs.values()} == {"completed"}
    for name in lasting:
        place.check_account({name: place.steps(name)[-1].step})
    for name in handed_in:
        place.check_account({name: 40})
    second, last = quarter(seen, 1), quarter(seen, 3)
    attempts = sum(job["attempts"] for job in jobs.values())
    files = sum(len(names) for _, _, names in os.walk(place.pilot))
    journal = (place.pilot / "journal.jsonl").stat().st_size
    print(
        f"{traffic.events} events in {took_s:.0f} s, {attempts} attempts, {files} files, "
        f"journal {journal} B, RSS {statistics.median(each.rss for each in second) / 2**20:.1f} "
        f"then {statistics.median(each.rss for each in last) / 2**20:.1f} MiB, most files open "
        f"{max(each.files for each in last)}, leases {max(each.leases for each in last)}"
    )
    # What is on record of each attempt is kept, and is small.
    assert statistics.median(each.rss for each in last) < 1.2 * statistics.median(
        each.rss for each in second
    )
    for name in ("files", "threads", "leases"):
        most = [max(getattr(each, name) for each in part) for part in (second, last)]
        assert most[1] <= most[0] + 4, f"{name}: {most}"
