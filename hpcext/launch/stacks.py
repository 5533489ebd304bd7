"""The stacks of an attempt's processes, written to its log when it seems to hang."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hpcext.launch import command, tree
from hpcext.process import Process
from hpcext.protocol import STACKS_SIGNAL

_MOST = 64
"""More processes than this are not looked at: ranks come before the workers that they start."""

_SPY_S = 10.0
"""Seconds that py-spy may take for one process."""

HEADING = "--- no step for long; stacks of its processes:"


def write(processes: Sequence[Process], log: Path, path: str | None) -> None:
    """Have the stacks of processes written to the log, without waiting for that.

    py-spy does it where it is installed and may look. Otherwise processes that a session has
    prepared do it themselves (:func:`hpcext.training.signals.write_stacks_when_told`), also while
    they wait in a library. Of those that are stopped the log says so: they hear nothing.

    Parameters
    ----------
    processes : sequence of Process
        Parents before children.
    log : pathlib.Path
    path : str or None
        Where to look for py-spy; as PATH.
    """
    able = [each for each in processes if tree.handles(each, STACKS_SIGNAL)][:_MOST]
    stopped = [each for each in processes if each.stopped()]
    told = [f"process {each.pid} ({tree.program(each)}) is stopped by a signal" for each in stopped]
    if not able:
        told.append("no process has a session that could write them")

    def child() -> NoReturn:
        try:
            _spy(able, set(stopped), log, path)
        finally:
            os._exit(0)

    # On a full disk the log has no line of ours; processes may write elsewhere.
    with contextlib.suppress(OSError):
        os.close(command.open_log(log, "\n".join([HEADING, *told])))
    with contextlib.suppress(OSError):
        command.fork(child)


def _spy(processes: Sequence[Process], stopped: set[Process], log: Path, path: str | None) -> None:
    """Look at processes from the outside, or tell them to write their stacks themselves."""
    import shutil  # noqa: PLC0415  (slow to import, and hardly any supervisor needs it)
    import subprocess  # noqa: PLC0415

    spy = shutil.which("py-spy", path=path)
    for process in processes:
        seen = False
        if spy is not None:
            argv = [spy, "dump", "--pid", str(process.pid)]
            argv += ["--nonblocking"] if process in stopped else []
            with contextlib.suppress(OSError, subprocess.SubprocessError), open(log, "ab") as file:
                done = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.DEVNULL,
                    timeout=_SPY_S,
                    check=False,
                )
                seen = done.returncode == 0
        if not seen:
            tree.send(process, STACKS_SIGNAL)
