"""Made-up traces: like the paper's figures, the same for the same seed, in bounded memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hpcext.core.errors import InputError
from hpcext.sim.traces.fragments import IdleStats, idle_stats
from hpcext.sim.traces.generate import MACHINES, MachineModel, find_machine, generate
from hpcext.sim.traces.idle import read_idle, write_idle

WEEK = {
    10: (0.595, 0.133),
    20: (0.760, 0.272),
    30: (0.844, 0.396),
    60: (0.937, 0.626),
    120: (0.986, 0.862),
}
"""The published week of Summit: minutes → share of the fragments and of the node-time."""


def made(machine: MachineModel, hours: float, seed: int = 1) -> IdleStats:
    changes = generate(machine, seed, hours)
    return idle_stats(changes, nodes=machine.nodes, end_s=3600 * hours)


def check(stats: IdleStats, machine: MachineModel, *, near: float, nodes: float) -> None:
    assert stats.per_hour(stats.inc) == pytest.approx(machine.inc_h, rel=near)
    assert stats.per_hour(stats.dec) == pytest.approx(machine.dec_h, rel=near)
    if machine.events_h is not None:
        assert stats.per_hour(stats.events) == pytest.approx(machine.events_h, rel=near)
    # A few groups of thousands of nodes make much of it: it is what varies most.
    assert stats.eq_nodes == pytest.approx(machine.eq_nodes, rel=nodes)


def test_summit_is_as_the_paper_says() -> None:
    """Section 2.1: 68 events, 42 INC, 31 DEC an hour; 407 nodes; Figure 1: 58 % carry 10 %."""
    machine = MACHINES["summit"]
    assert machine.inc_h == pytest.approx(42, abs=0.5)
    stats = made(machine, 8 * 168)
    check(stats, machine, near=0.03, nodes=0.15)
    assert stats.short.by_count == pytest.approx(0.58, abs=0.03)
    assert stats.short.by_time == pytest.approx(0.10, abs=0.02)
    assert stats.seen == machine.nodes
    assert stats.most <= machine.nodes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["summit", "summit-2-months", "theta"])
def test_a_year_is_as_the_paper_says(name: str) -> None:
    check(made(MACHINES[name], 8760), MACHINES[name], near=0.02, nodes=0.06)


@pytest.mark.slow
def test_two_figures_of_the_real_week_give_its_whole_distribution() -> None:
    stats = made(MACHINES["summit-week-1"], 8760)
    found = {each.minutes: each for each in stats.lengths}
    for minutes, (by_count, by_time) in WEEK.items():
        assert found[minutes].by_count == pytest.approx(by_count, abs=0.02), minutes
        assert found[minutes].by_time == pytest.approx(by_time, abs=0.04), minutes


def test_nodes_come_and_go_in_groups_as_in_the_real_week() -> None:
    """There a third of the groups are one node, half are up to 4, 5 % are 100 and more."""
    sizes = sorted(
        len(each.joined)
        for each in itertools.islice(generate(MACHINES["summit"], 1), 1, 12_000)
        if each.joined
    )
    ones = sizes.count(1) / len(sizes)
    assert 0.25 < ones < 0.4
    assert 2 <= sizes[len(sizes) // 2] <= 5
    assert 60 <= sizes[int(0.95 * len(sizes))] <= 130


def test_the_same_seed_gives_the_same_trace(tmp_path: Path) -> None:
    machine = MACHINES["theta"].resized(500)
    for name, seed in (("a.gz", 5), ("b.gz", 5), ("c.gz", 6)):
        write_idle(tmp_path / name, generate(machine, seed, 100.0))
    texts = [(tmp_path / name).read_bytes() for name in ("a.gz", "b.gz", "c.gz")]
    assert texts[0] == texts[1] != texts[2]
    # The reader refuses nodes that join twice or leave and were not there.
    changes = list(read_idle(tmp_path / "a.gz"))
    assert changes[0].time_s == 0.0
    assert changes[-1].time_s <= 360_000
    longer = itertools.islice(generate(machine, 5, 200.0), len(changes))
    assert list(longer) == changes, "a longer trace begins as a shorter one"


def test_small_machines_too() -> None:
    machine = MACHINES["summit"].resized(8)
    stats = made(machine, 500)
    assert stats.most <= 8
    assert stats.seen == 8


def test_unknown_machine() -> None:
    with pytest.raises(InputError, match=r"unknown machine 'sumit' .*did you mean summit\?"):
        find_machine("sumit")
