"""Verbs that change a pilot: send its manager a request, and wait for the outcome if told to."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.cli import commands
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.core.world import World
from hpcext.jobfile import COMMAND_LINE
from hpcext.manager import choosing
from hpcext.manager import directory as pilots
from hpcext.manager.handles import find_job
from hpcext.manager.requests import AUTO
from hpcext.manager.views.reading import Follower
from hpcext.manager.waiting import (
    Look,
    asked,
    of_cancel,
    of_drain,
    of_job,
    of_resize,
    of_resume,
    of_submit,
    of_suspend,
    wait,
)
from hpcext.numerals import whole
from hpcext.text import shown
from hpcext.textfiles import read_text

MOST_WAIT_S = 31_536_000
"""The longest ``--timeout``: a year."""

OUTCOMES = {"suspend": of_suspend, "resume": of_resume, "cancel": of_cancel}


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the options that wait for the outcome of a request."""
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait until it is done; the exit status says whether it is",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="with --wait: wait at most this many seconds"
    )


def submit(args: argparse.Namespace, out: Output) -> int:
    """Submit the jobs of a file or of commands to a running manager, which checks them."""
    words = _submission(args)
    _check_wait(args)
    directory = pilot_to_change(args, out)
    job_ids = hand_over(directory, words, out)
    return _wait(args, directory, of_submit(job_ids), out) if args.wait else 0


def hand_over(directory: Path, words: Mapping[str, Any], out: Output) -> Sequence[str]:
    """Submit jobs to the manager of a pilot, print its answer, and return their ids.

    Parameters
    ----------
    directory : pathlib.Path
    words : Mapping
        The fields of the request.
    out : Output
    """
    answer = asked(directory, "submit", **words)
    said, *warnings = str(answer["text"]).split("\nwarning: ")
    out.line(said)
    for warning in warnings:
        out.note(f"warning: {warning}")
    job_ids: list[str] = answer.get("jobs", [])
    return job_ids


def _submission(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request to submit jobs."""
    if not (args.rest or args.commands is not None) and args.jobs is None:
        # A single argument is the job file, not the pilot.
        args.pilot, args.jobs = None, args.pilot
    written = commands.read(args)
    if written is not None:
        # A name that we made ourselves gets a number if it is taken.
        number = args.number or args.name is None
        words = {"text": written.text, "where": COMMAND_LINE, "base": os.getcwd()}
        return {**words, "number": number}
    if args.jobs is None:
        raise InputError(
            "no job file",
            valid="hpcext submit PILOT JOBS.toml, or hpcext submit PILOT -- COMMAND",
        )
    if args.name is not None:
        raise InputError(f"cannot be given with the job file {shown(args.jobs)}", where="--name")
    path = Path(args.jobs).absolute()
    words = {"text": read_text(path), "where": args.jobs, "base": str(path.parent)}
    return {**words, "number": args.number}


def ask(args: argparse.Namespace, out: Output) -> int:
    """Send one request and print the answer."""
    words: dict[str, Any] = {
        key: getattr(args, key) for key in ("job", "gpus") if hasattr(args, key)
    }
    _check_wait(args)
    if "gpus" in words:
        words["gpus"] = gpus_or_auto(args.gpus)
    directory = pilot_to_change(args, out)
    # The name is resolved before the request: afterwards it may mean another job.
    world = Follower(directory).engine().world if args.wait else None
    out.line(str(asked(directory, args.verb, **words)["text"]))
    return 0 if world is None else _wait(args, directory, _look(args, world), out)


def gpus_or_auto(text: str) -> int | str:
    """Parse a number of GPUs, or ``auto``.

    Raises
    ------
    InputError
        The text is neither.
    """
    gpus = AUTO if text == AUTO else whole(text)
    if gpus is None:
        raise InputError(shown(text), where="GPUS", valid=f"an integer, or {AUTO}")
    return gpus


def pilot_to_change(args: argparse.Namespace, out: Output) -> Path:
    """Find the pilot that a verb changes; print which one it is if that was not said."""
    state_dir = load_settings().state_dir
    if args.pilot is not None:
        directory, chosen = choosing.named_to_change(args.pilot, state_dir)
        if chosen:
            out.note(f"pilot {pilots.load(directory).id}, the only one of its name that runs")
        return directory
    directory = choosing.to_change(getattr(args, "job", ""), state_dir)
    out.note(f"pilot {pilots.load(directory).id}, the only one that runs")
    return directory


def _wait(args: argparse.Namespace, directory: Path, look: Look, out: Output) -> int:
    ended = of_drain if args.verb == "drain" else None
    timeout_s = math.inf if args.timeout is None else args.timeout
    found = wait(directory, look, timeout_s=timeout_s, ended=ended)
    out.line(found.text)
    return found.status


def _check_wait(args: argparse.Namespace) -> None:
    if args.timeout is None:
        return
    if not args.wait:
        raise InputError("can be given with --wait only", where="--timeout")
    if not 0 <= args.timeout <= MOST_WAIT_S:
        raise InputError(
            f"{args.timeout:g}", where="--timeout", valid=f"0 to {MOST_WAIT_S} seconds"
        )


def _look(args: argparse.Namespace, world: World) -> Look:
    """Return a function that tells from a world whether the request has had its outcome."""
    if args.verb == "drain":
        return lambda _world: None
    job_id = find_job(world, args.job).id
    if args.verb == "resize":
        gpus = 0 if args.gpus == AUTO else int(args.gpus)
        return of_job(job_id, lambda job: of_resize(job, gpus))
    return of_job(job_id, OUTCOMES[args.verb])
