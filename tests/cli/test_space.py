"""What a sweep chooses settings from, and what Optuna makes of those that were tried."""

from __future__ import annotations

import math
import statistics

import pytest

from hpcext.cli.sweep.space import Range, Space, propose
from hpcext.core.errors import InputError
from hpcext.core.trials import Trial
from hpcext.core.values import Job, Record, State

RATES = Space({"opt": ("sgd", "adam")}, {"lr": Range(1e-5, 10.0, log=True, whole=False)})


def test_numbers_of_a_range() -> None:
    space = Space({}, {"n": Range(2, 5, log=False, whole=True), "x": Range(1e-6, 1, True, False)})
    drawn = space.draws(400, 1)
    assert {each["n"] for each in drawn} == {"2", "3", "4", "5"}
    powers = [math.log10(float(each["x"])) for each in drawn]
    assert -6 <= min(powers) < -5.5 < -0.5 < max(powers) <= 0
    # All orders of magnitude alike.
    assert statistics.mean(powers) == pytest.approx(-3, abs=0.3)
    assert drawn == space.draws(400, 1) != space.draws(400, 2)
    with pytest.raises(InputError, match="--range: needs --random"):
        space.every()


def tried(
    lr: float, opt: str = "sgd", state: State = State.COMPLETED, **more: object
) -> tuple[Job, Trial, Record]:
    """A trial that is the better the nearer it is to 0.01 (and to Adam)."""
    trial = Trial("a", {"opt": opt, "lr": f"{lr:g}"}, "loss", first=10)
    value = abs(math.log10(lr) + 2) + (opt == "sgd")
    record = Record(metrics={"loss": value}, rungs={10: value})
    if state is not State.COMPLETED:
        record = Record(rungs=more.get("rungs", {10: value}))  # type: ignore[arg-type]
    return Job("1", "a", 1, (1,), 1, trial=trial, state=state), trial, record


def distance(settings: list[dict[str, str]]) -> float:
    """Orders of magnitude from the best rate, of the typical proposal."""
    return statistics.median(abs(math.log10(float(each["lr"])) + 2) for each in settings)


KNOWN = [tried(10 ** (-5 + number / 4), opt) for number in range(24) for opt in RATES.grid["opt"]]


def test_proposals_are_where_it_was_good() -> None:
    """Blind draws are 1.5 orders of magnitude away, typically."""
    proposed = propose(RATES, KNOWN, 20, 1, "min")
    assert len(proposed) == 20
    assert all(list(each) == ["opt", "lr"] for each in proposed)
    assert distance(proposed) < 0.75 < distance(RATES.draws(200, 1))
    assert sum(each["opt"] == "adam" for each in proposed) > 10
    # The other way round the worst is the best.
    assert distance(propose(RATES, KNOWN, 20, 1, "max")) > 1.5


def test_those_that_were_ended_teach_too() -> None:
    ended = [
        tried(float(t.settings["lr"]), t.settings["opt"], State.CANCELLED) for _, t, _ in KNOWN
    ]
    assert distance(propose(RATES, ended, 20, 1, "min")) < 0.75


def test_failed_trials_and_values_that_are_not_numbers_are_shown() -> None:
    others = [
        tried(5.0, state=State.CANCELLED, rungs={10: None}),
        tried(5.0, state=State.FAILED, rungs={}),
        tried(5.0, state=State.RUNNING),
        tried(5.0, state=State.PENDING, rungs={}),
    ]
    assert distance(propose(RATES, [*KNOWN, *others], 20, 1, "min")) < 0.75


@pytest.mark.parametrize(
    "settings",
    [
        {"opt": "sgd"},
        {"opt": "lion", "lr": "0.1"},
        {"opt": "sgd", "lr": "100"},
        {"opt": "sgd", "lr": "fast"},
        {"opt": "sgd", "lr": "nan"},
        {"opt": "sgd", "lr": "0.1", "width": "3"},
    ],
)
def test_what_lies_outside_does_not_count(settings: dict[str, str]) -> None:
    job, _, record = KNOWN[0]
    trial = Trial("a", settings, "loss", first=10)
    assert propose(RATES, [*KNOWN, (job, trial, record)], 5, 1, "min") == propose(
        RATES, KNOWN, 5, 1, "min"
    )
