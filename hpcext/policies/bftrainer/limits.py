"""Limits on groups of jobs, by a site or a user: the file, and its constraints.

::

    [[limit]]
    name = "licences"
    jobs = ["bert-*", "gpt"]   # names, or patterns of them; all jobs if left out
    of = "jobs"                # what is counted: "gpus", or "jobs" that run
    most = 2                   # or least, or both
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcext.checks import at, kind_of, known_keys, number, string
from hpcext.core.errors import InputError
from hpcext.core.values import Job, Snapshot, total
from hpcext.policies.common import fixed
from hpcext.policies.placement.candidates import Candidate
from hpcext.policies.solve.counting import Constraint
from hpcext.textfiles import parse_toml, read_text

MOST = 1e9
"""Largest number that a limit may state."""


class Limit(msgspec.Struct, frozen=True):
    """One limit; see the module.

    Attributes
    ----------
    name : str
    jobs : tuple of str
    of : {"gpus", "jobs"}
    least, most : float or None
    """

    name: str
    jobs: tuple[str, ...] = ("*",)
    of: str = "gpus"
    least: float | None = None
    most: float | None = None

    def meets(self, job: Job) -> bool:
        """Return whether the limit counts a job."""
        return any(
            # A name may contain the special characters of a pattern.
            pattern == job.name or fnmatch.fnmatchcase(job.name, pattern)
            for pattern in self.jobs
        )

    def load(self, gpus: int) -> float:
        """Return the contribution of a job with `gpus` GPUs."""
        return float(gpus if self.of == "gpus" else gpus > 0)


@functools.cache
def read_limits(path: str) -> tuple[Limit, ...]:
    """Read a file of limits.

    Parameters
    ----------
    path : str
        An absolute path.

    Raises
    ------
    InputError
        The path is not absolute, or the file contains something that is not a limit.
    """
    if not Path(path).is_absolute():
        raise InputError(f"limits={path}", where="--policy", valid="an absolute path")
    document = parse_toml(read_text(Path(path)), path)
    with at(path):
        known_keys(document, ("limit",), "table or key")
    tables = document.get("limit", [])
    if not isinstance(tables, list) or not tables:
        raise InputError("it has no [[limit]]", where=path)
    return tuple(_limit(table, f"{path}: [[limit]] {at}") for at, table in enumerate(tables, 1))


def constraints(
    limits: Sequence[Limit], asks: Sequence[Candidate], now: Snapshot
) -> list[Constraint]:
    """Return the constraints on candidates, given the jobs whose size is fixed now.

    A minimum is lowered to what the present jobs can reach.

    Parameters
    ----------
    limits : sequence of Limit
    asks : sequence of Candidate
    now : Snapshot
    """
    kept = [job for job in now.jobs if job.ready and job.goal and fixed(job)]
    found = []
    for limit in limits:
        met = [number for number, ask in enumerate(asks) if limit.meets(ask.job)]
        if not met:
            continue
        used = sum(limit.load(total(job.goal)) for job in kept if limit.meets(job))
        reach = sum(limit.load(max(asks[number].shapes)) for number in met)
        least = None if limit.least is None else min(max(0.0, limit.least - used), reach)
        most = None if limit.most is None else max(0.0, limit.most - used)
        if least is not None and most is not None:
            least = min(least, most)
        ones = dict.fromkeys(met, 1.0)
        units, runs = (ones, {}) if limit.of == "gpus" else ({}, ones)
        found.append(Constraint(limit.name, units, runs, least, most))
    return found


def _limit(table: Any, where: str) -> Limit:
    if not isinstance(table, dict):
        raise InputError(kind_of(table), where=where, valid="a table")
    with at(where):
        known_keys(table, tuple(_FIELDS))
    values: dict[str, Any] = {"name": where}
    for key, value in table.items():
        with at(where, key):
            values[key] = _FIELDS[key](value)
    limit = Limit(**values)
    if limit.least is None and limit.most is None:
        raise InputError("neither least nor most", where=where, do="add one, such as most = 4")
    if limit.least is not None and limit.most is not None and limit.least > limit.most:
        raise InputError(f"least {limit.least:g} is more than most {limit.most:g}", where=where)
    return limit


def _patterns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(kind_of(value), valid='an array of names, such as ["bert-*"]')
    return tuple(map(string, value))


def _of(value: Any) -> str:
    if value not in ("gpus", "jobs"):
        raise InputError(repr(value), valid='"gpus" or "jobs"')
    return str(value)


def _amount(value: Any) -> float:
    return number(value, 0, MOST)


_FIELDS: Mapping[str, Any] = {
    "name": string,
    "jobs": _patterns,
    "of": _of,
    "least": _amount,
    "most": _amount,
}
