"""Pollux's experiments, on measurements that are made up: the real ones are not in the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_measurements import write

from hpcext.core.errors import InputError
from hpcext.papers.pollux import EXACT, GENETIC, JCT, NEEDS, OPTIMUS, TIRESIAS, study, summed
from hpcext.papers.pollux.runs import PolluxRun, simulated
from hpcext.papers.study import Extent
from hpcext.sim.evaluate.metrics import fairness, figures
from hpcext.sim.evaluate.outcome import SimulatedRun
from hpcext.sim.replay.profiled import Adaptive, Fixed, packed
from hpcext.sim.workloads.applications import application
from hpcext.sim.workloads.philly import SHARES

JOBS = (
    ("imagenet", 40, 12, 256), ("cifar10", 70, 8, 64), ("ncf", 90, 1, 64), ("bert", 200, 6, 256),
    ("yolov3", 210, 4, 64), ("deepspeech2", 260, 16, 256), ("cifar10", 500, 48, 256),
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "pollux"
    for name in SHARES:
        write(folder / name)
    lines = [
        f"{each[0]}-{at},{each[1]},{each[0]},{each[2]},{each[3]}" for at, each in enumerate(JOBS)
    ]
    for number in (1, 2, 3, 4):
        (folder / f"workload-{number}.csv").write_text(
            "\n".join(["name,time,application,num_replicas,batch_size", *lines]) + "\n"
        )
    return folder


def rows(run: SimulatedRun) -> dict[str, float]:
    assert all(row.state == "completed" for row in run.jobs)
    return {row.job: row.jct_s or 0.0 for row in run.jobs}


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", [EXACT, GENETIC, OPTIMUS, TIRESIAS])
def test_every_job_ends_under_every_policy_and_the_same_way_again(data: Path, policy: str) -> None:
    first = simulated(PolluxRun(data, policy, 1))
    assert len(rows(first)) == len(JOBS)
    assert first == simulated(PolluxRun(data, policy, 1))


def test_tiresias_gives_what_was_asked_for_and_the_speed_is_the_measured_one(data: Path) -> None:
    found = rows(simulated(PolluxRun(data, TIRESIAS, 1)))
    known = application(data, "imagenet")
    # 30 s to start; 12 GPUs on 3 whole nodes, 22 samples on each.
    seconds = known.steps(256) * known.times((4, 4, 4), 21).step_s * 256 / (12 * 21)
    assert found["imagenet-0"] == pytest.approx(30 + seconds, rel=1e-6)


def test_a_fair_share_is_between_whole_numbers_of_gpus(data: Path) -> None:
    known = application(data, "bert")
    adaptive = Adaptive(known)
    one, two = adaptive.alone_s(1.0, 4), adaptive.alone_s(2.0, 4)
    assert adaptive.alone_s(0.25, 4) == pytest.approx(4 * one)
    assert two < adaptive.alone_s(1.5, 4) < one
    # Its least batch of a GPU bounds how many GPUs a fixed batch can have.
    fixed = Fixed(known, 16)
    assert fixed.alone_s(4.0, 4) == fixed.alone_s(64.0, 4)
    assert packed(9, 4) == (4, 4, 1)


def test_fairness_is_known_of_every_job(data: Path) -> None:
    run = simulated(PolluxRun(data, EXACT, 1))
    rho = fairness(run.jobs)
    assert len(rho) == len(JOBS)
    # Nobody is faster than alone, without any restart, on what all have together.
    alone = {
        row.job: Adaptive(application(data, row.job.split("-")[0])).alone_s(64.0, 4)
        for row in run.jobs
    }
    assert all((row.jct_s or 0) > alone[row.job] / 1.05 for row in run.jobs)


def test_interference_costs_those_who_share_nodes(data: Path) -> None:
    apart, shared = (
        summed(PolluxRun(data, policy, 1, interference=0.5)).jct_s
        for policy in (EXACT, "pollux:apart=false")
    )
    assert apart == summed(PolluxRun(data, EXACT, 1)).jct_s
    assert shared >= summed(PolluxRun(data, "pollux:apart=false", 1)).jct_s


def test_without_data_the_study_says_what_it_needs() -> None:
    found = study(Extent())
    every = [row for table in found.tables for row in table.rows]
    assert len(every) > 40
    assert all(row.ours is None and row.why for row in every)
    assert sum(row.why == NEEDS for row in every) == len(every) - 2


@pytest.mark.slow
def test_a_quick_study_measures_a_part_and_says_of_the_rest_that_it_did_not(data: Path) -> None:
    found = study(Extent(data=data.parent, quick=True))
    by_name = {row.what: row for table in found.tables for row in table.rows}
    ours = figures(simulated(PolluxRun(data, TIRESIAS, 1))).jct_mean_s
    assert by_name["tiresias, workload 1"].ours == ours
    assert by_name["average JCT, workload 1"].ours == summed(PolluxRun(data, JCT, 1)).jct_s
    assert by_name["tiresias, workload 2"].ours is None
    assert by_name["tiresias, workload 2"].why == "not in the quick study"
    assert by_name["apart, 50 % slower"].ours == 1.0


def test_data_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        study(Extent(data=tmp_path, quick=True))
