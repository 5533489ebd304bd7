"""The final checkpoint of a training, and outcomes that are the same on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpcext.training.checkpoint import FencedError, reason
from hpcext.training.leave import EXIT_NOT_SAVED, leave
from hpcext.training.ranks import Ranks
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest

PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
"""First and longest pause between two attempts to write the final checkpoint, in seconds."""

GIVE_UP_S = 600.0
"""Seconds after which the GPUs are worth more to other jobs than to one that waits for a disk."""

DECLINED_PAUSE_S, DECLINED_PAUSE_MAX_S = 1.0, 30.0
"""Shortest and longest pause, in seconds, after a suspension that could not be saved: all ranks
wait while one of them writes. The pause is four times as long as the attempt took."""

_LEAVE, _DECLINE, _GO_ON = range(3)
"""Actions after a failure to write the final checkpoint; if ranks differ, the smallest counts."""

FENCED, NOT_SAVED, SAVED = range(3)
"""Outcomes of an attempt to save for a suspension; if ranks differ, the smallest counts."""


def write_last(
    write: Callable[[], object],
    *,
    ranks: Ranks,
    request: SuspendRequest,
    reporter: Reporter,
    supervised: bool,
    failed: Callable[[OSError], object],
) -> None:
    """Write the final checkpoint; collective.

    Under a manager, repeat the attempt until it is written, and then report that the job is
    complete, which also answers a request for suspension. After :data:`GIVE_UP_S` leave without it,
    so that the job goes on from the previous checkpoint.

    Parameters
    ----------
    write : callable
        Raises OSError if nothing was written.
    ranks : Ranks
    request : SuspendRequest
    reporter : Reporter
    supervised : bool
        Whether there is a manager. Without one there is only one attempt.
    failed : callable
        Called with the first failure of this rank.
    """
    pause_s, reported = PAUSE_S, False
    begun = time.monotonic()
    while True:
        failure: OSError | None = None
        try:
            write()
        except OSError as error:
            failure = error
        if ranks.smallest(0 if failure else 1):
            return
        if failure and not reported:
            failed(failure)
            reported = True
            if supervised:
                reporter.waits_to_save(reason(failure))
        if not supervised:
            return
        late = time.monotonic() - begun > GIVE_UP_S
        own = _LEAVE if late else _DECLINE if request.suspend_requested() else _GO_ON
        agreed = ranks.smallest(own)
        if agreed == _LEAVE:
            leave(EXIT_NOT_SAVED)
        if agreed == _DECLINE:
            request.decline(DECLINED_PAUSE_S)
            if failure:
                reporter.declined(reason(failure))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def outcome_of(failure: Exception | None) -> int:
    """Return the outcome of an attempt on this rank."""
    if failure is None:
        return SAVED
    return FENCED if isinstance(failure, FencedError) else NOT_SAVED
