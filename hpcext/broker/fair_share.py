"""The fair share of the batch system, read from time to time in a thread of its own.

A decision takes what was read last: it never waits for the batch system.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hpcext.batch.leasing import Association
from hpcext.core.errors import BatchError

log = logging.getLogger(__name__)

LEAST = 0.01
"""The smallest factor: whoever has used far more than is his gets little, and not nothing."""


class Reading(NamedTuple):
    """What the batch system has said.

    Attributes
    ----------
    factors : Mapping[str, float]
        By user: the largest of his associations, from :data:`LEAST` to 1.
    accounts : Mapping[str, frozenset of str]
        By user: the accounts that he may charge, and those above.
    read_s : float or None
        When it said that, by a clock that never goes back; None: not yet.
    failed : str
        Why it could not be asked the last time; empty if it could.
    """

    factors: Mapping[str, float] = {}
    accounts: Mapping[str, frozenset[str]] = {}
    read_s: float | None = None
    failed: str = ""


class FairShare:
    """The thread that reads.

    Parameters
    ----------
    ask : callable
        Asks the batch system, for as long as that takes.
    every_s : float
        Seconds from the end of one question to the next.
    clock : callable
        Seconds, which never go back.

    Attributes
    ----------
    now : Reading
        What was read last.
    """

    def __init__(
        self,
        ask: Callable[[], Iterable[Association]],
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = Reading()
        self._ask = ask
        self._every_s = every_s
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Read from now on, if that is not so already."""
        if self._thread is None:
            # A daemon, so that no answer is waited for at the end.
            self._thread = threading.Thread(target=self._work, name="fair share", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Read no more; a question that is open is left alone."""
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.is_set():
            self.read()
            self._ended.wait(self._every_s)

    def read(self) -> None:
        """Ask once; without an answer all stays as it was."""
        try:
            found = tuple(self._ask())
            failed = "" if found else "the batch system shows no fair share of anybody"
        except (BatchError, ValueError) as error:
            found, failed = (), str(error)
        if failed != self.now.failed:
            log.warning("%s", failed or "the fair share is read again")
        if failed:
            self.now = self.now._replace(failed=failed)
            return
        factors: dict[str, float] = {}
        accounts: dict[str, frozenset[str]] = {}
        for each in found:
            factors[each.user] = max(factors.get(each.user, LEAST), each.factor)
            accounts[each.user] = accounts.get(each.user, frozenset()).union(each.accounts)
        self.now = Reading(factors, accounts, self._clock())
