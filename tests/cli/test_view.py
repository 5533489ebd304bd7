"""What people are told of a job that adapts its batch."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from hpcext.cli import view
from hpcext.cli.output import make
from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate, GoodputReport
from hpcext.core.history.node_time import NodeTime, Use
from hpcext.core.values import Job, Node, Record, State
from hpcext.manager.views.report import run_document
from hpcext.policies import find_policy
from hpcext.scaling.estimator import GpuCounts, speedups

THETA = (0.02, 0.001, 0.01, 0.0, 0.0, 0.0, 1.0)
SAID = GoodputReport(1000.0, 64, most_batch=512, throughput=THETA, batch=256)
JOB = Job(
    id="1",
    name="job",
    order=0,
    sizes=(1, 2),
    optimal=2,
    state=State.RUNNING,
    held={"node": 2},
    estimate=Estimate(goodput=SAID),
)


def engine(*jobs: Job) -> Engine:
    """One that knows these, and their node."""
    found = Engine(find_policy("pollux"))
    found.world.nodes["node"] = Node("node", 2)
    for job in jobs:
        found.world.put(job)
        found.world.records[job.id] = Record()
    return found


def test_a_job_that_adapts_says_how_it_gets_on() -> None:
    # 256 samples in 0.02 + 0.128 + 0.01 s, each worth 1064 / 1256. The best batch of three GPUs,
    # 300 samples in 0.13 s, makes 1889 a second, that of two, 240 in 0.15 s, 1373.
    assert view.goodput(JOB) == "1373/s, batch 256 (85%)"
    assert view.goodput_sentence(JOB) == (
        "goodput 1373 samples/s: batches of 256, a sample in them is worth 85% of one in "
        "batches of 64; one more GPU promises +38%"
    )


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, estimate=Estimate()),
        replace(JOB, state=State.PENDING, held={}),
        # A report by which it cannot run where it is.
        replace(JOB, estimate=Estimate(goodput=GoodputReport(1.0, 8, 8, 8, 8, throughput=THETA))),
    ],
)
def test_other_jobs_say_nothing_of_it(job: Job) -> None:
    assert view.goodput(job) == ""
    assert view.goodput_sentence(job) == ""
    assert view.outlook_sentence(engine(job, replace(job, id="2", state=State.COMPLETED))) == ""


def test_a_pilot_says_what_one_node_more_promises() -> None:
    """Two GPUs of one node; what a second node gives is by the same report."""
    wide = replace(JOB, nodes=(1, 2), most_gpus=2)
    one = speedups(wide.estimate, GpuCounts(np.array([2, 4]), np.array([1, 2])))
    assert one is not None
    assert view.outlook_sentence(engine(wide)) == (
        f"utility {one[0] / 2:.0%}: each GPU delivers this share of the goodput of one alone; "
        f"one more node promises {one[1] / one[0] - 1:+.0%}"
    )
    document = run_document(engine(wide).world, policy="p", began_at=0.0, now_s=1.0)
    assert document["outlook"] == {
        "utility": pytest.approx(one[0] / 2), "gain": pytest.approx(one[1] / one[0] - 1)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "named", "shown"),
    [
        ([], True, ""),
        (["n1:0"], False, "0"),
        (["n1:0"], True, "n1:0"),
        (["n1:0", "n1:1"], False, "0,1"),
        (["n1:0", "n1:1", "n1:2", "n1:5"], True, "n1:0-2,5"),
        # The nodes of a job have their GPUs whatever is left of the pilot.
        (["n1:0", "n2:0"], False, "n1:0 n2:0"),
        (["n1:0", "n2:0", "n3:0"], True, "n1:0 n2:0 and 1 more node"),
        ([f"n{node}:{gpu}" for node in range(8) for gpu in range(4)], True,
         "n0:0-3 n1:0-3 and 6 more nodes"),
        # Seats on a shared GPU.
        (["n1:0a", "n1:0b"], False, "0a,0b"),
    ],
)  # fmt: skip
def test_gpus_are_named_by_their_nodes(gpus: list[str], named: bool, shown: str) -> None:
    assert view.gpu_names(gpus, named=named) == shown


def test_the_time_without_a_manager_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    out, told = make(as_json=False, quiet=False), []
    for node_time in (
        NodeTime(held_s=40.0, spent={Use.WAITING: 10.0}, away_s=0.1),
        NodeTime(held_s=40.0, spent={Use.WAITING: 10.0}, away_s=60.0),
    ):
        view.summary(out, engine(JOB), 100.0, node_time)
        told.append(capsys.readouterr().out.splitlines()[-1])
    assert told == [
        "1 min 40 s in all; GPUs were held 0% of the time",
        "1 min 40 s in all, 1 min 00 s of it without a manager; GPUs were held 75% of the other "
        "time",
    ]
