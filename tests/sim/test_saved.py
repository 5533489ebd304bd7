"""What jobs would have cost one by one, by hand; and what a recording does not tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcext.cli import main as cli
from hpcext.core import values as v
from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate, Observed
from hpcext.sim.pilots.recording import (
    CompletedJob,
    Costs,
    RecordedNode,
    Recording,
    write_recording,
)
from hpcext.sim.pilots.saved import Alone, JobObservation, Size, busy_s, seen, simulated

FLAT = {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
"""A training that is no faster on more GPUs than two."""

LONG = CompletedJob(
    "1", "long", 0.0, (1, 2, 3, 4), 2, 200.0, costs=Costs(10.0, 1.0, 5.0), speed=FLAT
)
SHORT = CompletedJob("2", "short", 0.0, (1, 2), 2, 100.0, speed={1: 0.6, 2: 1.0})
LATE = CompletedJob("3", "late", 1000.0, (1,), 1, 50.0, speed={1: 1.0})
RECORDING = Recording("marble", (RecordedNode(4),), (LONG, SHORT, LATE))


def were(*sizes: Size) -> Mapping[str, JobObservation]:
    """The jobs of it, known on these sizes; how long they took is not looked at here."""
    return {job.id: JobObservation(0.0, 1.0, 1.0, sizes) for job in RECORDING.jobs}


BEST = were(Size(2, 1), Size(1, 1))


def test_each_job_alone_as_by_hand() -> None:
    """10 s to start, 200 of work by 2 a second, 5 s to leave; 100 by 1; 50 by 1."""
    found = simulated(RECORDING, BEST)
    assert {job: alone._asdict() for job, alone in found.alone.items()} == {
        "1": pytest.approx(Alone(115.0, 2, 4)._asdict()),
        "2": pytest.approx(Alone(100.0, 2, 4)._asdict()),
        "3": pytest.approx(Alone(50.0, 1, 4)._asdict()),
    }
    # Two and two GPUs side by side, and much later one more.
    assert found.busy_s == pytest.approx(115 + 50)


def test_it_is_the_baseline_of_marble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All jobs there from the beginning, one node: the completion time of the job set."""
    jobs = tuple(replace(job, submitted_s=0.0) for job in RECORDING.jobs)
    at_once = replace(RECORDING, jobs=jobs)
    alone = simulated(at_once, BEST).alone.values()
    write_recording(tmp_path / "a.json", at_once)
    assert cli.main(["simulate", str(tmp_path / "a.json"), "--policy", "exclusive", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["policies"]
    makespan_s = row["figures"]["makespan_s"]["mean"]
    assert sum(each.lasted_s * each.node_gpus for each in alone) == pytest.approx(4 * makespan_s)
    assert makespan_s == pytest.approx(115 + 100 + 50)


def test_a_job_of_two_nodes_has_both_alone() -> None:
    wide = replace(LONG, sizes=(2,), nodes=(2, 2), speed={4: 1.0})
    recording = Recording("fixed", (RecordedNode(4), RecordedNode(4)), (wide,))
    (alone,) = simulated(recording, were(Size(4, 2))).alone.values()
    assert alone == (pytest.approx(215.0), 4, 8)
    with pytest.raises(InputError, match="job long: its speed on 4 GPUs of 2 nodes, its best"):
        simulated(recording, were(Size(4, 1)))


SLOW = replace(SHORT, sizes=(8,), optimal=8, speed={8: 1.0})


@pytest.mark.parametrize(
    ("change", "jobs", "told"),
    [
        ({}, were(Size(1, 1)), "job long: its speed on 2 GPUs, its best size, was not"),
        ({}, were(Size(2, 1)), "job late: its speed on 1 GPU, its best size, was not"),
        ({"nodes": (RecordedNode(4), RecordedNode(4, "a100"))}, BEST, "its nodes are not alike"),
        ({"jobs": (replace(SHORT, speed={2: 1e300}),)}, BEST, "a job reported an impossible value"),
        (
            {"jobs": (LONG, SLOW)},
            BEST,
            "job short: in the simulation under exclusive it does not complete",
        ),
    ],
)
def test_what_a_recording_does_not_tell(
    change: dict[str, Any], jobs: Mapping[str, JobObservation], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        simulated(replace(RECORDING, **change), jobs)


def test_a_job_waits_for_no_other_one_twice() -> None:
    stays = [(50.0, 60.0), (0.0, 10.0), (5.0, 20.0), (6.0, 7.0), (60.0, 61.0)]
    assert busy_s(stays) == 20 + 11
    assert busy_s([]) == 0


def job(*observed: Observed) -> v.Job:
    known = Estimate(observed=observed)
    return v.Job(
        "1", "one", 0, (1, 2, 4), 2, attempt=1, submitted_s=3.0, since_s=30.0, estimate=known
    )


def part(start_s: float, end_s: float, *gpus: str) -> v.Segment:
    return v.Segment(start_s, gpus, None, end_s)


def test_where_it_trained_its_speed_is_known() -> None:
    """Of four GPUs of one node and of two, a recording has the speed on one."""
    observed = (Observed(2, 1, 1.0), Observed(4, 1, 2.0), Observed(4, 2, 1.5))
    record = v.Record((part(4, 10, "a:0", "a:1"), part(11, 30, "a:0", "a:1", "a:2", "a:3")))
    assert seen(job(*observed), record) == (3.0, 30.0, 25.0, {Size(2, 1), Size(4, 1)})


def test_a_profile_tells_how_others_compare_with_it() -> None:
    """But not of a job that never said how fast it was."""
    record = v.Record((part(4, 10, "a:0", "a:1", "b:0", "b:1"),))
    known = {Size(1, 1), Size(2, 1), Size(4, 2)}
    assert seen(job(Observed(4, 2, 1.5)), record, {1: 1.0, 2: 1.5, 4: 2.0}).sizes == known
    assert seen(job(), record, {1: 1.0}).sizes == {Size(4, 2)}


def test_of_who_says_nothing_one_whole_run_is_known() -> None:
    once = v.Record((part(4, 10, "a:0", "b:1"),))
    again = v.Record((*once.segments, part(11, 30, "a:0", "b:1")))
    assert seen(job(), once).sizes == {Size(2, 2)}
    assert seen(job(), again).sizes == frozenset()
    assert seen(replace(job(), attempt=2), once).sizes == frozenset()
