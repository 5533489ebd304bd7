"""What ``hpcext report`` says of a pilot, against what Slurm's own accounting says of its job."""

from __future__ import annotations

import datetime
import json
import re

import pytest
from site_of_test import Site
from slurm_cluster import GPUS, Cluster
from test_pilot import again, begun, over, submit

HOUR_S = 3600.0
LONG = {"steps": 160, "step_s": 0.05}
"""Longer than what is rounded."""

ROUNDED_S = 2.0
"""Slurm's clock is in whole seconds, at the begin and at the end."""


@pytest.mark.slow
def test_the_report_agrees_with_sacct(slurm: Cluster, place: Site) -> None:
    """Two nodes, and a job that is suspended and goes on with more GPUs."""
    place.write_jobs(
        place.counter("left", gated=True, **LONG, gpus={"min": 1, "max": 6, "optimal": 4}),
        place.counter("right", gated=True, **LONG, gpus={"min": 1, "max": 6, "optimal": 6}),
        place.counter("second", gated=True, **LONG, gpus={"min": 1, "max": 6, "optimal": 5}),
    )
    job = submit(place, words=("--log-format", "json"))
    begun(place, "left", "right", "second")
    place.open("left")
    again(place, "3", 2)
    place.open("right")
    place.open("second")
    over(slurm, place, job)
    check_log((place.pilot / f"slurm-{job}.out").read_text())
    (pilot,) = place.document("report", str(place.pilot))["pilots"]

    def finished() -> list[list[str]]:
        columns = "jobid,jobname,start,end,elapsedraw,alloctres"
        lines = [line.split("|") for line in slurm.accounting(job, columns)]
        return lines if len(lines) >= 6 and all(line[3] != "Unknown" for line in lines) else []

    slurm.wait_for(finished, "the end of all steps in sacct")
    lines = {line[1] if "." in line[0] else "job": line for line in finished()}

    # The allocation: no more than it was, and no less than from the first to the last of its steps.
    held_s, gpus = pilot["held_gpu_h"] * HOUR_S, _gpus(lines["job"])
    assert gpus == 2 * GPUS
    attempts = [line for name, line in lines.items() if name.startswith("hpcext-")]
    begin, end = min(_at(line[2]) for line in attempts), max(_at(line[3]) for line in attempts)
    least_s, most_s = (end - begin).total_seconds(), int(lines["job"][4])
    assert gpus * (least_s - ROUNDED_S) <= held_s <= gpus * (most_s + ROUNDED_S)

    # Each job: its steps, and what lies between the decision and its step, and after it.
    for row in pilot["jobs"]:
        steps = [line for name, line in lines.items() if name.startswith(f"hpcext-{row['id']}-")]
        assert len(steps) == row["attempts"]
        charged_s = sum(int(line[4]) * _gpus(line) for line in steps)
        rounding_s = sum(_gpus(line) for line in steps) * ROUNDED_S
        assert row["held_gpu_h"] * HOUR_S >= charged_s - rounding_s
    jobs_s = sum(row["held_gpu_h"] for row in pilot["jobs"]) * HOUR_S
    assert jobs_s + pilot["idle_gpu_h"] * HOUR_S == pytest.approx(held_s, abs=1.0)
    second = next(row for row in pilot["jobs"] if row["name"] == "second")
    assert (second["attempts"], second["suspends"], second["lost_steps"]) == (2, 1, 0)
    assert second["suspends_gpu_h"] > 0


def test_what_sharing_saved_is_estimated(slurm: Cluster, place: Site) -> None:
    """Three jobs, each of which fills half a node: two nodes instead of three."""
    steps, step_s = 40, 0.1
    half = {"steps": steps, "step_s": step_s, "gpus": {"min": 3, "max": 3}}
    names = ("one", "two", "three")
    place.write_jobs(*(place.counter(name, **half) for name in names))
    job = submit(place)
    begun(place, *names)
    over(slurm, place, job)
    (pilot,) = place.document("report", str(place.pilot), "--saved")["pilots"]
    assert pilot["estimated_unknown"] is None
    for row in pilot["jobs"]:
        node_s = row["estimated_alone_gpu_h"] * HOUR_S / GPUS
        assert node_s > steps * step_s
        assert row["estimated_alone_used_gpu_h"] * HOUR_S == pytest.approx(3 * node_s, abs=0.01)
    alone = sum(row["estimated_alone_gpu_h"] for row in pilot["jobs"])
    saved = alone - pilot["held_gpu_h"]
    assert pilot["estimated_saved_gpu_h"] == pytest.approx(saved, abs=1e-5)
    assert 0.5 < pilot["estimated_busy_s"] / pilot["busy_s"] < 2, pilot


def check_log(text: str) -> None:
    """All that the job has printed are entries, and they tell the story."""
    entries = [json.loads(line) for line in text.splitlines()]
    assert {each["pilot"].partition("-")[0] for each in entries} == {"jobs"}
    told = [each["event"] for each in entries if each["job"] == "second"]
    assert told[-1] == "completed"
    assert told.count("running") >= 2


def _at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _gpus(line: list[str]) -> int:
    found = re.search(r"gres/gpu=(\d+)", line[5])
    assert found, line
    return int(found[1])
