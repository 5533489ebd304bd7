"""Workloads by their names: what jobs come, and what policies know of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_measurements import write

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.papers import capes as paper
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.profiled import Adaptive, Fixed
from hpcext.sim.workloads import capes, marble
from hpcext.sim.workloads.find import find_workload, job_file
from hpcext.sim.workloads.philly import SHARES, make_philly
from hpcext.sim.workloads.workload import Costs, Setting

MACHINE: dict[str, Any] = {"gpus": 4, "nodes": 16}
FILE = '[[job]]\nname = "{}"\ncommand = "true"\nscaling = {{1 = 2.0}}\nwork = {{steps = {}}}\n'


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in SHARES:
        write(folder / "pollux" / name, (16, 64, 256, 16384, 65536), 128)
    (folder / "pollux" / "jobs.csv").write_text(
        "time,application,num_replicas,batch_size\n5,bert,6,64\n9,ncf,1,64\n9,cifar10,9,256\n"
    )
    return folder


def jobs(text: str, seed: int = 0, **more: Any) -> list[tuple[Job, Physics]]:
    return list(find_workload(text, Setting(**{**MACHINE, **more})).jobs(seed))


def shape(job: Job) -> tuple[Any, ...]:
    return job.sizes, job.optimal, job.nodes


@pytest.mark.parametrize("name", ["philly:load=0.1", "capes:none", "poisson:jobs=9,mean_s=60"])
def test_the_seed_says_what_comes(name: str, data: Path) -> None:
    def looks(seed: int) -> list[tuple[Any, ...]]:
        more = {"data": data} if name.startswith("philly") else {}
        return [(job, physics.work) for job, physics in jobs(name, seed, **more)]

    assert looks(1) == looks(1) != looks(2)
    times = [job.submitted_s for job, _ in looks(1)]
    assert times == sorted(times)
    assert len({job.id for job, _ in looks(1)}) == len(times)


def test_jobs_of_capes_are_those_of_the_paper() -> None:
    found = jobs("capes:moderate", 3)
    assert [job.submitted_s for job, _ in found] == capes.arrivals_s("moderate", 3)
    assert len(found) == paper.JOBS["moderate"]
    assert all(job.estimate == capes.STATED for job, _ in found)
    assert {job.estimate.work for job, _ in jobs("capes:none", learn=True)} == {160.0}
    assert {len(job.estimate.stated) for job, _ in jobs("capes:none", learn=True)} == {0}


def test_jobs_of_marble_are_those_of_its_set() -> None:
    found = jobs("marble:4")
    assert [(job.name, physics.work) for job, physics in found] == list(marble.SETS[4])
    assert {(job.sizes, job.nodes) for job, _ in found} == {((1, 2, 3, 4, 5, 6), (8, 8))}
    assert all(job.estimate.stated == physics.speed for job, physics in found)


def test_jobs_that_come_at_random_are_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(FILE.format("a", 100) + FILE.format("b", 300))
    name = f"poisson:jobs=2000,mean_s=50,of={path}"
    found = jobs(name, 7)
    assert len(found) == 2000
    assert found[-1][0].submitted_s / 2000 == pytest.approx(50, rel=0.1)
    works = [physics.work for _, physics in found]
    assert set(works) == {100, 300}
    assert works.count(100) == pytest.approx(1000, rel=0.1)
    assert [job.name.split("-")[0] for job, _ in found[:9]] == [
        "a" if work == 100 else "b" for work in works[:9]
    ]
    assert job_file(name) == path
    assert find_workload(name, Setting()).files == (path,)
    assert job_file("poisson:jobs=3") is None


def test_philly_is_the_mixture_of_the_paper(data: Path) -> None:
    text = f"philly:load=0.2,data={data / 'pollux'}"
    found = jobs(text, 4)
    asked = make_philly(4, load=0.2)
    assert [(job.name, job.submitted_s) for job, _ in found] == [each[:2] for each in asked]
    workload = find_workload(text, Setting(**MACHINE))
    assert (workload.measured, workload.report_s) == (True, 30.0)
    # All that the result depends on: the measurements.
    assert len(workload.files) == len(SHARES) * (2 + 5)


@pytest.mark.parametrize(
    ("policy", "shapes", "adapts"),
    [
        # ncf is on one GPU always. 9 GPUs are on three nodes with three each, where all have as
        # many; 64 samples are at least 4 for each of 16 GPUs.
        ("tiresias", [((6,), 6, None), ((1,), 1, None), ((9,), 9, None)], False),
        ("exclusive", [((3,), 3, (2, 2)), ((1,), 1, (1, 1)), ((3,), 3, (3, 3))], False),
        ("marble", [((1, 2, 3), 3, (2, 2)), ((1,), 1, (1, 1)), ((1, 2, 3), 3, (3, 3))], False),
        (
            "optimus:interval_s=60",
            [((1, 2, 3, 4), 4, (1, 4)), ((1,), 1, (1, 1)), ((1, 2, 3, 4), 4, (1, 16))],
            False,
        ),
        ("pollux", [((1, 2, 3, 4), 4, (1, 16)), ((1,), 1, (1, 1)), ((1, 2, 3, 4), 4, (1, 16))],
         True),
    ],
)  # fmt: skip
def test_what_may_be_changed_of_a_training_is_what_the_authors_of_a_policy_would(
    data: Path, policy: str, shapes: list[Any], adapts: bool
) -> None:
    found = jobs(str(data / "pollux" / "jobs.csv"), policy=policy)
    assert [shape(job) for job, _ in found] == shapes
    assert {type(physics.speed) for _, physics in found} == {Adaptive if adapts else Fixed}
    # Nobody is told anything of them.
    assert {job.estimate == Estimate() for job, _ in found} == {True}


@pytest.mark.parametrize(("adapt", "kind"), [("true", Adaptive), ("false", Fixed)])
def test_whether_a_training_adapts_can_be_said(data: Path, adapt: str, kind: type) -> None:
    text = f"{data / 'pollux' / 'jobs.csv'}:adapt={adapt}"
    for policy in ("pollux", "optimus"):
        assert {type(physics.speed) for _, physics in jobs(text, policy=policy)} == {kind}


def test_an_oracle_tells_the_truth(data: Path) -> None:
    text = str(data / "pollux" / "jobs.csv")
    for job, physics in jobs(text, policy="optimus", oracle=True):
        assert isinstance(physics.speed, Fixed)
        assert job.estimate.work == physics.work
        for gpus in (1, physics.speed.most):
            there = (4,) * (gpus // 4) or (gpus,)
            assert job.estimate.stated[gpus] == physics.speed.rate(there)
    for job, physics in jobs(text, policy="pollux", oracle=True):
        assert isinstance(physics.speed, Adaptive)
        for gpus, rate in job.estimate.stated.items():
            # In the mean over all of it.
            assert physics.work / rate == pytest.approx(physics.speed.alone_s(gpus, 4))
    for job, physics in jobs("capes:none", oracle=True):
        assert (job.estimate.stated, job.estimate.work) == (physics.speed, physics.work)


def test_no_job_gets_nodes_that_were_not_measured(data: Path) -> None:
    """Of a machine of a thousand nodes a job has at most sixteen."""
    text = str(data / "pollux" / "jobs.csv")
    found = jobs(text, policy="pollux", nodes=1000)
    assert max((job.nodes or (0, 0))[1] for job, _ in found) == 16
    assert [shape(job) for job, _ in found] == [
        shape(job) for job, _ in jobs(text, policy="pollux", nodes=None)
    ]


def test_stated_costs_are_used(data: Path) -> None:
    text = str(data / "pollux" / "jobs.csv")
    costs = Costs(launch_s=3.0, interference=0.25, rescale=2.0)
    (_, physics), *_ = jobs(text, costs=costs)
    assert (physics.launch_s, physics.interference, physics.resume_s) == (3.0, 0.25, 60.0)
    assert not isinstance(physics.speed, Mapping)
