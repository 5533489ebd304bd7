"""The Slurm job of a suspendable batch script: the script that runs in its place.

That script starts the supervisor of the first attempt at once, and beside it the manager, which
takes the attempt over. So the user's script does not wait for a manager, and runs even without one.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcext import documents, private, protocol
from hpcext.allocation import Allocation
from hpcext.backends import batch_job
from hpcext.backends.slurm.job import SUBMITTED
from hpcext.core.errors import InputError
from hpcext.core.values import Action, Kind
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.attempt.ends import SUPERVISOR_LOG
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.jobspec import JobSpec
from hpcext.launch import leader, supervise
from hpcext.protocol import SUPERVISOR_FILE

SCRIPT = "slurm_script"
"""The name of a job's batch script in the spool of slurmd."""

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


class SlurmSuspendable:
    """A job of Slurm as a :class:`~hpcext.backends.suspendable_job.SuspendableJob`.

    Parameters
    ----------
    here : Allocation
    command : sequence of str
        The user's script and its arguments.

    Raises
    ------
    InputError
        The process is not in a batch script, or there is no command.
    """

    batch = "slurm"
    output: str | None = None
    restored = False

    def __init__(self, here: Allocation, command: Sequence[str]) -> None:
        # The shell of salloc runs on no node of its job, and cannot be requeued.
        if here.step or not here.node:
            raise InputError(
                "works in the batch script of a Slurm job only, and this is not one",
                where="hpcext suspendable",
                do="sbatch train.sh, where train.sh ends with: exec hpcext suspendable -- COMMAND",
            )
        if not command:
            raise InputError(
                "no command", valid="hpcext suspendable [--lead SECONDS] -- COMMAND ..."
            )
        self.key = str(here.name)
        self.gpus = len(here.gpus)
        self._here = here
        self._words = command

    def earlier(self, named: Callable[[str], Path | None]) -> Path | None:
        """Return the directory of the pilot that an earlier run of this job has created."""
        return named(f"job-{self.key}") if self._here.restarts else None

    def command(self, directory: Path) -> Sequence[str]:
        """Return the user's command, with our copy of a script that only one node has."""
        return (str(directory / SCRIPT) if self._is_script() else self._words[0], *self._words[1:])

    def write(
        self, directory: Path, first: JobSpec | None, *, manager_file: Path, hpcext: Sequence[str]
    ) -> Path:
        """Write the script that starts the first attempt at once, and the manager beside it."""
        if first is not None:
            if self._is_script():
                data = Path(self._words[0]).read_bytes()
                documents.write_file(directory / SCRIPT, data, mode=0o700)
            SUBMITTED.write(directory, self._here.name, None)
            _launch(directory, self._here, first, manager_file)
        attempt = directory / "jobs" / _JOB / "attempt-0001"
        # The site's hpcext may need it to find the libraries of its Python.
        libraries = protocol.environ().get("LD_LIBRARY_PATH", "")
        python = [*(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []), sys.executable]
        supervisor = [*python, "-I", "-S", supervise.__file__, str(attempt)]
        begin = _BEGIN.format(
            first=shlex.quote(str(attempt)),
            claimed=SUPERVISOR_FILE,
            log=SUPERVISOR_LOG,
            supervise=shlex.join(supervisor),
            manager_file=shlex.quote(str(manager_file)),
        )
        words = shlex.join(self.command(directory))
        finish = _FINISH.format(claimed=SUPERVISOR_FILE, command=words)
        return batch_job.write_script(directory, begin=begin, finish=finish, hpcext=hpcext)

    def _is_script(self) -> bool:
        return Path(self._words[0]).name == SCRIPT


def _launch(directory: Path, here: Allocation, job: JobSpec, manager_file: Path) -> None:
    """Write the files of the first attempt, as a manager would in its first operation.

    ``SlurmScript`` takes the attempt over.
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
            manager=manager_file.absolute(),
            notices=True,
            allocation=f"{here.name}.{here.restarts}",
            leader=leader.of_step(),
        ),
    )
    os.close(private.open_log(files.directory / SUPERVISOR_LOG))
