"""Keeping io_uring away from a command, since CRIU does not save it.

The store of torchrun uses it wherever the kernel has it, by libuv, and no variable prevents that. A
small library that is preloaded does; it is compiled once for each job, by the user's own compiler.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from hpcext.launch import command
from hpcext.launch.transparent.criu import waited_for

SOURCE = Path(__file__).with_suffix(".c")

COMPILE_S = 60.0
"""Seconds for the compiler; it takes a tenth of one where nothing else runs."""

_PRELOAD = "LD_PRELOAD"
_BREAKS = " \t\n:"
"""What divides the names in LD_PRELOAD (ld.so(8)), and so can be in none."""


def variables(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables by which a command does without io_uring; none without a compiler.

    Parameters
    ----------
    environ : Mapping[str, str]
        That of the command.
    home : pathlib.Path
        The directory of the job, where the library stays: suspended processes have it mapped.
    """
    library = home / f"no_io_uring-{platform.machine()}.so"
    if set(_BREAKS) & set(str(library)) or not (library.exists() or _compile(library, environ)):
        return {}
    before = environ.get(_PRELOAD, "")
    return {_PRELOAD: f"{library}:{before}" if before else str(library)}


def _compile(library: Path, environ: Mapping[str, str]) -> bool:
    """Compile the library; return whether that was possible."""
    new, scratch = library.with_suffix(".new"), library.with_suffix(".tmp")
    # A compiler that is killed leaves files, which are to go with the job.
    environ = {**environ, "TMPDIR": str(scratch)}
    argv = ["cc", "-O2", "-shared", "-fPIC", "-o", str(new), str(SOURCE), "-ldl"]
    try:
        scratch.mkdir(exist_ok=True)
        output = os.open(os.devnull, os.O_WRONLY)
        try:
            pid = command.start(argv, environ, cwd="/", log=output, blocked=())
        finally:
            os.close(output)
        if waited_for(pid, COMPILE_S) != 0:
            return False
        os.replace(new, library)
    except (OSError, command.CommandError):
        return False
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True
