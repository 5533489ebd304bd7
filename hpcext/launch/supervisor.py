"""The supervisor of one attempt: it starts the command, passes signals on, and empties the tree.

All signals are blocked and handled one after the other in one loop, which sleeps in ``sigwaitinfo``
while nothing happens: no handler, no poll, no race. It leaves ``exit.json``, which says how the
attempt ended and that none of its processes is left.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext import documents, private, protocol
from hpcext.launch import command, devices, ending, leader, tree
from hpcext.launch.compiled import Compiled
from hpcext.launch.script import Script
from hpcext.launch.supervisor_files import SupervisorFiles

if TYPE_CHECKING:
    from hpcext.launch.mps import Seat

TAKEN = 75
"""Exit code if another supervisor has this attempt already: nothing was run."""

NOT_STARTED = 71
"""Exit code if nothing could be run, through no fault of the command (a full disk, say)."""

LEFTOVER_GRACE_S = 2.0
"""Seconds that processes left over by the command get to end by SIGTERM."""

REMIND_S = 1.0
"""Seconds between two signals of a suspension.

It is repeated because pending signals are not inherited by children that are forked later, such as
the workers of a torchrun that was still importing.
"""

LOOK_S = 1.0  # for orders, and the leader of a batch job, of which no signal tells
OUTLIVED_S = 10.0
"""Seconds after its session has saved itself and left at which a command will not end by itself.

Apptainer 1.4 misses the end of its container when SIGTSTP comes to it again and again.
"""

KILL_PAUSE_S = 0.02
KILL_PAUSE_MAX_S = 1.0

_WAKING = {
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    protocol.NOTICE_SIGNAL,
    protocol.SUSPEND_SIGNAL,
    protocol.NEWS_SIGNAL,
}


_ENDS = {signal.SIGTERM, signal.SIGINT}
"""Signals by which a batch system ends a job: bkill(1) of LSF sends the second, then the first."""


def supervise(directory: str, index: int | None = None) -> int:
    """Run the attempt that a directory describes.

    Parameters
    ----------
    directory : str
        The attempt's, with ``launch.json`` in it.
    index : int, optional
        The index of this node among those of the attempt; by default the one that Slurm says, or 0.

    Returns
    -------
    int
        Exit code: 85 if the attempt was suspended, else the command's (128 + signal if killed);
        75 if another supervisor has the attempt, 71 if nothing could be run.
    """
    try:
        # Not Path.resolve: what is written down is what the manager calls it.
        path = Path(os.path.abspath(directory))
        supervisor = Supervisor(path, _launch(path), index)
        if not supervisor.claim():
            return TAKEN
        supervisor.start()
    except documents.UNFIT as error:
        sys.stderr.write(f"hpcext: nothing was run: {type(error).__name__}: {error}\n")
        return NOT_STARTED
    return supervisor.attend()


def _launch(path: Path) -> dict[str, Any]:
    """Read what to run: a file of ours, in a directory that nobody else may write to.

    Raises
    ------
    OSError, ValueError
        The directory is not such, or the file says nothing.
    """
    directory = private.open_directory(path, without=0o022)
    try:
        name = Path(protocol.LAUNCH_FILE)
        return documents.read_json(name, protocol.LAUNCH, dir_fd=directory)
    finally:
        os.close(directory)


class Supervisor:
    """The supervisor of one attempt on one node.

    Parameters
    ----------
    directory : pathlib.Path
        Absolute.
    launch : dict
        ``launch.json``.
    index : int, optional
        As in :func:`supervise`.
    """

    def __init__(self, directory: Path, launch: dict[str, Any], index: int | None = None) -> None:
        self._attempt = int(launch["attempt"])
        self._me = protocol.Process.me()
        self._argv = [str(word) for word in launch["argv"]]
        self._cwd = str(launch["cwd"])
        self._added = dict(launch["environ"])
        several = int(self._added.get("HPCEXT_NUM_NODES", 1)) > 1
        self._index = (protocol.step_index() if several else 0) if index is None else index
        self._several = several or self._index > 0
        self._files = SupervisorFiles(directory, launch, self._index)
        self._log = Path(launch["log"])
        if self._index:
            self._log = self._log.with_name(f"log.node-{self._index}.txt")
        self._gpus = len(launch["gpus"]) or int(self._added.get("HPCEXT_NUM_GPUS", 0))
        self._kill_grace_s = float(launch["kill_grace_s"])
        self._suspend_timeout_s = float(launch["suspend_timeout_s"])
        self._notices = bool(launch.get("notices"))
        self._seat = _seat(launch.get("mps"))
        self._compiled = Compiled(self._added)
        self._leader = leader.Leader.of(launch.get("leader", "none"), self._suspend_timeout_s)
        # Nodes that the manager tells apart itself, since the batch system's signals and shares do
        # not reach them.
        nodes = launch.get("nodes") or []
        self._node = dict(nodes[self._index]) if nodes else {}
        if nodes:
            remote = leader.RemoteLeader(directory)
            self._leader = leader.Leader(remote, self._suspend_timeout_s)
        self._look_s = time.monotonic() if nodes or self._leader else None
        # Who says the index of a node says also when it is to be left.
        self._agent = index is not None and not nodes
        self._warned = False
        self._pid = 0
        self._exit_code: int | None = None
        self._ending = ending.Ending(self._log)
        self._emptying = False
        # Instants for the record, in seconds since the epoch.
        self._started_at = 0.0
        self._suspend_requested_at: float | None = None
        # Suspensions declined before this one was requested; whether it must not be declined; and
        # the number of the manager's last order to suspend.
        self._declined_before = 0
        self._must = False
        self._suspend_order = 0
        self._end_requested_at: float | None = None
        self._notice_at: float | None = None
        self._script = Script(self._me)
        self._main_ended_at: float | None = None
        # Deadlines, by the monotonic clock.
        self._remind_s: float | None = None
        self._left_s: float | None = None
        self._kill_s: float | None = None
        self._kill_pause_s = KILL_PAUSE_S

    def claim(self) -> bool:
        """Become the only supervisor of this attempt, as :meth:`SupervisorFiles.claim` does."""
        return self._files.claim(self._me, self._place())

    def _place(self) -> dict[str, Any]:
        """Return where Slurm has put us, and on which GPUs."""
        if self._node:
            return {"node": str(self._node["name"])}
        place = protocol.Allocation.from_environ()
        if place is None or not place.step:
            return {}
        gpus = [f"{place.node}:{index}" for index in place.gpus]
        return {"step": place.step, "node": place.node, "gpus": gpus}

    def start(self) -> None:
        """Start the command. If it cannot be run, its log and the exit code say so.

        Raises
        ------
        OSError
            It was not tried: the log cannot be written, or no process be made.
        """
        if self._seat is not None:
            self._sit_down(self._seat)
        command.become_reaper()
        title = command.heading(self._attempt, self._gpus)
        log = command.open_log(self._log, title)
        self._ending.begins(log)
        self._started_at = time.time()
        try:
            self._pid = command.start(
                self._argv, self._environ(), cwd=self._cwd, log=log, notices=self._notices
            )
        except command.CommandError as error:
            self._ending.cannot_run = str(error)
            command.write_line(log, self._log, f"hpcext: {error}")
            self._main_ended(error.code)
        finally:
            os.close(log)

    def _sit_down(self, seat: Seat) -> None:
        """Take the seat; a failure is reported as no fault of the command's."""
        try:
            seat.take()
        except OSError as error:
            end = self._end_of(NOT_STARTED, suspended=False)
            self._files.say({**end, "not_started": f"{type(error).__name__}: {error}"})
            raise

    def attend(self) -> int:
        """See to the command until its last process has ended; return the exit code."""
        self._obey()
        while self._reap():
            self._react(self._wait())
        if self._seat is not None:
            self._seat.leave()
        suspended = self._files.suspended()
        # No child is left, so the command has been reaped too.
        code = self._exit_code if self._exit_code is not None else NOT_STARTED
        # Every node has its supervisor, and the others may not have ended.
        self._compiled.end(completed=code == 0 and not suspended and not self._several)
        self._files.record(self._end_of(code, suspended=suspended))
        if suspended:
            return protocol.EXIT_SUSPENDED
        return code if code >= 0 else 128 - code

    def _environ(self) -> dict[str, str]:
        """Return the whole environment of the command."""
        environ = dict(protocol.environ())
        if devices.name() in self._added:
            environ = devices.without(environ)
        environ.update(self._added)
        environ["HPCEXT_NOTIFY"] = str(self._me)
        environ["HPCEXT_NODE_INDEX"] = str(self._index)
        if self._seat is not None:
            environ.update(self._seat.environ())
        if (positions := self._node.get("gpus")) is not None:
            own = _devices(environ, positions)
            environ = {**devices.without(environ), **devices.naming(own)}
        for name, value in self._compiled.variables().items():
            environ.setdefault(name, value)
        # As torchrun sets it for its workers, so that one process and several compute alike.
        environ.setdefault("OMP_NUM_THREADS", "1")
        # torchrun kills, after 30 s by default, ranks that are still saving (torch/distributed/
        # launcher/api.py reads this as an int).
        timeout_s = math.ceil(self._suspend_timeout_s)
        environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(timeout_s))
        return environ

    # The loop.

    def _wait(self) -> int | None:
        """Sleep until a signal that concerns us; return None if a deadline has passed."""
        deadlines = [at for at in (self._remind_s, self._kill_s, self._look_s) if at is not None]
        if not deadlines:
            return signal.sigwaitinfo(_WAKING).si_signo
        pause_s = max(0.0, min(deadlines) - time.monotonic())
        info = signal.sigtimedwait(_WAKING, pause_s)
        return info.si_signo if info else None

    def _react(self, signum: int | None) -> None:
        if signum in {protocol.SUSPEND_SIGNAL, *_ENDS} and self._agent:
            # The batch system sends this to all processes that it knows; the agent's word counts.
            self._warn()
        elif signum == protocol.SUSPEND_SIGNAL:
            self._suspend()
        elif signum == protocol.NEWS_SIGNAL:
            # A session that has just registered has not heard of an earlier suspension.
            if self._suspend_requested_at is not None:
                self._signal_suspend()
            if self._script.stopped and self._files.suspended():
                self._script.release(suspended=True)
            self._obey()
            self._hand_down()
            self._relay()
        elif signum == signal.SIGTERM and not self._notices:
            self._end()
        elif signum == signal.SIGINT and self._notices:
            # bkill(1) sends SIGTERM later, which ends what does not save itself now.
            self._notice(ends=False)
        elif signum in {signal.SIGTERM, protocol.NOTICE_SIGNAL} and self._notices:
            self._notice()
        elif signum is None:
            self._overdue(time.monotonic())

    def _obey(self) -> None:
        """Do what the manager has written down where its signals do not reach us."""
        order, number = self._files.order()
        new = self._suspend_requested_at is None and number > self._suspend_order
        if order == "suspend" and new:
            self._suspend_order = number
            self._suspend()
        elif order == "end" and self._end_requested_at is None:
            self._end()

    def _suspend(self, *, must: bool = False) -> None:
        """Request a suspension of the session; if it must, again even after it has declined."""
        self._must = self._must or must
        if self._suspend_requested_at is None:
            self._suspend_requested_at = time.time()
            self._declined_before = self._files.declined()
        self._signal_suspend()

    def _has_declined(self) -> bool:
        """Return whether the session has declined this suspension; then it is left to train."""
        if self._must or self._files.declined() <= self._declined_before:
            return False
        self._suspend_requested_at = self._remind_s = None
        self._script.release(suspended=False)
        return True

    @staticmethod
    def _here(
        session: protocol.Process | None, processes: Sequence[protocol.Process]
    ) -> protocol.Process | None:
        """Return the process of a session if it still runs below us.

        The pid that it reports means nothing on another node, nor outside of a container.
        """
        here = tree.known_inside_as(session, processes) if session is not None else None
        return here if here is not None and here.alive() else None

    def _warn(self) -> None:
        """Note that the batch system wants the node back, which the agent will tell in a moment.

        Ranks that change in place may have left by then.
        """
        self._warned = True
        self._spare()

    def _spare(self) -> None:
        """Stop emptying the tree if only a shell died, of the signal that we have just got."""
        if self._emptying and self._end_requested_at is None:
            self._emptying, self._kill_s = False, None

    def _notice(self, *, ends: bool = True) -> None:
        """Handle that the batch system wants the node back, and kills what is left after a grace.

        A session has time to save. A command without one is ended as the batch system would have
        done it.
        """
        self._notice_at = self._notice_at or time.time()
        if self._files.session() is not None:
            self._spare()
            self._suspend(must=True)
        elif ends:
            self._end()

    def _end(self) -> None:
        self._end_requested_at = self._end_requested_at or time.time()
        self._empty(self._kill_grace_s)

    def _overdue(self, now_s: float) -> None:
        if self._kill_s is not None and now_s >= self._kill_s:
            self._signal_tree(signal.SIGKILL)
            # Until the tree is empty, since it may fork while it is killed.
            self._kill_s = time.monotonic() + self._kill_pause_s
            self._kill_pause_s = min(2 * self._kill_pause_s, KILL_PAUSE_MAX_S)
        if self._remind_s is not None and now_s >= self._remind_s:
            self._signal_suspend()
        if self._look_s is not None and now_s >= self._look_s:
            self._look_s = time.monotonic() + LOOK_S
            self._obey()
            if self._leader is not None:
                self._follow(self._leader.look(now_s, saves=self._files.session() is not None))

    def _follow(self, signum: int | None) -> None:
        """Do what the batch system did to the leader of its job, which is in another session."""
        if signum == leader.SUSPEND:
            self._suspend(must=True)
        elif signum == leader.END:
            self._empty(LEFTOVER_GRACE_S)
        elif signum == leader.CONTINUE or (signum == leader.HALT and self._kill_s is None):
            # What is told to end must be able to.
            self._signal_tree(signum)

    def _signal_suspend(self) -> None:
        """Send the signal of a suspension to the tree, now and once in a while."""
        if self._kill_s is not None or self._has_declined():
            return
        processes = self._tree()
        session = self._here(self._files.session(), processes)
        if session is None and self._outlives(time.monotonic()):
            self._empty(LEFTOVER_GRACE_S)
            return
        if session is not None:
            steps = [each for each in processes if tree.program(each) == "srun"]
            self._script.stop([session, *steps])
        else:
            self._script.release(suspended=self._files.suspended() or self._cut_off())
        for process in processes:
            tree.tell(process, protocol.SUSPEND_SIGNAL)
        self._remind_s = time.monotonic() + REMIND_S

    def _cut_off(self) -> bool:
        """Return whether a session that is gone was ended by the batch system, amid its work.

        The daemons of ``mpirun`` on several nodes are a step of Slurm's, which is sent SIGTERM, and
        take their ranks along. What the script has after them is not to run, nor to count as done.
        """
        return self._notice_at is not None and self._files.unsaved()

    def _outlives(self, now_s: float) -> bool:
        """Return whether the command is still here long after its session has saved and left."""
        # The session of several nodes is rank 0's, which may be on another one.
        if self._several or not self._files.suspended():
            return False
        self._left_s = self._left_s or now_s
        return now_s >= self._left_s + OUTLIVED_S

    def _empty(self, grace_s: float) -> None:
        """Tell the whole tree to end, and kill it when the grace is over."""
        kill_s = time.monotonic() + grace_s
        if self._kill_s is None or kill_s < self._kill_s:
            self._kill_s = kill_s
        self._remind_s = None
        self._emptying = self._exit_code is not None
        # A stopped process would not hear of it.
        self._signal_tree(signal.SIGTERM, signal.SIGCONT)

    def _signal_tree(self, *signums: int) -> None:
        processes = self._tree()
        if self._seat is not None:
            self._seat.release([each for each in processes if tree.ends(each, *signums)])
        for process in processes:
            tree.send(process, *signums)

    def _tree(self) -> list[protocol.Process]:
        try:
            below = tree.descendants(self._me.pid)
            if not any(tree.program(process) == "srun" for process in below):
                return below
            # Processes of a script's step on this node are not descendants of its srun.
            elsewhere = tree.marked([f"HPCEXT_NOTIFY={self._me}"])
            return list(dict.fromkeys([*below, *elsewhere]))
        except OSError as error:
            # The machine has no descriptors left; but suspensions and kills are repeated.
            sys.stderr.write(f"hpcext: no signal was sent: {error}\n")
            return []

    def _hand_down(self) -> None:
        """Tell the command that it is to change its size, if that is the news.

        It is told again with every news: only a launcher of ranks is ever asked, and it knows what
        it has heard already.
        """
        if self._pid and self._files.resized():
            main = protocol.Process.of(self._pid)
            if main is not None and self._exit_code is None:
                tree.tell(main, protocol.NEWS_SIGNAL)

    def _relay(self) -> None:
        """Tell the manager that there is news, if there is a manager."""
        if (manager := self._files.manager()) is not None:
            manager.send(protocol.NEWS_SIGNAL)

    # The end.

    def _reap(self) -> bool:
        """Collect what has ended; return whether something is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                if self._exit_code is not None and not self._emptying:
                    self._leftovers()
                return True
            if pid == self._pid:
                self._main_ended(os.waitstatus_to_exitcode(status))

    def _leftovers(self) -> None:
        """Deal with processes that are left after the command has ended."""
        if self._warned and self._notice_at is None and self._files.session() is not None:
            return
        session = self._files.session() if self._suspend_requested_at is not None else None
        # The session is rank 0's, which may be on another node.
        elsewhere = self._several and not self._files.suspended()
        if session is None or not (elsewhere or self._here(session, self._tree())):
            self._empty(LEFTOVER_GRACE_S)
        elif self._kill_s is None:
            # Its shell is dead, of the batch system's SIGTERM or by us; it is saving itself, or
            # has and is doing what its user wants done then.
            self._kill_s = time.monotonic() + self._suspend_timeout_s
            self._remind_s = None

    def _main_ended(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._main_ended_at = time.time()

    def _end_of(self, exit_code: int, *, suspended: bool) -> dict[str, Any]:
        """Return how the attempt ended."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "exit_code": exit_code,
            "suspended": suspended,
            "started_at": self._started_at,
            "suspend_asked_at": self._suspend_requested_at,
            "kill_asked_at": self._end_requested_at,
            "notice_at": self._notice_at,
            "main_ended_at": self._main_ended_at,
            "ended_at": time.time(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            **({} if suspended or not exit_code else self._ending.failure()),
        }


def _seat(document: Mapping[str, str] | None) -> Seat | None:
    """Return the way to an attempt's seat on a shared GPU, if that is where it runs."""
    if not document:
        return None
    # Imported here, since few attempts share a GPU, and the others need not load this.
    from hpcext.launch import mps  # noqa: PLC0415

    return mps.Seat(document)


def _devices(environ: Mapping[str, str], positions: Sequence[int]) -> str:
    """Return the GPUs to make visible: some of those that this host has for us."""
    said = devices.said(environ)
    # If nothing says which GPUs these are, they are all that can be seen.
    there = said.split(",") if said else [str(each) for each in range(max(positions) + 1)]
    if max(positions) >= len(there):
        raise ValueError(
            f"GPU number {max(positions)} was requested, but {devices.name()} lists only {said}"
        )
    return ",".join(there[each] for each in positions)
