"""MARBLE's sets: the curves agree with the text, and what they predict."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy.optimize import linprog

from hpcext.papers import marble
from hpcext.papers.marble import LSF, MARBLE, OPTIMUS, MarbleRun
from hpcext.papers.marble.bound import Work, least_s, shortest_unsuspended_s
from hpcext.papers.study import FAR
from hpcext.sim.workloads import marble as sets

CURVES = [sets.networks(), *(sets.at_random(0, number) for number in range(40))]


@pytest.mark.parametrize("known", CURVES[:8])
def test_every_curve_takes_as_long_as_lsf(known: sets.Networks) -> None:
    for number, lsf_s in sets.LSF_S.items():
        steps = sets.SETS[number]
        assert sum(work / known.speed[name][6] for name, work in steps) == pytest.approx(lsf_s)


@pytest.mark.parametrize("network", sets.BEST)
def test_every_curve_is_as_the_text_has_it(network: str) -> None:
    for known in CURVES:
        speed = known.speed[network]
        best = sets.BEST[network]
        assert max(speed, key=speed.__getitem__) == best
        rising = [speed[gpus] for gpus in range(1, best + 1)]
        assert rising == sorted(rising)
        falling = [speed[gpus] for gpus in range(best, 7)]
        assert falling == sorted(falling, reverse=True)
        # Nothing is faster than in proportion, and the best saves 2.91 % at most.
        assert all(speed[n + 1] / speed[n] <= (n + 1) / n + 1e-9 for n in range(1, 6))
        assert 1 - speed[6] / speed[best] <= sets.MOST_GAIN + 1e-9
        assert speed[6] / speed[1] <= 3.3 + 1e-9 or network != sets.VGG


def test_a_number_of_random_curves_gives_the_same_curves() -> None:
    assert sets.at_random(3, 5) == sets.at_random(3, 5)
    assert sets.at_random(3, 5) != sets.at_random(3, 6)


def test_workers_around_a_parameter_server_by_hand() -> None:
    flat = dict.fromkeys(range(1, 7), 5.0)
    known = sets.Networks(dict.fromkeys(sets.BEST, flat))
    # 100 MB of parameters take 8 ms each way; the link would carry 125 steps per second.
    assert known.on_workers(sets.R50, 8, 3) == pytest.approx(8 / (0.2 + 0.016))
    # 552 MB take 44 ms: no more than 22.6 per second, however many workers.
    assert known.on_workers(sets.VGG, 8, 3) == pytest.approx(12.5e9 / 552e6)
    assert known.on_workers(sets.VGG, 1, 3) == pytest.approx(1 / (0.2 + 2 * 552e6 / 12.5e9))


@pytest.mark.parametrize("number", sets.ONE_NODE)
def test_what_is_predicted_for_one_node_is_near_to_what_the_paper_measured(number: int) -> None:
    assert marble.run(MarbleRun(number, LSF)).time_s == pytest.approx(sets.LSF_S[number])
    ours = marble.run(MarbleRun(number, MARBLE)).time_s
    assert abs(ours / sets.MARBLE_S[number] - 1) < 0.06


def test_suspensions_against_optimus_are_as_many_as_the_paper_says() -> None:
    """Section VII-C: "9 times vs 2 times"."""
    found = {
        policy: max(
            marble.run(MarbleRun(number, policy)).suspends for number in marble.OPTIMUS_SETS
        )
        for policy in (OPTIMUS, MARBLE)
    }
    assert found == {OPTIMUS: 9, MARBLE: 2}


@pytest.mark.cases(4)
@pytest.mark.parametrize("number", sets.SETS)
def test_no_policy_is_faster_than_the_bound(number: int) -> None:
    for policy in (*marble.TOLD, LSF):
        ended_s = marble.run(MarbleRun(number, policy, told=True)).time_s
        assert ended_s >= marble.bound_s(number) * (1 - 1e-9)


def test_the_bound_by_hand() -> None:
    half = Work({1: 1.0, 2: 1.5}, 6.0)
    # Side by side each takes 6 s, one after the other 4 s and 4 s.
    assert least_s([half, half], 2) == pytest.approx(6)
    assert least_s([half], 2) == pytest.approx(4)
    # Three on two GPUs: all the time both work on two of them, and all end at once.
    assert least_s([half] * 3, 2) == pytest.approx(9)
    assert shortest_unsuspended_s([half] * 3, 2) == pytest.approx(10)


def test_the_bound_is_that_of_all_configurations() -> None:
    source = random.Random(4)
    for _ in range(10):
        jobs = []
        for _ in range(3):
            speeds = sorted(source.uniform(1, 4) for _ in range(4))
            jobs.append(Work(dict(enumerate(speeds, start=1)), source.uniform(5, 50)))
        rates = np.array(
            [
                [job.speed.get(n, 0.0) for job, n in zip(jobs, counts, strict=True)]
                for counts in itertools.product(range(5), repeat=3)
                if sum(counts) <= 4
            ]
        ).T
        whole = linprog(np.ones(rates.shape[1]), A_ub=-rates, b_ub=[-job.work for job in jobs])
        assert least_s(jobs, 4) == pytest.approx(whole.fun)
        assert shortest_unsuspended_s(jobs, 4) >= whole.fun * (1 - 1e-9)


@pytest.mark.slow
def test_the_study_gives_a_reason_wherever_it_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marble, "QUICK_CURVES", 2)
    found = marble.study(marble.Extent(quick=True))
    for table in found.tables:
        assert len({row.what for row in table.rows}) == len(table.rows)
        assert [row.what for row in table.rows if row.far and not row.why] == []
    reductions = next(
        t for t in found.tables if t.title.startswith("Section VII-B1, Figure 6a: red")
    )
    assert all(abs((row.ratio or 0) - 1) < FAR for row in reductions.rows)
    assert any("fitted to" in each for each in found.assumed)
