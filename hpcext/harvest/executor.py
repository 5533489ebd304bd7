"""An executor on leases: on each node an agent starts a supervisor.

It has no processes on this machine. Attempts keep running without it; an attempt that has ended
records that in its files, and if it cannot, its lease shows it.

An attempt under ``hpcext launch`` changes its nodes while it runs: each new node gets a part of it,
with its own index, and a part that is given up has ended before its node is reported free. The
first node stays; if that must go, the attempt is suspended.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from hpcext import backends, documents
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended, Outcome, Registered, Rescaled
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Action, Alloc, Kind
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.executors.attempts import AttemptExecutor
from hpcext.executors.steps import FIRST_PORT, PORTS
from hpcext.harvest.book import LeaseBook
from hpcext.harvest.lease import Lease, Loss
from hpcext.harvest.leases import Terms
from hpcext.harvest.parts import Part, Watch, known, run_file
from hpcext.harvest.site import SiteLeave
from hpcext.launch import agent

log = logging.getLogger(__name__)

_OVER = "a lease ended before it started"


class LeaseExecutor(AttemptExecutor[Watch]):
    """An executor that carries out actions on leases.

    Parameters
    ----------
    name : str
        Of the leases' jobs.
    terms : Terms
    began_at : float
        The instant from which the engine counts, epoch seconds.
    want, seen, loss, avoid, homes, bound, site
        As :class:`~hpcext.harvest.book.LeaseBook` has them.
    **common
        Those of :class:`~hpcext.executors.attempts.AttemptExecutor`; directories of leases are
        beside those of jobs.
    """

    def __init__(
        self,
        *,
        name: str,
        terms: Terms,
        began_at: float,
        want: Callable[[], int],
        seen: Callable[[], Fragments],
        loss: Loss,
        avoid: Callable[[], Collection[str]] = tuple,
        homes: Callable[[], Collection[str]] = tuple,
        bound: bool = False,
        site: SiteLeave | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._terms = terms
        self._system = backends.leasing(terms.system)
        self._addresses: dict[str, str] = {}
        self._book = LeaseBook(
            directory=self._directory.parent / "leases",
            name=name,
            terms=terms,
            emit=self._emit,
            loop=self._loop,
            began_at=began_at,
            want=want,
            seen=seen,
            busy=self._busy,
            hear=self._hear,
            loss=loss,
            avoid=avoid,
            homes=homes,
            bound=bound,
            site=site,
        )

    _preloads = True

    def perform(self, action: Action) -> None:
        """Carry out an action, as :meth:`hpcext.executors.base.Executor.perform` says."""
        if action.kind is Kind.START:
            if not self._adopt(action):
                self._start(action)
            return
        watch = self._watches.get(action.op)
        if watch is None:
            return
        if action.kind is Kind.RESCALE:
            self._rescale(watch, action)
        elif action.kind is Kind.INSPECT:
            self._inspect(watch)
        elif action.force:
            for part in watch.parts:
                self._end_lease(part)
        else:
            # Without those that are lost, the others cannot suspend.
            suspends = action.kind is Kind.SUSPEND and not watch.lost(self._book.leases)
            self._order_to(watch, "suspend" if suspends else "end")

    def look(self) -> None:
        """See what attempts report, which have ended, and what has become of leases."""
        for watch in list(self._watches.values()):
            self._look(watch)
        self._book.look()

    @property
    def book(self) -> LeaseBook:
        """The leases that attempts run on."""
        return self._book

    def close(self) -> None:
        """Stop watching; what runs goes on running, and leases that nothing runs on are over."""
        self._book.close()
        self._watches.clear()

    # Starting.

    def _start(self, action: Action) -> None:
        files = AttemptFiles(self._directory, action)
        parts = self._parts(action.alloc)
        if parts is None:
            self._lost(files, _OVER)
            return
        watch = Watch(files, [])
        try:
            files.write_launch(
                self._spec(action.job),
                action.alloc,
                Surroundings(
                    gpus=[gpu for part in parts for gpu in part.gpus],
                    manager=self._manager_file,
                    notices=True,
                    rendezvous=self._rendezvous(action),
                ),
            )
            why = self._hand_over(watch, parts)
        except OSError as error:
            why = str(error.strerror)
        if not watch.parts:
            self._lost(files, f"could not be started: {why}")
            return
        self._watches[action.op] = watch
        self._began(watch)
        if why:
            # It would wait for the rest of it.
            self._order_to(watch, "end")

    def _parts(self, alloc: Alloc, index: int = 0, resize: int = 0) -> list[Part] | None:
        """Make parts on some nodes, with indices from `index` on; None: a lease is over."""
        found = []
        for number, (node, gpus) in enumerate(alloc.items(), start=index):
            free = self._free(node, gpus)
            if free is None:
                return None
            lease, devices = free
            found.append(Part(number, node, devices, lease.number, resize))
        return found

    def _free(self, node: str, gpus: int) -> tuple[Lease, tuple[str, ...]] | None:
        """Find the lease on a node, and so many free GPUs of it."""
        lease = self._book.on(node)
        if lease is None or lease.leaving or lease.closing():
            return None
        free = list(lease.devices)
        for watch in self._watches.values():
            for part in watch.parts:
                if part.lease == lease.number:
                    for device in part.devices:
                        free.remove(device)
        return (lease, tuple(free[:gpus])) if len(free) >= gpus else None

    def _hand_over(self, watch: Watch, parts: Sequence[Part]) -> str:
        """Have the agents of leases supervise parts of an attempt; say why not all, if not all."""
        for part in parts:
            assert part.lease is not None
            document = {
                "schema": agent.RUN,
                "directory": str(watch.files.directory),
                "index": part.index,
                "devices": self._devices(part),
            }
            directory = self._book.leases[part.lease].directory
            try:
                documents.write_json(directory / run_file(watch.files.op, part.index), document)
            except OSError as error:
                return str(error.strerror)
            watch.parts.append(part)
        return ""

    def _devices(self, part: Part) -> str:
        """Return the value that makes a part's GPUs visible."""
        # No device has index -1, so none is seen.
        return "-1" if self._terms.logical else ",".join(part.devices)

    def _rendezvous(self, action: Action) -> str:
        """Return where the ranks meet, since there may be others; each attempt has its own port."""
        first = next(iter(action.alloc))
        if first not in self._addresses:
            try:
                self._addresses[first] = self._system.address(first)
            except BatchError as error:
                log.warning("the address of %s is unknown: %s", first, error)
                return f"{first}:{FIRST_PORT + action.op % PORTS}"
        return f"{self._addresses[first]}:{FIRST_PORT + action.op % PORTS}"

    def _launched(self, files: AttemptFiles) -> Watch | None:
        if files.launch() is None:
            return None
        watch = Watch(files, known(files, self._book.leases.values()))
        watch.note_nodes()
        return watch

    def _take_over(self, watch: Watch) -> None:
        """Do nothing: what runs on leases is looked at like all else."""

    # Changing its nodes.

    def _rescale(self, watch: Watch, action: Action) -> None:
        """Have an attempt take up other nodes, and leave some that it has."""
        watch.later = None
        files, members = watch.files, watch.members()
        if files.sizes.requested() >= action.resize:
            return
        stays = [part for part in members if part.node in action.alloc]
        nodes = {part.node for part in stays}
        come = {node: gpus for node, gpus in action.alloc.items() if node not in nodes}
        if any(part.node in come for part in watch.parts if part not in members):
            watch.later = action
            return
        if not stays or stays[0] is not members[0]:
            self._refuse(files, action, files.sizes.had(), "its first node is about to leave")
            return
        if any(len(part.devices) != action.alloc[part.node] for part in stays):
            self._refuse(
                files,
                action,
                files.sizes.had(),
                "on leases only the number of nodes can change in place",
            )
            return
        fresh = self._parts(come, watch.next_index(), action.resize)
        if fresh is None:
            self._refuse(files, action, files.sizes.had(), _OVER)
            return
        pairs = [(gpu, part.index) for part in (*stays, *fresh) for gpu in part.gpus]
        gpus, indices = zip(*pairs, strict=True)
        lost = [gpu for part in watch.lost(self._book.leases) for gpu in part.gpus]
        try:
            files.sizes.request(action.resize, gpus, self._devices(stays[0]), indices, lost)
        except OSError as error:
            self._refuse(files, action, files.sizes.had(), str(error.strerror))
            return
        if why := self._hand_over(watch, fresh):
            watch.fail(action.resize, f"could not be started: {why}")

    def _answer(self, watch: Watch) -> None:
        """Tell of a change as soon as what was given up is free."""
        fact = watch.answer
        if fact is None:
            return
        left = [
            part
            for part in watch.parts
            # The first part stays, whatever the answer says.
            if part.index and part.resize <= fact.resize and not set(part.gpus) <= set(fact.gpus)
        ]
        if all(self._is_over(watch.files, part) for part in left):
            watch.answer = None
            watch.parts = [part for part in watch.parts if part not in left]
            watch.note_nodes()
            self._emit(fact)
            if watch.later is not None:
                self._rescale(watch, watch.later)

    # Watching.

    def _busy(self, lease: Lease) -> bool:
        return self._uses(lease.number) > 0

    def _uses(self, lease: int | None) -> int:
        """Return how many parts of attempts are on a lease."""
        parts = (part for watch in self._watches.values() for part in watch.parts)
        return sum(part.lease == lease for part in parts)

    def _hear(self, lease: Lease) -> None:
        """Take in all that was written on the node of a lease, before that counts as lost."""
        for watch in list(self._watches.values()):
            if any(part.lease == lease.number for part in watch.parts):
                watch.look_anew()
                self._look(watch)

    def _look(self, watch: Watch) -> None:
        files = watch.files
        self._news(watch)
        if len(watch.parts) > 1 and watch.is_cut():
            self._book.hurry(part.lease for part in watch.parts)
        over = [part for part in watch.parts if self._is_over(files, part)]
        if not over:
            return
        if not all(part.has_ended(files) for part in over):
            watch.look_anew()
        if len(over) == len(watch.parts):
            self._news(watch)
            self._finish(watch)
            return
        requested = files.sizes.requested()
        held = files.sizes.held()
        trains = watch.members()
        for part in over:
            if part in trains:
                # What is left waits for ranks that do not come back, unless it knew, or is about to
                # end as well.
                waits = watch.keeps(part) and not files.ends.completed_on(part.index)
                if not waits or watch.to_end or watch.suspends():
                    continue
                # The engine, which hears of a lost node, has the others go on, or end.
                outlives = watch.outlives_loss(part, alone=self._uses(part.lease) == 1)
                if outlives is False:
                    self._order_to(watch, "end")
                elif outlives and part.has_ended(files):
                    # Its ranks have failed by themselves; the node may be taken again.
                    watch.failed[part.index] = math.inf
                    self._end_lease(part)
            elif part.resize == requested and part.gpus[0] in held:
                watch.fail(requested, f"{part.node} was lost before it was ready")

    def _news(self, watch: Watch) -> None:
        for fact in watch.files.news():
            if isinstance(fact, Rescaled):
                watch.answer = fact
            elif isinstance(fact, Registered):
                self._emit(msgspec.structs.replace(fact, elastic=fact.in_place))
            else:
                self._emit(fact)
        if watch.preloads and self._spec(watch.files.job).preload:
            why = watch.files.unpreloaded()
            if why:
                watch.preloads = False
                self._unpreloaded(watch.files, why)
        self._answer(watch)

    def _is_over(self, files: AttemptFiles, part: Part) -> bool:
        """Return whether nothing runs there any more."""
        return part.has_ended(files) or part.lease not in self._book.leases

    def _finish(self, watch: Watch) -> None:
        files = watch.files
        gone = [part.node for part in watch.members() if not part.has_ended(files)]
        why = f"{', '.join(gone)} was lost"
        never_ran = not gone and not files.begun()
        if never_ran:
            why = files.ends.supervisor_said() or "its supervisor did not start"
        ended = files.ends.ended() or files.ends.lost(
            why, Outcome.EVICTED if gone or never_ran else Outcome.LOST, never_ran=never_ran
        )
        if gone and ended.outcome not in {Outcome.SUSPENDED, Outcome.EVICTED}:
            # The other parts failed because of it, or were told to end.
            ended = msgspec.structs.replace(ended, outcome=Outcome.EVICTED, why=why)
        self._emit(ended)
        del self._watches[files.op]

    def _lost(self, files: AttemptFiles, why: str) -> None:
        self._emit(Ended(files.job, files.op, Outcome.EVICTED, why=why))

    # Ending.

    def _order_to(self, watch: Watch, what: str) -> None:
        watch.to_end = watch.to_end or what == "end"
        self._order(watch.files, what)

    def _end_lease(self, part: Part) -> None:
        """End the lease of a part, with all that is left on it."""
        lease = self._book.leases.get(part.lease) if part.lease is not None else None
        if lease is not None and lease.job_id is not None:
            self._loop.create_task(self._cancel(lease.job_id))

    async def _cancel(self, job_id: int) -> None:
        try:
            await asyncio.to_thread(self._system.cancel, job_id)
        except BatchError as error:
            log.warning("lease %d could not be ended: %s", job_id, error)
