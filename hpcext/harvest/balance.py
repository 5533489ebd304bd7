"""The number of a harvester's nodes: it takes some, claims some, and gives some back."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from hpcext.batch.leasing import Idle, Other
from hpcext.harvest import account as lease_account
from hpcext.harvest import missing
from hpcext.harvest.account import Account
from hpcext.harvest.ground import Ground
from hpcext.harvest.lease import Lease, Loss, surplus
from hpcext.harvest.lease_jobs import LeaseJobs
from hpcext.harvest.leases import Hole, LeaseRequest, Terms, requests
from hpcext.harvest.neighbours import Neighbours
from hpcext.harvest.site import Leave, SiteLeave

log = logging.getLogger(__name__)

AT_ONCE = 16
"""The most leases that are requested in one cycle."""


class LeaseBalance:
    """The rule that adjusts the number of leases to the demand, beside other harvesters.

    Parameters
    ----------
    name : str
        Of the jobs of all leases.
    terms : Terms
    leases : dict of int to Lease
    jobs : LeaseJobs
    ground : Ground
    neighbours : Neighbours
    account : Account
    want : callable
        How many nodes trainers can use now.
    loss : callable
        The cost of giving up a node.
    avoid : callable
        Nodes on which no lease is wanted: those that are there are given back.
    homes : callable
        Nodes for which trainers wait, beside those of `want`: they can go on only there.
    bound : bool
        Leases are given back that are more than `want`; else those alone that are others' part.
    look : callable
        See what the agent of a lease has said.
    site : SiteLeave or None
        Asks the broker of the site, where there may be one.
    clock : callable
        Seconds, which never go back.

    Attributes
    ----------
    soon : bool
        Look again before a whole cycle is over: at a node that is idle for the first time, or at
        what becomes of leases that are stopped.
    """

    def __init__(
        self,
        *,
        name: str,
        terms: Terms,
        leases: dict[int, Lease],
        jobs: LeaseJobs,
        ground: Ground,
        neighbours: Neighbours,
        account: Account,
        want: Callable[[], int],
        loss: Loss,
        avoid: Callable[[], Collection[str]],
        homes: Callable[[], Collection[str]],
        bound: bool,
        look: Callable[[Lease], None],
        site: SiteLeave | None,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._terms = terms
        self._leases = leases
        self._jobs = jobs
        self._ground = ground
        self._neighbours = neighbours
        self._account = account
        self._want = want
        self._loss = loss
        self._avoid = avoid
        self._homes = homes
        self._bound = bound
        self._look = look
        self._site = site
        self._clock = clock
        self.soon = False
        # More than our part, at the last look.
        self._over_part = False
        # The leases of nodes that are not ours by name, at the last look.
        self._had_beside: set[int] = set()
        # Nodes are on their way to another job.
        self._yields = False
        # What the broker of the site has said at this look.
        self._leave: Leave | None = None
        self._looked_s: float | None = None

    async def step(self) -> None:
        """Look at the partition once, take nodes, and give some back."""
        now = time.time()
        await self._see(now)
        idle, taken = self._ground.idle, {lease.node for lease in self._own()}
        new = set(idle) - self._ground.steady - taken - set(self._ground.refused)
        # Once in a row, so that nodes that come and go do not have it asked all the time.
        self.soon = not self.soon and bool(new) and self._wanted() > len(taken)
        self.soon |= any(lease.stopped_at is not None for lease in self._leases.values())
        ends = await self._ends(taken)
        holes = [
            self._ground.hole(name, ends.get(name, math.inf))
            for name in idle
            if name in self._ground.steady and name not in taken
        ]
        short = [each for each in holes if not self._terms.minutes(each, now)]
        self._count(short)
        avoided = set(self._avoid())
        useless = {each.node for each in short} | set(self._ground.refused) | avoided
        await self._give_back(lease for lease in self._own() if lease.node in avoided)
        await self._ask_site(set(idle) - useless)
        want, part = self._wanted(), self._part(set(idle) - useless)
        await self._obey_only()
        await self._fewer(part, want)
        self._account.missing = missing.why(self._looked(short, part, now))
        want, own = want if part is None else min(want, part), len(self._own())
        holes = [hole for hole in holes if hole.node not in avoided and self._may(hole.node)]
        takes = self._takes(holes, taken, want, now)
        # A request may be refused, so these nodes are not claimed from others at once.
        lacks = 0 if part is None else min(want, self._terms.max_nodes) - own - len(takes)
        if self._neighbours.next and self._jobs.harmless():
            # Who is next waits in the queue, so that no node stays idle until we look.
            lacks += own + len(takes) < self._terms.max_nodes
        if self._yields:
            # What waits for any node may begin on those, which are another job's.
            lacks, self.soon = 0, True
        # A claim that has begun since the last look is one of the nodes that were to be taken.
        begun = await self._withdraw(lacks)
        await self._jobs.request(takes[: max(0, len(takes) - begun)])
        await self._claim(lacks, ends)

    async def _see(self, now: float) -> None:
        """Ask the batch system for nodes, and for other harvesters."""
        system, partition = self._jobs.system, self._terms.partition
        # Before the nodes: one that is given back in between is counted twice, and not left out.
        others = await asyncio.to_thread(system.others, partition, "")
        nodes = await asyncio.to_thread(system.idle, partition)
        nodes = await self._unclaimed(nodes, others, now)
        self._ground.see(nodes, {lease.node for lease in self._leases.values()}, now)
        # A lease that waits for any node may not fit into a hole.
        unplanned = any(not nodes[name].planned for name in self._ground.steady)
        self._neighbours.see(others, unplanned, now)

    async def _unclaimed(
        self, nodes: Mapping[str, Idle], others: Iterable[Other], now: float
    ) -> Mapping[str, Idle]:
        """Return the nodes; those on their way to a job that was to have them are not idle."""
        idle = {name for name, node in nodes.items() if node.idle}
        going = self._ground.given_up.on_their_way(idle, others, now)
        leaving = any(each.closing() and not each.unneeded() for each in self._leases.values())
        self._yields = (leaving or bool(going)) and await asyncio.to_thread(self._jobs.system.due)
        if not self._yields:
            return nodes
        return {
            name: node._replace(idle=False) if name in going else node
            for name, node in nodes.items()
        }

    async def _ends(self, taken: Collection[str]) -> dict[str, float]:
        """Query when idle nodes are needed, if the answer matters."""
        free = any(name in self._ground.steady and name not in taken for name in self._ground.idle)
        if not free and not self._neighbours.leased:
            return {}
        return await asyncio.to_thread(self._jobs.system.ends, self._name)

    def _looked(self, short: Iterable[Hole], part: int | None, now: float) -> missing.Look:
        """Return the findings of this look, which explain why there is no lease."""
        ground, own = self._ground, self._own()
        return missing.Look(
            partition=self._terms.partition,
            gpus=0 if self._terms.logical else self._terms.gpus,
            nodes=ground.nodes,
            idle=ground.idle,
            steady=ground.steady,
            short={each.node: min(each.ends_s - now, each.limit_s) for each in short},
            refused=ground.refused_for(now),
            waiting={each.node: each.why for each in own if each.ends_at is None},
            coming=[each.node for each in own if each.ends_at and not each.devices],
            part=part,
            leave=self._leave.why if self._leave else "",
            only=self._only,
            why_refused=self._account.not_given,
            tickets_keep=self._jobs.system.whole_nodes,
        )

    def _own(self) -> list[Lease]:
        """Return the leases that wait for no node of others."""
        return [lease for lease in self._leases.values() if not lease.claim]

    async def _ask_site(self, idle: Collection[str]) -> None:
        """Ask the broker of the site, where there is one, how many nodes may be ours."""
        if self._site is not None:
            message = self._site.message(self._usable(idle))
            self._leave = await asyncio.to_thread(self._site.ask, message, self._clock())
            self._account.broker = self._leave.why if self._leave else ""

    def _begun(self) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.ends_at is not None]

    def _usable(self, idle: Collection[str]) -> int:
        """Return how many nodes trainers can use, and our terms allow."""
        nodes = {*idle, *(lease.node for lease in self._begun())} | self._neighbours.leased
        return min(self._wanted(), self._terms.most(len(nodes)))

    def _wanted(self) -> int:
        """Return how many nodes trainers can use, those that they wait for among them."""
        there = {*self._ground.idle, *(lease.node for lease in self._own())}
        return self._want() + len(there.intersection(self._homes()))

    def _part(self, idle: Collection[str]) -> int | None:
        """Return our part of the nodes: what the broker of the site says, or the queue.

        None if there are neither a broker nor other harvesters.
        """
        own = self._begun()
        have = sum(not lease.leaving for lease in own)
        if self._leave is not None:
            nodes = len(self._own()) if self._leave.nodes is None else self._leave.nodes
            return self._neighbours.obey(nodes, self._leave.next, self._leave.claim)
        return self._neighbours.divide(len(set(idle)), len(own), have, self._usable(idle))

    @property
    def _only(self) -> frozenset[str] | None:
        """The nodes that may be taken by what the broker of the site says; None: any."""
        return self._leave.only if self._leave else None

    def _may(self, node: str) -> bool:
        return self._only is None or node in self._only

    async def _obey_only(self) -> None:
        """Give up nodes that are not ours by name: at once what we only wait for.

        Those that we have are given back once others wait for nodes, like those that are too many.
        """
        beside = [lease for lease in self._own() if not self._may(lease.node)]
        await self._give_back(lease for lease in beside if lease.ends_at is None)
        there = [lease for lease in beside if lease.ends_at is not None]
        over, self._had_beside = self._had_beside, {lease.number for lease in there}
        # Twice in a row, as in `_fewer`.
        there = [lease for lease in there if lease.number in over and not lease.closing()]
        self.soon |= bool(self._had_beside - over)
        waiting = self._neighbours.waiting - sum(lease.released for lease in self._own())
        left = sum(not lease.leaving for lease in there) - max(0, waiting)
        await self._give_back(surplus(there, max(0, left), self._loss, self._neighbours.asked))

    async def _fewer(self, part: int | None, want: int) -> None:
        """Give back what is not worth its node, and what is others' part."""
        own = self._own()
        # Twice in a row: what was asked one after the other may not fit together.
        over = part is not None and sum(not lease.leaving for lease in own) > part
        # Those that are ours by name are no more than that.
        over = over and self._only is None
        self.soon |= over and not self._over_part
        # A node is given up only if another harvester waits for one: two that see the queue at
        # different times may divide it differently, and no node should become idle because of that.
        there = sum(not lease.leaving for lease in own)
        waiting = self._neighbours.waiting - sum(lease.released for lease in own)
        least = max(part or 0, there - max(0, waiting))
        limits = [want] * self._bound + [least] * (over and self._over_part)
        self._over_part = over
        if not limits:
            return
        await self._give_back(surplus(own, min(limits), self._loss, self._neighbours.asked))

    async def _give_back(self, leases: Iterable[Lease]) -> None:
        """Give leases back, unless they are being given back already."""
        for lease in [each for each in leases if not each.closing()]:
            log.info("the lease of %s is being given back", lease.node)
            lease.release()
            self._look(lease)
            if lease.ends_at is None and lease.job_id is not None:
                await self._jobs.cancel(lease.job_id)

    def _takes(
        self, holes: Iterable[Hole], taken: Collection[str], want: int, now: float
    ) -> list[LeaseRequest]:
        """Choose the idle nodes for which to request leases."""
        return requests(
            [
                each
                for each in holes
                if each.node not in self._ground.refused and each.node not in self._neighbours.asked
            ],
            idle=len(set(self._ground.idle) - set(taken)) + len(self._neighbours.leased),
            have=len(self._own()),
            want=want,
            terms=self._terms,
            now_s=now,
            seed=self._name,
            homes=self._homes(),
        )[:AT_ONCE]

    def _claims(self) -> list[Lease]:
        """Return the leases by which others see that we lack nodes."""
        return [each for each in self._leases.values() if each.claim and not each.withdrawn]

    async def _withdraw(self, lacks: int) -> int:
        """Take back claims that are more than what lacks; return how many of these had begun."""
        claims = self._claims()
        fit = [each for each in claims if self._fits(each)]
        unfit = [each for each in claims if not self._fits(each)]
        return await self._jobs.withdraw_claims([*unfit, *fit[max(0, lacks) :]])

    def _fits(self, claim: Lease) -> bool:
        """Return whether a claim can begin only where we may take a node."""
        return self._only is None or (self._may(claim.node) and not claim.anywhere)

    async def _claim(self, lacks: int, ends: dict[str, float]) -> None:
        """Have others see in the queue that so many nodes are lacking.

        Leases wait there until those that have too many give any of theirs back, or one comes free
        otherwise.
        """
        now = time.time()
        known, idle = {lease.node for lease in self._leases.values()}, set(self._ground.idle)
        more = min(lacks, AT_ONCE) - len(self._claims())
        for node in self._neighbours.to_ask(self._ground.suiting()):
            if more <= 0:
                break
            if node in known or node in self._avoid() or not self._may(node):
                continue
            if self._only is not None and node in idle:
                # It is taken, not claimed; a claim begins there, and on no other node in its place.
                continue
            hole = self._ground.hole(node, ends.get(node, math.inf))
            if minutes := self._terms.minutes(hole, now):
                named = self._only is not None
                await self._jobs.request([LeaseRequest(node, minutes)], claim=True, named=named)
                more -= 1

    def _count(self, short: Collection[Hole]) -> None:
        """Add to the account what was seen since the last look; `short` holes are left alone."""
        now_s, last_s = self._clock(), self._looked_s
        self._looked_s = now_s
        if last_s is None:
            return
        there = [lease for lease in self._leases.values() if not lease.leaving]
        held = {lease.node for lease in there if lease.joined}
        # A lease that has begun is not idle, even if its agent does not run yet.
        coming = {lease.node for lease in there if lease.ends_at is not None}
        self._account.passed(
            min(now_s - last_s, lease_account.GAP * self._terms.cycle_s),
            idle=len((set(self._ground.idle) | coming) - held),
            held=len(held),
            short=len(short),
        )
        self._account.others = len(self._neighbours.leased)
