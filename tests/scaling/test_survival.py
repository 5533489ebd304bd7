"""What is believed of idle nodes, against distributions that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core.history.fragments import EDGES_S, FragmentCounter, Fragments
from hpcext.scaling.survival import Floats, Survival

NONE = np.zeros(0)
HORIZONS_S = np.array([60.0, 300.0, 900.0, 1800.0, 3600.0])

TRUE = {
    "exponential, 25 min": ("expon", 1500.0),
    "exponential, 100 s": ("expon", 100.0),
    "Lomax, mostly short": ("lomax", 120.0, 1.2),
    "Lomax, mostly long": ("lomax", 9000.0, 2.5),
}

TOLERANCE = 0.02
"""Of a probability, after 20,000 nodes: that the hazard is constant between two ages, half as old
again each, is worth most of it."""


def distribution(name: str, scale_s: float, *shape: float) -> Any:
    """One of SciPy's, which takes seconds to import; all processes that run tests collect these."""
    from scipy import stats

    return getattr(stats, name)(*shape, scale=scale_s)


def left(ages_s: Floats) -> Fragments:
    seen = FragmentCounter()
    for age_s in ages_s.tolist():
        seen.left(age_s)
    return seen.fragments


def stays(seen: Fragments, age_s: float, later_s: Floats = HORIZONS_S) -> Floats:
    """When nobody is there."""
    return Survival(seen, NONE, NONE).stays(np.array([age_s]), later_s)[0]


def truly(law: Any, age_s: float) -> Floats:
    return np.asarray(law.sf(age_s + HORIZONS_S) / law.sf(age_s))


@pytest.mark.parametrize("law", TRUE.values(), ids=TRUE)
@pytest.mark.parametrize("age_s", [0.0, 100.0, 250.0])
def test_what_was_seen_often_is_believed(law: tuple[Any, ...], age_s: float) -> None:
    true = distribution(*law)
    seen = left(true.rvs(20_000, random_state=1))
    assert stays(seen, age_s) == pytest.approx(truly(true, age_s), abs=TOLERANCE)


def test_before_anything_was_seen_it_is_as_on_summit() -> None:
    """BFTrainer, section 2.1: 58 % of the fragments end within ten minutes."""
    assert stays(Fragments(), 0.0, np.array([600.0])) == pytest.approx([0.42], abs=0.005)
    summit = distribution("lomax", 900.0, 1.7)
    assert summit.cdf(600.0) == pytest.approx(0.58, abs=0.005)
    assert stays(Fragments(), 0.0) == pytest.approx(truly(summit, 0.0), abs=0.005)
    for age_s in (300.0, 7200.0):
        assert stays(Fragments(), age_s) == pytest.approx(truly(summit, age_s), abs=TOLERANCE)


def test_what_is_believed_at_first_gives_way_to_what_is_seen() -> None:
    """Half an hour is nothing on a machine whose nodes stay for days."""
    law = distribution("expon", 3 * 86400.0)
    wrong = [
        float(np.abs(stays(left(law.rvs(count, random_state=2)), 0.0) - truly(law, 0.0)).max())
        for count in (0, 30, 1000, 30_000)
    ]
    assert wrong[0] > 0.9
    assert wrong[0] > wrong[1] > wrong[2] > wrong[3]
    assert wrong[3] < TOLERANCE


# Nodes that are still there.


@pytest.mark.parametrize("law", [("expon", 3000.0), ("lomax", 600.0, 1.2)])
def test_without_those_that_are_still_there_nodes_seem_to_leave_sooner(law: Any) -> None:
    """After an hour of looking, those that stayed are what tells that nodes stay."""
    random = np.random.default_rng(3)
    looked_s = random.uniform(0.0, 3600.0, 20_000)
    true_law = distribution(*law)
    lasts_s = true_law.rvs(20_000, random_state=random)
    there = lasts_s > looked_s
    seen, ages_s = left(lasts_s[~there]), looked_s[there]
    later_s = np.array([60.0, 300.0, 900.0, 1800.0])
    true = true_law.sf(later_s)
    counted = Survival(seen, ages_s, np.ones(len(ages_s))).stays(np.zeros(1), later_s)[0]
    assert counted == pytest.approx(true, abs=TOLERANCE)
    left_out = stays(seen, 0.0, later_s)
    assert (left_out < counted).all()
    assert true[-1] - left_out[-1] > 5 * TOLERANCE


def test_nodes_of_one_age_may_be_counted_together() -> None:
    each = Survival(Fragments(), np.array([50.0, 50.0, 50.0, 7e6]), np.ones(4))
    together = Survival(Fragments(), np.array([50.0, 7e6]), np.array([3.0, 1.0]))
    ages_s = np.array([0.0, 1e4, 8e6])
    assert together.stays(ages_s, HORIZONS_S) == pytest.approx(each.stays(ages_s, HORIZONS_S))


def test_very_old_nodes_that_are_there_count_as_those_that_have_left() -> None:
    """Also the time that they are older than the last of the ages."""
    age_s = 10 * EDGES_S[-1]
    there = Survival(Fragments(), np.array([age_s]), np.array([1e4]))
    stayed_s = np.array(left(np.array([age_s])).stayed_s) * 1e4
    gone = Survival(Fragments((0.0,) * len(EDGES_S), tuple(stayed_s.tolist())), NONE, NONE)
    ages_s = np.array([0.0, age_s])
    later_s = np.array([1e6, 1e9])
    assert there.stays(ages_s, later_s) == pytest.approx(gone.stays(ages_s, later_s))


# Probabilities.

AGE = st.floats(-1e3, 1e9)
LATER = st.floats(0, 1e9)


@st.composite
def models(draw: Any) -> Survival:
    seen = left(np.array(draw(st.lists(AGE, max_size=20))))
    there = np.array(draw(st.lists(AGE, max_size=20)), np.float64)
    return Survival(seen, there, np.ones(len(there)))


@given(models(), st.lists(AGE, max_size=5), st.lists(LATER, max_size=5))
def test_probabilities_fall_with_time(
    model: Survival, ages_s: list[float], later_s: list[float]
) -> None:
    found = model.stays(np.array(ages_s, np.float64), np.array([0.0, *sorted(later_s)]))
    assert found.shape == (len(ages_s), len(later_s) + 1)
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) <= 0).all()
    assert found[:, 0] == pytest.approx(1.0)


@given(models(), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5))
def test_to_stay_is_to_stay_for_a_while_and_then_for_the_rest(
    model: Survival, age_s: float, while_s: float, rest_s: float
) -> None:
    def stay(age_s: float, later_s: float) -> float:
        return float(model.stays(np.array([age_s]), np.array([later_s]))[0, 0])

    whole = stay(age_s, while_s + rest_s)
    assert stay(age_s, while_s) * stay(age_s + while_s, rest_s) == pytest.approx(whole, abs=1e-9)


def test_a_clock_that_is_behind_makes_a_new_node() -> None:
    model = Survival(Fragments(), np.array([-5.0]), np.ones(1))
    found = model.stays(np.array([-5.0, 0.0]), HORIZONS_S)
    assert (found[0] == found[1]).all()


def test_who_has_lasted_will_last() -> None:
    seen = left(distribution("lomax", 120.0, 1.2).rvs(20_000, random_state=4))
    found = Survival(seen, NONE, NONE).stays(np.array([0.0, 300.0, 3000.0]), HORIZONS_S)
    assert (np.diff(found, axis=0) > 0).all()
