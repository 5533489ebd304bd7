"""Queues of LSF: what they allow, and how they treat jobs (``bqueues -l``)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpcext.batch.lsf.jobs import run_limit_minutes
from hpcext.core.errors import BatchError
from hpcext.numerals import whole
from hpcext.text import shown


class LsfQueue(NamedTuple):
    """A queue, from ``bqueues -l``.

    Attributes
    ----------
    name, status : str
    limit_s : float
        The longest run limit, in seconds.
    hosts : tuple of str
        Names and groups as bqueues shows them: ``all``, ``group/``, ``host+1``, ``~host``.
    backfill : bool
        Whether its jobs may use slots that are kept for others.
    preemption, requeue, starter, terminate_when : str
        PREEMPTION, REQUEUE_EXIT_VALUES, JOB_STARTER, TERMINATE_WHEN; empty if they are not set.
    controls : Mapping[str, str]
        SUSPEND, RESUME or TERMINATE → what JOB_CONTROLS sets for it.
    rerunnable : bool
    priority : int or None
    """

    name: str
    status: str
    limit_s: float
    hosts: tuple[str, ...]
    backfill: bool
    preemption: str = ""
    requeue: str = ""
    starter: str = ""
    terminate_when: str = ""
    controls: Mapping[str, str] = MappingProxyType({})
    rerunnable: bool = False
    priority: int | None = None

    @property
    def starts_jobs(self) -> bool:
        """Whether it accepts jobs and starts them (bqueues(1), STATUS)."""
        return self.status == "Open:Active"


def queues_command(*names: str) -> list[str]:
    """Return the bqueues(1) command that asks for queues, by default for all."""
    return ["bqueues", "-l", *names]


def parse_queue(text: str) -> LsfQueue:
    """Parse the first queue in the output of ``bqueues -l``.

    Raises
    ------
    BatchError
        There is no queue in it.
    """
    named = re.search(r"^QUEUE:\s*(\S+)", text, re.M)
    status = re.search(r"^.*\bPRIO\b.*\bSTATUS\b.*\n.*?((?:Open|Closed):\w+)", text, re.M)
    if named is None or status is None:
        raise BatchError(f"bqueues printed {shown(text.strip())}, not a queue")
    block = text[named.start() :]
    following = re.search(r"^QUEUE:", block[1:], re.M)
    block = block[: following.start() + 1] if following else block
    policies = _line(block, "SCHEDULING POLICIES").split()
    priority = re.search(r"^.*\bPRIO\b.*\n[ \t]*([0-9]{1,9})\s", block, re.M)
    hosts = _line(block, "HOSTS").split()
    return LsfQueue(
        named[1],
        status[1],
        _run_limit_s(block),
        # "all hosts used by the ... system"
        ("all", *(word for word in hosts if word[0] == "~")) if "all" in hosts else tuple(hosts),
        "BACKFILL" in policies,
        _line(block, "PREEMPTION"),
        _line(block, "REQUEUE_EXIT_VALUES"),
        _line(block, "JOB_STARTER"),
        _line(block, "TERMINATE_WHEN"),
        dict(re.findall(r"^[ \t]*(SUSPEND|RESUME|TERMINATE):[ \t]*\[(.*)\][ \t]*$", block, re.M)),
        _line(block, "RERUNNABLE").lower().startswith("y"),
        whole(priority[1]) if priority else None,
    )


def parse_queues(text: str) -> tuple[LsfQueue, ...]:
    """Parse all queues in the output of ``bqueues -l``."""
    return tuple(
        parse_queue(f"QUEUE:{part}") for part in re.split(r"^QUEUE:", text, flags=re.M)[1:]
    )


def _line(block: str, key: str) -> str:
    found = re.search(rf"^\s*{key}\s*[:=][ \t]*(.*)$", block, re.M)
    return found[1].strip() if found else ""


def _run_limit_s(block: str) -> float:
    """Return the maximum RUNLIMIT in seconds; a default one is only for jobs that state none."""
    before, found, after = block.partition("MAXIMUM LIMITS:")
    part = after if found else before.partition("DEFAULT LIMITS:")[0]
    minutes = run_limit_minutes(part)
    return float(minutes) * 60 if minutes else math.inf
