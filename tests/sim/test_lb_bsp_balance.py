"""Figure 8 of LB-BSP: where the published rule comes to rest, and how soon ours does."""

from __future__ import annotations

import pytest

from hpcext.papers.lb_bsp import balance as paper
from hpcext.papers.lb_bsp import measured as lb_bsp_measured
from hpcext.papers.lb_bsp import study
from hpcext.papers.study import Extent


def test_the_rules_come_to_the_equilibrium_of_the_paper() -> None:
    for name in paper.NAMES:
        assert paper.run(name).sizes[paper.DROP - 1] == paper.EQUILIBRIUM


def test_ours_is_level_in_fewer_iterations_than_algorithm_2() -> None:
    ours, published = paper.run("affine"), paper.run("leader")
    for begin, end in ((0, paper.DROP), (paper.DROP, paper.END)):
        soon, late = ours.near(begin, end), published.near(begin, end)
        assert soon is not None
        assert late is not None
        assert soon <= late / 4
    assert ours.mean(0, paper.END) < published.mean(0, paper.END)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_does_not_turn_that_round(seed: int) -> None:
    ours, published = (paper.run(name, paper.NOISE, seed) for name in ("affine", "leader"))
    assert ours.mean(0, paper.END) < published.mean(0, paper.END)
    changes = sum(a != b for a, b in zip(ours.sizes, ours.sizes[1:], strict=False))
    assert changes < 30, "it rests"


def test_what_the_study_says() -> None:
    found = study(Extent(seeds=(0,), quick=True))
    rows = {row.what: row for table in found.tables for row in table.rows}
    assert rows["lines (ours): samples of V100 at iteration 149"].ours == 89
    assert all(row.why for row in rows.values() if row.far)


def test_what_was_measured_says_when_and_beside_what() -> None:
    tables = lb_bsp_measured.tables()
    assert len(tables) == len(lb_bsp_measured.measured()) >= 2
    for table in tables:
        assert "load average" in table.note
        assert all(row.why for row in table.rows if row.far)
        rows = {row.what: row.ours for row in table.rows}
        assert rows["lines (ours): time of an iteration"] < 1 < rows["lines (ours): the same"]
