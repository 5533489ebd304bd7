"""How a training ends or is suspended: all ranks alike, and never without saying what was saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from hpcext import protocol
from hpcext.training.checkpoint import MANIFEST, Checkpoint, Store, warn
from hpcext.training.leave import EXIT_NOT_SAVED, leave
from hpcext.training.ranks import Ranks
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest

PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
"""Waits between two tries to write the final checkpoint."""

GIVE_UP_S = 600.0
"""After this long the GPUs are worth more to other jobs than to one that waits for a disk."""


def write_last(
    write: Callable[[], object],
    *,
    ranks: Ranks,
    request: SuspendRequest,
    supervised: bool,
    failed: Callable[[OSError], object],
) -> None:
    """Write the final checkpoint; collective.

    Under a manager the job is complete after it: try until it is written. Asked to suspend
    meanwhile, or after :data:`GIVE_UP_S`, leave without it: the job goes on from the one before.

    Parameters
    ----------
    write : callable
        Raises OSError if nothing was written.
    ranks : Ranks
    request : SuspendRequest
    supervised : bool
        Whether there is a manager. Without one it is tried once.
    failed : callable
        Told the first failure of this rank.
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
        if not supervised:
            return
        late = time.monotonic() - begun > GIVE_UP_S
        if ranks.smallest(0 if late or request.asked() else 1) == 0:
            leave(EXIT_NOT_SAVED)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def leave_suspended(
    checkpoint: Checkpoint | None,
    *,
    step: int,
    failure: str,
    agreed_at: float,
    ranks: Ranks,
    reporter: Reporter,
    store: Store,
    supervised: bool,
    callbacks: Iterable[Callable[[], object]],
) -> NoReturn:
    """Acknowledge a suspension and end this process; collective.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        Where the state is; None except on rank 0, and where it could not be written.
    step : int
    failure : str
        Why this rank could not write; empty if it could.
    agreed_at : float
        When all ranks agreed to stop, in seconds since the epoch.
    ranks : Ranks
    reporter : Reporter
    store : Store
    supervised : bool
        Whether there is a manager.
    callbacks : iterable of callables
        Run on every rank if the suspension is one.
    """
    written_at = time.time()
    # The last barrier: no rank leaves before the checkpoint is whole, and all leave alike.
    saved = ranks.smallest(0 if failure else 1)
    if checkpoint is not None and saved:
        try:
            manifest = str(checkpoint.path / MANIFEST)
            reporter.suspended(manifest, agreed_at=agreed_at, written_at=written_at)
        except OSError as error:
            failure = str(error)
    if failure:
        warn(
            f"asked to suspend at step {step}, but that could not be saved ({failure}); "
            "leaving all the same: the job goes on from its last checkpoint"
        )
    if failure or not saved:
        leave(EXIT_NOT_SAVED)
    if checkpoint is not None:
        store.prune()
    if supervised:
        leave(0, callbacks)
    # Without a manager only the exit code says that the training is not over, and torchrun
    # ends the other ranks when one has such a code: none may be late.
    ranks.smallest(0)
    leave(protocol.EXIT_SUSPENDED, callbacks)
