"""Which idle nodes are taken, and for how long."""

from __future__ import annotations

import math

import pytest

from hpcext.core.history.fragments import FragmentCounter
from hpcext.core.values import Job, State
from hpcext.harvest.leases import Hole, LeaseRequest, Steady, Terms, fits_s, requests, wanted

TERMS = Terms(partition="p", gpus=4, max_nodes=3, least_s=180, longest_s=3600, before_s=30)
NOW_S = 1e9


def asked(*holes: tuple[str, float], have: int = 0, want: int = 9) -> list[LeaseRequest]:
    found = [Hole(node, NOW_S + left_s) for node, left_s in holes]
    return requests(found, idle=len(found), have=have, want=want, terms=TERMS, now_s=NOW_S)


@pytest.mark.parametrize(
    ("left_s", "minutes"),
    [(209, 0), (210, 3), (269, 3), (270, 4), (3630, 60), (3631, 60), (1e9, 60), (math.inf, 60)],
)
def test_a_lease_ends_before_its_hole(left_s: float, minutes: int) -> None:
    planned = left_s <= 3631
    assert asked(("n", left_s)) == ([LeaseRequest("n", minutes, planned)] if minutes else [])


@pytest.mark.parametrize(("limit_s", "minutes"), [(1800, 30), (1799, 29), (179, 0), (9e9, 60)])
def test_a_lease_is_no_longer_than_a_job_of_its_partition(limit_s: float, minutes: int) -> None:
    hole = Hole("n", math.inf, limit_s)
    found = requests([hole], idle=1, have=0, want=1, terms=TERMS, now_s=NOW_S)
    assert found == ([LeaseRequest("n", minutes)] if minutes else [])


@pytest.mark.parametrize(("fits_s", "minutes"), [(600.0, 10), (1e9, 60), (1.0, 3)])
def test_a_hole_without_a_known_end_is_taken_for_as_long_as_it_may_last(
    fits_s: float, minutes: int
) -> None:
    """However short others were it is taken: nobody needs it yet."""
    hole = Hole("n", math.inf, fits_s=fits_s)
    found = requests([hole], idle=1, have=0, want=1, terms=TERMS, now_s=NOW_S)
    assert found == [LeaseRequest("n", minutes)]


def test_so_long_holes_hardly_last() -> None:
    seen = FragmentCounter()
    assert fits_s(seen.fragments, 0.0, 1800.0) == 1800.0
    before_s = fits_s(seen.fragments, 0.0, 14_400.0)
    for _ in range(500):
        seen.left(300.0)
    short_s = fits_s(seen.fragments, 0.0, 14_400.0)
    assert 240.0 <= short_s < before_s
    # What has lasted so long already will last longer.
    assert fits_s(seen.fragments, 1800.0, 14_400.0) > short_s


def test_those_that_last_longest_come_first() -> None:
    holes = [("a", 600.0), ("b", math.inf), ("c", 900.0), ("d", math.inf), ("e", 100.0)]
    assert [request.node for request in asked(*holes)] == ["b", "d", "c"]
    assert [request.node for request in asked(*holes, have=2)] == ["b"]
    assert [request.node for request in asked(*holes, want=2)] == ["b", "d"]
    assert asked(*holes, have=3) == asked(*holes, want=0) == asked(*holes, have=5, want=2) == []


@pytest.mark.parametrize(
    ("share", "idle", "have", "taken"),
    [(0.5, 8, 0, 4), (0.5, 6, 2, 2), (0.5, 4, 4, 0), (0.3, 2, 0, 1), (0.01, 5, 1, 0), (1, 5, 3, 5)],
)
def test_of_what_is_idle_others_are_left_their_part(
    share: float, idle: int, have: int, taken: int
) -> None:
    """Idle nodes that are no holes, since they are needed soon, count as well."""
    terms = Terms(partition="p", share=share)
    holes = [Hole(str(number), math.inf) for number in range(5)]
    found = requests(holes, idle=idle, have=have, want=99, terms=terms, now_s=NOW_S)
    assert len(found) == taken


def test_a_node_between_two_jobs_is_not_taken() -> None:
    steady = Steady()
    assert steady({"a", "b"}) == set()
    assert steady({"b", "c"}) == {"b"}
    assert steady({"b", "c"}) == {"b", "c"}


def job(number: int, *sizes: int, nodes: tuple[int, int] | None = None, **more: object) -> Job:
    said = {"sizes": sizes, "optimal": sizes[-1], "nodes": nodes, "ready": True, **more}
    return Job(str(number), f"j{number}", number, **said)  # type: ignore[arg-type]


def test_no_more_nodes_are_wanted_than_trainers_can_use() -> None:
    jobs = [
        job(1, 4, nodes=(1, 8)), job(2, 1, 2), job(3, 4, nodes=(1, 2), ready=False),
        job(4, 4, nodes=(1, 2), ready=False, state=State.STOPPING), job(5, 1),
    ]  # fmt: skip
    assert wanted(jobs, TERMS) == 11
    assert wanted(jobs[1:2], TERMS) == 1
    assert wanted(jobs, Terms(partition="p", gpus=4, parallel=1)) == 8
    assert wanted([], TERMS) == 0
    # On three nodes, though the GPUs that it uses there would be those of one and a half.
    assert wanted([job(6, 2, nodes=(1, 3))], TERMS) == 3
