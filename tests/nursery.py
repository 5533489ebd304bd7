"""Runs training scripts in processes forked from one that has imported their libraries already.

Importing PyTorch or TensorFlow takes several seconds of processor time for each rank of each
attempt; here it is done once for all tests of a process. Otherwise an attempt is what a supervisor
starts: a tree of processes with the signal blocked and ignored, told by the environment, that
ends by itself. What a fork does not have is its own environment in ``/proc``, so tests of managers
and of what is left behind start real processes.

Run as ``python nursery.py MODULE...`` it is the process that has imported these modules: it reads
what to start as a line of JSON, answers with the pid of the attempt, and then with its exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from ports import free_port

from hpcext import protocol
from hpcext.launch import command, tree
from hpcext.launch import ranks as launcher
from hpcext.process import Process

WAIT_S = 240.0

TORCH = (
    # What an optimizer imports at its first step, and what shards models.
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "hpcext.training.torch",
)
TENSORFLOW = ("keras", "tensorflow", "hpcext.training.keras", "hpcext.training.tensorflow")
JAX = ("jax", "jax.numpy", "optax", "hpcext.training.jax")


class Fork:
    """A forked attempt that runs.

    Attributes
    ----------
    pid : int
        Of the process above all others of it: the launcher, or the only rank.
    returncode : int or None
        None: it has not been waited for.
    """

    def __init__(self, answers: Any, pid: int, output: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers
        self._output = output

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """The exit code, None as long as it runs."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self._read()
        return self.returncode

    def wait(self, timeout: float = WAIT_S) -> int:
        """Wait for its end; the exit code."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked attempt", timeout)
            self._read()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = WAIT_S) -> tuple[str, None]:
        """Wait for its end; what it printed."""
        self.wait(timeout)
        return self._output.read_text(), None

    def _read(self) -> None:
        line = self._answers.readline()
        assert line, "the nursery has ended"
        self.returncode = json.loads(line)


class Nursery:
    """The process that all attempts are forked from, one after the other.

    Parameters
    ----------
    modules : sequence of str
        What it imports.
    """

    def __init__(self, modules: Sequence[str] = TORCH) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # So that select() knows of every line.
            bufsize=0,
        )
        self._last: Fork | None = None

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        output: Path,
        *,
        ranks: int = 1,
        launcher: bool = False,
        replace: int | None = None,
    ) -> Fork:
        """Start a script.

        Parameters
        ----------
        argv : sequence of str
            The script and its arguments.
        environ : mapping
            Beside our own.
        output : pathlib.Path
        ranks : int
        launcher : bool
            Under the launcher of ``hpcext launch``; `ranks` 0: as many as the attempt has GPUs.
        replace : int or None
            How many of its ranks may die.
        """
        if self._last is not None and self._last.poll() is None:
            # A test that failed has left it.
            self._last.kill()
            self._last.wait()
        asked = {
            "argv": list(argv),
            "environ": dict(environ),
            "output": str(output),
            "ranks": ranks,
            "launcher": launcher,
            "replace": replace,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n".encode())
        line = self._process.stdout.readline()
        assert line, "the nursery has ended"
        self._last = Fork(self._process.stdout, json.loads(line), output)
        return self._last

    @property
    def free(self) -> bool:
        """Whether nothing runs that was started here."""
        return self._last is None or self._last.poll() is not None

    def close(self) -> None:
        """End it; what still runs with it, by the signal of the parent's death."""
        self._process.kill()
        self._process.communicate()


# From here on: in the process that forks.


def serve(modules: Sequence[str]) -> None:
    if "keras" in modules:
        # Keras imports them where they are, which takes a third of the time.
        sys.modules["sklearn"] = sys.modules["pandas"] = None  # type: ignore[assignment]
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        log = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pid = fork(log)
        if pid == 0:
            attempt(asked)
        os.close(log)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def fork(
    log: int | None = None,
    blocked: Collection[signal.Signals] = (protocol.SUSPEND_SIGNAL,),
    *,
    notices: bool = False,
) -> int:
    """Fork as :func:`command.start` starts a command: when this returns, the child is ready."""
    parent = os.getpid()
    reading, writing = os.pipe()
    pid = os.fork()
    os.close(writing if pid else reading)
    if pid == 0:
        command._prepare(parent, log, blocked, command.ignored(notices))
        # As an interpreter has them when it begins.
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(writing)
        return 0
    with open(reading, "rb") as file:
        # A signal that came before the child ignores it would be forgotten.
        file.read()
    return pid


def attempt(asked: dict[str, Any]) -> NoReturn:
    """Be the attempt."""
    os.environ.update(asked["environ"])
    # What it was before the environment was another one.
    tempfile.tempdir = None
    argv, ranks = asked["argv"], asked["ranks"]
    if asked["launcher"]:
        launch(argv, ranks, asked["replace"])
    elif ranks > 1:
        run_ranks(argv, ranks)
    run(argv)


def run(argv: Sequence[str]) -> NoReturn:
    """Be ``python`` with this script and its arguments."""
    sys.argv = list(argv)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(Path(argv[0]).parent), *filter(None, paths)]
    runpy.run_path(argv[0], run_name="__main__")
    raise SystemExit


def run_ranks(argv: Sequence[str], ranks: int) -> NoReturn:
    """As torchrun does: if one rank fails, end the others, which would wait for it."""
    port = free_port()
    running = set()
    for rank in range(ranks):
        pid = fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            run(argv)
        running.add(pid)
    codes = []
    while running:
        pid, status = os.wait()
        running.discard(pid)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1]:
            for other in running:
                os.kill(other, signal.SIGTERM)
    code = codes[0] or max(codes)
    os._exit(code if code >= 0 else 128 - code)


def launch(argv: Sequence[str], ranks: int, replace: int | None) -> NoReturn:
    """Be the launcher; its ranks are forks and not other programs, all else is its own."""
    # The environment of a fork is that of its parent, for all that proc(5) says.
    forks: dict[str, int] = {}
    marked = tree.marked

    def marked_too(marks: Collection[str]) -> list[Process]:
        pids = [forks[mark] for mark in marks if mark in forks]
        return [*marked(marks), *filter(None, map(Process.of, pids))]

    def start(argv: Sequence[str], environ: Mapping[str, str], **how: Any) -> int:
        pid = fork(**how)
        forks[f"HPCEXT_RANK={environ['HPCEXT_RANK']}"] = pid
        if pid == 0:
            os.environ.clear()
            os.environ.update(environ)
            # An error of the script ends the calls above as well, which are the launcher's.
            vars(launcher)["shutil"] = SimpleNamespace(rmtree=lambda *_, **__: None)
            run(argv)
        return pid

    command.start = start  # type: ignore[assignment]
    tree.marked = marked_too
    code = launcher.launch(argv, ranks, protocol.environ(), replace=replace)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1:])
