"""Runs that are forks of a process which has imported PyTorch and has not touched a GPU.

The import takes seconds; CUDA is initialised by each fork for itself.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def load() -> None:
    """Import what the first optimizer would, before there are forks; where there may be a GPU,
    nothing that might touch it."""
    if torch.version.cuda is None:
        importlib.import_module("torch._dynamo")


def fork(run: Callable[[], object], environ: Mapping[str, str], log: Path) -> int:
    """Begin a run in a process of its own; return its pid.

    Parameters
    ----------
    run : callable
    environ : Mapping of str to str
        What it has beside our variables.
    log : pathlib.Path
        Takes what it says.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ.update(environ)
        # As a supervisor starts a command.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTSTP,))
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int) -> int:
    """Wait for the end of a run; return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
