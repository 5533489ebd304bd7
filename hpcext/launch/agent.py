"""The agent of a lease: it holds a node that a batch system lends, and starts attempts there.

It runs as a step of the lease's own job, so it is told when the node is wanted back. It then
suspends everything that runs here, and ends as soon as that has ended. The manager writes into
the directory of the lease, and the agent looks there once a second:

=====================  =========  ==========================================================
file                   writer     meaning
=====================  =========  ==========================================================
=====================  =========  ==========================================================
``lease.json``         manager    the latest instant until which the node may be used
``agent.json``         agent      it is running: on which node, with which GPUs
``run-OP-INDEX.json``  manager    an attempt to supervise here, as its node of this index
``release``            manager    nothing more will come: leave
``call``               manager    is the agent still there? it removes the file
``leaving``            agent      nothing more is started here, since the node is wanted back;
                                  or ``unused``: since nothing ran
=====================  =========  ==========================================================

In an attempt's own directory it watches what the manager orders (``order.json``, ``rescale.json``),
since no signal of the manager reaches this node, and passes the news on to the supervisor. When
there has been nothing to do for a while it leaves, so that a lease does not outlive its manager.

Standard library only. Run as ``python -I -S .../hpcext/launch/agent.py DIRECTORY``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

# With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import documents, private, protocol
from hpcext.allocation import Allocation, without_slurm
from hpcext.launch import command, devices, stderr, supervise, tree
from hpcext.launch.nurseries import Nursery, Preloaded
from hpcext.process import Process

LEASE = "hpcext.lease/1"
AGENT = "hpcext.agent/1"
RUN = "hpcext.lease-run/1"
LEASE_FILE = "lease.json"
AGENT_FILE = "agent.json"
RELEASE_FILE = "release"
CALL_FILE = "call"
LEAVING_FILE = "leaving"
UNUSED, AT_ITS_END = "unused", "at its end"
"""Reasons in the file ``leaving``; without one of these, somebody needs the node."""

TAKEN = 75
"""Exit code of a supervisor that found the attempt to be another's: ``supervision.TAKEN``."""

LOOK_S = 1.0
"""Seconds between two looks at the directory."""

GIVE_WAY_S = 5.0
"""Seconds that a training which can go on without this node has to leave before it is suspended."""

_NOTICES = {signal.SIGTERM, protocol.NOTICE_SIGNAL, signal.SIGINT, protocol.SUSPEND_SIGNAL}
"""Signals that say that the node is wanted back.

Slurm sends the first, or the one that sbatch was told; LSF the second when the job's time is over,
the third when it kills, and the last when it preempts.
"""

_WAKING = {signal.SIGCHLD, protocol.NEWS_SIGNAL, *_NOTICES}


class _Attempt:
    """An attempt that is supervised here."""

    def __init__(self, pid: int, directory: Path, index: int, nursery: Nursery | None) -> None:
        self.pid = pid
        self._directory = directory
        self._index = index
        self._nursery = nursery
        self._seen: list[tuple[int, int]] = []

    def can_leave(self) -> bool:
        """Return whether it can go on without this node: not its first, and changes in place."""
        if self._index == 0:
            return False
        try:
            report = documents.read_json(self._directory / protocol.REPORT_FILE, protocol.REPORT)
        except (OSError, ValueError):
            return False
        return report.get("in_place") is True

    def look(self) -> None:
        """Pass on what the manager has newly written."""
        found = []
        for name in (protocol.ORDER_FILE, protocol.RESCALE_FILE):
            with contextlib.suppress(OSError):
                status = os.stat(self._directory / name)
                found.append((status.st_ino, status.st_mtime_ns))
        if found != self._seen:
            self._seen = found
            self.send(protocol.NEWS_SIGNAL)
        if self._nursery is not None:
            self._look_at(self._nursery)

    def _look_at(self, nursery: Nursery) -> None:
        """Tell the manager why nothing is forked for the job, once that is known."""
        nursery.look()
        if nursery.failed:
            document = {"schema": protocol.UNPRELOADED, "why": nursery.failed}
            # On a full disk this is tried again.
            with contextlib.suppress(OSError):
                path = self._directory / protocol.UNPRELOADED_FILE
                documents.write_json(path, document, durable=False)
                self._nursery = None

    def is_others(self) -> bool:
        """Return whether another child of ours has the attempt, which counts from now on.

        One was ordered of a process that did not answer in time, and began all the same.
        """
        own = protocol.node_directory(self._directory, self._index)
        try:
            document = documents.read_json(own / protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)
            pid = int(document["pid"])
            runs = pid > 0 and os.waitpid(pid, os.WNOHANG) == (0, 0)
        except documents.UNFIT:
            return False
        if runs:
            self.pid = pid
        return runs

    def send(self, signum: int) -> None:
        """Send a signal to its supervisor, which nobody but this process reaps."""
        os.kill(self.pid, signum)


class Agent:
    """The agent of one lease.

    Parameters
    ----------
    directory : pathlib.Path
        The directory of the lease.
    lease : dict
        Its ``lease.json``.
    """

    def __init__(self, directory: Path, lease: dict[str, Any]) -> None:
        self._directory = directory
        self._idle_s = float(lease["idle_s"])
        self._attempts: dict[str, _Attempt] = {}
        self._preloaded: Preloaded | None = None
        self._known: set[str] = set()
        self._leaving = False
        self._suspend_s: float | None = None
        self._busy_s = time.monotonic()

    def run(self) -> int:
        """Serve until the lease is over, or nobody needs it."""
        self._announce()
        try:
            self._serve()
        finally:
            if self._preloaded is not None:
                self._preloaded.close()
        return 0

    def _serve(self) -> None:
        while True:
            tree.reap(self._child_ended)
            if not self._attempts and (self._leaving or self._goes()):
                return
            signum = _wait()
            if signum in _NOTICES:
                self._leave()
            if self._leaving:
                self._names()
            else:
                self._look()
            for attempt in self._attempts.values():
                attempt.look()
            if self._suspend_s is not None and time.monotonic() >= self._suspend_s:
                self._suspend_s = None
                self._notify(self._attempts.values())

    def _announce(self) -> None:
        place = Allocation.from_environ()
        me = Process.me()
        visible = devices.said(protocol.environ()) or ""
        document = {
            "schema": AGENT,
            "job_id": place.job_id if place else None,
            "node": place.node if place else os.uname().nodename.partition(".")[0],
            "devices": [device for device in visible.split(",") if device],
            "pid": me.pid,
            "start": me.start,
            "boot_id": tree.boot_id(),
            "answers": True,
            "at": time.time(),
        }
        documents.write_json(self._directory / AGENT_FILE, document, durable=False)

    def _goes(self) -> bool:
        """Return whether to go: nothing runs here, and nothing has for a while, or ever will."""
        if os.path.lexists(self._directory / RELEASE_FILE):
            return True
        if time.monotonic() - self._busy_s < self._idle_s:
            return False
        # Written before the last look, so that whatever was handed over earlier is seen.
        file = self._directory / LEAVING_FILE
        with contextlib.suppress(OSError):
            file.write_text(UNUSED)
        self._look()
        if self._attempts:
            file.unlink(missing_ok=True)
        return not self._attempts

    def _names(self) -> list[str]:
        """Return the names of the files of the lease, after a call among them is answered."""
        names = []
        with contextlib.suppress(OSError):
            # Opening a directory makes NFS look it up anew instead of using its cache (nfs(5)).
            names = sorted(os.listdir(self._directory))
            if CALL_FILE in names:
                # That is possible on a full disk, too.
                os.unlink(self._directory / CALL_FILE)
        return names

    def _look(self) -> None:
        for name in self._names():
            if name.startswith("run-") and name.endswith(".json") and name not in self._known:
                self._known.add(name)
                self._start(name)
        with contextlib.suppress(OSError, ValueError, TypeError):
            lease = documents.read_json(self._directory / LEASE_FILE, LEASE)
            leave_at = lease.get("leave_at")
            if leave_at is not None and time.time() >= float(leave_at):
                self._leave(AT_ITS_END)

    def _start(self, name: str) -> None:
        """Supervise an attempt; its supervisor finds out if it has run here before."""
        try:
            run = documents.read_json(self._directory / name, RUN)
            directory = Path(run["directory"])
            index = int(run["index"])
            visible = devices.naming(str(run["devices"]))
            nursery = self._nursery(directory)
            with open(private.open_log(directory / f"agent-{index}.log"), "ab") as log:
                pid = None
                if nursery is not None:
                    pid = nursery.begin(directory, log.fileno(), node=index, environ=visible)
                if pid is None:
                    pid = _begin(directory, index, visible, log)
        except documents.UNFIT as error:
            stderr.say(f"{name}: {error}")
            return
        self._attempts[name] = _Attempt(pid, directory, index, nursery)

    def _nursery(self, directory: Path) -> Nursery | None:
        """Return what has imported the modules of an attempt's job, or is to; None for none."""
        try:
            launch = documents.read_json(directory / protocol.LAUNCH_FILE, protocol.LAUNCH)
            if not launch.get("preload"):
                return None
            if self._preloaded is None:
                # What is forked becomes a child of ours.
                command.become_reaper()
                self._preloaded = Preloaded(devices.without(without_slurm()), apart=False)
            return self._preloaded.of(launch)
        except documents.UNFIT:
            # Its supervisor begins as usual, and says what is wrong with the attempt.
            return None

    def _child_ended(self, pid: int, code: int) -> None:
        name = next((name for name, each in self._attempts.items() if each.pid == pid), None)
        if name is None or (code == TAKEN and self._attempts[name].is_others()):
            return
        del self._attempts[name]
        self._busy_s = time.monotonic()

    def _leave(self, why: str = "") -> None:
        """Have what runs here suspended; the node goes back as soon as it is empty.

        A training that can go on elsewhere is moved away from here by its manager, if that is
        alive.
        """
        if self._leaving:
            return
        self._leaving = True
        with contextlib.suppress(OSError):
            (self._directory / LEAVING_FILE).write_text(why)
        self._notify(each for each in self._attempts.values() if not each.can_leave())
        self._suspend_s = time.monotonic() + GIVE_WAY_S

    @staticmethod
    def _notify(attempts: Iterable[_Attempt]) -> None:
        for attempt in attempts:
            attempt.send(protocol.NOTICE_SIGNAL)


def _begin(directory: Path, index: int, visible: Mapping[str, str], log: BinaryIO) -> int:
    """Begin a supervisor as a process of its own; return its pid."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", supervise.__file__, str(directory), str(index)],
        env={**devices.without(without_slurm()), **visible},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        preexec_fn=_outlive_nobody,  # noqa: PLW1509 - there is one thread
    )
    # It is reaped with all other children: keep Popen from doing that.
    child.returncode = 0
    return child.pid


def _outlive_nobody() -> None:
    """Arrange that the end of our parent is a notice: afterwards nobody could give us any."""
    command.hear_of_parent(protocol.NOTICE_SIGNAL)


def _wait() -> int | None:
    info = signal.sigtimedwait(_WAKING, LOOK_S)
    return info.si_signo if info else None


def main() -> int:
    """Block the signals that are waited for, read the lease, and hold it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAKING)
    if len(sys.argv) != 2:
        sys.stderr.write("usage: agent.py DIRECTORY\n")
        return 64
    directory = Path(sys.argv[1])
    try:
        lease = documents.read_json(directory / LEASE_FILE, LEASE)
        return Agent(directory, lease).run()
    except documents.UNFIT as error:
        stderr.say(f"the lease cannot be used: {error}")
        return 71


def _wake_shells() -> None:
    """Continue the shells of the lease's job, which are our parents in our process group.

    LSF says with SIGTSTP that it wants the host, which stops the shell by which it runs a job:
    LSB_JOB_SCRIPT_TRAP_SIGNALS traps others. The host becomes free only when that shell goes on.
    What else is in the group, if we were started by hand, stays as it is.
    """
    for shell in tree.ancestors(os.getpid(), 1):
        with contextlib.suppress(OSError):
            if os.getpgid(shell.pid) == os.getpgrp():
                tree.send(shell, signal.SIGCONT)


if __name__ == "__main__":
    status = main()
    _wake_shells()
    stderr.flush()
    os._exit(status)
