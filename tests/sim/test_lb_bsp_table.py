"""Table 3 of LB-BSP: the recording, Algorithm 1 on it, and what is counted."""

from __future__ import annotations

import importlib.resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.papers import find_papers, reproduce
from hpcext.papers.lb_bsp import measured as lb_bsp_measured
from hpcext.papers.lb_bsp import table as lb_bsp_table
from hpcext.papers.study import Extent
from hpcext.scaling.speed.online import LEAST


def test_the_recording_is_small_and_whole() -> None:
    packed = importlib.resources.files("hpcext.papers.lb_bsp").joinpath(lb_bsp_table.RECORDING)
    assert len(packed.read_bytes()) < 300_000
    workers = lb_bsp_table.recorded()
    assert len(workers) == 4
    for rows in workers:
        speed, cpu, running, memory = rows.T
        assert len(rows) >= 3 * LEAST - 1
        assert (speed > 0).all()
        assert ((cpu > 0) & (cpu <= 1.01)).all()
        # Each worker was alone now and then, and beside all of its load.
        assert set(running) == {0, 1, 2}
        assert (memory > 0).all()
        # What it had of its core is most of what made it slow.
        assert np.corrcoef(speed, cpu)[0, 1] > 0.8


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40), st.integers(1, 5000))
def test_shares_keep_the_sum_and_are_next_to_the_exact_ones(
    speeds: list[float], total: int
) -> None:
    found = lb_bsp_table.batches(np.array(speeds), total)
    exact = np.array(speeds) / sum(speeds) * total
    assert found.sum() == total
    assert (np.abs(found - exact) < 1).all()


def test_an_iteration_lasts_as_long_as_its_slowest_worker() -> None:
    true = np.array([[128.0, 128.0], [64.0, 192.0]])
    # 128 samples each: 1 s, and 2 s on the slow one.
    assert lb_bsp_table.time_s(np.ones_like(true), true) == 1.5
    # 64 and 192 samples, when that is foreseen.
    assert lb_bsp_table.time_s(true, true) == 1.0


def test_what_is_counted_is_what_is_said_after_the_first_fit() -> None:
    true = np.stack([rows[LEAST:, 0] for rows in lb_bsp_table.recorded()])
    errors = np.sqrt(np.mean(np.diff(true) ** 2, axis=1))
    found = lb_bsp_table.run(lb_bsp_table.PredictorRun("memoryless", lb_bsp_table.SHARE, 0, False))
    assert found.rmse == pytest.approx(errors.mean())


def test_the_tables() -> None:
    assert find_papers("lb-bsp", "PAPER") == ("lb-bsp",)
    study = reproduce("lb-bsp", Extent(quick=True))
    # Those of Figure 8 come first, those that were measured here last.
    measured = len(lb_bsp_measured.tables())
    errors, raw, times = study.tables[-3 - measured : -measured]
    assert [row.what for row in errors.rows] == [row.what for row in raw.rows]
    by_name = {row.what: row for row in errors.rows}
    assert by_name["EMA, alpha 0.2"].ours == 1
    assert by_name["memoryless"].paper == pytest.approx(11.85 / 7.85)
    # Any prediction is better than none, and none is better than knowing.
    *predicted, known = [row.ours or 0 for row in times.rows]
    assert all(known < ours < 1 for ours in predicted)
    # Where ours is not the paper's, it says why.
    assert all(row.why for table in study.tables for row in table.rows if row.far)
