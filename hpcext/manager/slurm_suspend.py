"""The Slurm job that a suspendable batch script is: what that script becomes.

A script of ours, which is prepared here and runs in its place. It starts the supervisor of the
first attempt at once and the manager beside it, which takes over what it finds: the user's script
does not wait for a manager. If there is none, the user's script runs all the same.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcext import documents, private, protocol
from hpcext.config import Settings
from hpcext.core.errors import HpcextError, NoManagerError
from hpcext.core.values import Action, Kind
from hpcext.executors.attempt.directory import SUPERVISOR_LOG, AttemptFiles
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.jobfile import JobSpec
from hpcext.launch import supervise
from hpcext.manager import batch_job, spool, suspendable
from hpcext.manager import directory as directories
from hpcext.protocol import SUPERVISOR_FILE, Allocation, JobId

SCRIPT = "slurm_script"
"""What slurmd calls a job's batch script, in a spool of its own on each node."""

NEEDED = ("filelock", "msgspec", "numpy", "psutil", "pynvml", "rich", "scipy", "threadpoolctl")
"""Packages without which there is no manager; that one is missing is to be known before."""

_JOB = "1"

_BEGIN = """first={first}
script=
if [ ! -e "$first/{claimed}" ]; then
    {supervise} </dev/null >>"$first/{log}" 2>&1 &
    script=$!
fi
say() {{
    echo "hpcext: $1" >&2
    timeout -k 1 2 logger -t hpcext -p user.warning "job ${{SLURM_JOB_ID-}}: $1" 2>/dev/null
}}
came_up() {{ grep -q "\\"pid\\": *$manager[,}}]" {manager_file} 2>/dev/null; }}
runs() {{ [ -n "$script" ] && kill -0 "$script" 2>/dev/null; }}
"""

_FINISH = """# Whatever became of hpcext, the script runs, and its exit status is that of the job.
if [ -z "$told" ] && {{ runs || ! came_up; }}; then
    if [ -n "$script" ]; then
        say 'the job cannot be suspended: it has no manager; it runs on as usual'
        manager=$script
        while :; do
            wait "$script"
            code=$?
            kill -0 "$script" 2>/dev/null || break
        done
        [ ! -e "$first/{claimed}" ] || exit "$code"
    else
        say 'the job cannot be suspended: it has no manager; it runs as usual'
    fi
    trap - USR1 USR2 TERM
    exec {command}
fi
"""


def prepare(
    here: Allocation,
    command: Sequence[str],
    lead_s: int,
    settings: Settings,
    hpcext: Sequence[str] = batch_job.HPCEXT,
) -> Path:
    """Make the pilot of a job, if it has none yet; the script that is to run in its place.

    Parameters
    ----------
    here : Allocation
    command : sequence of str
        The user's script and its arguments.
    lead_s : int
    settings : Settings
    hpcext : sequence of str
        How hpcext is run there. A site's may be a script that sets what its Python needs.

    Raises
    ------
    HpcextError
        There can be no manager here, or no pilot.
    OSError
        Something cannot be written.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise HpcextError(f"the Python package {package} is missing", where=sys.prefix)
    directory = _found(here, settings) or _made(here, settings, command, lead_s)
    first = directory / "jobs" / _JOB / "attempt-0001"
    # Where the site's hpcext has found the libraries of its Python.
    libraries = protocol.environ().get("LD_LIBRARY_PATH", "")
    python = [*(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []), sys.executable]
    supervisor = [*python, "-I", "-S", supervise.__file__, str(first)]
    begin = _BEGIN.format(
        first=shlex.quote(str(first)),
        claimed=SUPERVISOR_FILE,
        log=SUPERVISOR_LOG,
        supervise=shlex.join(supervisor),
        manager_file=shlex.quote(str(directory / spool.MANAGER_FILE)),
    )
    words = shlex.join(_kept(directory, command))
    finish = _FINISH.format(claimed=SUPERVISOR_FILE, command=words)
    return batch_job.write_script(directory, begin=begin, finish=finish, hpcext=hpcext)


def _found(here: Allocation, settings: Settings) -> Path | None:
    """The pilot that an earlier allocation of this job began."""
    if not here.restarts:
        return None
    try:
        return directories.find(_name(here.name), settings.state_dir)
    except NoManagerError:
        return None


def _made(here: Allocation, settings: Settings, command: Sequence[str], lead_s: int) -> Path:
    gpus = len(here.gpus)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    directory = settings.state_dir / "suspendable" / f"{here.name}-{stamp}"
    job = suspendable.spec(_kept(directory, command), gpus or 1, lead_s)
    name = _name(here.name)
    suspendable.create(job, gpus, settings, directory, name=name, lead_s=lead_s, batch="slurm")
    try:
        if _is_script(command):
            data = Path(command[0]).read_bytes()
            documents.write_file(directory / SCRIPT, data, mode=0o700)
        batch_job.SLURM.write(directory, here.name, [])
        suspendable.log_to_output(directory)
        _launch(directory, here, job)
    except OSError:
        # Else the next allocation would take it for one that can be gone on with.
        directories.remove(directory, settings.state_dir)
        raise
    return directory


def _launch(directory: Path, here: Allocation, job: JobSpec) -> None:
    """Write down the first attempt as the manager would, whose first operation is to start it.

    ``SlurmScript`` takes over what it finds so.
    """
    alloc = {here.node: job.gpus.max}
    action = Action(Kind.START, _JOB, op=1, attempt=1, alloc=alloc)
    files = AttemptFiles((directory / "jobs").absolute(), action)
    indices = sorted(here.gpus or range(job.gpus.max))
    files.write_launch(
        job,
        alloc,
        Surroundings(
            gpus=[f"{here.node}:{index}" for index in indices],
            manager=(directory / spool.MANAGER_FILE).absolute(),
            notices=True,
            allocation=f"{here.name}.{here.restarts}",
        ),
    )
    os.close(private.open_log(files.directory / SUPERVISOR_LOG))


def _is_script(command: Sequence[str]) -> bool:
    return Path(command[0]).name == SCRIPT


def _kept(directory: Path, command: Sequence[str]) -> tuple[str, ...]:
    """The next allocation may be on another node, where slurmd's spool is another."""
    return (str(directory / SCRIPT) if _is_script(command) else command[0], *command[1:])


def _name(job: JobId) -> str:
    return f"job-{job}"
