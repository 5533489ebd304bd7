"""Capes et al., Table 3: the jobs, the strategies, and what must come out."""

from __future__ import annotations

import pytest

from hpcext.papers import capes
from hpcext.papers.capes import CapesRun
from hpcext.papers.study import Extent
from hpcext.sim.workloads import capes as jobs


@pytest.mark.parametrize("level", jobs.JOBS)
def test_as_many_jobs_come_as_in_the_paper(level: str) -> None:
    when_s = jobs.arrivals_s(level, 3)
    assert len(when_s) == jobs.JOBS[level]
    assert when_s == sorted(when_s) == jobs.arrivals_s(level, 3)
    assert 0 <= when_s[0] <= when_s[-1] <= jobs.WINDOW_S
    assert when_s != jobs.arrivals_s(level, 4)


def test_the_window_is_the_same_for_all_contentions() -> None:
    assert pytest.approx(52_000) == jobs.WINDOW_S
    for level, gap_s in jobs.GAPS_S.items():
        # Within two standard deviations of a Poisson process.
        expected = jobs.WINDOW_S / gap_s
        assert abs(jobs.JOBS[level] - expected) < 2 * expected**0.5


@pytest.mark.parametrize(("name", "gpus"), [("Eight", 8), ("Four", 4), ("Two", 2), ("One", 1)])
def test_without_contention_a_job_takes_what_table_2_says(name: str, gpus: int) -> None:
    for each in (name, f"{name}, without turns"):
        found = capes.run(CapesRun(each, "none", 1))
        assert found.mean_h == pytest.approx(jobs.MINUTES[gpus] / 60, rel=0.02)


@pytest.mark.slow
def test_without_contention_knowing_is_as_good_as_eight_and_learning_costs_minutes() -> None:
    hours = {
        name: capes.run(CapesRun(name, "none", 1)).mean_h
        for name in ("Precompute", "Exploratory", "Eight", capes.EXACT)
    }
    assert hours["Precompute"] <= hours["Eight"] + 0.01
    assert hours[capes.EXACT] == pytest.approx(hours["Precompute"], rel=0.01)
    # Ten minutes on less than eight GPUs, as the paper says, cost less than ten minutes.
    assert 0 < hours["Exploratory"] - hours["Eight"] < 1 / 4


def test_turns_make_equal_jobs_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs.JOBS, "extreme", 60)
    monkeypatch.setattr(jobs, "WINDOW_S", 10_000.0)
    in_turns, in_order = (
        capes.run(CapesRun(name, "extreme", 0)) for name in ("Eight", "Eight, without turns")
    )
    assert in_turns.mean_h > 1.3 * in_order.mean_h
    assert in_turns.peak >= in_order.peak


@pytest.mark.slow
def test_under_moderate_contention_precompute_is_best_and_twice_as_good_as_eight() -> None:
    hours = {name: capes.run(CapesRun(name, "moderate", 0)).mean_h for name in capes.PAPERS}
    assert min(hours, key=hours.__getitem__) == "Precompute"
    assert hours["Eight"] > 2 * hours["Precompute"]


def test_the_most_at_once() -> None:
    # One that ends as another begins is not there with it.
    assert capes._peak([0.0, 1.0, 2.0], [2.0, 5.0, 3.0]) == 2


@pytest.mark.slow
def test_the_study_gives_a_reason_wherever_it_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a few jobs alone: hardly anything is as in the paper then."""
    for level, count in (("extreme", 12), ("moderate", 8), ("none", 3)):
        monkeypatch.setitem(jobs.JOBS, level, count)
    found = capes.study(Extent(seeds=(0, 1)))
    rows = [row for table in found.tables for row in table.rows]
    assert sum(row.far for row in rows) > 10
    for table in found.tables:
        assert len({row.what for row in table.rows}) == len(table.rows)
        assert [row.what for row in table.rows if row.far and not row.why] == []
    assert sum("over 2 seeds" in row.why for row in rows) == len(capes.ALL) * len(jobs.JOBS)
