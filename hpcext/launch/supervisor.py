"""The supervisor of one attempt: it starts the command, passes signals on, and empties the tree.

All signals are blocked and handled one after the other in one loop, which sleeps in ``sigwaitinfo``
while nothing happens: no handler, no poll, no race. :mod:`~hpcext.launch.attempt_state` decides the
effects of each, and the supervisor carries them out. At the end it writes ``exit.json``, which says
how the attempt ended and that none of its processes is left.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext import protocol
from hpcext.launch import command, ending, environment, leader, stacks, tree
from hpcext.launch.attempt_events import Effect, Event, Now, Phase, Suspension, heard
from hpcext.launch.attempt_facts import AttemptFacts
from hpcext.launch.attempt_processes import AttemptProcesses
from hpcext.launch.attempt_state import AttemptState
from hpcext.launch.compiled import Compiled
from hpcext.launch.launch_file import Launch
from hpcext.launch.supervisor_files import SupervisorFiles
from hpcext.process import Process

if TYPE_CHECKING:
    from hpcext.launch.mps import Seat
    from hpcext.launch.native import Native
    from hpcext.launch.transparent.saver import Transparent

NOT_STARTED = 71
"""Exit code if the command could not be run for another reason, such as a full disk."""

LOOK_S = 1.0  # for orders, and the leader of a batch job, which no signal announces

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


class Supervisor:
    """The supervisor of one attempt on one node.

    Parameters
    ----------
    directory : pathlib.Path
        Absolute.
    launch : dict
        ``launch.json``.
    index : int, optional
        As in :func:`hpcext.launch.supervision.supervise`.
    keeps : bool
        Whether this process has kept those of an earlier attempt, so that this one can go on.
    """

    def __init__(
        self,
        directory: Path,
        launch: dict[str, Any],
        index: int | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._keeps = keeps
        self._me = Process.me()
        self._launch = Launch(launch, index)
        self._files = SupervisorFiles(directory, launch, self._launch.index)
        self._seat = self._launch.seat()
        self._compiled = Compiled(self._launch.environ)
        self._native = self._launch.native(directory, protocol.environ())
        # What asks a command to save is not to be mistaken for what only says that it is time.
        by = None if self._native is None else self._native.signum
        self._spared = self._launch.notices and self._native is not None and by != signal.SIGTERM
        self._container = self._launch.container(directory)
        self._processes = AttemptProcesses(
            self._me, self._seat, self._native, spared=self._spared, container=self._container
        )
        self._state = AttemptState(
            kill_grace_s=self._launch.kill_grace_s,
            suspend_timeout_s=self._launch.suspend_timeout_s,
            several=self._launch.several,
        )
        self._leader = self._launch.leader(directory)
        # A manager cannot send news by a signal that a whole step gets, and that asks to save.
        looks = self._leader is not None or (self._launch.notices and by is protocol.NEWS_SIGNAL)
        self._look_s = time.monotonic() if looks else None
        self._pid = 0
        self._ending = ending.Ending(self._launch.log, self._launch.nvidia())
        # The exit code of the command, and instants for the record, in seconds since the epoch.
        self._exit_code: int | None = None
        self._cut_off = False
        self._started_at = 0.0
        # The same by the clock that nobody sets, to know how long it ran.
        self._started_s: float | None = None
        self._main_ended_s: float | None = None
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
        try:
            self._start()
        except OSError as error:
            if self._seat is not None:
                self._seat.leave()
            if error.errno in command.PASSING:
                self._not_started(f"{type(error).__name__}: {error}")
            raise

    def _start(self) -> None:
        """Start the command, or let it go on, with its log open."""
        command.become_reaper()
        launch = self._launch
        log = command.open_log(launch.log, command.heading(launch.attempt, launch.gpus))
        self._ending.begins(log)
        self._started_at, self._started_s = time.time(), time.monotonic()
        try:
            self._pid = self._goes_on(log) or self._begin(log)
            if self._native is not None:
                self._native.main = self._pid
        except command.CommandError as error:
            self._ending.cannot_run = str(error)
            self._ending.no_directory = isinstance(error, command.DirectoryError)
            command.sayer(log, launch.log)(str(error))
            self._main_ended(error.code)
        finally:
            os.close(log)

    def _begin(self, log: int) -> int:
        """Start the command anew; return its pid."""
        launch, native = self._launch, self._native
        say = command.sayer(log, launch.log)
        argv = [*launch.argv, *(native.begin(say) if native is not None else ())]
        environ = self._environ()
        asked_by = native.signum if native is not None else None
        if self._container is not None:
            argv = self._container.begin(
                argv,
                environ,
                environment.added(launch, environ),
                command.ignored(launch.notices, spared=self._spared, asked_by=asked_by),
                say,
            )
        return command.start(
            argv,
            environ,
            cwd=launch.cwd,
            log=log,
            notices=launch.notices,
            spared=self._spared,
            asked_by=asked_by,
            no_new_privs=native is not None and native.no_new_privs,
        )

    def _goes_on(self, log: int) -> int | None:
        """Let what was suspended as it is go on; return its pid, or None if there is none."""
        if self._native is None:
            return None
        try:
            pid = self._native.resume(command.sayer(log, self._launch.log))
            self._keeps = False
            return pid
        except OSError as error:
            # It cannot be tried now, and nothing is lost by that.
            self._not_started(str(error))
            raise

    def _not_started(self, why: str) -> None:
        """Record a failure to start the command that is no fault of its own."""
        self._record({**self._end_of(NOT_STARTED, suspended=False), "not_started": why})

    def _record(self, end: dict[str, Any]) -> None:
        self._files.record(end)
        if self.stays:
            # Our end would tell it of the attempt's.
            self._tell_manager()

    def _sit_down(self, seat: Seat) -> None:
        """Take the seat; a failure is reported as no fault of the command's."""
        try:
            seat.take()
        except OSError as error:
            self._not_started(f"{type(error).__name__}: {error}")
            raise

    @property
    def stays(self) -> bool:
        """Whether the processes have stopped and stay in memory, for the next attempt."""
        return self._keeps or (self._native is not None and self._native.resident)

    def attend(self) -> int:
        """See to the command until its last process has ended or stays; return the exit code."""
        if self._native is not None:
            # From now on it can be suspended.
            self._tell_manager()
        self._step(Event.LOOK)
        while tree.reap(self._child_ended):
            if self.stays:
                break
            if self._exit_code is not None:
                self._step(Event.REMAINDER)
            self._wait()
        if self._seat is not None:
            self._seat.leave()
        self._hear_last_notice()
        # Either all have stopped, or no child is left, so the command has been reaped too.
        ended = self._exit_code if self._exit_code is not None else NOT_STARTED
        code = -signal.SIGSTOP if self.stays else ended
        suspended = self._files.suspended() or self._saved_natively(code)
        # Every node has its supervisor, and the others may not have ended.
        self._compiled.end(completed=code == 0 and not suspended and not self._launch.several)
        self._record(self._end_of(code, suspended=suspended))
        if suspended:
            return protocol.EXIT_SUSPENDED
        return code if code >= 0 else 128 - code

    def _hear_last_notice(self) -> None:
        """Wait for the notice that may have ended the command, if nothing else tells why it did."""
        saves = self._native is not None and not self._spared
        if not self._launch.notices or (self._state.told and not saves):
            return
        if signal.sigtimedwait({signal.SIGTERM}, ending.notice_s(self._exit_code, saves=saves)):
            self._noticed({signal.SIGTERM})
            self._step(Event.WARNING)

    def _saves_natively(self) -> Native | Transparent | None:
        """Return how the command saves by its own means, unless it has a session, which counts."""
        return self._native if self._files.session() is None else None

    def _saved_natively(self, exit_code: int) -> bool:
        """Return whether a command that was to be suspended has saved by its own means."""
        native, requested = self._saves_natively(), self._state.suspension is not Suspension.NONE
        if native is None or not (requested or native.noticed):
            return False
        return native.acknowledged(exit_code, cut_off=self._cut_off, released=self._state.released)

    def _environ(self) -> dict[str, str]:
        """Return the whole environment of the command."""
        own = {"HPCEXT_NOTIFY": str(self._me), "HPCEXT_NODE_INDEX": str(self._launch.index)}
        own |= {} if self._seat is None else self._seat.environ()
        environ = environment.of_command(self._launch, own, self._compiled.variables())
        return environ if self._native is None else {**environ, **self._native.variables(environ)}

    # The loop.

    def _wait(self) -> None:
        """Sleep until something happens, and handle it."""
        deadlines = [at for at in (self._state.deadline_s, self._look_s) if at is not None]
        if deadlines:
            info = signal.sigtimedwait(_WAKING, max(0.0, min(deadlines) - time.monotonic()))
        else:
            info = signal.sigwaitinfo(_WAKING)
        if info is None:
            self._step(Event.DEADLINE)
            self._look()
            return
        # Those that wait come in the order of their numbers.
        self._noticed({info.si_signo, *signal.sigpending()})
        event = heard(info.si_signo, notices=self._launch.notices, agent=self._launch.agent)
        if event is not None:
            self._step(event)

    def _noticed(self, signums: Collection[int]) -> None:
        """Note signals that the batch system may have sent to the command, too."""
        if self._native is not None and self._launch.notices:
            self._native.notice(signums)

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
        """Carry out the effects of an event."""
        facts = AttemptFacts(self._files, self._processes, self._native)
        now = Now(time.monotonic(), time.time())
        effects = self._state.step(event, facts, now)
        if self._native is not None and self._launch.stays:
            required = self._state.suspension is Suspension.REQUIRED
            if required or facts.order[0] == "leave":
                self._native.leave()
        for effect in effects:
            if effect is Effect.HAND_NEWS_DOWN:
                self._hand_news_down()
            elif effect is Effect.TELL_MANAGER:
                self._tell_manager()
            elif effect is Effect.WRITE_STACKS:
                stacks.write(facts.processes, self._launch.log, self._environ().get("PATH"))
            else:
                self._processes.affect(effect, facts)

    def _tell_manager(self) -> None:
        if (manager := self._files.manager()) is not None:
            manager.send(protocol.NEWS_SIGNAL)

    def _hand_news_down(self) -> None:
        """Tell the command to change its size, if that is the news.

        It is told again with all later news: only a launcher of ranks ever gets such an order, and
        it recognises one that it has had already.
        """
        if self._pid and self._files.resized():
            main = self._processes.command(self._pid)
            if main is not None and self._exit_code is None:
                tree.tell(main, protocol.NEWS_SIGNAL)

    # The end.

    def _child_ended(self, pid: int, exit_code: int) -> None:
        if pid == self._pid:
            self._main_ended(exit_code)
            return
        helped = self._native is not None and self._native.helper_ended(pid, exit_code)
        if helped and self._state.suspension is not Suspension.NONE:
            # What the helper has done is known now.
            self._step(Event.SUSPEND)

    def _main_ended(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._cut_off = self._state.phase is Phase.ENDING
        self._main_ended_at, self._main_ended_s = time.time(), time.monotonic()
        self._step(Event.MAIN_ENDED)

    def _ran_s(self) -> float:
        """Return how long the command ran, in seconds; 0 if it was never begun."""
        if self._started_s is None:
            return 0.0
        return (self._main_ended_s or time.monotonic()) - self._started_s

    def _end_of(self, exit_code: int, *, suspended: bool) -> dict[str, Any]:
        """Return how the attempt ended."""
        notice_at, asked_at = self._state.notice_at, self._state.end_requested_at
        if self._files.session() is None:
            notice_at = self._state.noticed_at
            ended_at = self._main_ended_at or time.time()
            # A batch system sends its notices to every process: what ends well then was told to.
            if exit_code == 0 and notice_at and notice_at <= ended_at + ending.LAST_NOTICE_S:
                asked_at = asked_at or notice_at
        native = self._saves_natively()
        went_on = exit_code == 0 and not suspended and native and native.went_on()
        if went_on:
            # A manager of an older release knows no more of it than that it has not completed.
            asked_at = asked_at or self._state.suspend_requested_at
            command.note(self._launch.log, ending.WENT_ON)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        checkpoint = native and native.account(
            acknowledged=suspended,
            cut_off=self._cut_off,
            ran_s=self._ran_s(),
            ended_at=self._main_ended_at or time.time(),
        )
        return {
            "exit_code": exit_code,
            "suspended": suspended,
            "started_at": self._started_at,
            "suspend_asked_at": self._state.suspend_requested_at,
            "kill_asked_at": asked_at,
            "notice_at": notice_at,
            "main_ended_at": self._main_ended_at,
            "ended_at": time.time(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            **({"checkpoint": checkpoint} if checkpoint else {}),
            **({"went_on": True} if went_on else {}),
            **({"stays": True} if self.stays else {}),
            **({} if suspended or not exit_code else self._ending.failure()),
        }
