"""The best batch on given GPUs, against all batches that there are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcext.scaling.goodput import CANDIDATES, Goodput
from hpcext.scaling.throughput import Throughput

THETA = Throughput(0.02, 0.001, 0.04, 0.005, 0.15, 0.003, 2.5)


def tried(job: Goodput, gpus: int, nodes: int) -> float:
    """The best goodput over all whole numbers of samples and passes; 0 if there is no way."""
    most = 32 * job.initial_batch if job.most_batch is None else job.most_batch
    room = most if job.most_per_gpu is None else job.most_per_gpu
    if gpus == 0 or gpus * job.least_per_gpu > most:
        return 0.0
    share = -(-most // gpus)
    batch = np.arange(job.least_per_gpu, max(job.least_per_gpu, min(room, share)) + 1)[:, None]
    # In more passes some GPU has fewer samples than it must.
    passes = np.arange(1, most // (gpus * job.least_per_gpu) + 1 if job.accumulates else 2)
    total = gpus * batch * passes
    # A last share that is smaller, but no pass without a sample.
    valid = (total >= job.initial_batch) & (gpus * batch * (passes - 1) < most) & (batch <= room)
    total = np.minimum(total, most)
    seconds = job.throughput.step_s(gpus, nodes, batch, passes - 1)
    return float((np.where(valid, total * job.statistical_efficiency(total), 0.0) / seconds).max())


@st.composite
def jobs(draw: st.DrawFn, most_batch: int, most_per_gpu: int) -> Goodput:
    """Of any weight of its parts, with or without each bound."""
    initial = draw(st.integers(1, most_batch))
    least = draw(st.integers(1, 4))
    return Goodput(
        Throughput(
            alpha_grad=draw(st.floats(0, 1)),
            beta_grad=draw(st.sampled_from([1e-4, 0.01, 1.0])),
            alpha_local=draw(st.floats(0, 3)),
            beta_local=draw(st.floats(0, 0.1)),
            alpha_node=draw(st.floats(0, 30)),
            beta_node=draw(st.floats(0, 0.1)),
            gamma=draw(st.floats(1, 10)),
        ),
        noise_scale=draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0, 1e6, math.inf])),
        initial_batch=initial,
        most_batch=draw(st.integers(initial, most_batch)),
        least_per_gpu=least,
        most_per_gpu=draw(st.none() | st.integers(least, most_per_gpu)),
        accumulates=draw(st.booleans()),
    )


def check(job: Goodput, gpus: int, nodes: int, near: float) -> None:
    """That a choice can be had, is worth what it says, and is near the best one."""
    best = tried(job, gpus, nodes)
    goodput, batch, accumulation = (each.item() for each in job.best(gpus, nodes))
    assert goodput <= best * (1 + 1e-9)
    assert goodput >= best * (1 - near)
    if not best:
        assert (batch, accumulation) == (0, 0)
        return
    assert job.most_batch is not None
    assert batch >= job.least_per_gpu
    assert job.most_per_gpu is None or batch <= job.most_per_gpu
    assert job.accumulates or accumulation == 0
    total = gpus * batch * (accumulation + 1)
    assert total >= job.initial_batch
    total = min(total, job.most_batch)
    seconds = float(job.throughput.step_s(gpus, nodes, batch, accumulation))
    assert goodput == pytest.approx(total * float(job.statistical_efficiency(total)) / seconds)


@given(
    job=jobs(most_batch=CANDIDATES, most_per_gpu=100), gpus=st.integers(0, 40), spread=st.booleans()
)
@settings(max_examples=300)
def test_nothing_is_better(job: Goodput, gpus: int, spread: bool) -> None:
    """Exactly, as long as all batches of a GPU are candidates."""
    check(job, gpus, min(gpus, 2 if spread else 1), near=1e-9)


@given(job=jobs(most_batch=3000, most_per_gpu=2000), gpus=st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_hardly_anything_is_better_than_of_large_batches(job: Goodput, gpus: int) -> None:
    check(job, gpus, 1, near=0.01)


def test_many_sizes_at_once_are_as_each_alone() -> None:
    job = Goodput(THETA, 2000.0, 100, 3000, most_per_gpu=500)
    gpus, nodes = np.arange(65).reshape(5, 13), (np.arange(65).reshape(5, 13) + 3) // 4
    found = job.best(gpus, nodes)
    assert found.goodput.shape == found.batch.shape == found.accumulation.shape == (5, 13)
    alone = [job.best(k, n) for k, n in zip(gpus.flat, nodes.flat, strict=True)]
    assert found.batch.ravel().tolist() == [int(each.batch) for each in alone]
    assert found.goodput.ravel() == pytest.approx([float(each.goodput) for each in alone])
    # Placements of one number of GPUs.
    assert job.best(8, [1, 2]).goodput[0] > job.best(8, [1, 2]).goodput[1]


def test_statistical_efficiency() -> None:
    """Eq. 6; 1 at the initial batch, and everywhere if no batch is too large."""
    job = Goodput(THETA, 300.0, 100)
    assert job.statistical_efficiency([100, 700]) == pytest.approx([1.0, 0.4])
    assert job._replace(noise_scale=0.0).statistical_efficiency(400) == pytest.approx(0.25)
    assert job._replace(noise_scale=math.inf).statistical_efficiency([100, 10**9]).tolist() == [
        1.0,
        1.0,
    ]


def test_a_noisy_gradient_wants_a_large_batch_and_a_clear_one_the_initial_one() -> None:
    job = Goodput(THETA, 0.0, 128, 4096, most_per_gpu=64)
    totals = []
    for scale in (0.0, 100.0, 3000.0, math.inf):
        _, batch, accumulation = job._replace(noise_scale=scale).best(4, 1)
        totals.append(4 * int(batch) * (int(accumulation) + 1))
    assert totals == sorted(totals)
    assert totals[0] == 128
    assert totals[1] < totals[2]
    assert totals[-1] == 4096


def test_the_limit_of_the_paper_unless_stated() -> None:
    """Section 3.1: up to 32 times the initial batch."""
    _, batch, accumulation = Goodput(THETA, math.inf, 10).best(1, 1)
    assert batch * (accumulation + 1) == 320


def test_memory_is_shared_by_accumulation() -> None:
    """100 samples on two GPUs of which each has room for 20: three passes of 17."""
    job = Goodput(THETA, 0.0, 100, 102, most_per_gpu=20)
    assert job.best(2, 1)[1:] == (17, 2)
    assert job._replace(accumulates=False).best(2, 1) == (0.0, 0, 0)
    assert job._replace(accumulates=False).best(5, 1)[1:] == (20, 0)


def test_a_fixed_batch() -> None:
    """Efficiency is 1, and its goodput the throughput; where it does not divide, by its share."""
    job = Goodput(THETA, 50.0, 64, most_batch=64)
    gpus = np.array([1, 2, 3, 64, 65])
    found = job.best(gpus, 1)
    assert found.batch.tolist() == [64, 32, 22, 1, 0]
    assert found.accumulation.tolist() == [0] * 5
    wanted = 64 / THETA.step_s(gpus[:4], 1, found.batch[:4])
    assert found.goodput == pytest.approx([*wanted, 0.0])
    # No GPU of a job with batch normalisation trains a single sample.
    assert job._replace(least_per_gpu=2).best([32, 33], 1).batch.tolist() == [2, 0]


def test_no_gpu_has_no_goodput() -> None:
    assert Goodput(THETA, 50.0, 64).best(0, 0) == (0.0, 0, 0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"noise_scale": -1.0}, r"noise_scale=-1\.0: must be 0 or more"),
        ({"noise_scale": math.nan}, "noise_scale=nan"),
        ({"initial_batch": 0}, r"initial_batch=0: must be in \[1, 0\]"),
        ({"most_batch": 63}, r"initial_batch=64: must be in \[1, 63\]"),
        ({"least_per_gpu": 0}, r"least_per_gpu=0: must be in \[1, "),
        ({"least_per_gpu": 4, "most_per_gpu": 3}, r"least_per_gpu=4: must be in \[1, 3\]"),
        ({"throughput": Throughput(0.0, 0.0, 1.0)}, "a pass takes no time"),
    ],
)
def test_a_job_that_contradicts_itself_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Goodput(THETA, 50.0, 64)._replace(**changed).best(1, 1)


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 2), (2, 0), (-1, 0)])
def test_a_placement_that_cannot_be_is_refused(gpus: int, nodes: int) -> None:
    with pytest.raises(ValueError, match=f"{gpus} GPUs on {nodes} nodes"):
        Goodput(THETA, 50.0, 64).best([4, gpus], [1, nodes])
