"""The standing of a batch job, in the same words for each batch system; it may be unknown."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from hpcext.allocation import JobId
from hpcext.batch.jobs import OVER, Seen


class Is(Enum):
    """The standing of a job; of several jobs, the one that is first in this list counts."""

    RUNS = "runs"
    STOPPED = "stopped"
    UNKNOWN = "unknown"
    ENDS = "ends"
    HELD = "held"
    WAITS = "waits"
    FORGOTTEN = "forgotten"
    OVER = "over"

    @property
    def there(self) -> bool:
        """Whether processes of the job may still exist."""
        return self in {Is.RUNS, Is.STOPPED, Is.UNKNOWN}

    @property
    def ended(self) -> bool:
        """Whether none of its processes exists, and it does not begin again."""
        return self in {Is.FORGOTTEN, Is.OVER}


Advice = Callable[[JobId, Is, Seen], str]
"""A job, its standing, and the answer about it → what its user can do; empty if unknown."""


class Standing(NamedTuple):
    """The standing of a job, with a sentence about it, and what to do; both may be empty."""

    state: Is
    what: str = ""
    do: str = ""


_KINDS = {
    **dict.fromkeys(("running", "signaling", "resizing", "update_db"), Is.RUNS),
    **dict.fromkeys(("suspended", "stopped"), Is.STOPPED),
    **dict.fromkeys(("completing", "stage_out"), Is.ENDS),
    **dict.fromkeys(("requeue_hold", "special_exit", "resv_del_hold"), Is.HELD),
    **dict.fromkeys(("pending", "configuring", "power_up_node", "expediting"), Is.WAITS),
    **dict.fromkeys(("requeued", "requeue_fed"), Is.WAITS),
    **dict.fromkeys(OVER, Is.OVER),
}


def kind(seen: Seen | None) -> Is:
    """Return the standing of a job; `seen` is None if the batch system does not know it.

    Examples
    --------
    >>> [kind(Seen("running")).value, kind(Seen("suspended", "PSUSP")).value, kind(None).value]
    ['runs', 'held', 'forgotten']
    """
    if seen is None:
        return Is.FORGOTTEN
    if seen.said == "PSUSP" or seen.why.startswith("JobHe"):
        return Is.HELD
    return _KINDS.get(seen.state, Is.UNKNOWN)


def of_job(name: str, job_id: JobId, seen: Seen | None, advice: Advice) -> Standing:
    """Return the standing of a job, with a sentence about it.

    Parameters
    ----------
    name : str
        The batch system, for people.
    job_id : int or str
    seen : Seen or None
        None if the batch system does not know the job.
    advice : callable
        Returns what lets the job go on, or begin.
    """
    state, job = kind(seen), f"its job {job_id} of {name}"
    if seen is None or state in {Is.OVER, Is.RUNS}:
        return Standing(state)
    word = seen.said or seen.state
    if state is Is.UNKNOWN:
        why = seen.why or f"its state is {word}"
        return Standing(state, f"it is unknown whether {job} runs: {why}", "ask again later")
    if state is Is.STOPPED:
        return Standing(state, f"{job} is stopped ({word})", advice(job_id, state, seen))
    if state is Is.HELD:
        what = f"{job} is held in the queue ({_held(seen)})"
        return Standing(state, what, advice(job_id, state, seen))
    if state is Is.ENDS:
        return Standing(state, f"{job} is ending ({word})", "ask again in a moment")
    return Standing(state, f"{job} waits in the queue ({word})", "")


def not_told(name: str, job_id: JobId, why: str) -> Standing:
    """Return the standing of a job about which the batch system did not answer.

    Parameters
    ----------
    name : str
        The batch system, for people.
    job_id : int or str
    why : str
        Its error.
    """
    what = f"it is unknown whether its job {job_id} runs: {name} does not say ({why})"
    return Standing(Is.UNKNOWN, what, "ask again later")


def _held(seen: Seen) -> str:
    return seen.said or (seen.why if seen.why.startswith("JobH") else seen.state)
