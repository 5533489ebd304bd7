"""The jobs of leases in the batch system: their submission, begin, end and cancellation."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from hpcext import backends, documents, private
from hpcext.batch.jobs import UNKNOWN
from hpcext.batch.leasing import THERE, WAITING, Held, LeaseSubmission
from hpcext.core.errors import BatchError
from hpcext.harvest.account import Account
from hpcext.harvest.ground import Ground
from hpcext.harvest.lease import Lease
from hpcext.harvest.leases import LeaseRequest, Terms
from hpcext.harvest.neighbours import Neighbours
from hpcext.launch import agent
from hpcext.numerals import whole

log = logging.getLogger(__name__)

PATIENCE_S = 45.0
"""A lease that has not begun by then is withdrawn: its hole was filled, or ends earlier."""

MOVED_S = 60.0
"""An end that moved by less is no news."""

HEARD_S = 5.0
"""Seconds within which an agent reports that it leaves, if it learned that its job was stopped."""

CLAIM_S = 600.0
"""Seconds after which a claim to a node of another harvester is renewed, with a new time limit."""

BEGIN_S = 720
"""Seconds after which a claim may begin where the batch system does not keep nodes for jobs.

One whose harvester is gone ends then, as a lease that nobody uses; others are renewed before.
"""

STOPPED_S = 120.0
"""Seconds after which a lease whose job was stopped is killed, because its node is not ours."""

WITHDRAW_S = 15.0
"""Seconds for which a harvester waits for an answer at its end; other leases end on their own."""


class LeaseJobs:
    """The jobs of one harvester's leases.

    Parameters
    ----------
    directory : pathlib.Path
        ``HARVESTER/leases``.
    name : str
        Of the jobs of all leases.
    terms : Terms
    leases : dict of int to Lease
        By number; requests are added.
    ground : Ground
    neighbours : Neighbours
    account : Account
    over : callable
        Have a lease be gone, with all that ran there.
    join : callable
        Tell the engine of a lease's node.
    """

    def __init__(
        self,
        *,
        directory: Path,
        name: str,
        terms: Terms,
        leases: dict[int, Lease],
        ground: Ground,
        neighbours: Neighbours,
        account: Account,
        over: Callable[[Lease], None],
        join: Callable[[Lease], None],
    ) -> None:
        self._directory = directory
        self._name = name
        self._terms = terms
        self._leases = leases
        self._ground = ground
        self._neighbours = neighbours
        self._account = account
        self._over = over
        self._join = join
        self._last = max(leases, default=0)
        self.system = backends.leasing(terms.system)

    def held(self) -> dict[int, Held]:
        """Query the jobs of leases, and return them by the leases' numbers."""
        numbered = ((whole(job.comment), job) for job in self.system.held(self._name))
        return {number: job for number, job in numbered if number is not None}

    def harmless(self) -> bool:
        """Return whether a lease that waits for any node may begin as soon as there is one.

        Where the batch system keeps none, it could be one that others give back for another job.
        """
        own = any(lease.ends_at is not None for lease in self._leases.values())
        return self.system.keeps_nodes or not (own or self._neighbours.leased)

    async def settle(self, held: dict[int, Held]) -> None:
        """Find out what has become of each lease, and end jobs that no lease stands for."""
        for lease in list(self._leases.values()):
            await self._settle(lease, held.get(lease.number))
        for number in held.keys() - self._leases.keys():
            # No manager would use it.
            if held[number].state in WAITING | THERE:
                await self.cancel(held[number].job_id)

    async def cancel(self, job_id: int) -> None:
        """End a job."""
        await asyncio.to_thread(self.system.cancel, job_id)

    async def withdraw(self, lease: Lease) -> None:
        """Take back a lease that has not begun."""
        lease.withdrawn = True
        if lease.job_id is not None:
            await self.cancel(lease.job_id)

    async def withdraw_claims(self, claims: Collection[Lease]) -> int:
        """Take back claims, but none that has begun since the last look: it is a lease now.

        Returns
        -------
        int
            How many have begun.
        """
        held = await asyncio.to_thread(self.held) if claims else {}
        begun = 0
        for lease in claims:
            job = held.get(lease.number)
            if job is None or job.state not in THERE:
                await self.withdraw(lease)
            else:
                begun += 1
        return begun

    def withdraw_waiting(self) -> None:
        """Take back all leases that wait to begin, at the end of a harvester."""
        try:
            self.system.withdraw(self._name, WITHDRAW_S)
        except BatchError as error:
            log.warning("some leases may still be waiting to start: %s", error)

    async def request(
        self, requests: Iterable[LeaseRequest], *, claim: bool = False, named: bool = False
    ) -> None:
        """Ask for leases.

        Parameters
        ----------
        requests : iterable of LeaseRequest
        claim : bool
            They wait for nodes that other harvesters have.
        named : bool
            Claims are for these nodes alone, and not for any like them.
        """
        for each in requests:
            await self._request(each, claim=claim, anywhere=claim and not named)

    def place(self, lease: Lease, node: str) -> None:
        """Note that a lease that was requested on any node has begun on this one."""
        if lease.claim and lease.node != node and node in self._ground.nodes:
            lease.node, lease.kind, lease.stale = node, self._ground.nodes[node].kind, True

    # The outcome of a lease.

    async def _settle(self, lease: Lease, held: Held | None) -> None:
        now = time.time()
        # A clock that was set back makes no wait longer than it is.
        lease.asked_at = min(now, lease.asked_at)
        if held is None:
            # Jobs are forgotten after a while, and one that was just submitted may not be known.
            lease.missing += 1
            if lease.missing > 1 and now - lease.asked_at > PATIENCE_S:
                self._over(lease)
            return
        lease.missing = 0
        known = (lease.job_id, lease.ends_at)
        lease.job_id = held.job_id
        lease.why = held.why
        if held.state in WAITING:
            await self._waits(lease, held, now)
        elif held.state in THERE:
            await self._runs(lease, held, now)
        elif held.state != UNKNOWN:
            lost = held.state == "node_fail" or lease.node in self._ground.lost
            if held.state == "preempted":
                # Before its agent could say so, perhaps.
                self._ground.given_up.add(lease.node, now)
            elif not (lease.withdrawn or lost) and (not lease.leaving or lease.unused()):
                # No other job wanted it: it did not begin, or nothing ran on it.
                self._ground.refuse(lease.node)
                self._account.not_given = f"{lease.node}: its job ended at once ({held.state})"
            self._over(lease)
            return
        elif lease.ends_at is not None:
            # Its host does not answer.
            self._ground.lost.add(lease.node)
        lease.stale |= known != (lease.job_id, lease.ends_at)
        if lease.stale and lease.number in self._leases:
            lease.write(self._terms)

    async def _runs(self, lease: Lease, held: Held, now: float) -> None:
        if lease.claim and self._ground.nodes:
            self.place(lease, held.node)
            lease.claim, lease.stale = False, True
        if held.stopped:
            await self._stopped(lease, held, now)
        else:
            lease.stopped_at = None
        if lease.ends_at is None or abs((held.end_s or 0.0) - lease.ends_at) > MOVED_S:
            lease.ends_at = held.end_s
            if lease.joined and not lease.leaving:
                self._join(lease)

    async def _waits(self, lease: Lease, held: Held, now: float) -> None:
        if lease.ends_at is not None or lease.devices:
            # It has run, and has ended; its job, which is to begin again, is a stray now.
            self._over(lease)
        elif lease.claim or lease.node in self._neighbours.leased or self._has(lease):
            # Another harvester has it, or was faster: that says nothing about the node.
            if not lease.claim or now - lease.asked_at > CLAIM_S:
                await self.withdraw(lease)
        elif now - lease.asked_at > PATIENCE_S:
            log.info("no lease of %s: %s", lease.node, held.why)
            self._account.not_given = f"{lease.node}: {held.why or 'it did not start in time'}"
            if not lease.withdrawn:
                lease.withdrawn = True
                self._account.withdrawn += 1
                self._ground.refuse(lease.node, passed_over=True)
            await self.cancel(held.job_id)

    def _has(self, lease: Lease) -> bool:
        """Return whether its node is ours already: a claim was faster there."""
        return any(
            each.node == lease.node and each.ends_at is not None for each in self._leases.values()
        )

    async def _stopped(self, lease: Lease, held: Held, now: float) -> None:
        """End a lease whose job was stopped, because its node belongs to others now.

        An agent that has learned of it leaves. One that cannot is killed, and its attempts go on
        elsewhere once its job has ended.
        """
        lease.stopped_at = now if lease.stopped_at is None else min(now, lease.stopped_at)
        patience_s = STOPPED_S if lease.closing() else HEARD_S
        if now - lease.stopped_at >= patience_s:
            log.info("the lease of %s was stopped, and is being ended", lease.node)
            await self.cancel(held.job_id)

    # Asking for one.

    async def _request(self, request: LeaseRequest, *, claim: bool, anywhere: bool) -> None:
        lease = self._new(request, claim=claim)
        lease.anywhere = anywhere
        script = lease.directory / "lease.sh"
        try:
            private.make(lease.directory)
            # Written before the job is submitted: a lease without a record would be a stray.
            lease.write(self._terms)
            words = [sys.executable, "-I", "-S", agent.__file__, str(lease.directory)]
            text = self.system.script(shlex.join(words), lease.directory)
            documents.write_file(script, os.fsencode(text))
        except OSError as error:
            log.warning("no lease can be requested: %s", error)
            return
        self._leases[lease.number] = lease
        self._ground.lost.discard(lease.node)
        self._account.leases += 1
        order = LeaseSubmission(
            name=self._name,
            number=lease.number,
            partition=self._terms.partition,
            options=self._terms.options,
            node=self._ground.nodes[request.node],
            gpus=0 if self._terms.logical else self._terms.gpus,
            minutes=request.minutes,
            directory=lease.directory,
            anywhere=anywhere,
            after_s=BEGIN_S if claim and not self.harmless() else 0,
        )
        try:
            lease.job_id = await asyncio.to_thread(self.system.submit, order, script)
            lease.write(self._terms)
        except BatchError as error:
            log.warning("no lease of %s: %s", request.node, error)
            self._account.not_given = f"{request.node}: {error}"
            self._ground.refuse(request.node)
            self._account.refused += 1
            self._over(lease)

    def _new(self, request: LeaseRequest, *, claim: bool) -> Lease:
        now = time.time()
        # Different from all earlier numbers, also of other managers, which are known for a while.
        self._last = max(self._last + 1, int(now))
        return Lease(
            self._last,
            request.node,
            self._ground.nodes[request.node].kind,
            self._directory / str(self._last),
            asked_at=now,
            idle_at=self._ground.idle_since(request.node),
            planned=request.planned,
            claim=claim,
        )
