"""What a simulated run amounts to, in figures, against values worked out by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
from made_up_runs import job, run, span

from hpcext.core.errors import InputError
from hpcext.sim.evaluate.comparison import MOST_NAMED, Watts, compared
from hpcext.sim.evaluate.measures import MEASURES, Figures
from hpcext.sim.evaluate.metrics import Over, by_label, figures, over, quantile

JOBS = (
    job("a", 0, 10, 110, gpu_s=3600, idle_gpu_s=20, lost=5, rescales=3, suspends=1, fair_s=100),
    job("b", 50, 90, 350, gpu_s=7200, idle_gpu_s=10, rescales=1, fair_s=600),
    job("c", 60, 100, 400, "failed", gpu_s=100),
)
SPANS = (span(0, 100, 4, 2, 1, waiting=2), span(100, 400, 8, 8, 6, waiting=0))
RUN = run("marble", JOBS, SPANS, done=95, ideal=190)


def test_figures_by_hand() -> None:
    found = figures(RUN)
    assert (found.jobs, found.completed, found.failed, found.unfinished) == (3, 2, 1, 0)
    assert (found.jct_mean_s, found.jct_median_s, found.jct_max_s) == (205, 205, 300)
    assert found.jct_p90_s == pytest.approx(110 + 0.9 * 190)
    assert found.jct_p99_s == pytest.approx(110 + 0.99 * 190)
    assert found.wait_mean_s == pytest.approx((10 + 40 + 40) / 3)
    assert found.makespan_s == 400
    # GPU time is weighted by how long a span is: the second one counts three times.
    assert found.utilisation == pytest.approx((2 * 100 + 8 * 300) / (4 * 100 + 8 * 300))
    assert found.training_share == pytest.approx((100 + 6 * 300) / 2800)
    assert found.efficiency == pytest.approx((100 + 6 * 300) / 2600)
    assert found.offered_gpu_h == pytest.approx(2800 / 3600)
    assert found.mean_waiting == pytest.approx(0.5)
    assert found.used_gpu_h == pytest.approx(10900 / 3600)
    assert found.idle_gpu_s == 30
    assert (found.rescales_per_job, found.suspends_per_job) == (4 / 3, 1 / 3)
    assert (found.rho_max, found.rho_mean) == (pytest.approx(1.1), pytest.approx(0.8))
    assert found.rho_over_1 == 0.5
    assert (found.done, found.lost, found.lost_share) == (95, 5, 0.05)
    assert found.ideal_share == 0.5


def test_makespan_counts_from_the_first_submission() -> None:
    later = run("a", (job("a", 1000, 1010, 1100), job("b", 1005, 1020, 1200)))
    assert figures(later).makespan_s == 200


def test_a_span_says_the_same_in_two_pieces() -> None:
    halves = (SPANS[0], span(100, 130, 8, 8, 6), span(130, 400, 8, 8, 6))
    pieces = msgspec.structs.asdict(figures(msgspec.structs.replace(RUN, spans=halves)))
    assert pieces == pytest.approx(msgspec.structs.asdict(figures(RUN)))


def test_quantiles_are_linear_between_values() -> None:
    assert quantile([4, 1, 3, 2], 0.9) == pytest.approx(3.7)
    assert quantile([7], 0.99) == 7
    assert quantile([], 0.5) is None


def test_no_jobs_and_no_gpus() -> None:
    empty = msgspec.structs.asdict(figures(run("a")))
    assert empty["jobs"] == 0
    assert {empty[name] for name in ("jct_mean_s", "makespan_s", "utilisation", "rho_max")} == {
        None
    }
    none = figures(run("a", (), (span(0, 10, 0, 0, 0),)))
    assert (none.utilisation, none.efficiency, none.offered_gpu_h) == (None, None, 0)
    assert none.mean_waiting == 0


def test_unfinished_jobs_have_no_completion_time_and_leave_no_makespan() -> None:
    waits = job("a", 0, state="pending")
    found = figures(run("a", (waits, job("b", 0, 5, 20), job("c", 0, 3, state="running"))))
    assert (found.completed, found.unfinished, found.never_started) == (1, 2, 1)
    assert (found.jct_mean_s, found.wait_mean_s, found.makespan_s) == (20, 4, None)


def test_every_figure_is_a_measure_and_every_measure_a_figure() -> None:
    assert sorted(measure.key for measure in MEASURES) == sorted(Figures.__struct_fields__)


def test_over_seeds() -> None:
    assert over([1, 2, 6]) == Over(3, pytest.approx(math.sqrt(7)), 3)
    assert over([None, 4]) == Over(4, None, 1)
    assert over([None]) is None


def test_the_same_label_and_seed_twice_is_refused() -> None:
    runs = [run("a", seed=3), run("b", seed=3), run("a", seed=1)]
    assert [(name, [r.seed for r in group]) for name, group in by_label(runs).items()] == [
        ("a", [1, 3]),
        ("b", [3]),
    ]
    with pytest.raises(InputError, match="'a' with seed 3"):
        by_label([*runs, run("a", seed=3)])


def test_seeds_are_compared_in_pairs() -> None:
    def one(label: str, seed: int, jct_s: float) -> object:
        return run(label, (job("a", 0, 0, jct_s),), seed=seed)

    runs = [one("base", 1, 10), one("base", 2, 1000), one("x", 1, 5), one("x", 2, 250)]
    rows = compared([*runs, one("x", 3, 1)])  # type: ignore[list-item]
    # The mean of the ratios 0.5 and 0.25, whatever the sizes; seed 3 has no pair.
    assert rows[1].ratios["jct_mean_s"] == Over(0.375, pytest.approx(0.125 * math.sqrt(2)), 2)
    assert (rows[1].pairs, rows[1].seeds) == (2, (1, 2, 3))
    assert rows[0].ratios == {}


def test_completion_times_are_compared_over_the_same_jobs() -> None:
    base = run("base", (job("short", 0, 0, 10), job("long", 0, 0, 1000)))
    other = run("x", (job("short", 0, 0, 20), job("long", 0, 0, state="running")))
    row = compared([base, other])[1]
    ratio, both = row.ratios["jct_mean_s"], row.both
    assert ratio is not None
    assert both is not None
    # Not 20 / 505: that x left the long one undone is no speed.
    assert (ratio.mean, both.mean) == (2, 1)
    turned = compared([other, base])[1].ratios["jct_mean_s"]
    assert turned == Over(0.5, None, 1)


def test_delayed_jobs() -> None:
    ends = {"same": (10.0, 10.0), "rounding": (10.0, 10.0001), "later": (10.0, 12.5)}
    base = [job(name, 0, 0, was) for name, (was, _) in ends.items()]
    other = [job(name, 0, 0, now) for name, (_, now) in ends.items()]
    base += [job("undone", 0, 0, 10), job("never", 0, 0, state="running"), job("gone", 0, 0, 1)]
    other += [job("undone", 0, 0, 10, "failed"), job("never", 0, 0, 99), job("new", 0, 0, 99)]
    row = compared([run("base", tuple(base)), run("x", tuple(other))])[1]
    assert row.delayed == Over(2, None, 1)
    assert [(late.job, late.delay_s) for late in row.longest] == [("undone", None), ("later", 2.5)]


def test_of_many_delayed_jobs_the_worst_are_named() -> None:
    base = tuple(job(str(number), 0, 0, 10) for number in range(100))
    other = tuple(job(str(number), 0, 0, 11 + number) for number in range(100))
    row = compared([run("base", base), run("x", other)])[1]
    assert row.delayed == Over(100, None, 1)
    assert [late.delay_s for late in row.longest] == [100 - n for n in range(MOST_NAMED)]


def test_gpu_hours_and_energy() -> None:
    base = run("base", (job("a", 0, 0, 7200),), (span(0, 7200, 4, 2, 1), span(7200, 9000, 4, 0, 0)))
    # The last span reaches beyond the end of the last job: only what is before it counts.
    other = run("x", (job("a", 0, 0, 3600),), (span(0, 7200, 4, 4, 3),))
    rows = compared([base, other], Watts(busy=300, idle=100))
    energy = [row.energy_kwh.mean if row.energy_kwh else None for row in rows]
    assert energy == pytest.approx([2 * 0.3 + 6 * 0.1 + 0.5 * 0.4, 6 * 0.3 + 2 * 0.1])
    assert rows[1].gained_gpu_h == Over(pytest.approx(6 - 2), None, 1)
    assert rows[1].freed_gpu_h == Over(pytest.approx(8 - 4), None, 1)
    assert rows[1].saved_kwh == Over(pytest.approx(1.4 - 2.0), None, 1)
    assert compared([base])[0].energy_kwh is None


def test_no_machine_is_freed_while_jobs_are_unfinished() -> None:
    base = run("base", (job("a", 0, 0, state="running"),), (span(0, 10, 4, 4, 4),))
    row = compared([base, run("x", (job("a", 0, 0, 5),), (span(0, 10, 4, 4, 4),))])[1]
    assert (row.freed_gpu_h, row.ratios["makespan_s"]) == (None, None)
