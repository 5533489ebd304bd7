"""A virtual kernel: processes that take turns in one thread, their signals, and the time.

A process is a greenlet that runs real code of ours on virtual system calls. At each of these the
seed may give the turn to another process, so any order of events that the real kernel permits can
come about, and comes about again from the same seed. Time passes when nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import itertools
import math
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from greenlet import getcurrent, greenlet
from virtual.disk import Disk, File, Inode, failed

EPOCH = 1_800_000_000.0
TICKS = 100
"""Clock ticks of /proc/PID/stat in a second."""

SYSCALL_S = 2e-6
"""Seconds that a system call takes."""

_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
_FORCE = {signal.SIGKILL, signal.SIGSTOP}

Handler = Any
Program = Callable[["Process"], "int | None"]


class Dead(BaseException):
    """A process has ended while it ran; nothing that it does from here on has any effect."""


class Stuck(Exception):
    """Nothing will ever happen any more, and somebody waits."""


class Pipe:
    """A pipe: bytes, and how many descriptors there are for each end."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.readers = self.writers = 0


class Opened:
    """What a descriptor stands for: an open file description."""

    def __init__(self, inode: Inode | None, path: str, flags: int = 0) -> None:
        self.inode, self.path, self.flags = inode, path, flags
        self.at = 0
        self.content: bytes | None = None  # of a file of /proc, as it was when it was opened
        self.pipe: Pipe | None = None
        self.writes = False
        self.process: Process | None = None  # of a pidfd
        self.count = 0


class Process:
    """A process.

    Attributes
    ----------
    machine : Machine
    pid, ticks : int
        Ticks at its start, field 22 of ``/proc/PID/stat``.
    argv : tuple of str
    environ : dict
    code : int or None
        As wait(2) codes it, once it has ended.
    began_s, ended_s : float or None
        When it began and ended, in seconds.
    """

    def __init__(self, machine: Machine, parent: Process | None, argv: Sequence[str]) -> None:
        self.machine = machine
        self.kernel = machine.kernel
        self.pid = machine.new_pid()
        self.ticks = int((machine.kernel.now - machine.booted) * TICKS) + 100
        self.parent = parent
        self.children: list[Process] = []
        if parent is not None:
            parent.children.append(self)
        self.argv = tuple(argv)
        self.environ: dict[str, str] = {}
        self.cwd = "/"
        self.fds: dict[int, Opened] = {}
        self.kept: set[int] = set()  # descriptors that exec does not close
        self.blocked: set[int] = set()
        self.pending: list[int] = []
        self.handlers: dict[int, Handler] = {}
        self.subreaper = False
        self.parent_signal = 0
        self.group = parent.group if parent else self.pid
        self.session = parent.session if parent else self.pid
        self.uid = 1000
        self.stopped = False
        self.code: int | None = None
        self.began_s = machine.kernel.now
        self.ended_s: float | None = None
        self.loop: Any = None
        self.exits: list[Callable[[], object]] = []
        self.turn: greenlet | None = None
        self.until: tuple[Callable[[], bool] | None, float | None] | None = None
        self.looked = -1  # the version of the kernel at which what it waits for was not so
        self.hangs = False
        self.name = ""
        machine.processes[self.pid] = self

    def __repr__(self) -> str:
        return f"{self.name or self.argv[0]}[{self.pid}]"

    @property
    def dead(self) -> bool:
        """Whether it has ended; its parent may not have been told."""
        return self.code is not None

    def heard(self) -> bool:
        """Return whether a signal is pending that it does not block."""
        return any(each not in self.blocked for each in self.pending)

    # Signals.

    def heeds(self, signum: int) -> Handler:
        """Return what it does about a signal."""
        return self.handlers.get(signum, signal.SIG_DFL)

    def signal(self, signum: int) -> None:
        """Send it a signal; signal(7)."""
        if self.dead or signum == 0:
            return
        if signum == signal.SIGKILL:
            self.end(-signum)
            return
        if signum == signal.SIGCONT:
            self.stopped = False
            self.pending = [each for each in self.pending if each not in {*_STOPS, signal.SIGSTOP}]
        elif signum == signal.SIGSTOP:
            self.stopped = True
            self.kernel.touched()
            return
        elif signum in _STOPS and signal.SIGCONT in self.pending:
            self.pending.remove(signal.SIGCONT)
        if signum not in self.blocked:
            heeds = self.heeds(signum)
            if heeds == signal.SIG_IGN or (heeds == signal.SIG_DFL and signum in _HARMLESS):
                self.kernel.touched()
                return
            if heeds == signal.SIG_DFL:
                self._default(signum)
                return
        if signum not in self.pending:
            self.pending.append(signum)
        self.kernel.touched()

    def _default(self, signum: int) -> None:
        if signum in _STOPS:
            self.stopped = True
            self.kernel.touched()
        elif signum not in _HARMLESS:
            self.end(-signum)

    def deliver(self) -> None:
        """Do, as this process, what its signals that are not blocked have it do."""
        while due := [each for each in self.pending if each not in self.blocked]:
            signum = due[0]
            self.pending.remove(signum)
            heeds = self.heeds(signum)
            if heeds == signal.SIG_DFL:
                self._default(signum)
                if self.dead:
                    raise Dead
            elif heeds != signal.SIG_IGN:
                heeds(signum, None)

    # Its end.

    def end(self, code: int) -> None:
        """End it, as exit(2) or a signal does: at once, wherever it is."""
        if self.dead:
            return
        kernel = self.kernel
        self.code, self.ended_s = code, kernel.now
        kernel.happened()
        kernel.tell(f"{self!r} ends: {code}")
        for fd in list(self.fds):
            kernel.close(self, fd)
        reaper = self._reaper()
        for child in self.children:
            child.parent = reaper
            reaper.children.append(child)
            if child.dead and reaper is self.machine.init:
                self.machine.reap(child)
            elif child.dead:
                reaper.signal(signal.SIGCHLD)
            elif child.parent_signal:
                child.signal(child.parent_signal)
        self.children = []
        if self.parent is self.machine.init or self.parent is None:
            self.machine.reap(self)
        else:
            self.parent.signal(signal.SIGCHLD)
        kernel.touched()
        kernel.ended(self)

    def _reaper(self) -> Process:
        above = self.parent
        while above is not None and not (above.subreaper and not above.dead):
            above = above.parent
        return above or self.machine.init

    def signals(self, signums: Sequence[int]) -> list[int]:
        """Return those signals that are pending."""
        return [each for each in self.pending if each in signums]


class Machine:
    """A node: its processes, and its clock.

    Attributes
    ----------
    skew_s : float
        What its clock says, less the true time.
    """

    def __init__(self, kernel: Kernel, name: str, disk: Disk) -> None:
        self.kernel, self.name, self.disk = kernel, name, disk
        self.processes: dict[int, Process] = {}
        self.skew_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Boot."""
        self.booted = self.kernel.now
        self.boot_id = f"{self.kernel.chance.getrandbits(128):032x}"
        self.processes.clear()
        self._freed: dict[int, float] = {}
        self._last = 0
        self.init = Process(self, None, ("init",))
        self.init.uid = 0

    def new_pid(self) -> int:
        """Return a free pid; they are used again, soon after a restart of the count."""
        while True:
            self._last = self._last % self.kernel.most_pids + 1
            # In a tick of the clock no real machine comes round to a pid again.
            freed = self._freed.get(self._last, -1.0)
            if self._last not in self.processes and self.kernel.now >= freed + 2 / TICKS:
                return self._last
            if self._last == self.kernel.most_pids:
                self.kernel.most_pids += 1

    def next_pid(self, pid: int) -> bool:
        """Have the next process get a pid; return whether it can."""
        if pid in self.processes:
            return False
        self._last = pid - 1
        return True

    def reap(self, process: Process) -> None:
        """Forget a process that has ended."""
        if self.processes.get(process.pid) is process:
            del self.processes[process.pid]
            self._freed[process.pid] = self.kernel.now
        if process.parent is not None and process in process.parent.children:
            process.parent.children.remove(process)

    def crash(self) -> None:
        """Lose everything that is in memory."""
        self.kernel.tell(f"{self.name} crashes")
        for process in list(self.processes.values()):
            if not process.dead and process is not self.init:
                process.parent, process.children = None, []
                process.end(-signal.SIGKILL)
        self.disk.crash(self.kernel.chance)
        self.begin()


class Kernel:
    """All processes of a room, the time, and whose turn it is.

    Parameters
    ----------
    seed : int
    programs : callable
        Gives the program that an argv starts; None where there is none.
    """

    def __init__(self, seed: int, programs: Callable[[Sequence[str]], Program | None]) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.programs = programs
        self.most_pids = 32_768
        self.turns = 0
        self.switches = 0.08
        """How likely a system call gives the turn to another process."""
        self._alone = 0  # system calls before it does
        self.story: list[str] = []
        self.errors: list[str] = []
        self.machines: list[Machine] = []
        self.current: Process | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._hub = getcurrent()
        self._running: dict[Process, None] = {}  # those that have a turn, in order
        self._next: Process | None = None
        self.happenings = 0
        self.upon: dict[int, Callable[[], None]] = {}
        self.upon_end: Callable[[Process], None] | None = None
        self.version = 0
        self.looks_at_signals: list[Callable[[Process, Process, int], None]] = []
        self._retired: list[Any] = []

    def tell(self, line: str) -> None:
        """Note what happened, for a person who reads the story of a seed."""
        self.story.append(f"{self.now:10.4f}  {line}")

    def happened(self) -> None:
        """Count an event after which a fault may be worst: a fork, a signal, a new name, an end."""
        self.happenings += 1
        if (what := self.upon.pop(self.happenings, None)) is not None:
            self._events.insert(0, (self.now, -1, what))
            self._alone = 0

    def machine(self, name: str) -> Machine:
        """Add a machine with a disk of its own."""
        self.machines.append(Machine(self, name, Disk(lambda: EPOCH + self.now)))
        return self.machines[-1]

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something happen at an instant."""
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def touched(self) -> None:
        """Note that something has changed that a process may wait for."""
        self.version += 1

    # Turns.

    def run(self, until: Callable[[], bool], most_s: float) -> None:
        """Give turns until a condition holds, which an event or the end of a process makes true.

        Raises
        ------
        Stuck
            It will not, or not in time.
        """
        while not until():
            if self.now > most_s:
                raise Stuck(f"not over after {most_s:g} s")
            if self._events and self._events[0][0] <= self.now:
                self._next = None
                heapq.heappop(self._events)[2]()
                continue
            process, self._next = self._next or self._chosen(), None
            if process is not None:
                self._switch(process)

    def _chosen(self) -> Process | None:
        """Return a process that can do something; if there is none, let time pass."""
        now, version = self.now, self.version
        soonest = self._events[0][0] if self._events else math.inf
        ready = []
        for process in self._running:
            if process.stopped or process.hangs:
                continue
            if process.until is None:
                ready.append(process)
                continue
            condition, deadline = process.until
            if deadline is not None:
                if now >= deadline:
                    ready.append(process)
                    continue
                if deadline < soonest:  # noqa: PLR1730  (min takes longer)
                    soonest = deadline
            if process.looked != version:
                process.looked = version
                if (condition is not None and condition()) or (process.pending and process.heard()):
                    process.looked = -1
                    ready.append(process)
        if ready:
            self.turns += 1
            return ready[int(self.chance.random() * len(ready))] if len(ready) > 1 else ready[0]
        if soonest == math.inf:
            raise Stuck("nothing will happen any more")
        self.now = max(now, soonest)
        return None

    def _switch(self, process: Process) -> None:
        self.current, process.until = process, None
        loops(process.loop)
        try:
            process.turn.switch()
        finally:
            loops(None)
            self.current = None

    def pause(self) -> None:
        """Give the turn back to whoever gives turns."""
        process = self.current
        assert process is not None
        process.loop = asyncio._get_running_loop()
        self._hub.switch()

    def sent(self, sender: Process, process: Process, signum: int) -> None:
        """Note a signal, for who checks that only ours are signalled."""
        for look in self.looks_at_signals:
            look(sender, process, signum)

    def ended(self, process: Process) -> None:
        """Leave the code of a process that has ended."""
        self._running.pop(process, None)
        if self.upon_end is not None:
            self.upon_end(process)
        turn, process.turn = process.turn, None
        if not turn or getcurrent() is turn:
            return  # it has not begun, or is over
        # Its frames are left now, as the process itself: what they do on the way has no effect.
        current, self.current = self.current, process
        loop = asyncio._get_running_loop()
        parent, turn.parent = turn.parent, getcurrent()
        try:
            with contextlib.suppress(Dead):
                turn.throw(Dead)
        finally:
            turn.parent = parent
            self.current = current
            loops(loop)

    # Processes.

    def me(self) -> Process:
        """Return the process that makes a system call, which takes a moment."""
        process = self.current
        if process is None or process.code is not None:
            # What is left of a process tidies up, too late.
            raise Dead
        self.now += SYSCALL_S
        self._alone -= 1
        if self._alone < 0:
            self._others(process)
        if process.pending:
            process.deliver()
        return process

    def _others(self, process: Process) -> None:
        """Give others a turn at a system call, if they can use it."""
        drawn = math.log(1.0 - self.chance.random())
        self._alone = int(drawn / math.log(1 - self.switches)) if self.switches else sys.maxsize
        if not (self._events and self._events[0][0] <= self.now):
            chosen = self._chosen()
            if chosen is process:
                return
            self._next = chosen
        self.pause()
        if process.code is not None:
            raise Dead

    def wait(
        self, condition: Callable[[], bool] | None = None, deadline: float | None = None
    ) -> bool:
        """Have the present process wait; return whether the condition holds.

        A signal with a handler is handled meanwhile.
        """
        process = self.current
        assert process is not None
        while True:
            if process.code is not None:
                raise Dead
            if process.pending:
                process.deliver()
            if condition is not None and condition():
                return True
            if deadline is not None and self.now >= deadline:
                return False
            process.until, process.looked = (condition, deadline), -1
            self.pause()

    def spawn(
        self,
        machine: Machine,
        argv: Sequence[str],
        environ: Mapping[str, str],
        program: Program,
        parent: Process | None = None,
    ) -> Process:
        """Start a program of the room's own, or of a test."""
        process = Process(machine, parent or machine.init, argv)
        process.environ = dict(environ)
        for fd in (0, 1, 2):
            self.open_at(process, fd, Opened(machine.disk.find("/dev/null"), "/dev/null", 2))
            process.kept.add(fd)
        self.begin(process, program)
        return process

    def fork(self, child: Callable[[], object]) -> int:
        """Start a process that inherits the present one's state and runs a function; its pid."""
        parent = self.me()
        process = Process(parent.machine, parent, parent.argv)
        process.environ = dict(parent.environ)
        process.cwd, process.uid, process.name = parent.cwd, parent.uid, parent.name
        process.blocked = set(parent.blocked)
        process.handlers = dict(parent.handlers)
        for fd, opened in parent.fds.items():
            self.open_at(process, fd, opened)
        process.kept = set(parent.kept)
        self.begin(process, lambda _: child() and None)
        self.happened()
        return process.pid

    def begin(self, process: Process, program: Program) -> None:
        """Have a process run a program from its beginning."""

        def body() -> None:
            code = 1
            try:
                code = program(process) or 0
                for last in reversed(process.exits):
                    last()
            except Dead:
                return
            except KeyboardInterrupt:
                code = -signal.SIGINT  # as Python ends for want of a handler
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else int(error.code is not None)
            except Exception as error:
                self.fault(process, error)
            if not process.dead:
                process.end(code)

        process.turn = greenlet(body, self._hub)
        self._running[process] = None
        self.touched()

    def fault(self, process: Process, error: BaseException) -> None:
        """Note that a program ended by an exception of its own."""
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        self.errors.append(f"{process!r}: {''.join(lines)}")
        self.tell(f"{process!r} raised {type(error).__name__}: {error}")

    def execute(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Replace the program of the present process; return only if there is none."""
        process = self.me()
        program = self.programs(argv)
        if program is None:
            raise failed(errno.ENOENT, argv[0])
        for fd in [fd for fd in process.fds if fd not in process.kept]:
            self.close(process, fd)
        ignored = {
            signum: heeds for signum, heeds in process.handlers.items() if heeds == signal.SIG_IGN
        }
        process.handlers, process.argv, process.environ = ignored, tuple(argv), dict(environ)
        process.loop, process.name = None, ""
        self.tell(f"{process!r} begins: {' '.join(argv)[:100]}")
        self.happened()
        old = process.turn
        self.begin(process, program)
        assert old is getcurrent()
        self._retired.append(old)
        self._hub.switch()
        raise Dead  # its frames are left when the room is

    # Descriptors.

    def open_at(self, process: Process, fd: int, opened: Opened) -> None:
        """Make a descriptor stand for something."""
        if fd in process.fds:
            self.close(process, fd)
        process.fds[fd] = opened
        opened.count += 1
        if opened.pipe is not None:
            if opened.writes:
                opened.pipe.writers += 1
            else:
                opened.pipe.readers += 1

    def open(self, process: Process, opened: Opened, least: int = 0) -> int:
        """Return a new descriptor."""
        fd = least
        while fd in process.fds:
            fd += 1
        process.kept.discard(fd)
        self.open_at(process, fd, opened)
        return fd

    def close(self, process: Process, fd: int) -> None:
        """Close a descriptor."""
        opened = process.fds.pop(fd, None)
        if opened is None:
            raise failed(errno.EBADF)
        opened.count -= 1
        if opened.pipe is not None:
            if opened.writes:
                opened.pipe.writers -= 1
            else:
                opened.pipe.readers -= 1
            self.version += 1
        if not opened.count and isinstance(opened.inode, File) and opened.inode.locked_by is opened:
            opened.inode.locked_by = None
            self.version += 1


def loops(loop: Any) -> None:
    """Have asyncio know whose loop runs in this thread."""
    asyncio._set_running_loop(loop)


def proc(  # noqa: PLR0911, PLR0912  (a table)
    machine: Machine, me: Process, path: str
) -> bytes | list[str] | str | None:
    """Return a file of /proc, the names in a directory, or where a link leads; None for nothing."""
    parts = path.split("/")[2:]
    if not parts or parts == [""]:
        return [*map(str, sorted(machine.processes)), "sys", "self"]
    if parts == ["sys", "kernel", "random", "boot_id"]:
        return f"{machine.boot_id}\n".encode()
    if parts[0] == "self":
        parts[0] = str(me.pid)
    if not parts[0].isdecimal():
        return None
    process = machine.processes.get(int(parts[0]))
    if process is None:
        return None
    if len(parts) == 1:
        return ["stat", "status", "environ", "comm", "exe", "fd", "fdinfo", "cmdline", "task"]
    if parts[1] == "task":
        # Of one thread, which is the process.
        if len(parts) == 2:
            return [str(process.pid)]
        if parts[2] != str(process.pid):
            return None
        parts = [parts[0], *parts[3:]]
    name = process.argv[0].rpartition("/")[2][:15]
    parent = process.parent.pid if process.parent else 0
    state = "Z" if process.dead else "T" if process.stopped else "S" if process.until else "R"
    match parts[1]:
        case "stat":
            rest = [state, parent, process.group, process.session, *[0] * 15, process.ticks, 0, 0]
            return f"{process.pid} ({name}) {' '.join(map(str, rest))}\n".encode()
        case "status":
            masks = {
                "SigBlk": process.blocked,
                "SigIgn": {
                    each for each, heeds in process.handlers.items() if heeds == signal.SIG_IGN
                },
                "SigCgt": {each for each, heeds in process.handlers.items() if callable(heeds)},
            }
            lines = [f"Name:\t{name}", f"State:\t{state}", f"Pid:\t{process.pid}"]
            lines += [
                f"{key}:\t{sum(1 << each - 1 for each in signums):016x}"
                for key, signums in masks.items()
            ]
            return ("\n".join(lines) + "\n").encode()
        case "environ":
            if process.dead:
                return b""
            return b"".join(f"{k}={v}\0".encode() for k, v in process.environ.items())
        case "comm":
            return f"{name}\n".encode()
        case "cmdline":
            return b"".join(each.encode() + b"\0" for each in process.argv)
        case "exe":
            return process.argv[0]
        case "fd" | "fdinfo" if len(parts) == 2:
            return [*map(str, sorted(process.fds))]
        case "fd" | "fdinfo":
            opened = process.fds.get(int(parts[2]))
            if opened is None or parts[1] == "fd":
                return opened and opened.path
            return f"pos:\t{opened.at}\nflags:\t0{opened.flags:o}\n".encode()
    return None


def close(kernel: Kernel) -> None:
    """Leave the frames of all programs, which have no effect any more."""
    nobody = Process(kernel.machines[0], None, ("nobody",))
    nobody.code = 0
    for machine in kernel.machines:
        for process in list(machine.processes.values()):
            process.code = process.code or 0
            kernel.ended(process)
    kernel.current = nobody
    for turn in kernel._retired:
        if turn:
            turn.parent = getcurrent()
            with contextlib.suppress(Dead):
                turn.throw(Dead)
    kernel.current = None
    loops(None)
