"""The ranks of an attempt on this node: they are started, signalled, and ended together.

Standard library only, and like the supervisor one loop around ``sigwaitinfo``. A rank that fails
ends the others, so that the job goes on from its last checkpoint, unless it can be replaced
(:mod:`hpcext.launch.ranks`).
"""

from __future__ import annotations

import abc
import contextlib
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcext import protocol
from hpcext.allocation import without_task
from hpcext.launch import command, stderr, tree
from hpcext.launch.devices import naming, without
from hpcext.process import Process
from hpcext.rendezvous import Group, Rendezvous

KILL_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL, when ranks are told to end."""

REMIND_S = 0.5
"""Seconds between two looks at files, and between two reminders of what needs an answer."""

SWEEP_PAUSE_S = 0.01
SWEEP_S = 10.0

_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WAKING = {signal.SIGCHLD, protocol.SUSPEND_SIGNAL, protocol.NEWS_SIGNAL} | _ENDING


OF_RANKS = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "GLOO_SOCKET_IFNAME",
})  # fmt: skip
"""Variables of each rank, beside those of hpcext; no import that ranks share may ask for one."""


class Place(NamedTuple):
    """The place of a process among the ranks.

    Attributes
    ----------
    number : int
        The number of the group to which it belongs, or which it is to join.
    rank : int
        Its rank in that group.
    mark : str
        The mark that all processes of this rank have in their environment.
    """

    number: int
    rank: int
    mark: str


@dataclass
class NodeRanks(abc.ABC):
    """The ranks of one attempt on this node.

    Parameters
    ----------
    argv : sequence of str
    nodes : tuple of int
        The index of the node of each rank of the job.
    rendezvous : Rendezvous
    attempt : protocol.Attempt or None
        None if nobody can ask for a change.
    index : int
        The index of this node.
    """

    argv: Sequence[str]
    nodes: tuple[int, ...]
    rendezvous: Rendezvous
    attempt: protocol.Attempt | None = None
    index: int = 0
    _ranks: dict[int, Place] = field(default_factory=dict)  # by pid
    _code: int | None = None
    _kill_s: float | None = None
    _master: tuple[str, str] = ("", "")

    def run(self) -> int:
        """Start the ranks and see to them; return the first exit code that is not 0, else 0."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
        self._master = self._meeting_place()
        try:
            self._begin()
            # Look for news that came before the signals were handled.
            self._look()
            while self._reap():
                self._react(self._wait())
        except command.CommandError as error:
            stderr.say(error)
            self._signal_all(signal.SIGKILL)
            return error.code
        code = self._code or 0
        return code if code >= 0 else 128 - code

    # What the launchers of the first node and of the others each do in their own way.

    @abc.abstractmethod
    def _begin(self) -> None:
        """Start the first ranks."""

    @abc.abstractmethod
    def _look(self) -> None:
        """Read what others say in files."""

    @abc.abstractmethod
    def _looks(self) -> float | None:
        """Return the seconds until it is time to look for what no signal tells of; None: never."""

    @abc.abstractmethod
    def _ended(self, place: Place, code: int) -> None:
        """Handle the end of a rank."""

    @abc.abstractmethod
    def _settle(self) -> bool:
        """Conclude when all ends are known; return whether a rank is left that is to go on."""

    # Starting.

    def _meeting_place(self) -> tuple[str, str]:
        """Return host and port for scripts that form their own process group, as under torchrun."""
        if self.rendezvous.host and self.attempt is not None:
            host, _, port = self.attempt.rendezvous.rpartition(":")
            return host, port
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return "127.0.0.1", str(probe.getsockname()[1])

    def _start(
        self, rank: int, group: Group, nodes: Sequence[int], devices: str | None = None
    ) -> None:
        """Start one rank of a group of ranks on these nodes."""
        mark = f"{self.rendezvous.directory}/{group.number}/{rank}"
        environ = without_task()
        environ.setdefault("OMP_NUM_THREADS", "1")
        environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(list(nodes[:rank]).count(self.index)),
            WORLD_SIZE=str(group.size),
            LOCAL_WORLD_SIZE=str(list(nodes).count(self.index)),
            MASTER_ADDR=self._master[0],
            MASTER_PORT=self._master[1],
            HPCEXT_RANK=mark,
        )
        if not self.rendezvous.host:
            # All ranks are on this node, so gloo need not use the network.
            environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        place = Rendezvous(
            self.rendezvous.directory,
            launcher=Process.me(),
            joins=group.number,
            host=self.rendezvous.host,
            replaces=self.rendezvous.replaces,
        )
        environ.update(place.environ())
        if devices is not None:
            # The GPUs of a node are dealt out in the order of its ranks.
            environ = {**without(environ), **naming(devices)}
        blocked = (protocol.SUSPEND_SIGNAL, protocol.NEWS_SIGNAL)
        pid = command.start(self.argv, environ, blocked=blocked, notices=self._notices())
        self._ranks[pid] = Place(group.number, rank, mark)

    def _notices(self) -> bool:
        """Return whether SIGTERM and SIGINT come from the batch system, not our supervisor."""
        return self.attempt is not None and self.attempt.notices

    # The loop.

    def _wait(self) -> int | None:
        """Sleep until something happens, or it is time to look or to remind again."""
        deadlines = [self._kill_s] if self._kill_s is not None else []
        if (pause_s := self._looks()) is not None:
            deadlines.append(time.monotonic() + pause_s)
        if not deadlines:
            return signal.sigwaitinfo(_WAKING).si_signo
        info = signal.sigtimedwait(_WAKING, max(0.0, min(deadlines) - time.monotonic()))
        return info.si_signo if info else None

    def _react(self, signum: int | None) -> None:
        if signum in {signal.SIGTERM, signal.SIGINT} and self._notices():
            # The supervisor gets this signal, too, and suspends or kills the ranks.
            return
        if signum in _ENDING:
            self._end(-int(signum or signal.SIGTERM))
        elif signum == protocol.SUSPEND_SIGNAL:
            for process in self._processes():
                tree.tell(process, protocol.SUSPEND_SIGNAL)
        elif self._kill_s is not None and time.monotonic() >= self._kill_s:
            self._signal_all(signal.SIGKILL)
            self._kill_s = time.monotonic() + KILL_GRACE_S
        if self._kill_s is None and signum in {protocol.NEWS_SIGNAL, None}:
            self._look()

    def _reap(self) -> bool:
        """Collect the ranks that have ended; return whether one is left."""
        if not tree.reap(self._child_ended):
            return False
        if not self._settle():
            # Ranks that were about to join have nothing to lose.
            self._signal_all(signal.SIGKILL)
        return bool(self._ranks)

    def _child_ended(self, pid: int, code: int) -> None:
        if pid in self._ranks:
            self._ended(self._ranks.pop(pid), code)

    def _end(self, code: int) -> None:
        """End every rank; the job goes on from its last checkpoint."""
        if self._kill_s is None:
            self._code = code
            self._kill_s = time.monotonic() + KILL_GRACE_S
        self._signal_all(signal.SIGTERM, signal.SIGCONT)

    def _signal_all(self, *signums: int) -> None:
        for process in self._processes():
            tree.send(process, *signums)

    def _processes(self) -> list[Process]:
        found = (Process.of(pid) for pid in self._ranks)
        return [process for process in found if process]

    def _sweep(self, mark: str) -> None:
        """End what a rank left behind: before that, its GPU is not free."""
        until_s = time.monotonic() + SWEEP_S
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                found = tree.marked([f"HPCEXT_RANK={mark}"])
                if not found:
                    return
                for process in found:
                    tree.send(process, signal.SIGKILL)
            time.sleep(SWEEP_PAUSE_S)


def how_ended(code: int) -> str:
    """Return an exit code in words; negative: the signal."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
