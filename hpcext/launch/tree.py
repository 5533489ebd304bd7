"""Processes of this machine: children that end, descendants, those marked in their environment."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Iterator

from hpcext.numerals import whole
from hpcext.process import Process, read_proc

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors when a process has just ended or is not ours."""

_EXITING = 0x4
"""``PF_EXITING`` of the flags in ``/proc/PID/stat``; Linux, include/linux/sched.h."""

_tgkill = getattr(ctypes.CDLL(None), "tgkill", None)


def boot_id() -> str:
    """Return what tells this boot of the machine from all others; random(4)."""
    return read_proc("sys/kernel/random/boot_id").decode("ascii").strip()


def reap(ended: Callable[[int, int], object]) -> bool:
    """Collect the children of this process that have ended; return whether one is left.

    Parameters
    ----------
    ended : callable
        Called with the pid and the exit code of each; negative: the signal that killed it.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        ended(pid, os.waitstatus_to_exitcode(status))


def descendants(root: int) -> list[Process]:
    """Return every process below one, parents before children.

    A process group is not enough: torchrun puts each worker into a session of its own. Below a
    sub-reaper nothing escapes, because orphans become its children.

    Parameters
    ----------
    root : int
        A pid; not part of the result.

    Raises
    ------
    OSError
        Not all processes could be examined.
    """
    children: dict[int, list[Process]] = {}
    for pid in _pids():
        if facts := _stat(pid):
            children.setdefault(facts[0], []).append(Process(pid, facts[1]))
    found: list[Process] = list(children.get(root, ()))
    # The list grows while it is walked.
    for process in found:
        found.extend(children.get(process.pid, ()))
    return found


def ancestors(pid: int, root: int) -> list[Process]:
    """Return the processes between one and an ancestor of it, nearest first, without these two.

    Parameters
    ----------
    pid, root : int
        The process, and its ancestor.
    """
    found: list[Process] = []
    while (facts := _stat(pid)) and facts[0] not in {0, root}:
        pid = facts[0]
        if parent := _stat(pid):
            # It may have ended by now, and still be above.
            found.append(Process(pid, parent[1]))
    return found


def known_inside_as(name: Process, processes: Iterable[Process]) -> Process | None:
    """Return which process calls itself so, or None.

    In a pid namespace of its own, as some containers make one, a process has another pid than the
    one it has here; pid_namespaces(7).

    Parameters
    ----------
    name : Process
        With the pid of the innermost namespace.
    processes : iterable of Process
        Those to choose from.
    """
    return next(
        (each for each in processes if each.start == name.start and _own_pid(each) == name.pid),
        None,
    )


def program(process: Process) -> str:
    """Return the name of the program that a process runs; empty if it cannot be known."""
    try:
        return os.path.basename(os.readlink(f"/proc/{process.pid}/exe"))
    except OSError:
        return ""


def title(process: Process) -> str:
    """Return the name that a process has given itself, of at most 15 bytes; proc(5).

    Everybody may read it, also of a set-uid program, whose file may not be known.
    """
    found = re.search(rb"^Name:\t(.*)$", _status(process), re.MULTILINE)
    return os.fsdecode(found[1]) if found else ""


def end_of(process: Process) -> int | None:
    """Return the exit code of a process that has ended and was not reaped yet; negative: a signal.

    It is unknown, None, while the process runs, and once its parent has heard of its end. It is
    field 52 of ``/proc/PID/stat``, which the same user may read; proc(5).
    """
    try:
        text = read_proc(f"{process.pid}/stat")
    except _GONE:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    if len(fields) < 50 or fields[0] != b"Z" or int(fields[19]) != process.start:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def send(process: Process, *signums: int) -> bool:
    """Send signals to this very process, even if its first thread is dead; return if it exists."""
    try:
        fd = os.pidfd_open(process.pid)
    except (OSError, OverflowError):
        return False
    try:
        # Checked after it was opened: if that process still has the pid, the pidfd is of it.
        facts = _stat(process.pid)
        if facts is None or facts[1] != process.start:
            return False
        for signum in signums:
            signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def tell(process: Process, signum: int) -> None:
    """Send a signal to a process that blocks it, and again to its first thread alone.

    A process that the signal would stop or end, because it does nothing about it, does not get it:
    the step of an ``srun`` begins with the default actions.

    A shell may pass the signal on unblocked (dash clears the mask of what it forks), so threads
    that libraries start at import leave it unblocked although a session blocks it later. Such a
    thread takes a signal that is sent to the process and, as it is ignored, drops it. It cannot
    take what is sent to the first thread, where a session looks.
    """
    if _minds(process, signum) and send(process, signum) and _tgkill is not None:
        _tgkill(process.pid, process.pid, int(signum))


def ends(process: Process, *signums: int) -> bool:
    """Return whether signals would end a process at once, as it does not handle them."""
    deadly = {signal.SIGKILL, signal.SIGTERM}.intersection(signums)
    return signal.SIGKILL in deadly or any(not _minds(process, each) for each in deadly)


def _does(process: Process, signum: int) -> tuple[bool, bool, bool]:
    """Return whether a process blocks, ignores and handles a signal; proc(5)."""
    masks = dict(re.findall(rb"^Sig(Blk|Ign|Cgt):\s*([0-9a-f]+)", _status(process), re.MULTILINE))
    blocked, ignored, caught = (
        bool(int(masks.get(name, b"0"), 16) >> (signum - 1) & 1)
        for name in (b"Blk", b"Ign", b"Cgt")
    )
    return blocked, ignored, caught


def _minds(process: Process, signum: int) -> bool:
    """Return whether a process blocks, ignores or handles a signal."""
    return any(_does(process, signum))


def handles(process: Process, signum: int) -> bool:
    """Return whether a process does something about a signal: handles it, or waits for it."""
    blocked, ignored, caught = _does(process, signum)
    return caught or (blocked and not ignored)


def ignores(process: Process, signum: int) -> bool:
    """Return whether a process ignores a signal."""
    _, ignored, _ = _does(process, signum)
    return ignored


def still(pid: int) -> bool:
    """Return whether a process does nothing: each of its threads is stopped, or has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except _GONE:
        return True
    return all(thread_state(pid, tid) in b"TtZX" for tid in threads)


def thread_state(pid: int, tid: str) -> bytes:
    """Return the letter for the state of a thread; X for one that has ended; proc(5)."""
    try:
        text = read_proc(f"{pid}/task/{tid}/stat")
    except _GONE:
        return b"X"
    return text[text.rindex(b")") + 2 :][:1]


def _own_pid(process: Process) -> int:
    """Return the pid that a process has in its own namespace; proc(5)."""
    pids = re.search(rb"^NSpid:.*\s([0-9]+)$", _status(process), re.MULTILINE)
    return int(pids[1]) if pids else process.pid


def _status(process: Process) -> bytes:
    """Return the contents of ``/proc/PID/status``; empty for a process that has ended."""
    try:
        with open(f"/proc/{process.pid}/status", "rb", buffering=0) as file:
            return file.read()
    except _GONE:
        return b""


def marked(marks: Collection[str]) -> list[Process]:
    """Return processes of this user that were started with one of these variables.

    Parameters
    ----------
    marks : collection of str
        ``NAME=VALUE``, whole.

    Raises
    ------
    OSError
        Not all processes could be examined.
    """
    wanted = {os.fsencode(mark) for mark in marks}
    found = []
    for pid in _pids():
        if wanted.isdisjoint(_environ(pid)):
            continue
        process = Process.of(pid)
        # Checked again, now that it is certain which process this is.
        if process is not None and not wanted.isdisjoint(_environ(pid)):
            found.append(process)
    return found


def kill_marked(marks: Collection[str], victims: set[Process]) -> bool:
    """Kill marked processes and earlier victims; return whether any of them is left.

    Parameters
    ----------
    marks : collection of str
        As in :func:`marked`.
    victims : set of Process
        Those that were chosen before; what is found is added.
    """
    try:
        found = marked(marks)
    except OSError:
        return True  # Not all of them could be looked at.
    victims.update(found)
    for process in victims:
        send(process, signal.SIGKILL)
    # Look once more if a process was found, which may have forked.
    return bool(found) or any(process.alive() for process in victims)


def dying(since: int) -> list[Process]:
    """Return processes of this user that are about to end.

    They have no environment any more, by which they could be found, but may still hold a GPU: one
    with much memory takes seconds to end.

    Parameters
    ----------
    since : int
        Those are returned that began then or later, in clock ticks.

    Raises
    ------
    OSError
        Not all processes could be examined.
    """
    found = []
    for pid in _pids():
        try:
            text = read_proc(f"{pid}/stat")
            own = os.stat(f"/proc/{pid}").st_uid == os.getuid()
        except _GONE:
            continue
        fields = text[text.rindex(b")") + 2 :].split(None, 20)
        ends = fields[0] not in {b"Z", b"X"} and int(fields[6]) & _EXITING
        if own and ends and int(fields[19]) >= since:
            found.append(Process(pid, int(fields[19])))
    return found


def _pids() -> Iterator[int]:
    return (pid for name in os.listdir("/proc") if (pid := whole(name)) is not None)


def _stat(pid: int) -> tuple[int, int] | None:
    """Return parent and start time of a process; None if there is no such process; proc(5)."""
    try:
        text = read_proc(f"{pid}/stat")
    except _GONE:
        return None
    # The name may hold blanks and parentheses; the last one closes it.
    fields = text[text.rindex(b")") + 2 :].split(None, 20)
    return int(fields[1]), int(fields[19])


def _environ(pid: int) -> list[bytes]:
    """Return the initial environment of a process; empty for other users' and dead ones."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return []
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except _GONE:
        return []
