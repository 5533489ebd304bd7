"""Policies by name, with options behind it."""

from __future__ import annotations

import pytest
from market import job, sizes, snapshot

from hpcext.core.errors import InputError
from hpcext.policies import POLICIES, find_policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polux", "--policy: unknown policy 'polux' (valid: marble, exclusive"),
        ("polux:p=1", "did you mean pollux?"),
        ("marble:p=1", "--policy: marble has no options; give marble alone"),
        ("pollux:q=1", "--policy pollux: unknown option 'q=1' (valid: p=VALUE, interval_s=VALUE"),
        ("pollux:intervall_s=1", "did you mean interval_s?"),
        ("pollux:p", "--policy pollux: p has no value"),
        ("pollux:p=", "p=: expected a number"),
        ("pollux:p=nan", "p=nan: "),
        ("pollux:p=2", "--policy pollux: p=2: expected a number <= 1.0"),
        ("pollux:search=best", "search=best (valid: exact, genetic)"),
        ("optimus:interval_s=0", "interval_s=0: expected a number >= 1.0"),
        (
            "bftrainer:objective=speed",
            "unknown objective 'speed'; efficiency, throughput, priority, or MODULE.F",
        ),
        ("bftrainer:objective=math.pi", "'math.pi' is not a function"),
        ("bftrainer:objective=no.such", "unknown objective 'no.such'"),
        ("bftrainer:limits=/dev/null", "/dev/null: not a regular file"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find_policy(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_place_of_the_policy() -> None:
    with pytest.raises(InputError, match=r"^HPCEXT_POLICY pollux: p=2: "):
        find_policy("pollux:p=2", "HPCEXT_POLICY")


def test_a_value_of_any_length_is_cut() -> None:
    with pytest.raises(InputError) as caught:
        find_policy("pollux:p=" + "\x1b" * 5000)
    assert len(str(caught.value)) < 500


def test_several_options() -> None:
    now = snapshot([job(1), job(2, weight=9.0)], a=4)
    assert sizes("pollux:p=1,interval_s=5", now) == {"2": 4}
    assert find_policy("pollux:p=1,interval_s=5")(now).wake_s == 5


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_gives_a_lone_job_what_it_can_use(name: str) -> None:
    assert sizes(name, snapshot([job(1)], a=4)) == {"1": 4}


@pytest.mark.parametrize("name", [*POLICIES, "bftrainer:objective=priority"])
def test_every_policy_takes_the_priorities_that_a_file_may_state(name: str) -> None:
    jobs = [job(1, priority=-1e9), job(2, priority=1e9), job(3)]
    assert sum(sizes(name, snapshot(jobs, a=4)).values()) == 4


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_minds_that_there_is_nothing(name: str) -> None:
    assert sizes(name, snapshot([], a=4)) == {}
    assert sizes(name, snapshot([job(1)])) == {}
    assert sizes(name, snapshot([job(1, ready=False)], a=4)) == {}
    assert sizes(name, snapshot([job(1, sizes=(8,))], a=4)) == {}
