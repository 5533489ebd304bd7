"""The example job file, once by a live pilot and once simulated with the speeds recorded there.

The trainings are stand-ins that sleep after each step, as long as the file says that a step takes;
two cores suffice for them, and what the machine adds to that is in the records.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from site_of_test import Site

from hpcext.jobfile import read_jobs
from hpcext.jobspec import JobSpec, optimum

EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs.toml"
PACED = Path(__file__).with_name("paced.py")

FASTER = 3.0
"""Than the file says: it takes a minute."""

GPUS = 6
APART_S = 1.0
"""Events that are nearer than this in the simulation count as one: live they come in any order."""

Event = tuple[float, str, str]


def stand_in(site: Site, spec: JobSpec) -> dict[str, Any]:
    """A job of the examples, for :meth:`Site.write_jobs`."""
    speeds = {str(gpus): FASTER * speed for gpus, speed in spec.scaling.items()}
    assert spec.work
    words = [sys.executable, str(PACED), f"{spec.work:.0f}", "10", json.dumps(speeds)]
    return {
        "name": spec.name,
        "command": words,
        "env": {"COUNTER_LOG": str(site.path / f"{spec.name}.steps")},
        "gpus": {"min": spec.gpus.min, "max": spec.gpus.max, "optimal": optimum(spec)},
        "scaling": speeds,
        "work": {"steps": int(spec.work)},
        "after": list(spec.after),
    }


def total(parts: list[dict[str, float]]) -> list[float]:
    return [sum(part.values()) for part in parts]


def recorded(job: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """The job with the speeds and costs that the pilot recorded of it.

    On sizes that it never had it is as much slower than stated as on those that it had.
    """
    starts, stops = total(live["resume_s"]), total(live["suspend_s"])
    segments = live["segments"]
    # Each began with a start, and each but the last ended with a suspension.
    assert (len(starts), len(stops)) == (len(segments), len(segments) - 1)
    measured, stated = {}, job["scaling"]
    for part, up_s, down_s in zip(segments, starts, [*stops, 0.0], strict=True):
        trained_s = part["end_s"] - part["start_s"] - up_s - down_s
        measured[str(len(part["gpus"]))] = part["steps"] / trained_s
    slower = statistics.fmean(speed / stated[gpus] for gpus, speed in measured.items())
    curve = {gpus: measured.get(gpus, slower * speed) for gpus, speed in stated.items()}
    costs = {"rescale_up_s": statistics.fmean(starts)}
    if stops:
        costs["rescale_down_s"] = statistics.fmean(stops)
    return {**job, "command": "true", "scaling": curve, **costs}


def in_groups(events: list[Event], simulated: list[Event]) -> list[list[tuple[str, str]]]:
    """Events in their order, those sorted that the simulation has at one time."""
    sizes = [1]
    for before, after in pairwise(simulated):
        if after[0] - before[0] < APART_S:
            sizes[-1] += 1
        else:
            sizes.append(1)
    left = [(what, name) for _, what, name in events]
    groups = []
    for size in sizes:
        groups.append(sorted(left[:size]))
        left = left[size:]
    return groups


def test_simulation_and_live_pilot_agree(site: Site) -> None:
    jobs = [stand_in(site, spec) for spec in read_jobs(EXAMPLES)]
    site.write_jobs(*jobs)
    document = site.document("run", str(site.jobs), "--gpus", str(GPUS))
    assert [job["state"] for job in document["jobs"]] == ["completed"] * len(jobs), document
    by_name = {job["name"]: job for job in document["jobs"]}
    live: list[Event] = sorted(
        event
        for name, job in by_name.items()
        for event in (
            (job["segments"][0]["start_s"], "start", name),
            (job["segments"][-1]["end_s"], "end", name),
        )
    )

    site.write_jobs(*(recorded(job, by_name[job["name"]]) for job in jobs))
    done = site.run("simulate", str(site.jobs), "--nodes", f"1x{GPUS}", "--report", "out")
    assert done.code == 0, done
    with (site.path / "out" / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    simulated: list[Event] = sorted(
        (float(row[f"{what}ed_s"]), what, row["name"]) for row in rows for what in ("start", "end")
    )

    assert in_groups(live, simulated) == in_groups(simulated, simulated)
    assert {row["name"]: int(row["suspends"]) for row in rows} == {
        name: job["suspends"] for name, job in by_name.items()
    }
    # Else it would agree for the wrong reason: one job was promoted, as the file's comment says.
    assert by_name["wide"]["suspends"] == 1
    makespan_s = simulated[-1][0]
    both = f"live {document['makespan_s']:.2f} s, simulated {makespan_s:.2f} s"
    assert abs(makespan_s / document["makespan_s"] - 1) < 0.1, both
