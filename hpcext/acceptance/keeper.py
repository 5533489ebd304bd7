"""The removal of all that an acceptance run has made, when the run ends or is killed.

The keeper is a process of its own: ``python -m hpcext.acceptance.keeper SYSTEM DIRECTORY``. The run
holds the other end of its standard input, which the kernel closes in either case. A file of the
directory lists what must be ended; the run adds a line to it before it makes something. The keeper
prints a line for each thing that it could not remove.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from hpcext.acceptance import on_lsf, on_slurm
from hpcext.acceptance.systems import FINAL, System
from hpcext.allocation import JobId
from hpcext.batch.jobs import as_job
from hpcext.core.errors import HpcextError
from hpcext.process import Process
from hpcext.text import clean

MADE = "made"
NAME, JOB, PROCESS, PILOT = "name", "job", "process", "pilot"
"""The first words of lines in that file.

The rest of a line is the name of a job that is about to be submitted, the id of a submitted one, a
process of this machine, or the directory of a pilot, whose leases have names of their own.
"""

END_S = 120.0
"""Seconds to wait for the end of jobs; LSF takes ten for each of three signals."""

PROCESS_S = 60.0
_AGAIN_S = 10.0
_LOOK_S = 1.0


def note(directory: Path, kind: str, what: object) -> None:
    """Note what is about to be made.

    Parameters
    ----------
    directory : pathlib.Path
        The run's.
    kind : {NAME, JOB, PROCESS, PILOT}
    what : object
        The rest of the line.
    """
    file = os.open(directory / MADE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{kind} {what}\n".encode())
    finally:
        os.close(file)


def system_of(key: str) -> System:
    """Return a batch system by its name, ``slurm`` or ``lsf``."""
    return on_lsf.LsfSystem() if key == "lsf" else on_slurm.SlurmSystem()


def remove(system: System, directory: Path) -> list[str]:
    """End and remove all that a run has made; return a text for each thing that is left.

    Parameters
    ----------
    system : System
    directory : pathlib.Path
        The run's.
    """
    lines = [line.partition(" ") for line in _lines(directory / MADE)]
    made = [(kind, what) for kind, _, what in lines]
    left = _end_processes([what for kind, what in made if kind == PROCESS])
    names = {what for kind, what in made if kind == NAME}
    names |= {name for kind, what in made if kind == PILOT for name in _names_of(Path(what))}
    ids = [found for kind, what in made if kind == JOB and (found := as_job(what)) is not None]
    left += _end_jobs(system, names, ids)
    for _ in range(3):
        # A process that is ending may still write a file.
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return left
        time.sleep(_LOOK_S)
    return [*left, f"directory {clean(str(directory))}"]


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8").splitlines()
    return []


def _names_of(pilot: Path) -> Iterable[str]:
    """Yield the names of the jobs of a pilot: of its own job, and of its leases."""
    from hpcext.backends import batch_job  # noqa: PLC0415  (only where there is one)
    from hpcext.manager import directory as pilots  # noqa: PLC0415

    yield batch_job.name_of(pilot)
    with contextlib.suppress(HpcextError):
        yield f"hpcext-{pilots.load(pilot).id}"


def _end_processes(said: Iterable[str]) -> list[str]:
    left = []
    processes = [found for each in said if (found := Process.parse(each)) and found.alive()]
    for signum, within_s in ((signal.SIGTERM, PROCESS_S), (signal.SIGKILL, _AGAIN_S)):
        for process in processes:
            process.send(signum)
        until = time.monotonic() + within_s
        while any(process.alive() for process in processes) and time.monotonic() < until:
            time.sleep(_LOOK_S)
    left += [f"process {process.pid}" for process in processes if process.alive()]
    return left


def _end_jobs(system: System, names: set[str], ids: list[JobId]) -> list[str]:
    """Cancel jobs until none is left, since a job may be requeued meanwhile.

    They are found by their ids and by their names: if the run was killed while it submitted a job,
    only the name is known.
    """
    until = time.monotonic() + END_S
    again_s = 0.0
    while True:
        left = _left(system, names, ids)
        if not left or time.monotonic() > until:
            return [clean(what) for what in left]
        if time.monotonic() >= again_s:
            again_s = time.monotonic() + _AGAIN_S
            with contextlib.suppress(HpcextError):
                system.cancel(ids)
            for name in names:
                with contextlib.suppress(HpcextError):
                    system.cancel_named(name)
        time.sleep(_LOOK_S)


def _left(system: System, names: set[str], ids: list[JobId]) -> list[str]:
    """Return a text for each job that has not ended; if that is unknown, one that says so."""
    left = {}
    try:
        for job, state in system.states(ids).items():
            if state not in FINAL:
                left[str(job)] = f"job {job} is {state}"
        for name in sorted(names):
            for job, state in system.named(name).items():
                if state not in FINAL:
                    left[str(job)] = f"job {job} is {state}"
    except HpcextError as error:
        left[""] = f"it is unknown whether jobs are left: {error.what}"
    return list(left.values())


def main(words: list[str]) -> None:
    """Wait until the run has ended, and remove what it has made.

    Parameters
    ----------
    words : list of str
        The arguments of the command line.
    """
    # A signal that ends the run must not end the keeper, whose work begins then.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    system, directory = system_of(words[0]), Path(words[1])
    select.select([0], [], [])
    left = remove(system, directory)
    try:
        sys.stdout.write("".join(f"{line}\n" for line in left))
        sys.stdout.flush()
    except BrokenPipeError:
        # The run was killed, so the keeper itself has to tell the user.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write("".join(f"hpcext: not removed: {line}\n" for line in left))


if __name__ == "__main__":
    main(sys.argv[1:])
