"""The estimate of what sharing saved, in the account of GPU time: its keys, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcext.render.words import UNKNOWN, number, time_scale
from hpcext.sim.pilots import BASELINE

OF_JOBS = ("estimated_alone_gpu_h", "estimated_alone_used_gpu_h")
"""Keys of GPU-hours if each job had its own nodes: of all their GPUs, and of those in use."""

SAVED = ("estimated_saved_gpu_h", "estimated_saved_used_gpu_h")
"""Keys of the same GPU-hours, less those that were held."""

TIMES = ("busy_s", "estimated_busy_s")
"""Keys of the time for which there were jobs: as recorded, and as simulated from that."""

UNKNOWN_WHY = "estimated_unknown"

KEYS = (*OF_JOBS, *SAVED, *TIMES, UNKNOWN_WHY)

HEADINGS = (
    "held", "alone", "saved", "alone, by GPU", "saved, by GPU", "with jobs", "simulated",
)  # fmt: skip

NOTES = (
    "estimated by simulation, not measured: what the same jobs would have cost one by one (policy "
    f"{BASELINE}), less what was held",
    "alone: each job at its best size on nodes of its own, charged for all their GPUs; by GPU: "
    "charged for those that it uses",
    "with jobs: how long the pilot had jobs to run; simulated: the same time under its own "
    "policy, which shows how accurate the simulation is",
)


def is_estimated(document: Mapping[str, Any]) -> bool:
    """Return whether an account has the estimate of ``hpcext.cli.report.estimate.add_saved``."""
    return "estimated_pilots" in document["users"][0]


def rows(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each pilot with an estimate, and one for them all, under :data:`HEADINGS`."""
    known = [pilot for pilot in document["pilots"] if pilot[UNKNOWN_WHY] is None]
    (user,) = document["users"]
    for pilot in known:
        yield (f"{pilot['id']} ({pilot['policy']})", *_figures(pilot, pilot["held_gpu_h"]))
    if len(known) > 1:
        named = f"{len(known)} of {len(document['pilots'])} pilots"
        yield (named, *_figures(user, user["estimated_of_held_gpu_h"]))


def reasons(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each pilot without an estimate: which one, and why."""
    for pilot in document["pilots"]:
        if pilot[UNKNOWN_WHY] is not None:
            yield f"{pilot['id']}: what sharing saved is unknown: {pilot[UNKNOWN_WHY]}"


def _figures(row: Mapping[str, Any], held_gpu_h: float) -> tuple[str, ...]:
    (alone, used), (saved, less_used) = ([row[key] for key in keys] for keys in (OF_JOBS, SAVED))
    hours = (held_gpu_h, alone, saved, used, less_used)
    was_s, again_s = (row[key] for key in TIMES)
    scale = time_scale(was_s)
    error = f" ({again_s / was_s - 1:+.1%})" if was_s else UNKNOWN
    return (
        *map(number, hours),
        f"{number(was_s / scale.divisor)} {scale.unit}",
        f"{number(again_s / scale.divisor)} {scale.unit}{error}",
    )
