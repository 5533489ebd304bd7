"""Starts one command once per GPU of this node, and changes how many there are as it runs.

What torchrun does on one node, and one thing more: when the manager gives the job other GPUs, new
ranks are started *beside* the ones that train, and only when they are ready does the group change
(:mod:`hpcext.rendezvous`). Nothing is restarted, nothing goes through the disk.

Standard library only, and like the supervisor one loop around ``sigwaitinfo``. A rank that fails
ends the others: the job goes on from its last checkpoint.

Run as ``python -I -S .../hpcext/launch/ranks.py RANKS COMMAND...``; RANKS 0: one for each GPU of
the attempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import protocol
from hpcext.launch import command, tree
from hpcext.rendezvous import Group, Rendezvous

KILL_GRACE_S = 5.0
"""From SIGTERM to SIGKILL, when ranks are told to end."""

REMIND_S = 0.5
"""The ranks are told of a change again so often, until they answer."""

SWEEP_PAUSE_S = 0.01
SWEEP_S = 10.0

USAGE = 2
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_WAKING = {signal.SIGCHLD, protocol.SUSPEND_SIGNAL, protocol.NEWS_SIGNAL} | _ENDING


@dataclass
class _Change:
    """A change of the group that is under way.

    Attributes
    ----------
    group : Group
        What is to become of it.
    gpus, had : tuple of str
        ``HOST:INDEX``, one for each rank: what it is to have, and what it has.
    proposed : bool
        Every new rank is ready, and the old ones know.
    """

    group: Group
    gpus: tuple[str, ...]
    had: tuple[str, ...]
    proposed: bool = False


@dataclass
class Launcher:
    """The ranks of one attempt on this node.

    Parameters
    ----------
    argv : sequence of str
    size : int
        How many ranks to begin with.
    rendezvous : Rendezvous
    attempt : protocol.Attempt or None
        None: nobody can ask for a change.
    """

    argv: Sequence[str]
    size: int
    rendezvous: Rendezvous
    attempt: protocol.Attempt | None = None
    _ranks: dict[int, tuple[int, int]] = field(default_factory=dict)  # pid → number, rank
    _number: int = 0
    _change: _Change | None = None
    _code: int | None = None
    _kill_s: float | None = None
    _port: int = 0

    def run(self) -> int:
        """Start the ranks and see to them; the exit code of the first that failed, else 0."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
        with socket.socket() as probe:
            # For scripts that form their process group themselves, as they do under torchrun.
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        try:
            for rank in range(self.size):
                self._start(rank, Group(0, self.size))
            # News that came before it could be heard.
            self._look()
            while self._reap():
                self._react(self._wait())
        except command.CommandError as error:
            sys.stderr.write(f"hpcext: {error}\n")
            self._signal_all(signal.SIGKILL)
            return error.code
        code = self._code or 0
        return code if code >= 0 else 128 - code

    # Starting.

    def _start(self, rank: int, group: Group, devices: str | None = None) -> None:
        environ = protocol.without_task()
        environ.setdefault("OMP_NUM_THREADS", "1")
        environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(group.size),
            LOCAL_WORLD_SIZE=str(group.size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self._port),
            HPCEXT_RANK=self._mark(group.number, rank),
        )
        place = Rendezvous(
            self.rendezvous.directory, launcher=protocol.Process.me(), joins=group.number
        )
        environ.update(place.environ())
        if devices is not None:
            # Every rank counts the GPUs alike: those of the ranks before it come first.
            environ["CUDA_VISIBLE_DEVICES"] = devices
        blocked = (protocol.SUSPEND_SIGNAL, protocol.NEWS_SIGNAL)
        pid = command.start(self.argv, environ, blocked=blocked, notices=self._notices())
        self._ranks[pid] = (group.number, rank)

    def _notices(self) -> bool:
        """Whether SIGTERM is the batch system's word, and not that of our supervisor."""
        return self.attempt is not None and self.attempt.notices

    def _mark(self, number: int, rank: int) -> str:
        """What all processes of one rank carry in their environment."""
        return f"{self.rendezvous.directory}/{number}/{rank}"

    # The loop.

    def _wait(self) -> int | None:
        """Sleep until something happens, or it is time to say something again."""
        deadlines = [self._kill_s] if self._kill_s is not None else []
        if self._change and self._change.proposed:
            deadlines.append(time.monotonic() + REMIND_S)
        if not deadlines:
            return signal.sigwaitinfo(_WAKING).si_signo
        info = signal.sigtimedwait(_WAKING, max(0.0, min(deadlines) - time.monotonic()))
        return info.si_signo if info else None

    def _react(self, signum: int | None) -> None:
        if signum == signal.SIGTERM and self._notices():
            # The supervisor has heard it, too, and has the ranks suspended; or kills them.
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
        """Collect the ranks that have ended; whether one is left that trains."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid in self._ranks:
                number, rank = self._ranks.pop(pid)
                self._ended(number, rank, os.waitstatus_to_exitcode(status))
        self._finish_change()
        if any(self._trains(number, rank) for number, rank in self._ranks.values()):
            return True
        # Those that were to join have nothing that could be lost.
        self._signal_all(signal.SIGKILL)
        return bool(self._ranks)

    def _trains(self, number: int, rank: int) -> bool:
        """Whether a rank belongs to the present group, not only to the next."""
        return number <= self._number or bool(self._change and self._change.proposed)

    def _ended(self, number: int, rank: int, code: int) -> None:
        if not self._trains(number, rank):
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._give_up(f"a new rank ended with {how} before it was ready")
            return
        if code == protocol.EXIT_SUSPENDED:
            self._code = self._code or code
        elif code != 0:
            self._end(code)
        elif self._change and self._change.proposed and rank >= self._change.group.size:
            self._sweep(self._mark(number, rank))

    def _end(self, code: int) -> None:
        """End every rank; the job goes on from its last checkpoint."""
        if self._kill_s is None:
            self._code = code
            self._kill_s = time.monotonic() + KILL_GRACE_S
            self._change = None
        self._signal_all(signal.SIGTERM, signal.SIGCONT)

    def _signal_all(self, *signums: int) -> None:
        for process in self._processes():
            tree.send(process, *signums)

    def _processes(self) -> list[protocol.Process]:
        found = (protocol.Process.of(pid) for pid in self._ranks)
        return [process for process in found if process]

    # Changing the group.

    def _look(self) -> None:
        if self._change is None:
            self._begin_change()
        change = self._change
        if change is None:
            return
        number, size = change.group.number, change.group.size
        if not change.proposed:
            new = [rank for joins, rank in self._ranks.values() if joins == number]
            if len(new) < size - self.size or not all(
                self.rendezvous.is_ready(number, rank) for rank in new
            ):
                return
            self.rendezvous.propose(change.group)
            change.proposed = True
        answer = self.rendezvous.answer(number)
        if answer is None:
            for pid, (_, rank) in self._ranks.items():
                first = protocol.Process.of(pid) if rank == 0 else None
                if first:
                    tree.tell(first, protocol.NEWS_SIGNAL)
        elif answer.why:
            change.proposed = False
            self._give_up(answer.why)
        else:
            self._finish_change()

    def _begin_change(self) -> None:
        """Take up what the manager asks for, if it is new."""
        if self.attempt is None:
            return
        try:
            asked = protocol.read_json(
                self.attempt.report_dir / protocol.RESCALE_FILE, protocol.RESCALE
            )
            if (asked["attempt"], asked["op"]) != (self.attempt.attempt, self.attempt.op):
                return
            number, devices = int(asked["resize"]), str(asked["devices"])
            gpus, had = (tuple(str(gpu) for gpu in asked[key]) for key in ("gpus", "had"))
        except (OSError, ValueError, LookupError, TypeError):
            return
        if number <= self._number or not gpus:
            return
        group = Group(number, len(gpus), kept=min(self.size, len(gpus)))
        self._change = _Change(group, gpus, had)
        try:
            for rank in range(self.size, len(gpus)):
                self._start(rank, group, devices)
        except (OSError, command.CommandError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        """The ranks stay as they are: end the new ones, and say so."""
        change = self._change
        if change is None:
            return
        self._change = None
        for pid, (number, rank) in list(self._ranks.items()):
            if number == change.group.number:
                del self._ranks[pid]
                self._sweep(self._mark(number, rank))
        self._number = change.group.number
        self._say(change.group.number, ok=False, why=why, gpus=change.had)

    def _finish_change(self) -> None:
        """Say that the group has changed, once the ranks that leave have ended."""
        change = self._change
        if change is None or not change.proposed:
            return
        answer = self.rendezvous.answer(change.group.number)
        left = [rank for _, rank in self._ranks.values() if rank >= change.group.size]
        if answer is None or answer.why or left:
            return
        self.size, self._number, self._change = change.group.size, change.group.number, None
        self._say(change.group.number, ok=True, gpus=change.gpus, stall_s=answer.stall_s)

    def _sweep(self, mark: str) -> None:
        """End what a rank left behind: its GPU is not free before."""
        until_s = time.monotonic() + SWEEP_S
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                found = tree.marked([f"HPCEXT_RANK={mark}"])
                if not found:
                    return
                for process in found:
                    tree.send(process, signal.SIGKILL)
            time.sleep(SWEEP_PAUSE_S)

    def _say(self, number: int, **facts: Any) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        document = {
            "schema": protocol.RESCALED,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "resize": number,
            "at": time.time(),
            **facts,
        }
        # Should it not be written, the manager's deadline falls back to a suspension.
        with contextlib.suppress(OSError):
            path = attempt.report_dir / protocol.RESCALED_FILE
            protocol.write_json(path, document, durable=False)
        if attempt.notify is not None:
            attempt.notify.send(protocol.NEWS_SIGNAL)


def launch(argv: Sequence[str], size: int, environ: Mapping[str, str]) -> int:
    """Run a command once per GPU.

    Parameters
    ----------
    argv : sequence of str
    size : int
        How many ranks; 0: one for each GPU of the attempt, one if there is no attempt.
    environ : Mapping[str, str]

    Returns
    -------
    int
        Exit code.
    """
    try:
        attempt = protocol.Attempt.from_environ(environ)
    except ValueError as error:
        sys.stderr.write(f"hpcext: {error}\n")
        return USAGE
    if attempt is not None and attempt.num_nodes > 1:
        sys.stderr.write(
            f"hpcext: launch: the job has {attempt.num_nodes} nodes, and this release starts the "
            "ranks of one; use torchrun\n"
        )
        return USAGE
    size = size or (attempt.num_gpus if attempt else 1)
    directory = Path(tempfile.mkdtemp(prefix="hpcext-ranks-"))
    try:
        return Launcher(argv, size, Rendezvous(directory), attempt).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    code = launch(sys.argv[2:], int(sys.argv[1]), protocol.environ())
    sys.stderr.flush()
    os._exit(code)
