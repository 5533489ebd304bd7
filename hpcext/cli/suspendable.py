"""``hpcext suspendable``: make an ordinary batch job outlive its allocation.

It is a pilot with one job, which has the whole allocation. The command runs in place of the batch
script, under a supervisor: so it is suspended before a preemption or the time limit, and goes on in
the same job of Slurm or LSF.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from hpcext import backends
from hpcext.backends.batch_job import LEAD_S
from hpcext.cli.commands import add_checkpoint, add_container
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.manager import suspendable


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "suspendable",
        help="in a batch script: run a command so that it survives preemptions and the time limit",
        usage="hpcext suspendable [--lead SECONDS] [--checkpoint HOW] [--container IMAGE] "
        "-- COMMAND [ARGUMENT...]",
        epilog="example: hpcext suspendable --lead 300 -- python train.py",
    )
    parser.add_argument(
        "--lead",
        help=f"suspend this many seconds before the end of the job (default: {LEAD_S})",
    )
    add_checkpoint(parser)
    add_container(parser)
    parser.add_argument(
        "--shell",
        type=int,
        metavar="PID",
        help="used by hpcext-starter of LSF: run what this shell runs, but suspendable",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="used by erestart.hpcext of LSF: go on from the checkpoint in LSB_CHKPNT_DIR",
    )
    parser.set_defaults(rest=(), run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Become the batch script of a pilot; or write it, for the shell of a job to become."""
    settings = load_settings()
    backend = backends.here(settings.batch)
    if backend is None:
        raise InputError(
            "works in the batch script of a job only, and this is not one",
            where="hpcext suspendable",
            do="sbatch train.sh, where train.sh ends with: exec hpcext suspendable -- COMMAND",
        )
    job = backend.suspendable(args.rest, args.shell)
    lead_s = suspendable.lead_of(args.lead)
    script = suspendable.prepare(
        job, lead_s, settings, checkpoint=args.checkpoint, container=args.container
    )
    suspendable.append()
    if args.shell is None:
        os.execv("/bin/sh", ["/bin/sh", str(script)])
    return 0
