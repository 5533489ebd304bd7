"""Rules for the queue of leases on LSF: whether it lends hosts, and takes them back in time.

Each rule is a pure function of one queue among all. To add one, write it and put it in
:data:`RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from hpcext.batch.lsf.queues import LsfQueue
from hpcext.doctor.checkup import Finding
from hpcext.protocol import EXIT_SUSPENDED
from hpcext.text import listed, shown

_OWNER = "an administrator has lsb.queues say"


def check(queue: LsfQueue, queues: Sequence[LsfQueue]) -> Iterator[Finding]:
    """Apply all rules to a queue; yield their findings.

    Parameters
    ----------
    queue : LsfQueue
        The queue of leases.
    queues : sequence of LsfQueue
        All queues.
    """
    for rule in RULES:
        yield from rule(queue, queues)


def above(queue: LsfQueue, queues: Iterable[LsfQueue]) -> list[LsfQueue]:
    """Return the queues whose jobs preempt those of a queue, the highest priority first.

    Parameters
    ----------
    queue : LsfQueue
    queues : iterable of LsfQueue
        All queues, among which may be `queue`.
    """
    found = [
        each
        for each in queues
        if each.name != queue.name
        and each.starts_jobs
        and (each.priority or 0) > (queue.priority or 0)
        and (_names(each.preemption, "PREEMPTIVE", queue.name)
             or _names(queue.preemption, "PREEMPTABLE", each.name))
    ]  # fmt: skip
    return sorted(found, key=lambda each: -(each.priority or 0))


def _names(preemption: str, kind: str, name: str) -> bool:
    """Return whether PREEMPTIVE or PREEMPTABLE names a queue; without a list, it means all."""
    found = re.search(rf"\b{kind}\b(?:\[([^\]]*)\])?", preemption)
    if found is None:
        return False
    listed_ = [word.partition("+")[0] for word in (found[1] or "").split()]
    return found[1] is None or name in listed_ or "all" in listed_


def preemption(queue: LsfQueue, queues: Sequence[LsfQueue]) -> Iterator[Finding]:
    """Check that jobs of other queues preempt leases."""
    name, of = "preemption", shown(queue.name)
    if first := above(queue, queues):
        says = f"jobs of {listed(each.name for each in first)} preempt those of {of}"
        yield Finding(name, "ok", says)
        return
    says = f"{of}: according to bqueues, no queue preempts its jobs (PREEMPTION)"
    do = f"{_OWNER} PREEMPTION = PREEMPTABLE, and PRIORITY below that of all others"
    yield Finding(name, "note", says, do, "others would wait for leases until these end")


def suspension(queue: LsfQueue, _queues: Sequence[LsfQueue]) -> Iterator[Finding]:
    """Check that a lease receives the signal of a preemption."""
    name, of = "job controls", shown(queue.name)
    said = queue.controls.get("SUSPEND", "")
    if said.endswith("SIGTSTP") or "hpcext-job-control" in said:
        yield Finding(name, "ok", f"{of}: jobs get SUSPEND[{said}]")
    elif "PREEMPT" in queue.terminate_when.split():
        yield Finding(name, "ok", f"{of}: jobs get TERMINATE_WHEN = PREEMPT")
    elif said:
        says = f"{of}: SUSPEND[{said}] is not that of hpcext"
        do = "make sure that it sends jobs SIGTSTP before it stops them"
        yield Finding(
            name,
            "note",
            says,
            do,
            "jobs that do not get it lose the work since their last checkpoint",
        )
    else:
        says = f"{of}: no JOB_CONTROLS: SIGSTOP stops jobs of one slot, and cannot be handled"
        do = f"{_OWNER} JOB_CONTROLS = SUSPEND[SIGTSTP]"
        yield Finding(name, "note", says, do, "such leases are killed, and lose unsaved work")


def rerunnable(queue: LsfQueue, _queues: Sequence[LsfQueue]) -> Iterator[Finding]:
    """Check that jobs of the queue are rerunnable, because LSF takes GPUs from no others."""
    name, of = "rerunnable", shown(queue.name)
    if queue.rerunnable:
        yield Finding(name, "ok", f"{of}: RERUNNABLE; a lease that is restarted ends at once")
        return
    do = f"{_OWNER} RERUNNABLE = yes, and MIG"
    why = "LSF takes GPUs from rerunnable jobs only; others wait for them"
    yield Finding(name, "note", f"{of}: not RERUNNABLE", do, why)


def exit_values(queue: LsfQueue, _queues: Sequence[LsfQueue]) -> Iterator[Finding]:
    """Check that no exit value restarts a finished job, and that of a suspension does."""
    name, of = "exit values", shown(queue.name)
    values = queue.requeue.split()
    if "0" in values or any(value.lower() == "all" for value in values):
        says = f"{of}: REQUEUE_EXIT_VALUES = {shown(queue.requeue)} restarts finished jobs"
        yield Finding(name, "wrong", says, f"{_OWNER} REQUEUE_EXIT_VALUES = {EXIT_SUSPENDED}")
    elif str(EXIT_SUSPENDED) in values:
        yield Finding(name, "ok", f"{of}: exit value {EXIT_SUSPENDED} requeues")
    else:
        says = f"{of}: exit value {EXIT_SUSPENDED} does not requeue; brequeue, or bsub -Q, does"
        yield Finding(name, "ok", says)


RULES: tuple[Callable[[LsfQueue, Sequence[LsfQueue]], Iterator[Finding]], ...] = (
    preemption, suspension, rerunnable, exit_values,
)  # fmt: skip
"""The rules, in the order in which their findings are shown."""
