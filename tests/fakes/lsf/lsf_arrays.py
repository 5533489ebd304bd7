"""Contract engine of LSF, written from the vendor's documentation: job arrays, and what waits for
others.

"Job arrays" of "Administering IBM Spectrum LSF", and bsub(1), -J and -w. All elements have the
number of their array; each is a job of its own, which NUMBER[INDEX] names.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from lsf_site import ENDED, Job, RefusedError, Site

ARRAY = re.compile(r"([\w.-]*)\[([\d,:\s-]+)\](?:%(\d+))?", re.ASCII)
RANGE = re.compile(r"\s*(\d+)(?:-(\d+)(?::(\d+))?)?\s*", re.ASCII)
WORD = re.compile(r"(\d+)(?:\[([\d,:-]+)\])?", re.ASCII)
CONDITION = re.compile(r"(done|ended|exit)\(([\w.-]+)(?:\[(\*|\d+)\])?\)", re.ASCII)
MOST = 1000
"""lsb.params, MAX_JOB_ARRAY_SIZE."""

COLUMNS = ("NJOBS", "PEND", "DONE", "RUN", "EXIT", "SSUSP", "USUSP", "PSUSP")


def indices(text: str) -> list[int]:
    """Those of ``1-4,7,10-20:5``."""
    found: list[int] = []
    for part in text.split(","):
        each = RANGE.fullmatch(part)
        first = int(each[1]) if each else 0
        if each is None or not first:
            raise RefusedError(f"{text}: Bad job array index list. Job not submitted.")
        found += range(first, int(each[2] or first) + 1, int(each[3] or 1))
    if not 0 < len(found) <= MOST or len(set(found)) != len(found):
        raise RefusedError(f"{text}: Bad job array index list. Job not submitted.")
    return found


def elements(job: Job) -> list[Job]:
    """Those of the array that the name of a job asks for; none if it asks for none."""
    array = ARRAY.fullmatch(job.name)
    if array is None:
        return []
    if job.checkpoint_dir:
        raise RefusedError("-k with an array: not played by this engine")
    name, at_once = array[1], int(array[3] or 0)
    return [
        dataclasses.replace(
            job, index=index, name=f"{name}[{index}]", array=f"{name}[{array[2]}]", at_once=at_once
        )
        for index in indices(array[2])
    ]


def plain(job: Job) -> str:
    """The name of an array, without its indices; of another job its name."""
    return job.array.partition("[")[0] if job.index else job.name


def environ_of(job: Job) -> dict[str, str]:
    """What an element is told of its array, as it was recorded."""
    if not job.index:
        return {}
    every = indices(job.array.partition("[")[2].rstrip("]"))
    step = every[1] - every[0] if len(every) > 1 else 1
    return {"LSB_JOBINDEX_END": str(max(every)), "LSB_JOBINDEX_STEP": str(step)}


def chosen(site: Site, word: str) -> list[Job]:
    """The jobs that a word of a command means: a job, all of an array, or some of it."""
    said = WORD.fullmatch(word)
    if said is None:
        raise RefusedError(f"{word}: not played by this engine")
    number, some = int(said[1]), indices(said[2]) if said[2] else None
    found = [job for job in site.jobs() if job.id == number and (some is None or job.index in some)]
    if not found:
        raise RefusedError(f"Job <{word}> is not found")
    return found


def may_begin(site: Site, job: Job) -> bool:
    """Whether its array has a slot for it, and what it waits for has come true."""
    if job.at_once:
        others = [each for each in site.jobs() if each.id == job.id and each.index != job.index]
        if sum(bool(each.hosts) and not each.over() for each in others) >= job.at_once:
            return False
        # In their order.
        if any(each.index < job.index and each.state == "PEND" for each in others):
            return False
    return all(_holds(site, job, each) for each in job.depends.split("&&") if each.strip())


def check_depends(site: Site, text: str) -> None:
    """Refuse a condition that is not played, or whose jobs are not there."""
    for part in text.split("&&"):
        _of(site, _condition(part))


def _condition(text: str) -> re.Match[str]:
    found = CONDITION.fullmatch(text.strip())
    if found is None:
        raise RefusedError(f"-w: {text}: not played by this engine")
    return found


def _of(site: Site, condition: re.Match[str]) -> list[Job]:
    found = [
        job
        for job in site.jobs()
        if condition[2] in {str(job.id), plain(job)} and (bool(job.index) or not condition[3])
    ]
    if not found:
        raise RefusedError(f"-w: {condition[0]}: Dependency condition invalid or never satisfied")
    return found


def _holds(site: Site, job: Job, text: str) -> bool:
    """``done(A)`` is of all elements, ``done(A[2])`` of one, ``done(A[*])`` of that with our own
    index."""
    condition = _condition(text)
    jobs = _of(site, condition)
    if condition[3]:
        wanted = job.index if condition[3] == "*" else int(condition[3])
        jobs = [each for each in jobs if each.index == wanted]
    states = {"done": ("DONE",), "exit": ("EXIT",), "ended": ENDED}[condition[1]]
    return bool(jobs) and all(each.over() and each.state in states for each in jobs)


def summary(site: Site, words: Sequence[str]) -> int:
    """``bjobs -A``: a line for each array."""
    of: dict[int, list[Job]] = {}
    for job in site.jobs():
        if job.index and (not words or str(job.id) in words):
            of.setdefault(job.id, []).append(job)
    if not of:
        raise RefusedError("No job found")
    print(f"{'JOBID':<8} {'ARRAY_SPEC':<10} {'OWNER':<8} {' '.join(COLUMNS)}")
    for number, jobs in of.items():
        counts = Counter(job.state for job in jobs)
        numbers = [len(jobs), *(counts[column] for column in COLUMNS[1:])]
        print(f"{number:<8} {jobs[0].array:<10} {'user':<8} {' '.join(map(str, numbers))}")
    return 0
