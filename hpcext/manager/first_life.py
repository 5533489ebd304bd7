"""The wait of a job that LSF begins again for its first life, which may still go on.

LSF gives a host up that it cannot reach, and begins the job elsewhere. What runs on that host may
hold the manager's lock for a while, or its file server may, until that has given it up (for nfs(5),
the lease of a client).
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from hpcext import documents
from hpcext.batch.standing import Is, Standing
from hpcext.core.errors import NoManagerError
from hpcext.text import clean

log = logging.getLogger(__name__)

FILE = "first-life.json"
SCHEMA = "hpcext.first-life/1"

LOOK_S = 5.0
MOST_S = 600.0
"""The longest wait in seconds for the first life to end."""


class FirstLifeError(NoManagerError):
    """The error that the first life did not end in time."""


class Wait:
    """The second life of a job as it waits.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    where : str
        The host of the first life; empty if it is unknown.
    goes_back : bool
        Whether the job is requeued if that does not end.
    """

    def __init__(self, directory: Path, where: str, *, goes_back: bool) -> None:
        self._path = directory / FILE
        self._where = f"on {clean(where)}" if where else "elsewhere"
        self._goes_back = goes_back
        # The clock of the host may be set meanwhile.
        self._over_s = time.monotonic() + MOST_S
        until_s = time.time() + MOST_S
        what = f"job was begun before, {self._where}, and that run has not ended yet"
        at = time.strftime("%H:%M", time.localtime(until_s))
        then = f"at {at} it {'goes back into the queue' if goes_back else 'ends'}"
        log.warning("waiting: this %s; %s", what, then)
        facts = {
            "schema": SCHEMA,
            "what": f"its {what}",
            "do": f"it waits for that run to end, and {then}",
            "until_s": until_s,
        }
        with contextlib.suppress(OSError):
            documents.write_json(self._path, facts, durable=False)

    def turn(self) -> None:
        """Wait a little.

        Raises
        ------
        FirstLifeError
            It was too long.
        """
        if time.monotonic() >= self._over_s:
            raise FirstLifeError(
                f"this job was begun before, {self._where}, and that run did not end within "
                f"{MOST_S:g} s",
                where=str(self._path.parent),
                do="it goes back into the queue"
                if self._goes_back
                else "hpcext pilot resubmit, once that run has ended",
            )
        time.sleep(min(LOOK_S, MOST_S))


def over(directory: Path) -> None:
    """Note that no manager waits any more."""
    with contextlib.suppress(OSError):
        (directory / FILE).unlink()


def standing(directory: Path) -> Standing | None:
    """Return the standing of a pilot that waits so; None if it does not."""
    try:
        facts = documents.read_json(directory / FILE, SCHEMA)
        if time.time() > float(facts["until_s"]) + 2 * LOOK_S:
            # It was killed.
            return None
        return Standing(Is.RUNS, clean(str(facts["what"])), clean(str(facts["do"])))
    except documents.UNFIT:
        return None
