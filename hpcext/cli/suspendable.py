"""``hpcext suspendable``: make an ordinary batch job outlive its allocation.

It is a pilot with one job, which has the whole allocation. The command runs where the batch script
would, under a supervisor: so it learns in time of a preemption and of the time limit, and goes on
in the same job of Slurm or LSF.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from hpcext import protocol
from hpcext.batch.lsf.inside import LsfJob
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.manager import batch_job, lsf_suspend, slurm_suspend, suspendable
from hpcext.manager import directory as directories
from hpcext.manager.batch_job import LEAD_S
from hpcext.protocol import Allocation


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
        help=f"seconds before the end of the job at which to suspend (default: {LEAD_S})",
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
    # The shell of salloc runs on no node of its job, and cannot be requeued.
    if here is None or here.step or not here.node:
        raise InputError(
            "is for the batch script of a Slurm job, and this is none",
            where="hpcext suspendable",
            do="sbatch train.sh, where train.sh ends with: exec hpcext suspendable -- COMMAND",
        )
    if not args.rest:
        raise InputError("no command", valid="hpcext suspendable [--lead SECONDS] -- COMMAND ...")
    lead_s = suspendable.lead_of(args.lead)
    script = slurm_suspend.prepare(here, args.rest, lead_s, load_settings())
    suspendable.append()
    os.execv("/bin/sh", ["/bin/sh", str(script)])


def _run_lsf(here: LsfJob, args: argparse.Namespace) -> int:
    """Become the leader of an LSF job; with ``--shell``, only write the script of that leader."""
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
    lead_s = suspendable.lead_of(args.lead)
    settings = load_settings()
    name = f"job-{lsf_suspend.key(here)}"
    new = directory is None
    if directory is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        directory = settings.state_dir / "suspendable" / f"{lsf_suspend.key(here)}-{stamp}"
        command = ("/bin/sh", str(directory / lsf_suspend.COMMAND))
        gpus = len(here.devices)
        spec = suspendable.spec(command, gpus or 1, lead_s)
        suspendable.create(spec, gpus, settings, directory, name=name, lead_s=lead_s, batch="lsf")
    try:
        # A training restarted by brestart began as another job.
        if not restarted and not here.restarts:
            lsf_suspend.write_command(directory, words, here)
        lsf_suspend.note(here, directory)
        suspendable.log_to_output(directory, here.output)
        lsf_suspend.write_script(directory)
        lsf_suspend.register(here, directory)
    except OSError:
        if new:
            directories.remove(directory, settings.state_dir)
        raise
    suspendable.append()
    if args.shell is None:
        protocol.forget_suspendable()
        os.execv("/bin/sh", ["/bin/sh", str(directory / batch_job.SCRIPT)])
    return 0
