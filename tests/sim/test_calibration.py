"""Whether nodes stay as long as is predicted: by hand, in a report, and what else tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import job, run, span
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core.apply import apply
from hpcext.core.history.fragments import EDGES_S, FragmentCounter, Fragments
from hpcext.core.values import Node
from hpcext.core.world import World
from hpcext.papers.bftrainer import survival
from hpcext.papers.bftrainer.parts import Setup
from hpcext.papers.bftrainer.setup import Idle
from hpcext.scaling.survival import Floats, Survival
from hpcext.sim.evaluate.calibration import BINS, EVERY_S, HORIZONS_S, Calibration, pooled
from hpcext.sim.evaluate.outcome import Bin, Reliability, SimulatedRun
from hpcext.sim.evaluate.store import Key, RunStore
from hpcext.sim.replay.tasks import NodeSource, Task, simulate_task
from hpcext.sim.report.page import About, page
from hpcext.sim.traces.idle import NodeChange, write_idle

NONE = np.zeros(0)

Step = tuple[float, tuple[f.Fact, ...]]


def come(*names: str, since_s: float | None = None) -> tuple[f.Fact, ...]:
    return tuple(f.NodeJoined(Node(name, 1, since_s=since_s)) for name in names)


def leave(*names: str) -> tuple[f.Fact, ...]:
    return tuple(f.NodeLost(name) for name in names)


def watched(steps: Iterable[Step]) -> tuple[Reliability, ...]:
    world = World()
    watch = Calibration(world)
    for when_s, facts in steps:
        for fact in facts:
            apply(world, when_s, fact)
        watch(when_s, facts, ())
    return watch.found()


def of(found: Sequence[Reliability], horizon_s: float) -> tuple[int, float, int]:
    """How many predictions, how many nodes were to stay, and how many did."""
    (one,) = (each for each in found if each.horizon_s == horizon_s)
    return one.nodes, sum(each.expected for each in one.bins), sum(each.stayed for each in one.bins)


def said(seen: Fragments, ages_s: Sequence[float], horizon_s: float) -> list[float]:
    there = np.array(ages_s, np.float64)
    model = Survival(seen, there, np.ones(len(there)))
    return model.stays(there, np.array([horizon_s]))[:, 0].tolist()


def left(*ages_s: float) -> Fragments:
    seen = FragmentCounter()
    for age_s in ages_s:
        seen.left(age_s)
    return seen.fragments


# By hand.


def test_predictions_are_of_the_past_and_what_came_is_counted() -> None:
    """At 600 s two nodes are there; one of them leaves 200 s later, the other one stays."""
    found = watched(
        [(0.0, come("a")), (100.0, come("b", "c")), (150.0, leave("c")), (800.0, leave("b")),
         (901.0, come("d"))]
    )  # fmt: skip
    predicted = {h: said(left(50.0), [600.0, 500.0], h) for h in (60.0, 300.0)}
    assert of(found, 60.0) == (2, pytest.approx(sum(predicted[60.0])), 2)
    assert of(found, 300.0) == (2, pytest.approx(sum(predicted[300.0])), 1)
    # Of what comes after 900 s nobody knows yet.
    assert [each.horizon_s for each in found] == [60.0, 300.0]
    (one,) = (each for each in found if each.horizon_s == 300.0)
    stays, leaves = predicted[300.0]
    assert one.squares == pytest.approx((1 - stays) ** 2 + leaves**2)


@pytest.mark.parametrize(("leaves_s", "stayed"), [(660.0, 0), (660.1, 1)])
def test_who_leaves_at_the_instant_has_not_stayed_until_then(leaves_s: float, stayed: int) -> None:
    found = watched([(0.0, come("a")), (leaves_s, leave("a")), (700.0, come("b"))])
    assert of(found, 60.0)[::2] == (1, stayed)


def test_who_comes_and_leaves_at_the_instant_of_asking() -> None:
    """It is asked when all of that instant has happened, in however many steps."""
    found = watched(
        [(0.0, come("a", "b")), (600.0, leave("a")), (600.0, come("c")), (700.0, leave("c"))]
    )
    assert of(found, 60.0) == (2, pytest.approx(sum(said(left(600.0), [600.0, 0.0], 60.0))), 2)


def test_a_node_that_left_and_came_again_has_not_stayed() -> None:
    found = watched(
        [(0.0, come("a", "b")), (620.0, leave("a")), (630.0, come("a")), (700.0, come("c"))]
    )
    assert of(found, 60.0)[::2] == (2, 1)


def test_a_node_that_is_reported_again_keeps_its_age() -> None:
    once = [(0.0, come("a")), (700.0, come("b"))]
    again = [(0.0, come("a")), (300.0, come("a")), (650.0, come("a")), (700.0, come("b"))]
    assert watched(again) == watched(once)
    older = watched([(0.0, come("a", since_s=-5000.0)), (700.0, come("b"))])
    assert of(older, 60.0)[1] == pytest.approx(said(left(), [5600.0], 60.0)[0])


def test_after_the_last_change_nothing_is_known() -> None:
    """Also not of who left before: those who stayed would be missing."""
    steps = [(0.0, come("a", "b")), (610.0, leave("a"))]
    assert watched(steps) == ()
    assert watched([*steps, (5000.0, ())]) == ()
    assert of(watched([*steps, (661.0, come("c"))]), 60.0)[::2] == (2, 1)


def test_a_long_quiet_time_is_asked_about_throughout() -> None:
    found = watched([(0.0, come("a")), (100_000.0, come("b"))])
    for horizon_s in HORIZONS_S:
        instants = [t for t in np.arange(EVERY_S, 100_000.0, EVERY_S) if t + horizon_s < 100_000.0]
        expected = sum(said(left(), [t], horizon_s)[0] for t in instants)
        assert of(found, horizon_s) == (len(instants), pytest.approx(expected), len(instants))


def test_memory_is_that_of_the_nodes_within_the_longest_horizon() -> None:
    world = World()
    watch = Calibration(world)
    steps: list[Step] = [(0.0, come(*map(str, range(10))))]
    steps += [(10.0 * n, leave("0") if n % 2 else come("0")) for n in range(1, 10_000)]
    for when_s, facts in [*steps, (1e6, come("x"))]:
        for fact in facts:
            apply(world, when_s, fact)
        watch(when_s, facts)
        held = [len(waiting) for waiting in watch._open]
        assert max(held) <= max(HORIZONS_S) / EVERY_S + 1
        assert len(watch._there) <= 11


def test_without_nodes_nothing_is_predicted() -> None:
    assert watched([(0.0, come("a")), (10.0, leave("a")), (9000.0, come("a"))]) == ()


# As one value.


def test_figures_by_hand() -> None:
    one = Reliability(60.0, (Bin(4, 0.8, 2), Bin(0, 0.0, 0), Bin(6, 4.8, 3)), 2.0)
    assert (one.nodes, one.stayed, one.brier) == (10, 0.5, 0.2)
    assert one.base_brier == 0.25
    assert one.error == pytest.approx((1.2 + 1.8) / 10)


def test_who_tells_the_nodes_apart_is_below_the_base_rate() -> None:
    """Nodes that leave after a minute, and such that stay for days: both are known at 600 s."""
    steps: list[Step] = [(0.0, come(*(f"old{n}" for n in range(50))))]
    for n in range(1, 400):
        names = [f"{n}-{each}" for each in range(20)]
        steps += [(100.0 * n - 50, come(*names)), (100.0 * n + 10, leave(*names))]
    found = watched(steps)
    first = found[0]
    assert first.horizon_s == 60.0
    assert first.brier < 0.2 * first.base_brier
    # That all leave after one minute, and none before, is more than the model can say.
    assert 0.02 < first.error < 0.15


def test_several_runs_as_one() -> None:
    one = Reliability(60.0, (Bin(4, 0.8, 2), Bin(6, 4.8, 3)), 2.0)
    two = Reliability(60.0, (Bin(1, 0.2, 0), Bin(0, 0.0, 0)), 0.04)
    other = replace(one, horizon_s=300.0)
    both = Reliability(60.0, (Bin(5, 1.0, 2), Bin(6, 4.8, 3)), 2.04)
    assert pooled([(one,), (two, other), ()]) == (both, other)
    assert pooled([()]) == ()


# In a run, and in its report.


def trace(folder: Path) -> str:
    """A day in which nodes come every ten minutes, and most leave soon."""
    random = np.random.default_rng(5)
    there: dict[int, float] = dict.fromkeys(range(30), 86_400.0)
    changes = [NodeChange(0.0, tuple(range(30)), ())]
    for when_s in np.arange(100.0, 86_400.0, 100.0).tolist():
        gone = tuple(node for node, end_s in there.items() if end_s <= when_s)
        there = {node: end_s for node, end_s in there.items() if node not in gone}
        new = () if when_s % 600 else tuple(set(range(30, 40)) - set(there))
        there |= {node: when_s + random.exponential(900.0) for node in new}
        changes.append(NodeChange(when_s, new, gone))
    path = folder / "idle.csv"
    write_idle(path, changes)
    return str(path)


def trainers(folder: Path) -> str:
    path = folder / "trainers.csv"
    columns = "name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2"
    path.write_text(f"{columns}\na,0,1,2,10,5,1e12,1,1.9\n", encoding="utf-8")
    return str(path)


def test_a_run_says_it_of_nodes_that_come_and_go_alone_and_keeps_it(tmp_path: Path) -> None:
    place = NodeSource(idle=trace(tmp_path))
    task = Task(trainers(tmp_path), "equal_share", place, until_s=40_000.0)
    found, _ = simulate_task(task)
    assert [each.horizon_s for each in found.stays] == list(HORIZONS_S)
    for each in found.stays:
        assert len(each.bins) == BINS
        assert each.nodes >= 30 * 60
        assert all(0 <= part.stayed <= part.nodes for part in each.bins)
        for at, part in enumerate(each.bins):
            assert at * part.nodes <= BINS * part.expected + 1e-6 <= (at + 1) * part.nodes + 1e-5
    # Another policy sees the same nodes.
    other, _ = simulate_task(replace(task, policy="bftrainer"))
    assert other.stays == found.stays
    key = Key(found.label, found.workload, found.source, found.policy, found.seed)
    store = RunStore(tmp_path / "out")
    store.save(key, found)
    assert store.load(key) == found
    staying, _ = simulate_task(replace(task, place=NodeSource(nodes="4x1"), until_s=20_000.0))
    assert staying.stays == ()


def made(label: str, seed: int = 0, stays: tuple[Reliability, ...] = ()) -> SimulatedRun:
    return run(label, (job("a", 0, 1, 2),), (span(0, 10, 4, 2, 1),), seed, stays=stays)


def stays(nodes: int) -> tuple[Reliability, ...]:
    empty = (Bin(0, 0.0, 0),) * (BINS - 2)
    bins = (Bin(nodes, 0.05 * nodes, nodes // 10), *empty, Bin(nodes, 0.9375 * nodes, nodes))
    return tuple(Reliability(horizon_s, bins, 0.125 * nodes) for horizon_s in HORIZONS_S)


@pytest.mark.slow
def test_the_page_has_a_plot_and_the_same_figures_in_tables() -> None:
    found = page([made("one", stays=stays(1000)), made("two", stays=stays(20))], About())
    assert found.count("<h2 id=") == len(set(found.split("<h2 id=")[1:]))
    (section,) = (each for each in found.split("<section ") if 'id="stays"' in each)
    assert "How long nodes stay" in section
    assert section.count("<svg") == 1 + len(HORIZONS_S)
    # Of two policies on the same nodes the one that saw more; not both.
    assert "2,000" in section
    assert "5.0 → 10.0 % (1,000)" in section
    assert "93.8 → 100.0 % (1,000)" in section
    assert section.count("<td>0.0625</td>") == len(HORIZONS_S)
    assert section.count("<td>0.2475</td>") == len(HORIZONS_S)
    for words in ("after 1 min", "after 60 min", "Calibration error (%)", "aria-labelledby"):
        assert words in section
    assert page([made("one", stays=stays(1000)), made("two", stays=stays(20))], About()) == found


def test_seeds_are_taken_together() -> None:
    found = page([made("one", 1, stays(1000)), made("one", 2, stays(500))], About())
    assert "5.0 → 10.0 % (1,500)" in found


def test_of_a_machine_that_stays_the_page_says_nothing() -> None:
    assert "stays" not in page([made("one")], About())
    assert "How long nodes stay" not in page([], About())


# Beside what else tells it.


def test_what_a_part_of_the_trace_tells_is_what_an_engine_counts() -> None:
    """Nodes of one stratum that have all left: as core/history/fragments.py has them."""
    random = np.random.default_rng(6)
    start_s = random.uniform(0, 5000, 200)
    ages_s = random.exponential(700, 200)
    both = survival.Stays(start_s, start_s + ages_s)
    end_s = float(both.end_s.max()) + 1
    alone = survival.Strata(np.array([0.0, end_s]), np.zeros(1, np.int64))
    (found,) = survival.learn(both, alone, (0.0, end_s))
    counted = left(*ages_s.tolist())
    assert found.ended == counted.ended
    assert found.stayed_s == pytest.approx(counted.stayed_s)


def test_of_a_part_of_the_trace_only_what_happened_in_it_is_known() -> None:
    both = survival.Stays(np.array([0.0, 50.0]), np.array([115.0, np.inf]))
    parts = survival.Strata(np.array([0.0, 100.0, 200.0]), np.array([0, 0]))
    (first,) = survival.learn(both, parts, (0.0, 100.0))
    (second,) = survival.learn(both, parts, (100.0, 200.0))
    assert sum(first.ended) == 0
    assert sum(first.stayed_s) == pytest.approx(100 + 50)
    assert sum(second.ended) == 1
    assert second.ended[EDGES_S.index(101.25)] == 1
    assert sum(second.stayed_s) == pytest.approx(15 + 100)
    # The second node is 50 s old when the second part begins.
    assert second.stayed_s[0] == 0


def test_something_that_tells_more_has_the_smaller_loss() -> None:
    """Nodes stay for a minute in one half of each day, and for hours in the other one."""
    random = np.random.default_rng(7)
    start_s = np.sort(random.uniform(0, 8 * survival.DAY_S, 6000))
    short = start_s % survival.DAY_S < survival.DAY_S / 2
    lasts_s = np.where(short, 300.0, 20_000.0) * random.exponential(1, len(start_s))
    found = survival.compared(changes_of(start_s, start_s + lasts_s))
    losses = {row.what: row.ours for row in found.rows}
    for later_s in survival.LATER_S:
        alone, day = (losses[f"{later_s:g} s: {name}"] for name in ("age", "age and time of day"))
        assert alone is not None
        assert day is not None
        assert day < 0.97 * alone


def test_something_that_tells_nothing_has_no_smaller_loss() -> None:
    random = np.random.default_rng(8)
    start_s = np.sort(random.uniform(0, 8 * survival.DAY_S, 6000))
    found = survival.compared(changes_of(start_s, start_s + random.exponential(2000.0, 6000)))
    losses = [row.ours for row in found.rows]
    for alone, *others in zip(losses[::3], losses[1::3], losses[2::3], strict=True):
        assert alone is not None
        assert others == pytest.approx([alone] * 2, rel=0.02)
        assert min(others) > 0.999 * alone


def changes_of(start_s: Floats, end_s: Floats) -> list[NodeChange]:
    events = [(when, node, True) for node, when in enumerate(start_s.tolist())]
    events += [(when, node, False) for node, when in enumerate(end_s.tolist())]
    return [
        NodeChange(when, (node,), ()) if joins else NodeChange(when, (), (node,))
        for when, node, joins in sorted(events)
    ]


def test_both_tables_of_a_trace(tmp_path: Path) -> None:
    setup = Setup(Idle(trace(tmp_path)), None, "", "", 50_000.0, quick=True)
    part = survival.calibrated(setup)
    assert part.cases == ()
    predicted, compared = part.tables({})
    assert len(predicted.rows) == 5 * len(HORIZONS_S)
    assert len(compared.rows) == 3 * len(survival.LATER_S)
    assert all(row.ours is not None for row in (*predicted.rows, *compared.rows))
    again = survival.calibrated(setup).tables({})
    assert again == (predicted, compared)


def test_a_trace_that_is_too_short_says_so() -> None:
    for changes in (
        [NodeChange(0.0, (1, 2), ())],
        [NodeChange(0.0, (1,), ()), NodeChange(90.0, (), (1,))],
    ):
        assert survival.predicted(changes).rows == ()
        rows = survival.compared(changes).rows
        assert {(row.ours, row.why) for row in rows} == {(None, "the trace is too short")}
