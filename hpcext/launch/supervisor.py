"""The supervisor of one attempt: it starts the command, passes signals on, and empties the tree.

All signals are blocked and handled one after the other in one loop, which sleeps in ``sigwaitinfo``
while nothing happens: no handler, no poll, no race. What is to be done because of each
:mod:`~hpcext.launch.attempt_state` decides, and the supervisor does it. It leaves ``exit.json``,
which says how the attempt ended and that none of its processes is left.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext import documents, private, protocol
from hpcext.launch import command, ending, environment, leader, stderr, tree
from hpcext.launch.attempt_events import Effect, Event, Now, heard
from hpcext.launch.attempt_facts import AttemptFacts
from hpcext.launch.attempt_processes import AttemptProcesses
from hpcext.launch.attempt_state import AttemptState
from hpcext.launch.compiled import Compiled
from hpcext.launch.launch_file import Launch
from hpcext.launch.supervisor_files import SupervisorFiles
from hpcext.process import Process

if TYPE_CHECKING:
    from hpcext.launch.mps import Seat

TAKEN = 75
"""Exit code if another supervisor has this attempt already: nothing was run."""

NOT_STARTED = 71
"""Exit code if nothing could be run, through no fault of the command (a full disk, say)."""

LOOK_S = 1.0  # for orders, and the leader of a batch job, of which no signal tells

_WAKING = {
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    protocol.NOTICE_SIGNAL,
    protocol.SUSPEND_SIGNAL,
    protocol.NEWS_SIGNAL,
}

_LEADER = {
    leader.SUSPEND: Event.LEADER_STOPPED,
    leader.HALT: Event.LEADER_STAYS_STOPPED,
    leader.CONTINUE: Event.LEADER_CONTINUED,
    leader.END: Event.LEADER_ENDED,
}


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
        stderr.say(f"nothing was run: {type(error).__name__}: {error}")
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
        self._me = Process.me()
        self._launch = Launch(launch, index)
        self._files = SupervisorFiles(directory, launch, self._launch.index)
        self._seat = _seat(launch.get("mps"))
        self._compiled = Compiled(self._launch.environ)
        self._processes = AttemptProcesses(self._me, self._seat)
        self._state = AttemptState(
            kill_grace_s=self._launch.kill_grace_s,
            suspend_timeout_s=self._launch.suspend_timeout_s,
            several=self._launch.several,
        )
        self._leader = self._launch.leader(directory)
        self._look_s = None if self._leader is None else time.monotonic()
        self._pid = 0
        self._ending = ending.Ending(self._launch.log)
        # The exit code of the command, and instants for the record, in seconds since the epoch.
        self._exit_code: int | None = None
        self._started_at = 0.0
        self._main_ended_at: float | None = None

    def claim(self) -> bool:
        """Become the only supervisor of this attempt, as :meth:`SupervisorFiles.claim` does."""
        return self._files.claim(self._me, self._launch.place())

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
        launch = self._launch
        title = command.heading(launch.attempt, launch.gpus)
        log = command.open_log(launch.log, title)
        self._ending.begins(log)
        self._started_at = time.time()
        try:
            self._pid = command.start(
                launch.argv, self._environ(), cwd=launch.cwd, log=log, notices=launch.notices
            )
        except command.CommandError as error:
            self._ending.cannot_run = str(error)
            command.write_line(log, launch.log, f"hpcext: {error}")
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
        self._step(Event.LOOK)
        while self._reap():
            if self._exit_code is not None:
                self._step(Event.REMAINDER)
            self._wait()
        if self._seat is not None:
            self._seat.leave()
        suspended = self._files.suspended()
        # No child is left, so the command has been reaped too.
        code = self._exit_code if self._exit_code is not None else NOT_STARTED
        # Every node has its supervisor, and the others may not have ended.
        self._compiled.end(completed=code == 0 and not suspended and not self._launch.several)
        self._files.record(self._end_of(code, suspended=suspended))
        if suspended:
            return protocol.EXIT_SUSPENDED
        return code if code >= 0 else 128 - code

    def _environ(self) -> dict[str, str]:
        """Return the whole environment of the command."""
        own = {"HPCEXT_NOTIFY": str(self._me), "HPCEXT_NODE_INDEX": str(self._launch.index)}
        if self._seat is not None:
            own.update(self._seat.environ())
        return environment.of_command(self._launch, own, self._compiled.variables())

    # The loop.

    def _wait(self) -> None:
        """Sleep until something happens, and do what is to be done about it."""
        deadlines = [at for at in (self._state.deadline_s, self._look_s) if at is not None]
        if deadlines:
            info = signal.sigtimedwait(_WAKING, max(0.0, min(deadlines) - time.monotonic()))
        else:
            info = signal.sigwaitinfo(_WAKING)
        if info is None:
            self._step(Event.DEADLINE)
            self._look()
            return
        event = heard(info.si_signo, notices=self._launch.notices, agent=self._launch.agent)
        if event is not None:
            self._step(event)

    def _look(self) -> None:
        """Look for what no signal tells of, if it is time to."""
        now_s = time.monotonic()
        if self._look_s is None or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        self._step(Event.LOOK)
        if self._leader is not None:
            seen = self._leader.look(now_s, saves=self._files.session() is not None)
            if seen is not None:
                self._step(_LEADER[seen])

    def _step(self, event: Event) -> None:
        """Do what is to be done because of an event."""
        facts = AttemptFacts(self._files, self._processes)
        now = Now(time.monotonic(), time.time())
        for effect in self._state.step(event, facts, now):
            if effect is Effect.HAND_NEWS_DOWN:
                self._hand_news_down()
            elif effect is Effect.TELL_MANAGER:
                if (manager := self._files.manager()) is not None:
                    manager.send(protocol.NEWS_SIGNAL)
            else:
                self._processes.affect(effect, facts)

    def _hand_news_down(self) -> None:
        """Tell the command that it is to change its size, if that is the news.

        It is told again with every news: only a launcher of ranks is ever asked, and it knows what
        it has heard already.
        """
        if self._pid and self._files.resized():
            main = Process.of(self._pid)
            if main is not None and self._exit_code is None:
                tree.tell(main, protocol.NEWS_SIGNAL)

    # The end.

    def _reap(self) -> bool:
        """Collect what has ended; return whether something is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._main_ended(os.waitstatus_to_exitcode(status))

    def _main_ended(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._main_ended_at = time.time()
        self._step(Event.MAIN_ENDED)

    def _end_of(self, exit_code: int, *, suspended: bool) -> dict[str, Any]:
        """Return how the attempt ended."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "exit_code": exit_code,
            "suspended": suspended,
            "started_at": self._started_at,
            "suspend_asked_at": self._state.suspend_requested_at,
            "kill_asked_at": self._state.end_requested_at,
            "notice_at": self._state.notice_at,
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
