"""The leases of a harvester: asked for, held, given back.

The batch system is asked once in a while, in a thread (:mod:`hpcext.batch.leasing`); everything
else is small files in the directory of each lease (:mod:`hpcext.launch.agent`). What is not known
of a lease after a restart is asked by the name of its job and what we said of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from hpcext import documents, private
from hpcext.batch import system
from hpcext.batch.leasing import THERE, WAITING, Held, Idle, Order
from hpcext.batch.slurm import UNKNOWN
from hpcext.core.errors import BatchError
from hpcext.core.facts import NodeJoined, NodeLost
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Node
from hpcext.executors.base import Emit
from hpcext.harvest import account as lease_account
from hpcext.harvest.lease import Lease, Loss, surplus
from hpcext.harvest.leases import Hole, Request, Steady, Terms, fits_s, requests
from hpcext.harvest.neighbours import Neighbours
from hpcext.launch import agent
from hpcext.numerals import whole

log = logging.getLogger(__name__)

PATIENCE_S = 45.0
"""A lease that has not begun by then is withdrawn: its hole was filled, or ends earlier."""

AT_ONCE = 16
"""Leases that are asked for in one cycle at most."""

REFUSED_S = 120.0
"""A node of which there was no lease is not asked for again before."""

WITHDRAW_S = 15.0
"""So long the end of a harvester waits for an answer. What is left over ends by itself."""

SOON = 1 / 3
"""Of a cycle: after that a node is looked at again that was idle for the first time. Once in a
row, so that nodes that come and go do not have it asked all the time. As soon it is asked what has
become of a lease that was stopped."""

MOVED_S = 60.0
"""An end that moved by less is no news."""

HEARD_S = 5.0
"""So long after its job was stopped an agent has said that it leaves, if it could hear of it."""

BLIND = 3
"""After so many leases in a row that had no GPUs no more are asked for."""

BEGINS = 3.0
"""Of so many cycles: as long an idle node is left to another harvester that has asked for it."""

CLAIM_S = 600.0
"""A claim to a node of another harvester is made anew after that, with a new time limit."""

STOPPED_S = 120.0
"""A lease whose job was stopped is killed then: its node is others', whatever still runs there."""


class LeaseBook:
    """All leases of one harvester.

    Parameters
    ----------
    directory : pathlib.Path
        ``HARVESTER/leases``.
    name : str
        Of the jobs of all leases; unlike that of any other harvester.
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
        Have what ran on a lease say how it ended: called before the engine hears that it is gone.
    loss : callable
        What it costs to give up a node.
    bound : bool
        Leases are given back that are more than `want`; else those alone on which nothing has run
        for a while, and those that are another harvester's part.
    clock : callable
        Seconds, which never go back.
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
        bound: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._name = name
        self._terms = terms
        self._system = system.leasing(terms.system)
        self._emit = emit
        self._loop = loop
        self._began_at = began_at
        self._want = want
        self._seen = seen
        self._busy = busy
        self._hear = hear
        self._loss = loss
        self._bound = bound
        self._clock = clock
        self._neighbours = Neighbours(name, BEGINS * terms.cycle_s)
        # More than our part, at the last look.
        self._over_part = False
        self._steady = Steady()
        # At the last look; empty before the first one.
        self._nodes: Mapping[str, Idle] = {}
        self._refused: dict[str, float] = {}
        # Of these, those whose lease did not begin.
        self._passed_over: set[str] = set()
        # Nodes that were down since their lease was asked for: it ended for that.
        self._lost: set[str] = set()
        self._cycle: asyncio.Task[None] | None = None
        self._asked_s = -1e9
        self._soon = False
        # A lease is since the last look.
        self._wanted = False
        self._closed = False
        self._failing = False
        self._account = lease_account.load(directory.parent)
        self._looked_s: float | None = None
        self._idle_since: dict[str, float] = {}
        self._last = 0
        # Leases in a row whose agents were given no GPUs.
        self._blind: set[int] = set()
        self.leases: dict[int, Lease] = {}
        self._read()

    # What an executor asks of it.

    def on(self, node: str) -> Lease | None:
        """The lease whose node the engine has."""
        return next(
            (each for each in self.leases.values() if each.joined and each.node == node), None
        )

    def look(self) -> None:
        """See what agents have said, and ask the batch system if it is time."""
        for lease in list(self.leases.values()):
            self._look(lease)
        pause_s = self._terms.cycle_s * (SOON if self._soon or self._wanted else 1)
        due = self._clock() >= self._asked_s + pause_s
        if due and not self._closed and (self._cycle is None or self._cycle.done()):
            self._asked_s = self._clock()
            self._wanted = False
            self._cycle = self._loop.create_task(self._ask())

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
            try:
                self._system.withdraw(self._name, WITHDRAW_S)
            except BatchError as error:
                log.warning("leases may be left that wait to begin: %s", error)

    # Files.

    def _read(self) -> None:
        """Know the leases of the manager before."""
        private.make(self._directory)
        for path in self._directory.glob("*/lease.json"):
            try:
                said = documents.read_json(path, agent.LEASE)
                lease = Lease(
                    int(said["number"]),
                    str(said["node"]),
                    str(said["kind"]),
                    path.parent,
                    float(said["asked_at"]),
                    float(said["idle_at"]),
                    None if said["job_id"] is None else int(said["job_id"]),
                    None if said["ends_at"] is None else float(said["ends_at"]),
                    bool(said.get("planned", True)),
                    claim=bool(said.get("claim", False)),
                )
            except documents.UNFIT as error:
                log.warning("%s is not understood: %s", path, error)
                continue
            lease.released = (path.parent / agent.RELEASE_FILE).exists()
            self.leases[lease.number] = lease
        self._last = max(self.leases, default=0)

    def _write(self, lease: Lease) -> None:
        documents.write_json(lease.directory / agent.LEASE_FILE, lease.document(self._terms))
        lease.stale = False

    def _look(self, lease: Lease) -> None:
        if not lease.devices and not lease.leaving and (self._nodes or not lease.claim):
            with contextlib.suppress(*documents.UNFIT):
                said = documents.read_json(lease.directory / agent.AGENT_FILE, agent.AGENT)
                self._place(lease, str(said.get("node", "")))
                named = tuple(str(device) for device in said["devices"])
                slots = tuple(map(str, range(self._terms.gpus)))
                lease.devices = slots if self._terms.logical else named[: self._terms.gpus]
                self._see(lease)
                self._join(lease)
        if not lease.leaving and lease.closing():
            lease.leaving = True
            # Somebody wants it, which changes everybody's part.
            self._wanted |= not lease.released
            self._join(lease)

    def _place(self, lease: Lease, node: str) -> None:
        """What was asked for on any node has begun on this one."""
        if lease.claim and lease.node != node and node in self._nodes:
            lease.node, lease.kind, lease.stale = node, self._nodes[node].kind, True

    def _see(self, lease: Lease) -> None:
        """Say it if the batch system gives leases no GPUs, and ask for no more after some."""
        if lease.devices:
            self._blind.clear()
            self._account.not_given = ""
        elif lease.number not in self._blind and len(self._blind) < BLIND:
            self._blind.add(lease.number)
            if len(self._blind) == 1:
                log.warning("the lease of %s has no GPUs: say --slots", lease.node)
            if len(self._blind) == BLIND:
                log.error("%d leases had no GPUs: no more are asked for until a restart", BLIND)

    def _join(self, lease: Lease) -> None:
        """Let the engine have its node; one that is wanted back has no GPUs any more."""
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

    @staticmethod
    def recorded(directory: Path) -> frozenset[str]:
        """Nodes of which a lease is on record, whatever has become of it."""
        found = set()
        for path in directory.glob("*/lease.json"):
            with contextlib.suppress(*documents.UNFIT):
                found.add(str(documents.read_json(path, agent.LEASE)["node"]))
        return frozenset(found)

    def _over(self, lease: Lease) -> None:
        """It is gone, with all that ran there."""
        # What was suspended has said so; to the engine nothing runs on a node that is lost.
        self._hear(lease)
        del self.leases[lease.number]
        if lease.joined:
            self._emit(NodeLost(lease.node, lease.unneeded()))
        shutil.rmtree(lease.directory, ignore_errors=True)

    # The batch system.

    async def _ask(self) -> None:
        """One cycle: what has become of leases, and which others to ask for."""
        try:
            held = await asyncio.to_thread(self._held)
            for lease in list(self.leases.values()):
                await self._settle(lease, held.get(lease.number))
            for number in held.keys() - self.leases.keys():
                await self._stray(held[number])
            await self._balance()
            if self._failing:
                log.warning("leases are looked after again")
            self._failing = False
            self._account.unanswered = ""
        except (BatchError, OSError) as error:
            self._account.unanswered = str(error)
            lease_account.save(self._account, self._directory.parent)
            # What could not be written down will be asked again.
            if not self._failing:
                log.warning("leases are not looked after: %s", error)
            self._failing = True

    def _held(self) -> dict[int, Held]:
        """Lease → what is said of its job."""
        jobs = self._system.held(self._name)
        numbered = ((whole(job.comment), job) for job in jobs)
        return {number: job for number, job in numbered if number is not None}

    async def _settle(self, lease: Lease, held: Held | None) -> None:
        now = time.time()
        if held is None:
            # Jobs are forgotten after a while, and one that was just asked for may not be known.
            lease.missing += 1
            if lease.missing > 1 and now - lease.asked_at > PATIENCE_S:
                self._over(lease)
            return
        lease.missing = 0
        known = (lease.job_id, lease.ends_at)
        lease.job_id = held.job_id
        if held.state in WAITING:
            await self._waits(lease, held, now)
        elif held.state in THERE:
            await self._runs(lease, held, now)
        elif held.state != UNKNOWN:
            lost = held.state == "node_fail" or lease.node in self._lost
            if not (lease.withdrawn or lost) and (not lease.leaving or lease.unused()):
                # Nobody wanted it back: it did not begin, or nothing ran on it.
                self._refused[lease.node] = now + REFUSED_S
            self._over(lease)
            return
        elif lease.ends_at is not None:
            # Its host does not answer.
            self._lost.add(lease.node)
        lease.stale |= known != (lease.job_id, lease.ends_at)
        if lease.stale and lease.number in self.leases:
            self._write(lease)

    async def _runs(self, lease: Lease, held: Held, now: float) -> None:
        if lease.claim and self._nodes:
            self._place(lease, held.node)
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
            # Another harvester has it, or was faster: that says nothing of the node.
            if not lease.claim or now - lease.asked_at > CLAIM_S:
                await self._withdraw(lease, held.job_id)
        elif now - lease.asked_at > PATIENCE_S:
            log.info("no lease of %s: %s", lease.node, held.why)
            self._account.not_given = f"{lease.node}: {held.why or 'it did not begin in time'}"
            if not lease.withdrawn:
                lease.withdrawn = True
                self._account.withdrawn += 1
                self._refused[lease.node] = now + REFUSED_S
                self._passed_over.add(lease.node)
            await asyncio.to_thread(self._system.cancel, held.job_id)

    def _has(self, lease: Lease) -> bool:
        """Whether we have its node already: a claim was faster there."""
        return any(
            each.node == lease.node and each.ends_at is not None for each in self.leases.values()
        )

    async def _stopped(self, lease: Lease, held: Held, now: float) -> None:
        """Its node is others' now. An agent that has heard of it leaves; one that cannot is killed,
        and what was lost with it goes on elsewhere when that has ended."""
        if lease.stopped_at is None:
            lease.stopped_at = now
        patience_s = STOPPED_S if lease.closing() else HEARD_S
        if now - lease.stopped_at >= patience_s:
            log.info("the lease of %s was stopped, and is ended", lease.node)
            await asyncio.to_thread(self._system.cancel, held.job_id)

    async def _stray(self, held: Held) -> None:
        """A job of ours that no lease stands for: nobody would use it."""
        if held.state in WAITING | THERE:
            await asyncio.to_thread(self._system.cancel, held.job_id)

    async def _withdraw(self, lease: Lease, job_id: int | None) -> None:
        """Take back what has not begun."""
        lease.withdrawn = True
        if job_id is not None:
            await asyncio.to_thread(self._system.cancel, job_id)

    async def _fewer(self, part: int | None, want: int) -> None:
        """Give back what is not worth its node, and what is others' part."""
        own = [lease for lease in self.leases.values() if not lease.claim]
        # Twice in a row: what was asked one after the other may not fit together.
        over = part is not None and sum(not lease.leaving for lease in own) > part
        self._soon |= over and not self._over_part
        # Nobody is given what nobody waits for: two that see the queue at different times may
        # divide it differently, and no node is to stay idle for it.
        there = sum(not lease.leaving for lease in own)
        waiting = self._neighbours.waiting - sum(lease.released for lease in own)
        least = max(part or 0, there - max(0, waiting))
        limits = [want] * self._bound + [least] * (over and self._over_part)
        self._over_part = over
        if not limits:
            return
        for lease in surplus(own, min(limits), self._loss, self._neighbours.asked):
            log.info("the lease of %s is given back", lease.node)
            lease.release()
            self._look(lease)
            if lease.ends_at is None and lease.job_id is not None:
                await asyncio.to_thread(self._system.cancel, lease.job_id)

    async def _balance(self) -> None:
        """Have as many nodes as are wanted, beside other harvesters."""
        if len(self._blind) >= BLIND:
            return
        now = time.time()
        # Before the nodes: one that is given back in between is counted twice, and not left out.
        others = await asyncio.to_thread(self._system.others, self._terms.partition, "")
        nodes = await asyncio.to_thread(self._system.idle, self._terms.partition)
        self._nodes = nodes
        idle = [name for name, node in nodes.items() if node.idle and self._suits(node)]
        # Somebody else had the hole; the next one is another.
        down = {name for name, node in nodes.items() if node.lost}
        self._lost |= down & {lease.node for lease in self.leases.values()}
        # One that comes back from there is another, too.
        filled = self._passed_over.difference(idle) | down
        self._passed_over -= filled
        self._refused = {
            node: until
            for node, until in self._refused.items()
            if until > now and node not in filled
        }
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        steady = self._steady(idle)
        # What waits for any node may not fit into a hole.
        self._neighbours.see(others, any(not nodes[name].planned for name in steady), now)
        taken = {lease.node for lease in self.leases.values() if not lease.claim}
        new = set(idle) - steady - taken - self._refused.keys()
        self._soon = not self._soon and bool(new) and self._want() > len(taken)
        self._soon |= any(lease.stopped_at is not None for lease in self.leases.values())
        free = [name for name in idle if name in steady and name not in taken]
        asks = bool(free) or bool(self._neighbours.leased)
        ends = await asyncio.to_thread(self._system.ends, self._name) if asks else {}

        def hole(name: str) -> Hole:
            return Hole(name, ends.get(name, math.inf), nodes[name].limit_s, self._fits_s(name))

        holes = {name: hole(name) for name in free}
        short = [each for each in holes.values() if not self._terms.minutes(each, now)]
        self._count(idle, short)
        useless = {each.node for each in short} | self._refused.keys()
        want, part = self._want(), self._part(set(idle) - useless)
        await self._fewer(part, want)
        own = [lease for lease in self.leases.values() if not lease.claim]
        if part is not None:
            want = min(want, part)
        takes = requests(
            [
                each
                for name, each in holes.items()
                if name not in self._refused and name not in self._neighbours.asked
            ],
            idle=len(set(idle) - taken) + len(self._neighbours.leased),
            have=len(own),
            want=want,
            terms=self._terms,
            now_s=now,
            seed=self._name,
        )[:AT_ONCE]
        for request in takes:
            await self._request(request, nodes[request.node])
        missing = 0 if part is None else min(want, self._terms.max_nodes) - len(own) - len(takes)
        # Who is next waits in the queue, so that no node is nobody's until we look again.
        missing += self._neighbours.next and len(own) < self._terms.max_nodes
        suits = (name for name, node in nodes.items() if self._suits(node))
        await self._claim(missing, map(hole, self._neighbours.to_ask(suits)), nodes)

    def _part(self, idle: Collection[str]) -> int | None:
        """How many nodes we are to have beside other harvesters; None where there are none."""
        own = [lease for lease in self.leases.values() if lease.ends_at is not None]
        have = sum(not lease.leaving for lease in own)
        nodes = {*idle, *(lease.node for lease in own)} | self._neighbours.leased
        want = min(self._want(), self._terms.most(len(nodes)))
        return self._neighbours.divide(len(set(idle)), len(own), have, want)

    async def _claim(self, missing: int, holes: Iterable[Hole], nodes: Mapping[str, Idle]) -> None:
        """Have others see in the queue that so many nodes are missing: by leases that wait until
        those that have too many give any of theirs back, or one comes free otherwise."""
        there = [each for each in self.leases.values() if each.claim and not each.withdrawn]
        for lease in there[max(0, missing) :]:
            await self._withdraw(lease, lease.job_id)
        now = time.time()
        known = {lease.node for lease in self.leases.values()}
        more = min(missing, AT_ONCE) - len(there)
        for each in holes:
            if more <= 0:
                break
            if each.node not in known and (minutes := self._terms.minutes(each, now)):
                await self._request(Request(each.node, minutes), nodes[each.node], claim=True)
                more -= 1

    def _fits_s(self, node: str) -> float:
        now = time.time()
        age_s = now - self._idle_since.get(node, now)
        return fits_s(self._seen(), age_s, self._terms.longest_s)

    def _suits(self, node: Idle) -> bool:
        return self._terms.logical or node.gpus >= self._terms.gpus

    def _count(self, idle: Sequence[str], short: Sequence[Hole]) -> None:
        """What was seen since the last look."""
        now_s, last_s = self._clock(), self._looked_s
        self._looked_s = now_s
        if last_s is None:
            return
        there = [lease for lease in self.leases.values() if not lease.leaving]
        held = {lease.node for lease in there if lease.joined}
        # What has begun is not idle to anybody, though its agent is not there yet.
        coming = {lease.node for lease in there if lease.ends_at is not None}
        self._account.passed(
            min(now_s - last_s, lease_account.GAP * self._terms.cycle_s),
            idle=len((set(idle) | coming) - held),
            held=len(held),
            short=len(short),
        )
        self._account.others = len(self._neighbours.leased)
        lease_account.save(self._account, self._directory.parent)

    async def _request(self, request: Request, node: Idle, *, claim: bool = False) -> None:
        now = time.time()
        # Unlike that of any before, of another manager too: they are remembered for a while.
        number = self._last = max(self._last + 1, int(now))
        since = self._idle_since.get(request.node, now)
        directory = self._directory / str(number)
        lease = Lease(number, request.node, node.kind, directory, asked_at=now, idle_at=since)
        lease.planned, lease.claim = request.planned, claim
        try:
            private.make(lease.directory)
            # Before it is asked for: what nobody remembers would be a stray.
            self._write(lease)
            script = lease.directory / "lease.sh"
            words = [sys.executable, "-I", "-S", agent.__file__, str(lease.directory)]
            text = self._system.script(shlex.join(words), directory)
            documents.write_file(script, os.fsencode(text))
        except OSError as error:
            log.warning("no lease can be asked for: %s", error)
            return
        self.leases[number] = lease
        self._lost.discard(lease.node)
        self._account.leases += 1
        terms = self._terms
        order = Order(
            name=self._name,
            number=number,
            partition=terms.partition,
            options=terms.options,
            node=node,
            gpus=0 if terms.logical else terms.gpus,
            minutes=request.minutes,
            directory=directory,
            anywhere=claim,
        )
        try:
            lease.job_id = await asyncio.to_thread(self._system.submit, order, script)
            self._write(lease)
        except BatchError as error:
            log.warning("no lease of %s: %s", request.node, error)
            self._account.not_given = f"{request.node}: {error}"
            self._refused[request.node] = time.time() + REFUSED_S
            self._account.refused += 1
            self._over(lease)
