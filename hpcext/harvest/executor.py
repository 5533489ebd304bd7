"""Runs attempts on leases: on each node an agent starts a supervisor for them.

Nothing of it is a process of this machine. What runs, runs on; what has ended says so in files of
the attempt, and what can say nothing any more is known from its lease.

An attempt under ``hpcext launch`` changes its nodes as it runs: each new one gets a part of it,
with an index of its own, and each part that it gives up has ended before anybody else hears of it.
The first node stays; where that is to go, the attempt is suspended.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hpcext import documents, protocol
from hpcext.batch import system
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended, Outcome, Registered, Rescaled, Started
from hpcext.core.history.fragments import Fragments
from hpcext.core.values import Action, Alloc, Kind
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.base import Emit
from hpcext.executors.steps import FIRST_PORT, PORTS
from hpcext.harvest.book import LeaseBook
from hpcext.harvest.lease import Lease, Loss
from hpcext.harvest.leases import Terms
from hpcext.jobfile import JobSpec
from hpcext.launch import agent
from hpcext.rendezvous import SHARED, Rendezvous

log = logging.getLogger(__name__)

_OVER = "a lease was over before it began"
_NODE = re.compile(r"node-[0-9]{1,18}\Z")


def _run(op: int, index: int) -> str:
    """The file by which the agent of a lease is told of an attempt; its second time there, too."""
    return f"run-{op}-{index}.json"


@dataclasses.dataclass(frozen=True)
class _Part:
    """An attempt on one of its nodes.

    Attributes
    ----------
    index : int
        Of the node among those of the attempt; that of no other, ever.
    node : str
    devices : tuple of str
    lease : int or None
        None: it is gone.
    resize : int
        Number of the change by which it came; 0: it was there from the beginning.
    """

    index: int
    node: str
    devices: tuple[str, ...]
    lease: int | None
    resize: int = 0

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(f"{self.node}:{device}" for device in self.devices)


@dataclasses.dataclass
class _Watch:
    """An attempt that is not known to have ended.

    Attributes
    ----------
    files : AttemptFiles
    parts : list of _Part
        Those that it has, is to have, or gives up.
    told : bool
        That it is to end.
    answer : Rescaled or None
        What it has answered; told when what it gave up is free.
    later : Action or None
        A change that waits for a part of the one before to end.
    """

    files: AttemptFiles
    parts: list[_Part]
    told: bool = False
    answer: Rescaled | None = None
    later: Action | None = None

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(gpu for part in self.parts for gpu in part.gpus)

    def members(self) -> list[_Part]:
        """Those that train, by its last answer, in its order."""
        had = self.files.sizes.had()
        found = [part for part in self.parts if set(part.gpus) <= set(had)]
        return sorted(found, key=lambda part: had.index(part.gpus[0]))


class LeaseExecutor:
    """Carries out actions on leases.

    Parameters
    ----------
    directory : pathlib.Path
        Where jobs have their directories; those of leases are beside it.
    spec : callable
        Job id → what the job is.
    emit : Emit
    loop : asyncio.AbstractEventLoop
    manager_file : pathlib.Path, optional
        As every executor has it.
    name : str
        Of the leases' jobs.
    terms : Terms
    began_at : float
    want, seen, loss : callable
        As :class:`~hpcext.harvest.book.LeaseBook` has them.
    """

    def __init__(
        self,
        *,
        directory: Path,
        spec: Callable[[str], JobSpec],
        emit: Emit,
        loop: asyncio.AbstractEventLoop,
        manager_file: Path | None = None,
        name: str,
        terms: Terms,
        began_at: float,
        want: Callable[[], int],
        seen: Callable[[], Fragments],
        loss: Loss,
        bound: bool = False,
    ) -> None:
        self._directory = directory.absolute()
        self._spec = spec
        self._emit = emit
        self._loop = loop
        self._manager_file = manager_file.absolute() if manager_file else None
        self._terms = terms
        self._system = system.leasing(terms.system)
        self._watches: dict[int, _Watch] = {}
        self._addresses: dict[str, str] = {}
        self._book = LeaseBook(
            directory=self._directory.parent / "leases",
            name=name,
            terms=terms,
            emit=emit,
            loop=loop,
            began_at=began_at,
            want=want,
            seen=seen,
            busy=self._busy,
            hear=self._hear,
            loss=loss,
            bound=bound,
        )

    @property
    def left_s(self) -> float | None:
        """As :class:`hpcext.executors.base.Executor` has it: there are always other leases."""
        return None

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
        elif action.force:
            self._end_leases(watch)
        else:
            self._order(watch, "suspend" if action.kind is Kind.SUSPEND else "end")

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
        watch = _Watch(files, [])
        try:
            files.write_launch(
                self._spec(action.job),
                action.alloc,
                gpus=[gpu for part in parts for gpu in part.gpus],
                manager=self._manager_file,
                notices=True,
                rendezvous=self._rendezvous(action),
            )
            why = self._hand_over(watch, parts)
        except OSError as error:
            why = str(error.strerror)
        if not watch.parts:
            self._lost(files, f"could not be started: {why}")
            return
        self._watches[action.op] = watch
        self._emit(Started(action.job, action.op, watch.gpus))
        if why:
            # It would wait for the rest of it.
            self._order(watch, "end")

    def _parts(self, alloc: Alloc, index: int = 0, resize: int = 0) -> list[_Part] | None:
        """New parts on some nodes, with indices from this one on; None: a lease is over."""
        found = []
        for number, (node, gpus) in enumerate(alloc.items(), start=index):
            free = self._free(node, gpus)
            if free is None:
                return None
            lease, devices = free
            found.append(_Part(number, node, devices, lease.number, resize))
        return found

    def _free(self, node: str, gpus: int) -> tuple[Lease, tuple[str, ...]] | None:
        """The lease on a node, and so many free GPUs of it."""
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

    def _hand_over(self, watch: _Watch, parts: Sequence[_Part]) -> str:
        """Have the agents of leases supervise parts of an attempt; why not all, if not all."""
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
                documents.write_json(directory / _run(watch.files.op, part.index), document)
            except OSError as error:
                return str(error.strerror)
            watch.parts.append(part)
        return ""

    def _devices(self, part: _Part) -> str:
        """What is said to be visible of its GPUs."""
        # No device has index -1, so none is seen.
        return "-1" if self._terms.logical else ",".join(part.devices)

    def _rendezvous(self, action: Action) -> str:
        """Where the ranks meet, since there may be others; each attempt has a port of its own."""
        first = next(iter(action.alloc))
        if first not in self._addresses:
            try:
                self._addresses[first] = self._system.address(first)
            except BatchError as error:
                log.warning("the address of %s is not known: %s", first, error)
                return f"{first}:{FIRST_PORT + action.op % PORTS}"
        return f"{self._addresses[first]}:{FIRST_PORT + action.op % PORTS}"

    def _adopt(self, action: Action) -> bool:
        """Take over an attempt that was launched before; False if it was not."""
        watch = self._watches.get(action.op)
        if watch is None:
            files = AttemptFiles(self._directory, action)
            if files.launch() is None:
                return False
            watch = self._watches[action.op] = _Watch(files, self._known(files))
            files.others = tuple(part.index for part in watch.members()[1:])
        self._emit(Started(action.job, action.op, watch.gpus))
        return True

    def _known(self, files: AttemptFiles) -> list[_Part]:
        """On which leases an attempt runs, from what is written down."""
        devices: dict[tuple[int, str], list[str]] = {}
        for gpu, index in files.sizes.nodes().items():
            node, _, device = gpu.rpartition(":")
            devices.setdefault((index, node), []).append(device)
        had, asked = set(files.sizes.had()), files.sizes.asked()
        parts = []
        for (index, node), named in devices.items():
            has = [
                lease.number
                for lease in self._book.leases.values()
                if lease.node == node and (lease.directory / _run(files.op, index)).exists()
            ]
            came = 0 if f"{node}:{named[0]}" in had else asked
            parts.append(_Part(index, node, tuple(named), max(has, default=None), came))
        return parts

    # Changing its nodes.

    def _rescale(self, watch: _Watch, action: Action) -> None:
        """Have an attempt take up other nodes, and leave some that it has."""
        watch.later = None
        files, members = watch.files, watch.members()
        if files.sizes.asked() >= action.resize:
            return
        stays = [part for part in members if part.node in action.alloc]
        nodes = {part.node for part in stays}
        come = {node: gpus for node, gpus in action.alloc.items() if node not in nodes}
        if any(part.node in come for part in watch.parts if part not in members):
            watch.later = action
            return
        if not stays or stays[0] is not members[0]:
            self._refuse(files, action, "its first node is to leave")
            return
        if any(len(part.devices) != action.alloc[part.node] for part in stays):
            self._refuse(files, action, "on leases only the nodes change in place")
            return
        fresh = self._parts(come, self._next_index(watch), action.resize)
        if fresh is None:
            self._refuse(files, action, _OVER)
            return
        pairs = [(gpu, part.index) for part in (*stays, *fresh) for gpu in part.gpus]
        gpus, indices = zip(*pairs, strict=True)
        try:
            files.sizes.ask(action.resize, gpus, self._devices(stays[0]), indices)
        except OSError as error:
            self._refuse(files, action, str(error.strerror))
            return
        if why := self._hand_over(watch, fresh):
            self._fail(watch, action.resize, f"could not be started: {why}")

    @staticmethod
    def _next_index(watch: _Watch) -> int:
        """An index that no part has had."""
        last = max(part.index for part in watch.parts)
        with contextlib.suppress(OSError):
            names = os.listdir(watch.files.directory)
            last = max([last, *(int(name[5:]) for name in names if _NODE.match(name))])
        return last + 1

    def _refuse(self, files: AttemptFiles, action: Action, why: str) -> None:
        had = files.sizes.had()
        self._emit(Rescaled(files.job, files.op, action.resize, had, ok=False, why=why))

    @staticmethod
    def _fail(watch: _Watch, resize: int, why: str) -> None:
        """Tell the attempt that a node will not come; should it not hear, its deadline does."""
        with contextlib.suppress(OSError):
            Rendezvous(watch.files.directory / SHARED).fail(resize, why)

    def _answer(self, watch: _Watch) -> None:
        """Tell of a change as soon as what was given up is free."""
        fact = watch.answer
        if fact is None:
            return
        left = [
            part
            for part in watch.parts
            # The first one stays whatever it says.
            if part.index and part.resize <= fact.resize and not set(part.gpus) <= set(fact.gpus)
        ]
        if all(self._is_over(watch.files, part) for part in left):
            watch.answer = None
            watch.parts = [part for part in watch.parts if part not in left]
            watch.files.others = tuple(part.index for part in watch.members()[1:])
            self._emit(fact)
            if watch.later is not None:
                self._rescale(watch, watch.later)

    # Watching.

    def _busy(self, lease: Lease) -> bool:
        return any(
            part.lease == lease.number for watch in self._watches.values() for part in watch.parts
        )

    def _hear(self, lease: Lease) -> None:
        for watch in list(self._watches.values()):
            if any(part.lease == lease.number for part in watch.parts):
                self._look(watch)

    def _look(self, watch: _Watch) -> None:
        files = watch.files
        self._news(watch)
        over = [part for part in watch.parts if self._is_over(files, part)]
        if not over:
            return
        if len(over) == len(watch.parts):
            self._news(watch)
            self._finish(watch)
            return
        asked = files.sizes.asked()
        held = files.sizes.held()
        trains = watch.members()
        for part in over:
            if part in trains:
                # What is left waits for ranks that do not come back, unless it knew, or is about to
                # end as well.
                waits = self._stays(watch, part) and not files.completed_on(part.index)
                if waits and not watch.told and not self._suspends(files):
                    self._order(watch, "end")
            elif part.resize == asked and part.gpus[0] in held:
                self._fail(watch, asked, f"{part.node} was lost before it was ready")

    def _stays(self, watch: _Watch, part: _Part) -> bool:
        """Whether a part that trains is to go on, by the last change that was asked for."""
        wanted = watch.files.sizes.wanted()
        return not wanted or set(part.gpus) <= set(wanted)

    def _news(self, watch: _Watch) -> None:
        for fact in watch.files.news():
            if isinstance(fact, Rescaled):
                watch.answer = fact
            elif isinstance(fact, Registered):
                self._emit(msgspec.structs.replace(fact, elastic=fact.in_place))
            else:
                self._emit(fact)
        self._answer(watch)

    def _is_gone(self, part: _Part) -> bool:
        return part.lease not in self._book.leases

    def _is_over(self, files: AttemptFiles, part: _Part) -> bool:
        """Whether nothing runs there any more."""
        return self._has_ended(files, part) or self._is_gone(part)

    @staticmethod
    def _has_ended(files: AttemptFiles, part: _Part) -> bool:
        own = protocol.node_directory(files.directory, part.index)
        return os.path.lexists(own / protocol.EXIT_FILE)

    @staticmethod
    def _suspends(files: AttemptFiles) -> bool:
        return os.path.lexists(files.directory / protocol.SUSPENDED_FILE)

    def _finish(self, watch: _Watch) -> None:
        files = watch.files
        gone = [part.node for part in watch.members() if not self._has_ended(files, part)]
        why = f"{', '.join(gone)} was lost"
        ended = files.ended() or files.lost(why, Outcome.EVICTED if gone else Outcome.LOST)
        if gone and ended.outcome not in {Outcome.SUSPENDED, Outcome.EVICTED}:
            # The others failed for it, or were told to end.
            ended = msgspec.structs.replace(ended, outcome=Outcome.EVICTED, why=why)
        self._emit(ended)
        del self._watches[files.op]

    def _lost(self, files: AttemptFiles, why: str) -> None:
        self._emit(Ended(files.job, files.op, Outcome.EVICTED, why=why))

    # Ending.

    def _order(self, watch: _Watch, what: str) -> None:
        watch.told = watch.told or what == "end"
        try:
            watch.files.order(what)
        except OSError as error:
            log.warning("job %s could not be told: %s", watch.files.job, error.strerror)

    def _end_leases(self, watch: _Watch) -> None:
        """The last resort, for supervisors that do not answer: their leases go, with all on it."""
        for part in watch.parts:
            lease = self._book.leases.get(part.lease) if part.lease is not None else None
            if lease is not None and lease.job_id is not None:
                self._loop.create_task(self._cancel(lease.job_id))

    async def _cancel(self, job_id: int) -> None:
        try:
            await asyncio.to_thread(self._system.cancel, job_id)
        except BatchError as error:
            log.warning("lease %d could not be ended: %s", job_id, error)
