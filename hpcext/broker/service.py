"""The service: looks at the partition, decides, and answers, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcext import backends, private
from hpcext.batch.leasing import FairShared
from hpcext.broker import account as accounts
from hpcext.broker.alone import alone, hang_up
from hpcext.broker.desk import Desk
from hpcext.broker.doors import doors
from hpcext.broker.fair_share import FairShare
from hpcext.broker.settings import Settings, load
from hpcext.broker.site import Site
from hpcext.core.errors import BatchError, HpcextError, JournalError, NoManagerError, refused
from hpcext.harvest.leave import NONE, AskStatus
from hpcext.manager import journal as journals
from hpcext.manager import locks

log = logging.getLogger(__name__)

JOURNAL, LOCK = "journal.jsonl", "broker.lock"


def run(settings: Settings, file: Path, ready: Callable[[str], None], asked: str = NONE) -> None:
    """Run a broker until a signal ends it.

    Parameters
    ----------
    settings : Settings
    file : pathlib.Path
        Of the settings, which is read again at SIGHUP.
    ready : callable
        Is told in a sentence what the broker does from now on.
    asked : str
        Where harvesters ask, as their setting has it: another broker may be there.

    Raises
    ------
    NoManagerError
        Another broker has this state directory, this socket, or this partition.
    HpcextError
        A file or the socket cannot be used.
    """
    try:
        private.make(settings.state_dir)
    except OSError as error:
        raise refused(error, str(settings.state_dir)) from None
    try:
        with (
            locks.held(settings.state_dir / LOCK, do="use another state_dir"),
            alone(settings, asked) as name,
        ):
            journal = journals.Journal(
                settings.state_dir / JOURNAL,
                journals.Header(began_at=time.time(), policy=settings.policy),
            )
            with contextlib.closing(journal):
                asyncio.run(_Service(settings, file, journal).run(ready, name))
    except JournalError as error:
        do = "move it away: harvesters keep what they have, and ask again"
        raise JournalError(error.what, where=error.where, do=do) from None
    except locks.LockedError:
        raise NoManagerError(
            "another broker runs", where=str(settings.state_dir), do="there is one for a partition"
        ) from None


class _Service:
    def __init__(self, settings: Settings, file: Path, journal: journals.Journal) -> None:
        self._file = file
        self._system = backends.leasing(settings.batch)
        self._site = Site(settings, journal, accounts.go_on(settings.state_dir), time.monotonic())
        self._doors = doors(settings, Desk(self._reply))
        self._fair_share: FairShare | None = None
        self._ended = asyncio.Event()
        self._failing = ""

    async def run(self, ready: Callable[[str], None], name: socket.socket | None) -> None:
        """Serve until a signal comes, at whose `name` others see that a broker is here."""
        loop, settings = asyncio.get_running_loop(), self._site.settings
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._ended.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if name is not None:
            loop.add_reader(name, hang_up, name)
        self._read_shares()
        try:
            for door in self._doors:
                await door.begin()
            asked = ", ".join(map(str, (settings.socket, *settings.listen)))
            ready(f"divides the idle nodes of {settings.partition}, asked at {asked}")
            while not self._ended.is_set():
                await self._look()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), settings.cycle_s)
        finally:
            if self._fair_share is not None:
                self._fair_share.end()
            for door in self._doors:
                await door.end()
            accounts.save(self._site.account, settings.state_dir)

    async def _look(self) -> None:
        """Look at the partition once, and decide; without an answer all stays as it is."""
        partition = self._site.settings.partition
        try:
            # Leases first: one that ends in between is counted as had, not as lost.
            others = await asyncio.to_thread(self._system.others, partition, "")
            nodes = await asyncio.to_thread(self._system.idle, partition)
        except BatchError as error:
            self._fails(str(error))
            return
        self._fails("" if nodes else f"{partition} has no nodes, or is not a partition")
        if not nodes:
            return
        if self._fair_share is not None:
            self._site.fair_share = self._fair_share.now
        self._site.look(nodes, others, time.monotonic())
        accounts.save(self._site.account, self._site.settings.state_dir)

    def _read_shares(self) -> None:
        """Read the fair share of the batch system from now on, if the settings ask for it."""
        settings, system = self._site.settings, self._system
        if settings.asks and self._fair_share is None and isinstance(system, FairShared):
            ask = functools.partial(system.associations, settings.partition)
            self._fair_share = FairShare(ask, settings.shares_every_s)
            self._fair_share.begin()

    def _fails(self, why: str) -> None:
        """Say it once if the batch system does not answer, and once when it does again."""
        if why != self._failing:
            log.warning("%s", why or "the batch system answers again")
        self._failing = why

    def _reply(self, peer: Any, message: Any) -> Any:
        now_s = time.monotonic()
        if isinstance(message, AskStatus):
            return self._site.status(peer, now_s)
        return self._site.hear(peer, message, now_s)

    def _reload(self) -> None:
        """Read the settings again; wrong ones change nothing."""
        try:
            self._site.reload(load(self._file))
        except HpcextError as error:
            log.error("the settings stay as they are: %s", error)
        else:
            self._read_shares()
            log.info("the settings were read again")
