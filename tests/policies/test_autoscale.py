"""How many nodes are worth having: the rule alone, and on models of goodput."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcext.core.band import VALID, Band, read_band
from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate, GoodputReport
from hpcext.core.values import Job, Node, Run, State
from hpcext.policies.autoscale import (
    Autoscaler,
    AvailableNodes,
    ReleaseCost,
    choose,
    gains,
    loss,
    outlook,
    tried,
    utilities,
)

BAND = Band(0.4, 0.7)
THETA = (0.02, 0.001, 0.01, 0.002, 0.1, 0.003, 1.5)


def training(
    noise: float = 1000.0, name: str = "one", nodes: tuple[int, int] = (1, 16), most: int = 64
) -> Job:
    """One that reports its goodput, and has had so many GPUs."""
    report = GoodputReport(noise_scale=noise, initial_batch=64, most_batch=8192, throughput=THETA)
    known = Estimate(goodput=report)
    return Job(name, name, 0, (1, 2, 3, 4), 4, nodes=nodes, most_gpus=most, estimate=known)


def stated(curve: dict[int, float], nodes: tuple[int, int], name: str = "one") -> Job:
    return Job(name, name, 0, (1,), 1, nodes=nodes, estimate=Estimate(stated=curve))


def falling(first: float, factors: list[float]) -> dict[int, float]:
    found, value = {}, first
    for count, factor in enumerate(factors, 1):
        found[count] = value
        value *= factor
    return found


utility_curves = st.builds(
    falling,
    st.floats(0.05, 1.0),
    st.lists(st.floats(0.5, 0.999), min_size=1, max_size=40),
)
bands = st.tuples(st.floats(0.05, 0.5), st.floats(0.02, 0.5)).map(
    lambda pair: Band(pair[0], pair[0] + pair[1])
)


@given(utility_curves, bands, st.integers(1, 60))
def test_it_comes_to_rest_at_once(utility: dict[int, float], band: Band, had: int) -> None:
    """No flapping: while utilities stay as they are, the second answer is the first one."""
    first = choose(utility, band, had)
    assert first in utility
    assert choose(utility, band, first) == first


@given(utility_curves, bands, st.integers(1, 60))
def test_within_the_band_nothing_moves_and_beyond_it_in_one_direction(
    utility: dict[int, float], band: Band, had: int
) -> None:
    now = min(had, max(utility))
    found = choose(utility, band, had)
    if band.low <= utility[now] <= band.high:
        assert found == now
    elif utility[now] > band.high:
        assert found >= now
    else:
        assert found <= now
    # And not away from the middle.
    assert abs(utility[found] - band.aim) <= abs(utility[now] - band.aim)


@given(utility_curves, bands, st.floats(1.0, 3.0), st.none() | st.integers(1, 60))
def test_the_more_nodes_are_worth_the_more_there_are(
    utility: dict[int, float], band: Band, times: float, had: int | None
) -> None:
    better = {count: value * times for count, value in utility.items()}
    assert choose(better, band, had) >= choose(utility, band, had)


@settings(deadline=None, max_examples=40)
@given(st.floats(10.0, 1e6), st.floats(1.0, 100.0), st.sampled_from([None, 1, 4, 16]))
def test_the_more_noise_the_more_nodes(noise: float, times: float, had: int | None) -> None:
    """Statistical efficiency is all that differs."""
    nodes = AvailableNodes(16, 4)
    low, high = (
        choose(utilities(gains([training(each)], nodes), 4), BAND, had)
        for each in (noise, noise * times)
    )
    assert 1 <= low <= high <= 16


def test_nodes_that_add_nothing_are_not_asked_for() -> None:
    """A small job, and one that needs four nodes: two or three are as good as one."""
    jobs = [stated({1: 1.0}, (1, 1), "small"), stated({1: 1.0, 4: 3.0}, (4, 4), "large")]
    found = gains(jobs, AvailableNodes(6, 1))
    assert found == {1: 1.0, 2: 1.0, 3: 1.0, 4: 3.0, 5: 4.0, 6: 4.0}
    utility = utilities(found, 1)
    assert utility == {1: 1.0, 4: 0.75, 5: 0.8}
    assert choose(utility, BAND) == 4
    # What is held beside is given back.
    assert choose(utility, Band(0.5, 0.9), 6) == 5
    # Two that nobody can use beside the first: rather none of them, or three.
    assert choose(utility, Band(0.5, 0.9), 3) == 4


def test_a_job_that_waits_is_worth_a_node_of_its_own() -> None:
    """Two that gain nothing by a second node have one each."""
    curve = {1: 1.0, 2: 1.05}
    one, two = stated(curve, (1, 2)), stated(curve, (1, 2), "two")
    assert choose(utilities(gains([one], AvailableNodes(4, 1)), 1), Band(0.7, 0.99)) == 1
    assert choose(utilities(gains([one, two], AvailableNodes(4, 1)), 1), Band(0.7, 0.99)) == 2


def test_no_job_gets_more_than_twice_the_gpus_that_it_had() -> None:
    unknown = replace(training(1e6, most=0), estimate=Estimate())
    assert max(utilities(gains([unknown], AvailableNodes(16, 4)), 4)) == 1
    assert max(utilities(gains([training(1e6, most=4)], AvailableNodes(16, 4)), 4)) == 2


def test_many_nodes_are_compared_by_their_logarithms() -> None:
    job = stated({1: 1.0, 5000: 2500.0}, (1, 5000))
    counts = tried(5000, 4321)
    assert {1, 2, 4321, 5000} <= set(counts)
    assert len(counts) < 140
    assert counts == sorted(counts)
    assert Autoscaler(BAND, 4321).wanted(0.0, [job], AvailableNodes(5000, 1)) == 4321


def test_in_the_course_of_a_training() -> None:
    """Twice as many at most each time, until the middle; then only when it leaves the band."""
    auto, nodes = Autoscaler(BAND), AvailableNodes(16, 4)
    had, asked = 0, []
    for now_s in range(0, 600, 60):
        count = auto.wanted(now_s, [training(2e4, most=had)], nodes)
        had = max(had, 4 * count)
        asked.append(count)
    assert asked[0] == 1
    assert all(after <= 2 * before for before, after in itertools.pairwise(asked))
    assert asked[-1] == asked[-2] > 4
    # It begins to learn little from large batches.
    assert auto.wanted(601.0, [training(300.0)], nodes) < asked[-1]


def test_it_stays_for_the_interval_unless_jobs_come_or_end() -> None:
    auto, nodes = Autoscaler(Band(0.4, 0.7, 60.0)), AvailableNodes(16, 4)
    first = auto.wanted(0.0, [training(300.0)], nodes)
    assert auto.wanted(59.0, [training(1e6)], nodes) == first
    more = auto.wanted(59.5, [training(300.0), training(300.0, "two")], nodes)
    assert more > first
    # Whatever is worth it, no more than can be used.
    assert auto.wanted(59.6, [training(300.0), training(300.0, "two")], AvailableNodes(1, 4)) == 1
    assert auto.wanted(60.0, [], AvailableNodes(0, 4)) == 0
    # Of those before nothing is remembered: the next one has as many as it would have had.
    assert auto.wanted(60.5, [training(300.0, "three")], nodes) == first
    assert auto.wanted(61.0, [training(1e6)], nodes) > first


def test_a_manager_that_begins_anew_goes_on_from_what_there_is() -> None:
    """Within the band nothing moves, though a new one would have fewer."""
    job = stated({1: 1.0, 2: 1.3, 3: 1.5}, (1, 3))
    nodes = AvailableNodes(3, 1)
    assert Autoscaler(Band(0.4, 0.8)).wanted(0.0, [job], nodes) == 2
    assert Autoscaler(Band(0.4, 0.8), 3).wanted(0.0, [job], nodes) == 3


def test_what_it_costs_to_give_up_a_node() -> None:
    running = {"state": State.RUNNING, "run": Run(registered=True)}
    wide = Job("1", "w", 0, (1,), 1, nodes=(1, 3), held={"a": 1, "b": 1}, goal={"a": 1, "b": 1},
               gpus=("a:0", "b:0"), state=State.RUNNING,
               run=Run(registered=True, in_place=True, elastic=True))  # fmt: skip
    other = Job("2", "o", 1, (1,), 1, held={"b": 1}, goal={"b": 1}, gpus=("b:1",), **running)  # type: ignore[arg-type]
    starts = replace(other, id="3", state=State.STARTING, run=Run(registered=False), held={"c": 1})
    jobs = [wide, other, starts]
    assert loss(jobs, "a") == ReleaseCost(1, 0)
    assert loss(jobs, "b") is None
    assert loss([wide, other], "b") == ReleaseCost(1, 1)
    assert loss([wide], "b") == ReleaseCost(0, 1)
    assert loss(jobs, "c") is None
    assert loss(jobs, "d") == ReleaseCost()
    assert sorted([ReleaseCost(1, 0), ReleaseCost(0, 2), ReleaseCost()]) == [
        ReleaseCost(),
        ReleaseCost(0, 2),
        ReleaseCost(1, 0),
    ]


def test_what_one_more_node_promises() -> None:
    job = stated({1: 1.0, 2: 1.5, 3: 1.8}, (1, 3))
    found = outlook([job], [Node("a", 1), Node("b", 1)])
    assert found is not None
    assert (found.utility, found.gain) == (0.75, pytest.approx(0.2))
    assert outlook([], [Node("a", 1)]) is None
    assert outlook([job], [Node("a", 1), Node("b", 2)]) is None


def test_bands_are_read_and_written() -> None:
    assert read_band("none") is None
    assert read_band("0.4:0.7") == BAND
    assert read_band("0.4:0.7:300") == Band(0.4, 0.7, 300.0)
    assert read_band(str(Band(0.25, 0.9, 5.0))) == Band(0.25, 0.9, 5.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.4",
        "0.7:0.4",
        "0:0.5",
        "0.5:1",
        "0.4:0.7:0",
        "a:b",
        "0.4:0.7:1:1",
        "1.:.",
    ],
)
def test_invalid_bands_are_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_band(text)
    assert VALID in str(caught.value)
