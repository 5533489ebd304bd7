"""The stacks of an attempt's processes, written to its log when it seems to hang."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from hpcext.launch import command, tree
from hpcext.process import Process
from hpcext.protocol import STACKS_SIGNAL

_MOST = 64
"""More processes than this are not asked: ranks come before the workers that they start."""

HEADING = "--- no step for long; stacks of the processes that write them:"


def write(processes: Sequence[Process], log: Path) -> None:
    """Have processes write the stacks of their threads, each by itself, to what it prints to.

    Those that a session has prepared do (:func:`hpcext.training.signals.write_stacks_when_told`),
    also while they wait in a library. Of those that are stopped the log says so: they hear nothing.

    Parameters
    ----------
    processes : sequence of Process
        Parents before children.
    log : pathlib.Path
    """
    able = [each for each in processes if tree.handles(each, STACKS_SIGNAL)][:_MOST]
    stopped = [each for each in processes if each.stopped()]
    told = [f"process {each.pid} ({tree.program(each)}) is stopped by a signal" for each in stopped]
    if not able:
        told.append("no process has a session that could write them")
    lines = "\n".join([HEADING, *told])
    # On a full disk the log has no line of ours; processes may write elsewhere.
    with contextlib.suppress(OSError):
        os.close(command.open_log(log, lines))
    for process in able:
        tree.send(process, STACKS_SIGNAL)
