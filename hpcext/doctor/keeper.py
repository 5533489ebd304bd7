"""A keeper: a process that ends everything that a check has begun, if need be after its death.

The check holds the other end of the keeper's standard input, which the kernel closes when the check
ends or is killed. Run as ``python -m hpcext.doctor.keeper DIRECTORY [JOB...] -- COMMAND...``: the
command is a manager of ``DIRECTORY/pilot``, or one that SIGTERM ends with all that it has begun;
jobs are ``SYSTEM:NAME``, by their names in a batch system.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcext.batch import lsf, runner, slurm
from hpcext.core.errors import HpcextError, NoManagerError
from hpcext.core.world import World
from hpcext.manager import directory as pilots
from hpcext.manager import journal, spool

PILOT, OUTPUT, ENDED = "pilot", "output.txt", "ended"
"""Names in the directory: the pilot, its manager's output, and the mark of the manager's end."""

END_S = 60.0
"""Seconds to wait for the end of all jobs, and again for that of their manager."""

_LOOK_S = 0.2


def world(directory: Path) -> World | None:
    """Return the world of the pilot in a directory; None if it has not begun."""
    with contextlib.suppress(HpcextError):
        past = journal.read(directory / PILOT / "journal.jsonl")
        return past.replay().world
    return None


def keep(directory: Path, jobs: Sequence[str], command: Sequence[str]) -> None:
    """Run the command until standard input closes; then end it, and remove the directory.

    Parameters
    ----------
    directory : pathlib.Path
    jobs : sequence of str
        Jobs of batch systems to cancel, as ``SYSTEM:NAME``.
    command : sequence of str
        A manager, or what SIGTERM ends.
    """
    with (directory / OUTPUT).open("wb") as output:
        manager = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    while not select.select([0], [], [], _LOOK_S)[0]:
        if manager.poll() is not None:
            (directory / ENDED).touch()
    _end_jobs(directory, manager)
    for name in jobs:
        with contextlib.suppress(HpcextError):
            runner.run(_cancel(name))
    _remove(directory)


def _cancel(named: str) -> list[str]:
    """Return the command that cancels the jobs ``SYSTEM:NAME``."""
    system, _, name = named.partition(":")
    return lsf.cancel_named_command(name) if system == "lsf" else slurm.cancel_named_command(name)


def _end_jobs(directory: Path, manager: subprocess.Popen[bytes]) -> None:
    known = world(directory)
    with contextlib.suppress(HpcextError):
        for job in known.jobs.values() if known else ():
            if not job.state.final:
                spool.ask(directory / PILOT, "cancel", job=job.id)
    # A manager ends after its jobs; what has no pilot waits for nothing.
    for signum in (*([None] if known else []), signal.SIGTERM, signal.SIGKILL):
        if signum is not None:
            manager.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            manager.wait(END_S)
            return


def _remove(directory: Path) -> None:
    register = None
    with contextlib.suppress(NoManagerError):
        pilot = pilots.load(directory / PILOT)
        # The link by which a pilot outside the state directory is found by its name.
        register = Path(pilot.profiles).parent / "pilots" / pilot.id
    shutil.rmtree(directory, ignore_errors=True)
    if register is not None and register.is_symlink():
        register.unlink(missing_ok=True)


def main(words: Iterable[str]) -> None:
    """Run the keeper.

    Parameters
    ----------
    words : iterable of str
        The arguments of the command line.
    """
    before, command = list(words), []
    if "--" in before:
        at = before.index("--")
        before, command = before[:at], before[at + 1 :]
    # A signal that ends the check must not end the keeper, which cleans up afterwards.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    keep(Path(before[0]), before[1:], command)


if __name__ == "__main__":
    main(sys.argv[1:])
