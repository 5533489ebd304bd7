"""Figure 8 of LB-BSP: where the published rule comes to rest, and how soon ours does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hpcext.core.errors import InputError
from hpcext.papers.lb_bsp import balance as paper
from hpcext.papers.lb_bsp import measured as lb_bsp_measured
from hpcext.papers.lb_bsp import stragglers, study
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


BEHIND = 1.005
"""How far the rule that follows the best one may be behind it."""


@pytest.mark.parametrize("noise", [0.0, paper.NOISE, 0.1])
def test_the_best_of_late_is_hardly_behind_the_best(noise: float) -> None:
    seeds = range(8) if noise else (0,)
    taken = {
        name: sum(paper.run(name, noise, seed).mean(0, paper.END) for seed in seeds)
        for name in ("affine", "speeds", "best")
    }
    assert taken["best"] <= BEHIND * min(taken.values())


def recorded(path: Path, seed: int, *, noise: float) -> Path:
    """A recording of ten workers, of which some straggle for a while."""
    draw = random.Random(seed)
    slow = dict.fromkeys(range(10), 1.0)
    lines = [",worker,gpu,time,batch_time_norm"]
    for iteration in range(250):
        for worker in slow:
            if draw.random() < 0.02:
                slow[worker] = draw.choice([1.0, 1.0, 1.5, 3.0])
            time_s = 500 * slow[worker] * max(0.2, draw.gauss(1.0, noise))
            lines.append(f"0,{worker},25,{10 * iteration + 1},{time_s:.0f}")
    path.mkdir(parents=True, exist_ok=True)
    found = path / f"job_{seed}.csv"
    found.write_text("\n".join(lines) + "\n")
    return found


@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_nor_is_it_on_workers_that_straggle(tmp_path: Path, noise: float) -> None:
    for seed in range(3):
        times = stragglers.read(recorded(tmp_path, seed, noise=noise))
        taken = {name: stragglers.of_plain(name, times) for name in stragglers.NAMES}
        assert taken["best"] <= BEHIND**2 * min(taken.values()), taken
        assert stragglers.known_ahead(times) < taken["best"] < 1


def test_recordings_are_part_of_the_study_where_there_are_some(tmp_path: Path) -> None:
    recorded(tmp_path / stragglers.FOLDER, 1, noise=0.05)
    (table,) = stragglers.tables(tmp_path)
    assert {row.what for row in table.rows} == {*stragglers.NAMES.values(), "speeds known ahead"}
    assert stragglers.tables(None) == ()


@pytest.mark.parametrize("text", ["", "worker,time\n1,1\n", "time,worker,batch_time_norm\n1,a,2\n"])
def test_other_files_are_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job_1.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="batch times"):
        stragglers.read(path)
