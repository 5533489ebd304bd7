"""What people are told of a job that adapts its batch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcext.cli import view
from hpcext.core.estimate import Estimate, GoodputReport
from hpcext.core.values import Job, State

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


def test_a_job_that_adapts_says_how_it_gets_on() -> None:
    # 256 samples in 0.02 + 0.128 + 0.01 s, each worth 1064 / 1256. The best batch of three GPUs,
    # 300 samples in 0.13 s, makes 1889 a second, that of two, 240 in 0.15 s, 1373.
    assert view.goodput(JOB) == "1373/s, batch 256 (85%)"
    assert view.goodput_sentence(JOB) == (
        "goodput 1373 samples/s: batches of 256, a sample in them worth 85% of one in batches of "
        "64; one more GPU promises +38%"
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
