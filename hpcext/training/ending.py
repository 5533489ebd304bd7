"""The end and the suspension of a training: alike on all ranks, and clear about what is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from hpcext import protocol
from hpcext.training.checkpoint import MANIFEST, Checkpoint, FencedError, Store, reason, warn
from hpcext.training.leave import EXIT_NOT_SAVED, leave
from hpcext.training.ranks import Ranks
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest

PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
"""First and longest pause between two tries to write the final checkpoint, in seconds."""

GIVE_UP_S = 600.0
"""Seconds after which the GPUs are worth more to other jobs than to one waiting for a disk."""

DEAF_S, DEAF_MAX_S = 1.0, 30.0
"""Shortest and longest pause, in seconds, after a suspension that could not be saved: all ranks
wait while one of them writes. The pause is four times as long as the try took."""

# Outcomes of a try; when ranks differ, the smallest counts.
_FENCED, _NOT_SAVED, _SAVED = range(3)


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

    Under a manager, try until it is written, and then report that the job is complete. That answers
    a request for suspension, too. After :data:`GIVE_UP_S` leave without it: the job goes on from
    the checkpoint before.

    Parameters
    ----------
    write : callable
        Raises OSError if nothing was written.
    ranks : Ranks
    request : SuspendRequest
    reporter : Reporter
    supervised : bool
        Whether there is a manager. Without one it is tried once.
    failed : callable
        Called with the first failure of this rank.
    """
    pause_s, told = PAUSE_S, False
    begun = time.monotonic()
    while True:
        failure: OSError | None = None
        try:
            write()
        except OSError as error:
            failure = error
        if ranks.smallest(0 if failure else 1):
            return
        if failure and not told:
            failed(failure)
            told = True
            if supervised:
                reporter.waits_to_save(reason(failure))
        if not supervised:
            return
        late = time.monotonic() - begun > GIVE_UP_S
        wish = ranks.smallest(0 if late else 1 if request.asked() else 2)
        if wish == 0:
            leave(EXIT_NOT_SAVED)
        if wish == 1:
            request.decline(DEAF_S)
            if failure:
                reporter.declined(reason(failure))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def leave_suspended(
    checkpoint: Checkpoint | None,
    *,
    step: int,
    failure: Exception | None,
    agreed_at: float,
    began_s: float,
    ranks: Ranks,
    request: SuspendRequest,
    reporter: Reporter,
    store: Store,
    supervised: bool,
    callbacks: Iterable[Callable[[], object]],
) -> None:
    """Acknowledge a suspension and end this process; collective.

    If the state could not be saved it returns, on every rank alike, and the training goes on. A
    manager that must have the GPUs asks again, and ends the training when its time is over.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        Where the state is; None except on rank 0, and where it could not be written.
    step : int
    failure : Exception or None
        Why this rank could not write.
    agreed_at : float
        Time at which all ranks agreed to stop, in seconds since the epoch.
    began_s : float
        That time by the monotonic clock.
    ranks : Ranks
    request : SuspendRequest
    reporter : Reporter
    store : Store
    supervised : bool
        Whether there is a manager.
    callbacks : iterable of callables
        Run on every rank if the state was saved.
    """
    written_at = time.time()
    # A barrier: no rank goes on before the checkpoint is whole, and all go the same way.
    outcome = ranks.smallest(_outcome(failure))
    if outcome == _SAVED:
        if checkpoint is not None:
            try:
                manifest = str(checkpoint.path / MANIFEST)
                reporter.suspended(manifest, agreed_at=agreed_at, written_at=written_at)
            except OSError as error:
                failure = error
        # Agreed on once more: an acknowledgement that could not be written does not count.
        outcome = ranks.smallest(_outcome(failure))
    if outcome == _FENCED:
        if failure:
            warn(str(failure))
        leave(EXIT_NOT_SAVED)
    if outcome == _NOT_SAVED:
        took_s = time.monotonic() - began_s
        request.decline(min(max(DEAF_S, 4 * took_s), DEAF_MAX_S) if supervised else 0.0)
        if failure:
            warn(
                f"asked to suspend at step {step}, but that could not be saved ({failure}); "
                "the training goes on"
            )
            reporter.declined(reason(failure))
        return
    if checkpoint is not None:
        store.prune()
    if supervised:
        leave(0, callbacks)
    # Without a manager only the exit code says that the training is not over, and torchrun
    # ends the other ranks when one has such a code: none may be late.
    ranks.smallest(0)
    leave(protocol.EXIT_SUSPENDED, callbacks)


def _outcome(failure: Exception | None) -> int:
    if failure is None:
        return _SAVED
    return _FENCED if isinstance(failure, FencedError) else _NOT_SAVED
