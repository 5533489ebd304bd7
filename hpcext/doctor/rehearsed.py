"""The records of the two attempts of a rehearsal: the suspended one, and the resumed one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.doctor.checkup import Finding
from hpcext.executors.attempt.readings import MAX_NUMBER, is_number
from hpcext.text import counted, listed

_SAME = 1e-3
"""The relative difference up to which losses are the same, since GPUs add in any order."""

_DO = (
    "give Session(...) each object that has a state (model, optimizer, scheduler, scaler, averages "
    "of weights), by itself and not as a copy; and read data through the session"
)

AttemptRecord = Mapping[str, Any]
"""The content of an attempt's file, as :mod:`hpcext.training.rehearsal` writes it."""


def read_attempt(attempt: Path) -> AttemptRecord | None:
    """Return the record of an attempt; None if there is none, or it is invalid.

    Parameters
    ----------
    attempt : pathlib.Path
        The directory of the attempt.
    """
    try:
        found = documents.read_json(attempt / protocol.REHEARSAL_FILE, protocol.REHEARSAL)
        steps = [(each["step"], each["metrics"].items()) for each in found["steps"]]
        found["state"].items(), float(found["went_on_s"])
    except (*documents.UNFIT, AttributeError):
        return None
    return found if all(isinstance(step, int) for step, _ in steps) else None


def steps(found: AttemptRecord | None) -> int:
    """Return how many steps are recorded after the step of the suspension."""
    return len(found["steps"]) if found else 0


def compared(
    name: str, before: AttemptRecord | None, after: AttemptRecord | None
) -> Iterator[Finding]:
    """Check that a training is the same after its suspension.

    Parameters
    ----------
    name : str
        The name of the job.
    before, after : mapping or None
        The records of the suspended and of the resumed attempt.
    """
    if before is None or after is None:
        says = f"it is unknown whether {name} has kept all of its state: only its steps were seen"
        yield Finding("job", "note", says, "compare its loss before a suspension and after it")
        return
    lost = [kind for kind, said in before["state"].items() if after["state"].get(kind) != said]
    if lost:
        says = f"{name} is not the same training after it was resumed: {listed(lost)} differ"
        yield Finding("job", "wrong", says, _DO)
    yield from _losses(name, before, after, kept=not lost)


def _losses(
    name: str, before: AttemptRecord, after: AttemptRecord, *, kept: bool
) -> Iterator[Finding]:
    without, since = _by_step(before), _by_step(after)
    both = sorted(without.keys() & since.keys())
    for step, metric in both:
        one, other = without[step, metric], since[step, metric]
        if not _alike(one, other):
            says = (
                f"{name}: {metric} of step {step} is {_figure(other)} after the resumption, and "
                f"{_figure(one)} where the training went on without one"
            )
            yield Finding("job", "wrong", says, _DO)
            return
    if not both and kept and before["steps"] and _states(before) == _states(after):
        more = counted(steps(before), "step")
        says = f"{name} has the same state as before, and {more} later as without a suspension"
        yield Finding("job", "ok", says)
    elif not both:
        says = f"{name} reported no loss in the steps after it was resumed, to compare it by"
        yield Finding("job", "note", says, "call session.report(loss=loss) in each step")
    elif kept:
        losses = counted(len(both), "loss", "losses")
        says = f"{name} has the same state as before, and the next {losses} as without a suspension"
        yield Finding("job", "ok", says)


def _states(found: AttemptRecord) -> list[tuple[int, Any]]:
    return [(each["step"], each.get("state")) for each in found["steps"]]


def _by_step(found: AttemptRecord) -> dict[tuple[int, str], Any]:
    """Return the losses of an attempt, by step and name."""
    return {
        (each["step"], metric): value
        for each in found["steps"]
        for metric, value in each["metrics"].items()
        if "loss" in metric.lower() and (value is None or _is_figure(value))
    }


def _alike(one: Any, other: Any) -> bool:
    # None stands for a loss that is not finite.
    return one is other if None in (one, other) else math.isclose(one, other, rel_tol=_SAME)


def _is_figure(value: Any) -> bool:
    # Compared without a conversion, for which an int may be too large.
    return is_number(value) and -MAX_NUMBER <= value <= MAX_NUMBER


def _figure(value: Any) -> str:
    return "no number" if value is None else f"{value:.6g}"
