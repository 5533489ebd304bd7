"""The study of lifetimes: which replays it needs, and what its tables make of their outcome."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from hpcext.core.values import Snapshot, Target
from hpcext.papers.bftrainer import replay as bftrainer_replay
from hpcext.papers.bftrainer.hpo import forward, rescaling, window_ends, windows
from hpcext.papers.bftrainer.lifetime import WAYS, LowerBounds, lifetimes, week_rows
from hpcext.papers.bftrainer.parallel import objectives, parallel
from hpcext.papers.bftrainer.parts import (
    Found,
    Setup,
    lifetime,
    longest_first,
    milp,
    offered_node_s,
)
from hpcext.papers.bftrainer.program import program
from hpcext.papers.bftrainer.replay import Replayed, ReplayRun, replay
from hpcext.papers.bftrainer.setup import Idle
from hpcext.papers.bftrainer.watch import Done, Lost, Ran
from hpcext.papers.study import Row
from hpcext.sim.traces.idle import NodeChange, write_idle

LEARNED, KNOWN = "lifetimes learned", "all ends known"

NODES = 100


def replayed(hours: float = 1.0, done: float = 1e6, *, finished: bool = True) -> Replayed:
    ran = (Ran("J-0", 0.0, 1.0, 3600 * hours if finished else None),)
    outcome = Done(done, done / 1000)
    lost = Lost(0.01 * done, 0.02 * done, 0.03 * done)
    return Replayed(3600 * hours, outcome, (), lost, ran, 1.0, 1.0)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A hundred nodes that stay for twelve hours, with half of them gone in the second six."""
    path = tmp_path / "idle.csv"
    week = [
        NodeChange(0.0, tuple(range(NODES)), ()),
        NodeChange(6 * 3600.0, (), tuple(range(50, NODES))),
        NodeChange(13 * 3600.0, (), tuple(range(50))),
    ]
    write_idle(path, week)
    return Setup(Idle(str(path), lowest=NODES, again=True), None, "ResNet18", "mix", 43200.0, True)


def rows(kind: str, *hours: float, finished: bool = True) -> dict[str, Row]:
    ran = {
        name: replayed(each, finished=finished or name != KNOWN)
        for name, each in zip(WAYS, hours, strict=True)
    }
    return {row.what: row for row in week_rows(kind, ran, LowerBounds(62.0, 62.25))}


def test_shares_of_the_gap_by_hand() -> None:
    found = rows("hpo", 64.0, 63.0, 62.5)
    of = "HPO of ShuffleNet"
    assert found.pop(f"{of}, BFTrainer") == Row(f"{of}, BFTrainer", 64.0, 65.8, "h")
    assert found[f"{of}, no schedule is faster"].paper == 62.2
    assert {what.removeprefix(f"{of}, "): row.ours for what, row in found.items()} == {
        LEARNED: 63.0,
        KNOWN: 62.5,
        "no schedule is faster": 62.0,
        "no schedule that pays for changes is faster": 62.25,
        f"{LEARNED}: share of the gap closed": 50.0,
        f"{KNOWN}: share of the gap closed": 75.0,
        f"{LEARNED}: the same share, from 65.8 to 62.2 h": pytest.approx(100 * 2.8 / 3.6),
        f"{KNOWN}: the same share, from 65.8 to 62.2 h": pytest.approx(100 * 3.3 / 3.6),
    }
    # What is worse than BFTrainer opens it.
    worse = rows("hpo", 64.0, 65.0, 62.5)
    assert worse[f"{of}, {LEARNED}: share of the gap closed"].ours == -50.0


def test_what_has_no_figure_says_why() -> None:
    of = "ImageNet mixture"
    found = rows("mix", 64.0, 63.0, 62.5, finished=False)
    assert all(row.paper is None for row in found.values())
    assert not any("65.8" in what for what in found)
    assert found[f"{of}, {LEARNED}: share of the gap closed"].ours == 50.0
    missing = [row for row in found.values() if row.ours is None]
    assert [row.what for row in missing] == [
        f"{of}, {KNOWN}", f"{of}, {KNOWN}: share of the gap closed",
    ]  # fmt: skip
    assert all("not all trainers are done" in row.why for row in missing)
    none = rows("mix", 62.0, 62.0, 62.0)[f"{of}, {LEARNED}: share of the gap closed"]
    assert (none.ours, none.why) == (None, "there is no gap")


@pytest.mark.parametrize("quick", [True, False])
def test_all_that_others_replay_is_not_replayed_again(setup: Setup, quick: bool) -> None:
    whole = Idle("a trace", skip=1000)
    setup = setup._replace(quick=quick, whole=whole)
    others = longest_first(
        part(setup) for part in (program, forward, windows, objectives, parallel, rescaling)
    )
    added = set(lifetimes(setup).cases) - set(others)
    assert {case.policy.partition(":")[0] for case in added} == {"bftrainer-lifetime"}
    assert {case.known for case in added} == {True, False}
    # Each with ends learned and with ends known; all of these come to an end.
    assert {case._replace(known=not case.known) for case in added} == added
    assert all(case.idle == whole or math.isfinite(case.until_s) for case in added)
    week = {(case.trainers, case.known) for case in added if case.idle == whole}
    assert len(week) == (2 if quick else 4)


def test_the_words_of_a_policy() -> None:
    assert WAYS["BFTrainer"].words("efficiency", 5) == milp("efficiency", parallel=5)
    assert WAYS[LEARNED].words("efficiency", 5) == lifetime("efficiency", 5)
    assert lifetime() == "bftrainer-lifetime:parallel=10,objective=throughput"


def made_up(setup: Setup) -> Found:
    """BFTrainer uses 10 % of the nodes, the others 20 and 30 %; all at an even pace."""
    found: dict[ReplayRun, Replayed] = {}
    offered = offered_node_s(setup.idle, tuple(window_ends(setup)))
    for case in lifetimes(setup).cases:
        times = 1 + case.policy.startswith("bftrainer-lifetime") + case.known
        done = Done(1e6 * times, 0.1 * times * offered[-1])
        outcomes = tuple(
            Done(done.samples * mark / setup.until_s, done.alone_s * mark / setup.until_s)
            for mark in case.marks_s
        )
        found[case] = replayed(done=1.0)._replace(done=done, outcomes=outcomes)
    return found


def test_tables_have_a_row_for_each_variant(setup: Setup) -> None:
    found = {table.title: table for table in lifetimes(setup).tables(made_up(setup))}
    assert len(found) == 5
    assert all("cannot be had" in table.note for table in found.values())
    for title, table in found.items():
        said = [row.what for row in table.rows]
        assert len(set(said)) == len(said)
        assert all(row.paper is None and row.ours is not None for row in table.rows)
        if "U by" in title:
            single = {row.what: row.ours for row in table.rows if "single" in row.what}
            for name, times in zip(WAYS, (10.0, 20.0, 30.0), strict=True):
                used = [ours for what, ours in single.items() if name in what]
                assert used == [pytest.approx(times)] * (len(single) // 3)
    by_cost = found["Lifetimes of nodes: lost by rescaling cost, HPO"].rows
    assert by_cost[0].what == "1 times, BFTrainer, lost to rescaling"
    assert by_cost[0].ours == pytest.approx(100 * 0.01 / 1e6)
    mixed = {row.what: row.ours for row in found[MIXTURE].rows}
    assert mixed[f"Pjmax 10, {KNOWN}, same Pjmax"] == pytest.approx(
        3 * (mixed["Pjmax 10, BFTrainer, same Pjmax"] or 0)
    )


MIXTURE = "Lifetimes of nodes: U by Pjmax, mixture, samples per second"


def test_windows_by_hand(setup: Setup) -> None:
    """100 nodes, then 50, and as much done in either window."""
    (table,) = (
        table for table in lifetimes(setup).tables(made_up(setup)) if "windows" in table.title
    )
    single = {row.what: row.ours for row in table.rows if "single" in row.what}
    for name, times in zip(WAYS, (1, 2, 3), strict=True):
        # A tenth of 150 nodes x 6 h, in halves: 7.5 % of the first, 15 % of the second.
        assert single[f"worst, {name}, single nodes"] == pytest.approx(7.5 * times)
        assert single[f"mean, {name}, single nodes"] == pytest.approx(11.25 * times)
        assert single[f"mean of the best three, {name}, single nodes"] == pytest.approx(
            11.25 * times
        )


def test_a_replay_may_know_all_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "idle.csv"
    write_idle(
        path,
        [NodeChange(0.0, (0, 1), ()), NodeChange(600.0, (2,), (1,)), NodeChange(900.0, (), (2,))],
    )
    seen: dict[str, set[float | None]] = {}
    find = bftrainer_replay.find_policy

    def spying(name: str):  # type: ignore[no-untyped-def]
        policy = find(name)

        def spy(now: Snapshot) -> Target:
            for node in now.nodes.values():
                seen.setdefault(node.name, set()).add(node.ends_s)
            return policy(now)

        return spy

    monkeypatch.setattr(bftrainer_replay, "find_policy", spying)
    case = ReplayRun("VGG-16", "bftrainer:parallel=3", Idle(str(path), again=True), 1200.0)
    plain = replay(case)
    assert set(itertools.chain.from_iterable(seen.values())) == {None}
    seen.clear()
    known = replay(case._replace(known=True))
    # Node 0 stays for the week, and then comes again: beyond that nobody looks.
    assert seen == {"n0": {math.inf}, "n1": {600.0}, "n2": {900.0}}
    # This policy does not ask.
    assert known == plain
    with pytest.raises(ValueError, match="for ever"):
        replay(case._replace(known=True, until_s=math.inf))
    whole = ReplayRun("VGG-16", "bftrainer:parallel=3", Idle(str(path)), 1200.0, known=True)
    assert replay(whole).done == plain.done
