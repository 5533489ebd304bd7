"""``hpcext trainer``: the batch job that stands for a trainer on idle nodes and ends with it."""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcext import backends, checkpointers, containers, protocol
from hpcext.backends.own_job import OwnJob
from hpcext.checks import at
from hpcext.cli import ranges
from hpcext.cli.commands import add_checkpoint, add_container
from hpcext.cli.harvest.terms import make_terms
from hpcext.cli.output import Output
from hpcext.cli.ticket import TicketLoop
from hpcext.config import MAX_NODES, Settings, load_settings
from hpcext.containers import Container
from hpcext.core.band import read_band
from hpcext.core.errors import InputError, NoManagerError
from hpcext.harvest.leases import Terms
from hpcext.jobfields import MAX_GPUS
from hpcext.manager import directory as pilots
from hpcext.manager import tickets
from hpcext.manager.tickets import Range, Ticket
from hpcext.text import shown

_NODES = re.compile(r"[0-9:]+\Z")

_CREATION_S = 120.0
"""Seconds to wait while another ticket creates the harvester.

That takes several queries of the batch system, and all elements of a job array begin at once.
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "trainer",
        help="in a batch script: train on idle nodes, while this small job waits",
        usage="hpcext trainer [--checkpoint HOW] [--container IMAGE] [--shell PID] "
        "[MIN:MAX] COMMAND [ARGUMENT...]",
        epilog="example: hpcext trainer 1:4 train.sh",
    )
    parser.add_argument(
        "--shell",
        type=int,
        metavar="PID",
        help="used by hpcext-starter of LSF: train what this shell runs",
    )
    add_checkpoint(parser)
    add_container(parser)
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Submit the trainer and wait for its end; return its exit status."""
    settings = load_settings(flags={"policy": "bftrainer"})
    backend = backends.here(settings.batch)
    here = backend.ticket() if backend is not None else None
    if backend is None or here is None:
        raise InputError(
            "works in the batch script of a job of Slurm or LSF only, and this is not one",
            where="hpcext trainer",
            do="sbatch --wrap 'exec hpcext trainer 1:4 train.sh'",
        )
    if args.shell is not None:
        backend.write_ticket(settings.state_dir, args.shell)
        return 0
    environ = protocol.environ()
    nodes, command = _words(args.argv, environ.get("HPCEXT_TRAINER", ""))
    if not settings.harvest_partition:
        raise InputError(
            "no partition, or queue, for trainers",
            where="harvest_partition",
            valid="one whose jobs all others preempt",
            do="set it, or HPCEXT_HARVEST_PARTITION",
        )
    _check_gpus(environ.get("HPCEXT_GPUS", ""))
    saves = environ.get("HPCEXT_CHECKPOINT", "") if args.checkpoint is None else args.checkpoint
    if saves:
        with at("HPCEXT_CHECKPOINT" if args.checkpoint is None else "--checkpoint"):
            checkpointers.stated(saves)
    container = _container(args.container, saves, settings)
    directory = _harvester(settings, here)
    harvest = pilots.load(directory).harvest
    assert harvest is not None
    name = Path(command[0]).name
    words = [str(nodes), name, *command[1:], str(Path.cwd()), *([here.run_of] * bool(here.run_of))]
    key = tickets.key_now(directory, here.id, words)
    logging.basicConfig(format="hpcext: %(message)s", level=logging.WARNING)
    # Ignored, because their default action is to end the process, and nothing handles them yet.
    for signum in (protocol.NEWS_SIGNAL, protocol.NOTICE_SIGNAL):
        signal.signal(signum, signal.SIG_IGN)
    with tickets.alive(directory, key):
        here.begin(settings.state_dir)
        kept = _with_kept_script(here, directory, key, command)
        ticket = Ticket(
            job_id=here.id,
            name=here.name,
            command=kept,
            workdir=str(Path.cwd()),
            nodes=nodes,
            gpus=_gpus(environ.get("HPCEXT_GPUS", ""), harvest.gpus),
            scaling=environ.get("HPCEXT_SCALING", ""),
            environ=tickets.environment(here.environ(), *here.numbers),
            checkpoint=saves,
            trackers=protocol.wants_trackers(environ),
            container=_with_scripts(container, kept, directory) if container else None,
        )
        return TicketLoop(directory, key, ticket, here, out).run()


def _words(argv: Sequence[str], variable: str) -> tuple[Range, tuple[str, ...]]:
    """Parse the number of nodes, from the command line or a variable, and the command to run."""
    rest = list(argv)
    text, where = variable, "HPCEXT_TRAINER"
    if rest and _NODES.match(rest[0]):
        text, where = rest.pop(0), "hpcext trainer"
    if rest[:1] == ["--"]:
        del rest[0]
    if not text:
        raise InputError(
            "the number of nodes is missing", valid="hpcext trainer MIN:MAX COMMAND ..."
        )
    valid = f"MIN:MAX, 1 to {MAX_NODES}"
    nodes = Range(*ranges.parse(text, most=MAX_NODES, where=where, valid=valid))
    if ":" not in text:
        raise InputError(shown(text), where=where, valid=valid)
    if not rest:
        raise InputError("no command", valid="hpcext trainer MIN:MAX COMMAND ...")
    if not Path(rest[0]).is_file() and shutil.which(rest[0]) is None:
        raise InputError(
            f"script or command {shown(rest[0])} was not found",
            valid="a file, or a program in PATH",
        )
    return nodes, tuple(rest)


def _container(image: str | None, saves: str, settings: Settings) -> Container | None:
    """Return the container that an option names; refuse one in which nothing can run."""
    if image is None:
        return None
    with at("--container"):
        return containers.settle(
            containers.container(image),
            str(Path.cwd()),
            checkpointers.checkpoint(checkpointers.stated(saves)) if saves else None,
            base=Path.cwd(),
            runtime=settings.container_runtime,
        )


def _with_scripts(container: Container, kept: Sequence[str], directory: Path) -> Container:
    """Return a container in which the copy of a script is visible, if there is one."""
    folder = directory / tickets.FOLDER
    copies = [containers.check_bound(word) for word in kept[:2] if Path(word).parent == folder]
    return msgspec.structs.replace(container, binds=tuple(f"{each}:{each}:ro" for each in copies))


def _check_gpus(text: str) -> None:
    if text and text != "auto":
        valid = f"auto, N or MIN:MAX, 1 to {MAX_GPUS}"
        ranges.parse(text, most=MAX_GPUS, where="HPCEXT_GPUS", valid=valid)


def _gpus(text: str, most: int) -> Range:
    """Parse the GPUs of each node; by default all that the harvester uses."""
    if text == "auto":
        return Range(1, most)
    return Range(*ranges.parse(text, most=MAX_GPUS)) if text else Range(most, most)


def _harvester(settings: Settings, here: OwnJob) -> Path:
    def terms() -> Terms:
        none = argparse.Namespace(partition=None, gpus_per_node=None, slots=None, rest=())
        return make_terms(
            none,
            settings,
            batch=here.system,
            max_nodes=settings.harvest_max_nodes,
            autoscale=read_band(settings.harvest_autoscale),
        )

    until_s = time.monotonic() + _CREATION_S
    while time.monotonic() < until_s:
        try:
            return tickets.open_harvester(settings, here.system, terms)
        except BlockingIOError:
            time.sleep(tickets.PAUSE_S)
    raise NoManagerError("is being created by another process", where=str(settings.state_dir))


def _with_kept_script(
    here: OwnJob, directory: Path, key: str, command: Sequence[str]
) -> tuple[str, ...]:
    """Return the command, with a copy of its script in place of the original.

    The batch system may keep the script on this node alone, and later changes by the user are not
    meant for this job.
    """
    script = Path(command[0])
    if script.is_file():
        with open(script, "rb") as file:
            begins = file.read(2)
        if begins == b"#!":
            return (tickets.keep_script(directory, key, script), *command[1:])
        if here.is_its_script(script):
            return ("/bin/sh", tickets.keep_script(directory, key, script), *command[1:])
        return (str(script.absolute()), *command[1:])
    return tuple(command)
