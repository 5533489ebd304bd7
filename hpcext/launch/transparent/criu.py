"""CRIU 4: a process tree is written into images, killed, and made again from them; criu(8).

Tried with 4.2.1. It works for root, and for users whose criu has CAP_CHECKPOINT_RESTORE. The latter
can only make processes again that cannot gain privileges (``no_new_privs``, prctl(2)).
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.launch import command, tree
from hpcext.launch.transparent import connections, opened
from hpcext.launch.transparent import images as format_
from hpcext.launch.transparent.put_off import PutOffError, wait_until_free
from hpcext.numerals import whole
from hpcext.process import Process

OLDEST = 4
"""Release 3.17 does not start on kernels of 2025, and has no way without root."""

CHECK_S = 20.0
"""Seconds for its own check of the machine."""

STOP_S = 10.0
"""Seconds in which a process that has been sent SIGSTOP has stopped."""

DUMPED, RESTORED = "Dumping finished successfully", "Restore finished successfully"
DUMP_LOG, RESTORE_LOG, PID_FILE = "criu-dump.log", "criu-restore.log", "criu-restore.pid"

GPU = "gpu"
"""The key of what is noted beside images by those who have saved what was on a GPU."""

OTHER_GPUS = "other GPUs are visible than before"

_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_LOG_BYTES = 256 << 10
_REASON_CHARS = 200
_PAUSE_S = 0.05

_ERROR = re.compile(r"Error \([^)]*\): (.*)")
_HARMLESS = ("rlimit: Can't setup RLIMIT_NOFILE", "Dumping FAILED", "Restoring FAILED")
"""It goes on after the first, and the others say nothing that its exit status does not."""

_VERSION = re.compile(r"^Version: ([0-9]+)\.([0-9.]*)", re.MULTILINE)


class Criu:
    """The program ``criu`` of this machine, as a :class:`~hpcext.launch.transparent.ways.Way`.

    Parameters
    ----------
    environ : Mapping[str, str]
        Its PATH is searched, and then the directories of system programs.

    Attributes
    ----------
    without_driver : str
        Why NVIDIA's driver cannot save what is on GPUs; empty if it was not asked.
    """

    name = "CRIU"
    stays = False
    part = 0.75

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get("PATH", os.defpath)
        self._program = _found(self._path)
        self.no_new_privs = os.geteuid() != 0
        self.without_driver = ""

    def version(self) -> str:
        """Return the number of its release; empty if there is none, or it says none."""
        if not self._program:
            return ""
        _, said = self._say("--version")
        found = _VERSION.search(said)
        return f"{found[1]}.{found[2]}" if found else ""

    # The interface of a way.

    def probe(self) -> str:
        """Return why it cannot be used on this machine; empty if it seems that it can."""
        if not self._program:
            return "criu is not installed"
        version = self.version()
        major = whole(version.partition(".")[0])
        if major is None:
            return f"{self._program} does not say its version"
        if major < OLDEST:
            return f"{self._program} is {version}; {OLDEST} or later is needed"
        code, said = self._say("check", *self._rights())
        lines = [line for line in said.splitlines() if line.strip() and "Warn" not in line]
        return "" if code == 0 else _last(lines) or f"criu check: exit code {code}"

    def refuse(self, root: Process, tree_: Sequence[Process]) -> str:
        """Return why it cannot suspend such a tree; empty if it may be tried."""
        if why := self.beyond(root, tree_):
            return why
        for process in tree_:
            if device := opened.gpu(process.pid):
                what = f"uses a GPU ({device}), whose memory CRIU does not save"
                nor = f", nor does the driver: {self.without_driver}" if self.without_driver else ""
                return f"process {process.pid} {what}{nor}"
        return ""

    def suspend(
        self, root: Process, tree_: Sequence[Process], images: Path, work: Path, limit_s: float
    ) -> int:
        """Begin to write a tree into images; it is stopped when that is done."""
        return self._begin(self.dump(root.pid), images, work, DUMP_LOG)

    def dump(self, pid: int) -> list[str]:
        """Return the arguments that write the tree of a process into images."""
        # Deleted files, as the shared memory of loader workers is, become part of the images; those
        # that have another name, as semaphores have, get a link (see links).
        argv = [
            "dump",
            "--tree",
            str(pid),
            "--leave-stopped",
            "--ghost-limit",
            "4095M",
            "--link-remap",
        ]
        return [*argv, *self._tcp()]

    def judge(self, code: int, root: Process, images: Path, work: Path) -> str:
        """Return why a tree is not suspended although its helper has ended; empty if it is."""
        log = work / DUMP_LOG
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            return f"criu dump: {reason(log) or how}"
        if DUMPED not in _tail(log):
            return f"criu dump: {DUMP_LOG} does not end with success"
        if why := format_.missing(images, root.pid):
            return why
        if not _all_stop(format_.processes(images)):
            return "not all processes have stopped"
        # Now that none can make another.
        return self._connected([root, *tree.descendants(root.pid)])

    def facts(self, work: Path) -> dict[str, Any]:
        """Return what is to be noted beside the images: nothing."""
        return {}

    def undo(self, work: Path, limit_s: float) -> int | None:
        """Return None: what was not suspended goes on by SIGCONT."""
        return None

    def undone(self, code: int, work: Path) -> str:
        """Return nothing: there is nothing to undo."""
        return ""

    def why_not(self, document: Mapping[str, Any], devices: str | None) -> str:
        """Return why the images cannot be used here; empty if they may."""
        if document.get(GPU):
            return f"NVIDIA's driver cannot restore what was on a GPU: {self.without_driver}"
        return "" if document.get("devices") == devices else OTHER_GPUS

    def resume(self, images: Path, work: Path, limit_s: float, document: Mapping[str, Any]) -> int:
        """Make the tree in the images again, stopped; return the pid of its root."""
        return self.remake(images, work, limit_s)

    def remake(self, images: Path, work: Path, limit_s: float, more: Sequence[str] = ()) -> int:
        """Make the tree in the images again, as :meth:`resume` does.

        Parameters
        ----------
        images, work : pathlib.Path
        limit_s : float
        more : sequence of str
            More arguments for CRIU.
        """
        expected = format_.processes(images)
        root = next(iter(expected))
        wait_until_free(lambda: _taken({tid for pid in expected for tid in (pid, *expected[pid])}))
        (work / PID_FILE).unlink(missing_ok=True)
        # A sibling of criu is a child of ours, and is killed when we are (PR_SET_PDEATHSIG).
        # Stopped, since it can fail when some of them would run already.
        argv = ["restore", "--restore-detached", "--restore-sibling", "--leave-stopped"]
        argv += ["--pidfile", PID_FILE, *self._tcp(), *more]
        pid = self._begin(argv, images, work, RESTORE_LOG)
        code = waited_for(pid, limit_s)
        why = ""
        if code is None:
            why = f"it was not done in {limit_s:.0f} s"
        elif code:
            why = reason(work / RESTORE_LOG) or f"exit code {code}"
        elif RESTORED not in _tail(work / RESTORE_LOG):
            why = f"{RESTORE_LOG} does not end with success"
        elif any(Process.of(each) is None for each in expected if expected[each]):
            why = "not all processes are there again"
        elif not _all_stop(expected):
            why = "not all processes have stopped"
        if why:
            kill_below()
            raise OSError(f"criu restore: {why}")
        return root

    def beyond(self, root: Process, tree_: Sequence[Process]) -> str:
        """Return what of a tree is in no image, its GPUs apart; empty if nothing is.

        Parameters
        ----------
        root : Process
        tree_ : sequence of Process
            As those of :meth:`refuse`.
        """
        return opened.astray(root, tree_) or self._connected(tree_)

    # Its command.

    def _rights(self) -> list[str]:
        return ["--unprivileged"] if self.no_new_privs else []

    def _tcp(self) -> list[str]:
        # Both ends have stopped, and neither hears of it when the other is killed.
        return [] if self.no_new_privs else ["--tcp-established", "--network-lock", "skip"]

    def _connected(self, tree_: Sequence[Process]) -> str:
        """Return why the connections of a tree cannot be suspended; empty if they can."""
        if not self.no_new_privs:
            return connections.outside(tree_)
        for process in connections.connections(tree_).values():
            return f"process {process.pid} has a TCP connection, which CRIU saves only for root"
        return ""

    def words(self, argv: Sequence[str], images: Path, work: Path, log: str) -> list[str]:
        """Return its whole command line.

        Parameters
        ----------
        argv : sequence of str
            What it is to do.
        images, work : pathlib.Path
        log : str
            The name of its log.
        """
        words = [self._program, *argv, "--images-dir", str(images), "--work-dir", str(work)]
        # -v3 says that it has succeeded. Control groups are those of the supervisor.
        return [*words, "--log-file", log, "-v3", "--manage-cgroups=ignore", *self._rights()]

    def _begin(self, argv: Sequence[str], images: Path, work: Path, log: str) -> int:
        return begin(self.words(argv, images, work, log), self.environ(), work)

    def _say(self, *argv: str) -> tuple[int, str]:
        """Run it for what it prints; exit code and text."""
        # Slow to import for a supervisor, most of which have no use for it. It is safe beside other
        # threads, as the doctor's checks have them, whose C libraries may not survive a fork.
        import subprocess  # noqa: PLC0415

        try:
            done = subprocess.run(
                [self._program, *argv],
                env=self.environ(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=CHECK_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, ""
        except OSError as error:
            return 127, str(error)
        return done.returncode, done.stdout.decode(errors="replace")

    def environ(self) -> dict[str, str]:
        """Return the whole environment of its command."""
        return {"PATH": self._path, "LANG": "C"}


def begin(words: Sequence[str], environ: Mapping[str, str], work: Path) -> int:
    """Start a helper in the background; return its pid.

    Parameters
    ----------
    words : sequence of str
        Its command line.
    environ : Mapping[str, str]
        Its whole environment.
    work : pathlib.Path
        Where it runs.

    Raises
    ------
    OSError
        It cannot be started.
    """
    output = os.open(os.devnull, os.O_WRONLY)
    try:
        # It lives until its work is done, or we kill it: batch systems signal it, too.
        return command.start(words, environ, cwd=str(work), log=output, blocked=(), spared=True)
    except command.CommandError as error:
        raise OSError(str(error)) from None
    finally:
        os.close(output)


def waited_for(pid: int, limit_s: float) -> int | None:
    """Wait for a child; return its exit code, or None if it was killed because it took too long.

    All signals are blocked, as in a supervisor.

    Raises
    ------
    PutOffError
        This process has been told to end; the child was killed.
    """
    until_s = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        left_s = until_s - time.monotonic()
        # Where signals are not blocked nothing is lost but some time.
        heard = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, max(0.0, min(left_s, 0.1)))
        told = heard is not None and heard.si_signo == signal.SIGTERM
        if told or left_s <= 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if told:
                # It is to be heard again where it is expected.
                os.kill(os.getpid(), signal.SIGTERM)
                kill_below()
                raise PutOffError("told to end")
            return None


def kill_below() -> None:
    """Kill all processes below this one, and wait until there are none."""
    while True:
        for process in reversed(tree.descendants(os.getpid())):
            tree.send(process, signal.SIGKILL)
        if not tree.reap(lambda *_: None):
            return
        time.sleep(_PAUSE_S)


def reason(log: Path) -> str:
    """Return the first error in a log of criu's that matters; empty if there is none."""
    for said in _ERROR.findall(_tail(log)):
        if not said.startswith(_HARMLESS):
            return str(said).strip()[:_REASON_CHARS]
    return ""


def _taken(wanted: set[int]) -> str:
    """Return which of these ids a process or a thread has; empty if none does."""
    taken = [tid for tid in wanted if os.path.lexists(f"/proc/{tid}")]
    return f"process id {min(taken)}, which it had, belongs to another process" if taken else ""


def _found(path: str) -> str:
    """Return where criu is; empty if it is not installed."""
    for directory in (*path.split(os.pathsep), *_SBIN):
        program = os.path.join(directory, "criu")
        if directory.startswith("/") and os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    return ""


def _all_stop(pids: Iterable[int]) -> bool:
    """Return whether all these processes stop soon: they have been sent SIGSTOP."""
    until_s = time.monotonic() + STOP_S
    while not all(map(tree.still, pids)):
        if time.monotonic() > until_s:
            return False
        time.sleep(_PAUSE_S / 10)
    return True


def _tail(log: Path) -> str:
    """Return the end of a log; of one that says an error early, that too."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _last(lines: Sequence[str]) -> str:
    """Return the first error among lines, else the first line."""
    for line in lines:
        if found := _ERROR.search(line):
            return found[1][:_REASON_CHARS]
    return lines[0][:_REASON_CHARS].rstrip(": ") if lines else ""
