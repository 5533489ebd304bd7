"""The account of GPU time as text on a terminal, and as CSV for a spreadsheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcext.cli.output import Output
from hpcext.cli.report import saved as report_saved
from hpcext.core.saving import counted_lost, counted_lost_s
from hpcext.manager.views.accounting import EXACT, EXACT_S, FIGURES, LOST_S, NUMBERS, REASONS
from hpcext.render.csv import as_csv
from hpcext.render.words import number

HEADINGS = ("held", "trained", "idle", "starts", "suspends", "resizes", "lost", "harvested")
"""Short names of :data:`~hpcext.manager.views.accounting.FIGURES`, in their order."""


def show(out: Output, document: Mapping[str, Any], *, jobs: bool) -> None:
    """Print an account, in GPU-hours.

    Parameters
    ----------
    out : Output
    document : Mapping
        As :func:`hpcext.manager.views.accounting.account` makes it.
    jobs : bool
        Whether to print the jobs of each pilot.
    """
    pilots, (total,) = document["pilots"], document["users"]
    rows = [(each["id"], *figures(each)) for each in pilots]
    if len(pilots) != 1:
        rows.append((f"all of {total['user']}", *figures(total)))
    out.table(("GPU-hours of", *HEADINGS), rows)
    for pilot in pilots if jobs else ():
        lines = [(each["id"], each["name"], *figures(each)) for each in pilot["jobs"]]
        out.table(("id", f"job of {pilot['name']}", *HEADINGS), lines)
    for sentence in sentences(total):
        out.line(sentence)
    if report_saved.is_estimated(document):
        if rows := [*report_saved.rows(document)]:
            out.table(("GPU-hours, estimated, of", *report_saved.HEADINGS), rows)
        for sentence in (*report_saved.reasons(document), *report_saved.NOTES):
            out.line(sentence)


def figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the figures of a row, in the order of :data:`HEADINGS`."""
    return tuple(number(row[key]) for key in FIGURES)


def lost_steps(row: Mapping[str, Any]) -> str:
    """Return the number of lost steps as text, which says whether it is exact."""
    return counted_lost(row["lost_steps"], exact=row.get(EXACT, not row["lost_steps"]))


def lost_time(row: Mapping[str, Any]) -> str:
    """Return the lost time of trainings without a session as text; empty if there is none."""
    seconds = row[LOST_S]
    return counted_lost_s(seconds, exact=row.get(EXACT_S, False)) if seconds else ""


def sentences(total: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences that sum up the figures."""
    held = total["held_gpu_h"]
    if not held:
        yield "no GPUs were held"
        return
    yield f"{total['training_gpu_h'] / held:.1%} of the GPU time held went into training"
    lost = {words: total[key] for key, words in REASONS.items() if total[key] > 0}
    if lost:
        told = ", ".join(f"{number(hours)} for {words}" for words, hours in lost.items())
        yield f"GPU-hours of starts, suspensions, resizes and lost work, by reason: {told}"
    time = lost_time(total)
    and_time = f", and {time} of trainings that save by their own means" if time else ""
    yield (
        f"{total['attempts']:,} starts, {total['suspends']:,} suspensions, "
        f"{total['rescales']:,} changes of size in place, {lost_steps(total)} steps lost{and_time}"
    )


def as_table(document: Mapping[str, Any]) -> bytes:
    """Return an account as CSV: a line with all figures for each user, pilot and job."""
    return as_csv(_lines(document))


def _lines(document: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    keys = (*NUMBERS, *(report_saved.KEYS if report_saved.is_estimated(document) else ()))

    def numbers(row: Mapping[str, Any]) -> list[Any]:
        return [row.get(key) for key in keys]

    yield ("level", "user", "pilot", "job", "name", "state", *keys)
    (total,) = document["users"]
    user = total["user"]
    yield ("user", user, "", "", "", "", *numbers(total))
    for pilot in document["pilots"]:
        states = {True: "running", False: "ended", None: "not known to run"}
        state = states[pilot["running"]]
        yield ("pilot", user, pilot["id"], "", pilot["name"], state, *numbers(pilot))
        for job in pilot["jobs"]:
            what = (job["id"], job["name"], job["state"])
            yield ("job", user, pilot["id"], *what, *numbers(job))
