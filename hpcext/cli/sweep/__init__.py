"""``hpcext sweep``: make a job file that runs one script with many settings."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext.checks import check_range
from hpcext.cli import ranges
from hpcext.cli.output import Output, write_file
from hpcext.cli.sweep.space import Range, Space, propose
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.core.trials import Trial
from hpcext.core.values import Job, Record
from hpcext.extras import need
from hpcext.jobfields import MAX_GPUS, MAX_NODES, metric
from hpcext.jobfile import MAX_JOBS, parse_jobs
from hpcext.jobtext import allowed_name, job_text
from hpcext.manager import directory as pilots
from hpcext.manager import spool
from hpcext.manager.views import reading
from hpcext.text import counted, shown

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
LAUNCH = ("hpcext", "launch", "python")
"""The command that runs a script on all GPUs of a job, and is resized in place."""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "sweep",
        usage="hpcext sweep SCRIPT --grid KEY=VALUE,... [OPTION...] [-- ARGUMENT...]",
        help="write a job file that runs one script with many settings",
        epilog="example: hpcext sweep train.py --grid lr=0.1,0.01 --grid seed=1,2,3",
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="pass --KEY=VALUE to the script; each combination is a job",
    )
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="KEY=LOW:HIGH[:log]",
        help="with --random: pass --KEY=NUMBER to the script, drawn between LOW and HIGH; with "
        ":log every order of magnitude is equally likely",
    )
    parser.add_argument(
        "--random",
        type=int,
        metavar="N",
        help="draw N combinations at random instead of taking all",
    )
    parser.add_argument(
        "--optuna",
        metavar="PILOT",
        help="let Optuna choose the N combinations of --random from the results of trials in "
        "this pilot, and submit them to it",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the draw, to repeat it (default: 0)"
    )
    parser.add_argument(
        "--metric", help="compare trials by this metric, which the script must report"
    )
    parser.add_argument(
        "--goal",
        choices=("min", "max"),
        help="whether a smaller or a larger value is better (default: min)",
    )
    parser.add_argument(
        "--first",
        type=int,
        metavar="STEPS",
        help="end trials early: compare them for the first time after this many steps",
    )
    parser.add_argument(
        "--factor",
        type=int,
        metavar="N",
        help="compare again after N times as many steps, and so on; one of N continues each time "
        "(default: 3)",
    )
    parser.add_argument(
        "--nodes", default="1", metavar="MIN[:MAX]", help="number of nodes (default: 1)"
    )
    parser.add_argument(
        "--gpus", default="1", metavar="MIN[:MAX]", help="number of GPUs on each (default: 1)"
    )
    parser.add_argument(
        "--scaling", help="name of the measured speed curve of the script: hpcext profile --list"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        help="job file to write; it must not exist (default: standard output)",
    )
    parser.set_defaults(run=sweep, rest=())


def sweep(args: argparse.Namespace, out: Output) -> int:
    """Print the job file, write it, or submit it to a pilot."""
    if not args.script.is_file():
        raise InputError(f"{shown(str(args.script))} is not a file", where="SCRIPT")
    if args.optuna is not None:
        need("optuna", "--optuna")
    rules, space, began = _rules(args), _space(args), 0
    if args.optuna is not None:
        tried = _earlier_trials(args, rules)
        began = len(tried)
        # A new seed each time; otherwise the first draws, which ignore results, would recur.
        chosen = propose(space, tried, args.random, args.seed + began, rules.goal)
    else:
        chosen = space.every() if args.random is None else space.draws(args.random, args.seed)
    text = job_file(
        args.script,
        chosen,
        rules,
        rest=args.rest,
        nodes=ranges.parse(args.nodes, most=MAX_NODES, where="--nodes"),
        gpus=ranges.parse(args.gpus, most=MAX_GPUS, where="--gpus"),
        scaling=args.scaling,
        began=began,
    )
    if args.scaling is None:
        # Parsed, so that errors come now, and not when it is submitted.
        parse_jobs(text, "--grid", Path.cwd())
    if args.out is not None:
        if args.out.exists():
            raise InputError(f"{args.out} exists", where="--out", do="choose another name")
        write_file(args.out, text.encode())
        out.line(f"{counted(len(chosen), 'job')} in {args.out}")
    elif args.optuna is not None:
        base = str(Path.cwd())
        answer = spool.ask(_pilot(args), "submit", text=text, where="--optuna", base=base)
        out.line(str(answer["text"]))
    else:
        out.raw(text.encode())
    return 0


def _pilot(args: argparse.Namespace) -> Path:
    return pilots.find(args.optuna, load_settings().state_dir)


def job_file(
    script: Path,
    settings: Sequence[dict[str, str]],
    rules: Trial,
    *,
    rest: Sequence[str] = (),
    nodes: tuple[int, int] = (1, 1),
    gpus: tuple[int, int] = (1, 1),
    scaling: str | None = None,
    began: int = 0,
) -> str:
    """Return a job file with a job for each of the settings.

    Parameters
    ----------
    script : pathlib.Path
    settings : sequence of dict of str to str
        Key → value, in the order in which the script gets them.
    rules : Trial
        How trials are compared.
    rest : sequence of str
        Further arguments, the same for all.
    nodes, gpus : (int, int)
        Fewest and most.
    scaling : str, optional
        The name of a stored speed curve.
    began : int
        The number of trials that exist already; the names of new ones count from there.
    """
    judged: dict[str, Any] = {}
    if rules.metric:
        judged |= {"metric": rules.metric, "goal": rules.goal}
    if rules.first is not None:
        judged |= {"first": rules.first, "factor": rules.factor}
    found = []
    for number, chosen in enumerate(settings, start=began + 1):
        words = [f"--{key}={value}" for key, value in chosen.items()]
        job: dict[str, Any] = {
            "name": _name(script, number, chosen),
            "command": [*LAUNCH, str(script.absolute()), *words, *rest],
            "nodes": {"min": nodes[0], "max": nodes[1]},
            "gpus": {"min": gpus[0], "max": gpus[1]},
            "trial": {"sweep": rules.sweep, "settings": chosen, **judged},
        }
        found.append(job if scaling is None else {**job, "scaling": scaling})
    return job_text(*found)


def _earlier_trials(args: argparse.Namespace, rules: Trial) -> list[tuple[Job, Trial, Record]]:
    """Return the trials of this sweep that the pilot of ``--optuna`` has already."""
    for flag in ("random", "metric"):
        if getattr(args, flag) is None:
            raise InputError(f"needs --{flag}", where="--optuna")
    check_range("--random", args.random, 1, MAX_JOBS)
    world = reading.read(_pilot(args)).world
    return [
        (job, job.trial, world.records[job.id])
        for job in world.jobs.values()
        if job.trial is not None and job.trial.rules == rules.rules
    ]


def _rules(args: argparse.Namespace) -> Trial:
    """Return how trials are compared, and when."""
    for flag, needed in (("goal", "metric"), ("first", "metric"), ("factor", "first")):
        if getattr(args, flag) is not None and getattr(args, needed) is None:
            raise InputError(f"needs --{needed}", where=f"--{flag}")
    for flag, least in (("first", 1), ("factor", 2)):
        value = getattr(args, flag)
        if value is not None and value < least:
            raise InputError(str(value), where=f"--{flag}", valid=f"a number of at least {least}")
    if args.metric is not None:
        try:
            metric(args.metric)
        except InputError as error:
            raise InputError(error.what, where="--metric", valid=error.valid) from None
    stem = args.script.stem
    return Trial(
        sweep=allowed_name(stem, "sweep"),
        metric=args.metric or "",
        goal=args.goal or "min",
        first=args.first,
        factor=args.factor or 3,
    )


def _name(script: Path, number: int, chosen: dict[str, str]) -> str:
    """Return a unique name, such as ``train-7-lr0.1-seed2``, cut to the length of a name."""
    parts = (f"{key}{value}" for key, value in chosen.items())
    return allowed_name("-".join([script.stem, str(number), *parts]), "trial")


def _space(args: argparse.Namespace) -> Space:
    """Return the settings to choose from."""
    grid = dict(map(_axis, args.grid))
    ranges = dict(map(_numbers, args.range))
    keys = [text.partition("=")[0] for text in (*args.grid, *args.range)]
    if len(set(keys)) < len(keys):
        raise InputError(f"one of these keys is given twice: {', '.join(keys)}", where="--grid")
    if not keys:
        raise InputError("is missing", where="--grid", valid="KEY=VALUE,VALUE,...")
    return Space(grid, ranges)


def _axis(text: str) -> tuple[str, tuple[str, ...]]:
    key, equals, values = text.partition("=")
    listed = tuple(value for value in values.split(",") if value)
    if not equals or not _KEY.match(key) or not listed:
        raise InputError(shown(text), where="--grid", valid="KEY=VALUE,VALUE,...")
    return key, tuple(dict.fromkeys(listed))


def _numbers(text: str) -> tuple[str, Range]:
    key, _, said = text.partition("=")
    low, _, rest = said.partition(":")
    high, colon, log = rest.partition(":")
    try:
        least, most = float(low), float(high)
    except ValueError:
        least = most = math.nan
    above = 0 if colon else -math.inf
    # Written so that NaN is refused, too.
    if not _KEY.match(key) or not above < least < most < math.inf or log not in ("", "log"):
        valid = "KEY=LOW:HIGH or KEY=LOW:HIGH:log, LOW below HIGH, with log above 0"
        raise InputError(shown(text), where="--range", valid=valid)
    whole = all(re.fullmatch(r"-?[0-9]+", each) for each in (low, high))
    return key, Range(least, most, bool(log), whole)
