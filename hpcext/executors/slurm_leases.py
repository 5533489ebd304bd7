"""Runs attempts on leases: on each node an agent starts a supervisor for them.

Nothing of it is a process of this machine. What runs, runs on; what has ended says so in files of
the attempt, and what can say nothing any more is known from its lease.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcext import protocol
from hpcext.batch import runner, slurm
from hpcext.batch.slurm_reads import reads
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended, Outcome, Registered, Rescaled, Started
from hpcext.core.values import Action, Kind
from hpcext.executors.attempts import AttemptFiles
from hpcext.executors.base import Emit
from hpcext.executors.lease_book import Lease, LeaseBook
from hpcext.executors.leases import Terms
from hpcext.executors.slurm_steps import FIRST_PORT, PORTS
from hpcext.jobfile import JobSpec
from hpcext.launch import agent

log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Part:
    """An attempt on one of its nodes: the place there, and the lease; None: it is gone."""

    node: str
    devices: tuple[str, ...]
    lease: int | None


@dataclasses.dataclass
class _Watch:
    """An attempt that is not known to have ended."""

    files: AttemptFiles
    parts: list[_Part]
    told: bool = False

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(f"{part.node}:{device}" for part in self.parts for device in part.devices)


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
    want : callable
        As :class:`~hpcext.executors.lease_book.LeaseBook` has them.
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
    ) -> None:
        self._directory = directory.absolute()
        self._spec = spec
        self._emit = emit
        self._loop = loop
        self._manager_file = manager_file.absolute() if manager_file else None
        self._terms = terms
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
            busy=self._busy,
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
            files, why = watch.files, "on leases it is suspended and resumed"
            answer = Rescaled(files.job, files.op, action.resize, watch.gpus, ok=False, why=why)
            self._emit(answer)
        elif action.force:
            self._end_leases(watch)
        else:
            self._order(watch, "suspend" if action.kind is Kind.SUSPEND else "end")

    def look(self) -> None:
        """See what attempts report, which have ended, and what has become of leases."""
        for watch in list(self._watches.values()):
            self._look(watch)
        self._book.look()

    def close(self) -> None:
        """Stop watching; what runs goes on running, and leases that nothing runs on are over."""
        self._book.close()
        self._watches.clear()

    # Starting.

    def _start(self, action: Action) -> None:
        files = AttemptFiles(self._directory, action)
        parts = [part for node, gpus in action.alloc.items() if (part := self._part(node, gpus))]
        if len(parts) < len(action.alloc):
            self._lost(files, "a lease was over before it began")
            return
        watch = _Watch(files, parts)
        try:
            files.write_launch(
                self._spec(action.job),
                action.alloc,
                gpus=watch.gpus,
                manager=self._manager_file,
                notices=True,
                rendezvous=self._rendezvous(action),
            )
            for index, part in enumerate(parts):
                self._hand_over(watch, index, part)
        except OSError as error:
            self._lost(files, f"could not be started: {error.strerror}")
            return
        self._watches[action.op] = watch
        self._emit(Started(action.job, action.op, watch.gpus))

    def _part(self, node: str, gpus: int) -> _Part | None:
        """Free GPUs of the lease on a node."""
        lease = self._book.on(node)
        if lease is None or lease.leaving or lease.closing():
            return None
        free = list(lease.devices)
        for watch in self._watches.values():
            for part in watch.parts:
                if part.lease == lease.number:
                    for device in part.devices:
                        free.remove(device)
        return _Part(node, tuple(free[:gpus]), lease.number) if len(free) >= gpus else None

    def _hand_over(self, watch: _Watch, index: int, part: _Part) -> None:
        """Tell the agent of a lease to supervise an attempt there."""
        assert part.lease is not None
        document = {
            "schema": agent.RUN,
            "directory": str(watch.files.directory),
            "index": index,
            # No device has index -1, so CUDA sees none.
            "devices": "-1" if self._terms.logical else ",".join(part.devices),
        }
        lease = self._book.leases[part.lease]
        protocol.write_json(lease.directory / f"run-{watch.files.op}.json", document)

    def _rendezvous(self, action: Action) -> str:
        """Where the ranks of several nodes meet; each attempt has a port of its own."""
        if len(action.alloc) == 1:
            return ""
        first = next(iter(action.alloc))
        if first not in self._addresses:
            try:
                self._addresses[first] = reads().hosts([first])[first].address
            except (BatchError, KeyError) as error:
                log.warning("the address of %s is not known: %s", first, error)
                return f"{first}:{FIRST_PORT + action.op % PORTS}"
        return f"{self._addresses[first]}:{FIRST_PORT + action.op % PORTS}"

    def _adopt(self, action: Action) -> bool:
        """Take over an attempt that was launched before; False if it was not."""
        watch = self._watches.get(action.op)
        if watch is None:
            files = AttemptFiles(self._directory, action)
            launch = files.launch()
            if launch is None:
                return False
            watch = self._watches[action.op] = _Watch(files, self._parts(action, launch))
        self._emit(Started(action.job, action.op, watch.gpus))
        return True

    def _parts(self, action: Action, launch: Mapping[str, Any]) -> list[_Part]:
        """On which leases an attempt was launched, from what was written down then."""
        said = [str(gpu).rpartition(":") for gpu in launch.get("gpus", ())]
        parts = []
        for node in action.alloc:
            name = f"run-{action.op}.json"
            leases = self._book.leases.values()
            has = [
                each for each in leases if each.node == node and (each.directory / name).exists()
            ]
            devices = tuple(device for host, _, device in said if host == node)
            parts.append(_Part(node, devices, has[0].number if has else None))
        return parts

    # Watching.

    def _busy(self, lease: Lease) -> bool:
        return any(
            part.lease == lease.number for watch in self._watches.values() for part in watch.parts
        )

    def _look(self, watch: _Watch) -> None:
        files = watch.files
        self._news(watch)
        ended = [self._has_ended(files, index) for index in range(len(watch.parts))]
        gone = [part.lease not in self._book.leases for part in watch.parts]
        over = [done or lost for done, lost in zip(ended, gone, strict=True)]
        if all(over):
            self._news(watch)
            self._finish(watch, "its leases are over" if any(gone) else "")
        elif any(over) and not watch.told and not self._suspends(files):
            # What is left waits for ranks that do not come back.
            self._order(watch, "end")

    def _news(self, watch: _Watch) -> None:
        for fact in watch.files.news():
            if isinstance(fact, Registered):
                self._emit(msgspec.structs.replace(fact, in_place=False))
            else:
                self._emit(fact)

    @staticmethod
    def _has_ended(files: AttemptFiles, index: int) -> bool:
        own = protocol.node_directory(files.directory, index)
        return os.path.lexists(own / protocol.EXIT_FILE)

    @staticmethod
    def _suspends(files: AttemptFiles) -> bool:
        return os.path.lexists(files.directory / protocol.SUSPENDED_FILE)

    def _finish(self, watch: _Watch, why: str) -> None:
        files = watch.files
        ended = files.ended() or files.lost(why, Outcome.EVICTED if why else Outcome.LOST)
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

    @staticmethod
    async def _cancel(job_id: int) -> None:
        try:
            await asyncio.to_thread(runner.run, slurm.cancel_command(str(job_id)))
        except BatchError as error:
            log.warning("lease %d could not be ended: %s", job_id, error)
