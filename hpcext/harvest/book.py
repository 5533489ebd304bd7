"""The leases of a harvester: requested, held, given back.

The batch system is queried regularly, in a thread (:mod:`hpcext.batch.leasing`); everything else is
small files in the directory of each lease (:mod:`hpcext.launch.agent`). After a restart, unknown
facts about a lease are queried by the name and comment of its job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from hpcext import documents, private
from hpcext.core.errors import BatchError
from hpcext.core.facts import NodeJoined, NodeLost
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Node
from hpcext.executors.base import Emit
from hpcext.harvest import account as lease_account
from hpcext.harvest.balance import LeaseBalance
from hpcext.harvest.calls import Calls
from hpcext.harvest.ground import Ground
from hpcext.harvest.lease import Lease, Loss, read_all
from hpcext.harvest.lease_jobs import LeaseJobs
from hpcext.harvest.leases import Terms
from hpcext.harvest.neighbours import Neighbours
from hpcext.harvest.site import SiteLeave
from hpcext.launch import agent

log = logging.getLogger(__name__)

SOON = 1 / 3
"""Of a cycle: after that a node is looked at again that was idle for the first time. As soon it is
asked what has become of a lease that was stopped."""

WITHDRAWN_S = 1.0
"""So soon the batch system is asked again when another job takes a node while a lease of ours waits
for any."""

HURRY_S = 30.0
"""For so long it is asked as often if the ranks of an attempt cannot reach each other any more."""

BLIND = 3
"""After this number of leases in a row without GPUs, no more are requested."""

NO_GPUS = f"{BLIND} leases had no GPUs, and no more are requested: give --slots"

BEGINS = 4.0
"""The number of cycles for which an idle node is left to a harvester that has requested it."""


class LeaseBook:
    """All leases of one harvester.

    Parameters
    ----------
    directory : pathlib.Path
        ``HARVESTER/leases``.
    name : str
        The name of the jobs of all leases; it differs from that of any other harvester.
    terms : Terms
    emit : Emit
    loop : asyncio.AbstractEventLoop
    began_at : float
        The instant from which the engine counts, epoch.
    want : callable
        How many nodes trainers can use now.
    seen : callable
        How long others stayed idle.
    busy : callable
        Whether anything was started on a lease that has not ended.
    hear : callable
        Collects how the attempts on a lease ended; called before the engine learns that it is gone.
    loss : callable
        The cost of giving up a node.
    avoid : callable
        Nodes on which no lease is wanted.
    homes : callable
        Nodes for which trainers wait, beside those of `want`: they can go on only there.
    bound : bool
        Leases are given back that are more than `want`; else those alone on which nothing has run
        for a while, and those that are another harvester's part.
    site : SiteLeave, optional
        Asks the broker of the site.
    clock : callable
        Seconds, which never go back.

    Attributes
    ----------
    leases : dict of int to Lease
        By number.
    """

    def __init__(
        self,
        *,
        directory: Path,
        name: str,
        terms: Terms,
        emit: Emit,
        loop: asyncio.AbstractEventLoop,
        began_at: float,
        want: Callable[[], int],
        seen: Callable[[], Fragments],
        busy: Callable[[Lease], bool],
        hear: Callable[[Lease], None],
        loss: Loss,
        avoid: Callable[[], Collection[str]] = tuple,
        homes: Callable[[], Collection[str]] = tuple,
        bound: bool = False,
        site: SiteLeave | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        private.make(directory)
        self._directory = directory
        self._terms = terms
        self._emit = emit
        self._loop = loop
        self._began_at = began_at
        self._busy = busy
        self._hear = hear
        self._clock = clock
        self._asked_s = -1e9
        # A lease is since the last look.
        self._wanted = False
        self._hurries_until_s = -1e9
        self._closed = False
        self._failing = False
        # Leases in a row whose agents were given no GPUs.
        self._blind: set[int] = set()
        self._account = lease_account.go_on(directory.parent)
        self._cycle: asyncio.Task[None] | None = None
        self.leases = read_all(directory)
        self._calls = Calls(clock)
        self._ground = Ground(terms, seen)
        self._neighbours = Neighbours(name, BEGINS * terms.cycle_s)
        self._jobs = LeaseJobs(
            directory=directory,
            name=name,
            terms=terms,
            leases=self.leases,
            ground=self._ground,
            neighbours=self._neighbours,
            account=self._account,
            over=self._over,
            join=self._join,
        )
        self._balance = LeaseBalance(
            name=name,
            terms=terms,
            leases=self.leases,
            jobs=self._jobs,
            ground=self._ground,
            neighbours=self._neighbours,
            account=self._account,
            want=want,
            loss=loss,
            avoid=avoid,
            homes=homes,
            bound=bound,
            look=self._look,
            site=site,
            clock=clock,
        )

    # Methods for the executor.

    def on(self, node: str) -> Lease | None:
        """Return the lease whose node the engine has."""
        return next(
            (each for each in self.leases.values() if each.joined and each.node == node), None
        )

    def look(self) -> None:
        """See what agents have said, and ask the batch system if it is time."""
        for lease in list(self.leases.values()):
            self._look(lease)
        for lease in self._calls.silent(self.leases):
            log.warning(
                "the agent of the lease of %s does not answer: its node is lost", lease.node
            )
            self._ground.lost.add(lease.node)
            # Nothing stands for its job any more, which is ended.
            self._over(lease)
        pause_s = self._terms.cycle_s * (SOON if self._balance.soon or self._wanted else 1)
        if self._wanted and any(lease.claim for lease in self.leases.values()):
            # The claim must be withdrawn before it begins on the node that is wanted.
            pause_s = min(pause_s, WITHDRAWN_S)
        if self._clock() < self._hurries_until_s:
            pause_s = min(pause_s, WITHDRAWN_S)
        due = self._clock() >= self._asked_s + pause_s
        if due and not self._closed and (self._cycle is None or self._cycle.done()):
            self._asked_s = self._clock()
            self._wanted = False
            self._cycle = self._loop.create_task(self._ask())

    def hurry(self, numbers: Iterable[int | None]) -> None:
        """Find out soon which of some leases are gone.

        Parameters
        ----------
        numbers : iterable of int or None
            Of the leases on which ranks cannot reach each other; None: a lease that is gone.
        """
        self._hurries_until_s = self._clock() + HURRY_S
        self._calls.call(self.leases[each] for each in numbers if each in self.leases)

    async def asked(self) -> None:
        """Wait until the batch system has answered, where it is being asked."""
        if self._cycle is not None:
            await self._cycle

    def close(self) -> None:
        """Give back what nothing runs on, and ask for no more."""
        self._closed = True
        lease_account.save(self._account, self._directory.parent)
        if self._cycle is not None:
            self._cycle.cancel()
        for lease in self.leases.values():
            if not self._busy(lease):
                with contextlib.suppress(OSError):
                    lease.release()
        if any(not lease.joined for lease in self.leases.values()):
            self._jobs.withdraw_waiting()

    # Messages of agents.

    def _look(self, lease: Lease) -> None:
        """See what the agent of a lease has said."""
        if not lease.devices and not lease.leaving and (self._ground.nodes or not lease.claim):
            with contextlib.suppress(*documents.UNFIT):
                said = documents.read_json(lease.directory / agent.AGENT_FILE, agent.AGENT)
                self._jobs.place(lease, str(said.get("node", "")))
                named = tuple(str(device) for device in said["devices"])
                slots = tuple(map(str, range(self._terms.gpus)))
                lease.answers = said.get("answers") is True
                lease.devices = slots if self._terms.logical else named[: self._terms.gpus]
                self._see(lease)
                self._join(lease)
        if not lease.leaving and lease.closing():
            lease.leaving = True
            # Somebody wants it, which changes everybody's part.
            self._wanted |= not lease.released
            self._join(lease)

    def _see(self, lease: Lease) -> None:
        """Say it if the batch system gives leases no GPUs, and ask for no more after some."""
        if lease.devices:
            self._blind.clear()
            self._account.not_given = ""
        elif lease.number not in self._blind and len(self._blind) < BLIND:
            self._blind.add(lease.number)
            if len(self._blind) == 1:
                log.warning("the lease of %s has no GPUs: give --slots", lease.node)
            if len(self._blind) == BLIND:
                log.error("%d leases had no GPUs: no more are requested until a restart", BLIND)

    def _join(self, lease: Lease) -> None:
        """Let the engine have a lease's node; one that is wanted back has no GPUs any more."""
        gpus = 0 if lease.leaving else len(lease.devices)
        if not (gpus or lease.joined):
            return
        lease.joined = True
        ends_s = (
            None if lease.ends_at is None else lease.ends_at - self._terms.before_s - self._began_at
        )
        since_s = lease.idle_at - self._began_at
        node = Node(lease.node, gpus, lease.kind, since_s, ends_s, lease.planned)
        self._emit(NodeJoined(node))

    def _over(self, lease: Lease) -> None:
        """Forget a lease that is gone, with everything that ran there."""
        # Suspended attempts have recorded it; for the engine nothing runs on a lost node.
        self._hear(lease)
        del self.leases[lease.number]
        if lease.closing() and not lease.unneeded():
            self._ground.given_up.add(lease.node, time.time())
        if lease.joined:
            self._emit(NodeLost(lease.node, lease.unneeded()))
        shutil.rmtree(lease.directory, ignore_errors=True)

    # The batch system.

    async def _ask(self) -> None:
        """Query the state of the leases once, and adjust their number to the demand."""
        try:
            await self._jobs.settle(await asyncio.to_thread(self._jobs.held))
            if len(self._blind) < BLIND:
                await self._balance.step()
            else:
                self._account.missing = NO_GPUS
            if self._failing:
                log.warning("leases are managed again")
            self._failing = False
            self._account.unanswered = ""
        except (BatchError, OSError) as error:
            self._account.unanswered = str(error)
            # Facts that could not be written will be queried again.
            if not self._failing:
                log.warning("leases cannot be managed: %s", error)
            self._failing = True
        lease_account.save(self._account, self._directory.parent)
