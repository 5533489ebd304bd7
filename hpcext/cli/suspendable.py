"""``hpcext suspendable``: what an ordinary batch job begins with to outlive its allocation.

It is a pilot of one job that has the whole allocation: its command runs where the batch script
would, under a supervisor, so that it hears in time of a preemption and of the time limit, and the
same job of Slurm goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.batch.lsf_inside import LsfJob
from hpcext.cli.output import Output
from hpcext.cli.pilot import LEAD_S, MAX_LEAD_S, MIN_LEAD_S
from hpcext.config import Settings, load_settings
from hpcext.core.errors import InputError, NoManagerError
from hpcext.jobfile import Gpus, JobSpec
from hpcext.manager import batch_job, lsf_suspend, slurm_job, state
from hpcext.manager import pilot as pilots
from hpcext.numerals import whole
from hpcext.protocol import Allocation
from hpcext.text import shown

STDOUT, STDERR = 1, 2

SCRIPT = "slurm_script"
"""What slurmd calls a job's batch script, in a spool of its own on each node."""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "suspendable",
        help="in a batch script: run a command that outlives a preemption and the time limit",
        usage="hpcext suspendable [--lead SECONDS] -- COMMAND [ARGUMENT...]",
        epilog="example: hpcext suspendable --lead 300 -- python train.py",
    )
    parser.add_argument(
        "--lead",
        type=int,
        help=f"suspend it so many seconds before the job ends (default: {LEAD_S})",
    )
    parser.add_argument(
        "--shell",
        type=int,
        metavar="PID",
        help="used by hpcext-starter of LSF: run what this shell runs, suspendable",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="used by erestart.hpcext of LSF: go on from the checkpoint in LSB_CHKPNT_DIR",
    )
    parser.set_defaults(rest=(), run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Become the batch script of a pilot."""
    here = Allocation.from_environ()
    lsf = LsfJob.from_environ()
    if here is None and lsf is not None:
        return _run_lsf(lsf, args)
    return _run_slurm(here, args)


def _run_slurm(here: Allocation | None, args: argparse.Namespace) -> int:
    # The shell of salloc is on no node of its job, and cannot be put back into the queue.
    if here is None or here.step or not here.node:
        raise InputError(
            "is for the batch script of a Slurm job, and this is none",
            where="hpcext suspendable",
            do="sbatch train.sh, where train.sh ends with: exec hpcext suspendable -- COMMAND",
        )
    if not args.rest:
        raise InputError("no command", valid="hpcext suspendable [--lead SECONDS] -- COMMAND ...")
    lead_s = _lead_s(args.lead)
    settings = load_settings()
    directory = _found(here, settings) or _made(here, settings, args.rest, lead_s)
    _append()
    os.execv("/bin/sh", ["/bin/sh", str(batch_job.write_script(directory))])


def _run_lsf(here: LsfJob, args: argparse.Namespace) -> int:
    """Become the leader of an LSF job; or, for its shell, make what that becomes."""
    if here.element:
        raise InputError(
            "the elements of a job array cannot be suspended",
            where="hpcext suspendable",
            do="submit them one by one",
        )
    directory, restarted = lsf_suspend.find(here)
    words = [os.fsencode(word) for word in args.rest]
    if args.shell is not None:
        words = lsf_suspend.words_of_shell(args.shell)
    if not words and not restarted:
        raise InputError("no command", valid="hpcext suspendable [--lead SECONDS] -- COMMAND ...")
    lead_s = _lead_s(args.lead)
    settings = load_settings()
    name = f"job-{lsf_suspend.key(here)}"
    new = directory is None
    if directory is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        directory = settings.state_dir / "suspendable" / f"{lsf_suspend.key(here)}-{stamp}"
        command = ("/bin/sh", str(directory / lsf_suspend.COMMAND))
        spec = _spec(command, len(here.devices) or 1, lead_s)
        _create(spec, len(here.devices), settings, directory, name=name, lead_s=lead_s, batch="lsf")
    try:
        # What brestart has run is the training of another job.
        if not restarted and not here.restarts:
            lsf_suspend.write_command(directory, words, here)
        lsf_suspend.note(here, directory)
        _log_to_output(directory, here.output)
        lsf_suspend.write_script(directory)
        lsf_suspend.register(here, directory)
    except OSError:
        if new:
            pilots.remove(directory, settings.state_dir)
        raise
    _append()
    if args.shell is None:
        protocol.forget_suspendable()
        os.execv("/bin/sh", ["/bin/sh", str(directory / batch_job.SCRIPT)])
    return 0


def _lead_s(given: int | None) -> int:
    """What the flag says, else the variable that the flag of sbatch sets, or a user."""
    text, where = protocol.environ().get("HPCEXT_LEAD_S", str(LEAD_S)), "HPCEXT_LEAD_S"
    if given is not None:
        text, where = str(given), "--lead"
    lead_s = whole(text)
    if lead_s is None or not MIN_LEAD_S <= lead_s <= MAX_LEAD_S:
        raise InputError(shown(text), where=where, valid=f"{MIN_LEAD_S} to {MAX_LEAD_S}")
    return lead_s


def _found(here: Allocation, settings: Settings) -> Path | None:
    """The pilot that an earlier allocation of this job began."""
    if not here.restarts:
        return None
    try:
        return pilots.find(_name(here), settings.state_dir)
    except NoManagerError:
        return None


def _made(here: Allocation, settings: Settings, command: Sequence[str], lead_s: int) -> Path:
    gpus = len(here.gpus)
    slots = gpus or 1
    stamp = time.strftime("%Y%m%d-%H%M%S")
    directory = settings.state_dir / "suspendable" / f"{here.name}-{stamp}"
    script = Path(command[0]) if Path(command[0]).name == SCRIPT else None
    # The next allocation may be on another node, where slurmd's spool is another.
    program = str(directory / SCRIPT) if script else command[0]
    spec = _spec((program, *command[1:]), slots, lead_s)
    _create(spec, gpus, settings, directory, name=_name(here), lead_s=lead_s, batch="slurm")
    try:
        if script:
            documents.write_file(directory / SCRIPT, script.read_bytes(), mode=0o700)
        slurm_job.adopt(directory, here.name)
        _log_to_output(directory)
    except OSError:
        # Else the next allocation would take it for one that can be gone on with.
        pilots.remove(directory, settings.state_dir)
        raise
    return directory


def _spec(command: Sequence[str], slots: int, lead_s: int) -> JobSpec:
    return JobSpec(
        name="job",
        command=tuple(command),
        gpus=Gpus(min=slots, max=slots, optimal=slots),
        workdir=str(Path.cwd()),
        # Its exit code is what the user of sbatch is to see, at once.
        retries=0,
        suspend_timeout_s=float(lead_s),
    )


def _create(spec: JobSpec, gpus: int, settings: Settings, directory: Path, **more: Any) -> None:
    """Make the pilot of one job that has the whole allocation."""
    # Its scripts are run from there.
    state.check_safe(settings.state_dir)
    pilots.create(
        [spec],
        where="hpcext suspendable",
        # A job without GPUs is one slot: all that it has of the node.
        gpus=range(gpus or 1),
        logical=not gpus,
        settings=settings,
        directory=directory,
        requeue=True,
        alone=True,
        **more,
    )


def _name(here: Allocation) -> str:
    return f"job-{here.name}"


def _log_to_output(directory: Path, wanted: str | None = None) -> None:
    """Have the job's output go where that of its batch script goes, if that is a file.

    Where the batch system says which one is `wanted` in the end, it must be that: what LSF only
    keeps until the job ends does not outlive a requeue.
    """
    output = os.readlink(f"/proc/self/fd/{STDOUT}")
    log = directory / "jobs" / "1" / "log.txt"
    kept = wanted is None or (wanted and os.path.realpath(wanted) == output)
    if kept and stat.S_ISREG(os.fstat(STDOUT).st_mode) and not os.path.lexists(log):
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log.symlink_to(output)


def _append() -> None:
    """Write at the end of the output from here on: the step writes to the same file."""
    for fd in (STDOUT, STDERR):
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
