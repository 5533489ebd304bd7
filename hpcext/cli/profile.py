"""``hpcext profile``: measure the speed of a command by its number of GPUs, and store the curve."""

from __future__ import annotations

import argparse
import logging
import re
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import msgspec

from hpcext import jobfields
from hpcext.checks import number, placed
from hpcext.cli.launch import check_program
from hpcext.cli.output import Output
from hpcext.cli.run import choose_gpus
from hpcext.config import Settings, load_settings
from hpcext.core.errors import InputError
from hpcext.manager import profile as measuring
from hpcext.manager.refine import gpu_kind
from hpcext.profiles import Measurement, Profiles
from hpcext.scaling.curve import fewest_near_best, shape
from hpcext.text import clean, counted, shown

SECONDS = 60.0
"""The default limit, in seconds, for the measurement of one number of GPUs."""

MOST_SIZES = 64
BAR_CHARS = 40


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "profile",
        help="measure how fast a command is on how many GPUs, and keep the curve",
        description='Job files use the curve with scaling = "NAME".',
        epilog="example: hpcext profile --gpus 4 -- torchrun --nproc-per-node {gpus} train.py",
    )
    parser.add_argument("--name", help="name of the curve (default: that of the script)")
    parser.add_argument(
        "--gpus", help="numbers of GPUs to measure: 4 for 1 to 4; or 1,2,4 or 2-4 (default: all)"
    )
    parser.add_argument(
        "--seconds", help=f"limit for each number, in seconds (default: {SECONDS:g})"
    )
    parser.add_argument("--list", action="store_true", help="show all curves")
    parser.add_argument(
        "--show", metavar="NAME", help="show a curve and the measurements behind it"
    )
    parser.add_argument("--best", metavar="NAME", help="print the best number of GPUs of a curve")
    parser.add_argument("--remove", metavar="NAME", help="remove a curve")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run")
    parser.set_defaults(run=profile)


def profile(args: argparse.Namespace, out: Output) -> int:
    """Measure a command, or show or remove stored curves."""
    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    chosen = [flag for flag in ("list", "show", "best", "remove") if getattr(args, flag)]
    if len(chosen) + bool(argv) != 1:
        raise InputError(
            "no command to measure" if not argv else f"--{chosen[0]} does not take a command",
            valid="one of: hpcext profile -- COMMAND, --list, --show, --best or --remove NAME",
        )
    if not chosen:
        return _measure(args, argv, out)
    measuring_only = ("name", "seconds") if args.best else ("name", "gpus", "seconds")
    given = [flag for flag in measuring_only if getattr(args, flag) is not None]
    if given:
        raise InputError(
            f"--{given[0]} can be given for a measurement only", where=f"--{chosen[0]}"
        )
    profiles = Profiles(load_settings().state_dir / "profiles", gpu_kind())
    if args.list:
        return _list(profiles, out, as_json=args.json)
    if args.show:
        return _show(args.show, profiles, out, as_json=args.json)
    if args.best:
        return _best(args.best, args.gpus, profiles, out, as_json=args.json)
    profiles.remove(args.remove)
    out.line(f"{args.remove} is removed")
    return 0


# Measuring.


def _measure(args: argparse.Namespace, argv: Sequence[str], out: Output) -> int:
    logging.basicConfig(format="hpcext: %(message)s", level=logging.WARNING)
    settings = load_settings()
    name = _name(args.name, argv)
    seconds = _seconds(args.seconds)
    sizes, gpus, logical = _sizes(args.gpus, settings)
    check_program(argv[0])
    profiles = Profiles(settings.state_dir / "profiles", gpu_kind())
    if name in profiles.names():
        profiles.load(name)  # a damaged profile is refused before the measurement, not after it
    kind = "logical slots" if logical else profiles.gpu
    out.line(f"{name}: {counted(len(sizes), 'run')} of at most {seconds:g} s each, on {kind}")
    found, stopped_by = measuring.measure(
        argv,
        sizes,
        name=name,
        gpus=gpus,
        logical=logical,
        seconds=seconds,
        settings=settings,
        tell=lambda size: out.line(_size_line(size)),
    )
    measured = [each for size in found if (each := size.measurement(profiles.gpu))]
    if measured:
        profiles.add(name, measured)
    _report(name, found, measured, out, as_json=args.json)
    if stopped_by is not None:
        return 128 + stopped_by
    return 0 if len(measured) == len(sizes) else 1


def _name(given: str | None, argv: Sequence[str]) -> str:
    """Return the given name, or one made from the script that the command runs."""
    if given is not None:
        try:
            return jobfields.plain_name(given)
        except InputError as error:
            raise placed(error, "--name") from None
    scripts = [word for word in argv if word.endswith(".py")]
    modules = [after for word, after in pairwise(argv) if word == "-m"]
    if scripts:
        found = PurePath(scripts[0]).stem
    elif modules:
        found = modules[0].rpartition(".")[2]
    else:
        found = PurePath(argv[0]).name
    kept = re.sub(r"[^A-Za-z0-9._-]", "-", found).lstrip("._-")[:64]
    try:
        return jobfields.plain_name(kept)
    except InputError:
        raise InputError("the command has no name", do="give one, as in --name cnn") from None


def _seconds(given: str | None) -> float:
    if given is None:
        return SECONDS
    try:
        return number(float(given), 1, 3600)
    except (ValueError, InputError):
        raise InputError(shown(given), where="--seconds", valid="a number, 1 to 3600") from None


def _sizes(given: str | None, settings: Settings) -> tuple[list[int], tuple[int, ...], bool]:
    """Return the numbers of GPUs to try, the GPUs to use, and whether these are logical slots."""
    if given is None:
        gpus, logical = choose_gpus(settings)
        sizes = list(range(1, len(gpus) + 1))
    else:
        sizes = _numbers(given)
        # It also checks that there are enough GPUs.
        gpus, logical = choose_gpus(load_settings(flags={"gpus": str(max(sizes))}))
    if len(sizes) > MOST_SIZES:
        raise InputError(
            f"{len(sizes)} numbers of GPUs",
            where="--gpus",
            valid=f"at most {MOST_SIZES}",
            do="choose some, as in --gpus 1,2,4,8",
        )
    return sizes, gpus, logical


def _numbers(text: str) -> list[int]:
    """Parse numbers of GPUs, ascending: ``4`` is 1 to 4, ``2-4`` is 2 to 4, ``1,2,4`` is these."""
    valid = "4 for 1 to 4, or 1,2,4 or 2-4"
    found: set[int] = set()
    parts = text.split(",")
    for part in parts:
        match = re.fullmatch(r"\s*([1-9][0-9]{0,4})\s*(?:-\s*([1-9][0-9]{0,4})\s*)?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high <= jobfields.MAX_GPUS:
            raise InputError(shown(text), where="--gpus", valid=valid)
        found.update(range(1 if len(parts) == 1 and match and not match[2] else low, high + 1))
    return sorted(found)


def _size_line(size: measuring.SizeResult) -> str:
    if size.error:
        return f"{counted(size.gpus, 'GPU')}: {size.error}"
    unit = "samples" if size.samples_per_s is not None else "steps"
    rate = size.samples_per_s if size.samples_per_s is not None else size.steps_per_s
    known = "" if size.half_width is None else f" ± {size.half_width:.1%}"
    return f"{counted(size.gpus, 'GPU')}: {rate:.4g} {unit}/s{known}, seen for {size.seconds:.1f} s"


def _report(
    name: str,
    found: Sequence[measuring.SizeResult],
    measured: Sequence[Measurement],
    out: Output,
    *,
    as_json: bool,
) -> None:
    """Print what this run has measured; the stored curve may have more."""
    counted = all(each.samples_per_s is not None for each in measured)
    unit = "samples" if counted else "steps"
    curve = {each.gpus: rate for each in measured if (rate := each.rate(unit)) is not None}
    if as_json:
        out.document(
            {
                "schema": "hpcext.profile-run/1",
                "name": name,
                "unit": unit,
                "optimal": fewest_near_best(curve) if curve else None,
                "sizes": [msgspec.structs.asdict(size) for size in found],
            }
        )
    elif curve:
        _draw(curve, unit, out)
        out.line(f'stored; in a job file: scaling = "{name}"')
    else:
        out.line("nothing was measured, so nothing is stored")


def _draw(curve: Mapping[int, float], unit: str, out: Output) -> None:
    """Print a table and a plot of one curve."""
    best = fewest_near_best(curve)
    gains = shape(curve)
    fewest = min(gains)
    rows = [
        (
            str(gpus),
            f"{curve[gpus]:.4g}",
            f"{gain:.2f}",
            f"{gain * fewest / gpus:.0%}",
            "best" if gpus == best else "",
        )
        for gpus, gain in gains.items()
    ]
    out.table(("GPUs", f"{unit}/s", "speed-up", "efficiency", ""), rows)
    # Dots continue the bar to the length of a linear speed-up, if there is room.
    per_char = max(gains.values()) / BAR_CHARS
    width = len(str(max(gains)))
    for gpus, gain in gains.items():
        bar = "#" * max(1, round(gain / per_char))
        linear = min(BAR_CHARS, round(gpus / fewest / per_char))
        mark = "  best" if gpus == best else ""
        out.line(f"{gpus:{width}} |{bar:.<{linear}}{mark}")


# Stored curves.


def _list(profiles: Profiles, out: Output, *, as_json: bool) -> int:
    rows, documents = [], []
    for name in profiles.names():
        try:
            stored = profiles.load(name)
        except InputError as error:
            out.note(str(error))  # a damaged profile must not hide the others
            continue
        unit = stored.unit(profiles.gpu)
        curve = stored.curve(unit, profiles.gpu)
        best = fewest_near_best(curve) if curve else None
        last = stored.measurements[-1] if stored.measurements else None
        when = _when(last.at) if last else ""
        kind = stored.of_kind(profiles.gpu)[-1].gpu if last else ""
        rows.append((name, " ".join(map(str, curve)), str(best or ""), unit, kind, when))
        documents.append(
            {"name": name, "unit": unit, "gpu": kind, "curve": _keys(curve), "optimal": best}
        )
    if as_json:
        out.document({"schema": "hpcext.profile-list/1", "profiles": documents})
    elif rows:
        out.table(("name", "GPUs measured", "best", "unit", "kind of GPU", "last"), rows)
    else:
        out.line("no curve is stored yet; hpcext profile -- COMMAND measures one")
    return 0


def _show(name: str, profiles: Profiles, out: Output, *, as_json: bool) -> int:
    stored = profiles.load(name)
    unit = stored.unit(profiles.gpu)
    curve = stored.curve(unit, profiles.gpu)
    if as_json:
        out.document(
            {
                "schema": "hpcext.profile-show/1",
                "name": name,
                "unit": unit,
                "curve": _keys(curve),
                "optimal": fewest_near_best(curve) if curve else None,
                "measurements": [msgspec.structs.asdict(each) for each in stored.measurements],
            }
        )
        return 0
    if curve:
        _draw(curve, unit, out)
    rows = [
        (
            _when(each.at),
            each.source,
            str(each.gpus),
            str(each.nodes),
            f"{each.steps_per_s:.4g}",
            "" if each.samples_per_s is None else f"{each.samples_per_s:.4g}",
            f"{each.seconds:.0f} s",
            each.gpu,
        )
        for each in stored.measurements
    ]
    columns = ("when", "source", "GPUs", "nodes", "steps/s", "samples/s", "seen for", "kind of GPU")
    out.table(columns, rows)
    return 0


def _best(name: str, given: str | None, profiles: Profiles, out: Output, *, as_json: bool) -> int:
    """Print the best number alone, which spank_hooks/lua/cli_filter.lua reads."""
    wanted = None if given is None else _numbers(given)
    curve, _ = profiles.curve(name, None)
    allowed = curve if wanted is None else wanted
    found = {gpus: rate for gpus, rate in curve.items() if gpus in allowed}
    if not found:
        raise InputError(
            f"{shown(name)} was not measured on {given} GPUs",
            where="--gpus",
            valid=", ".join(map(str, curve)),
            do=f"hpcext profile --name {clean(name)} --gpus {given} -- COMMAND measures it",
        )
    best = fewest_near_best(found)
    if as_json:
        out.document({"schema": "hpcext.profile-best/1", "name": name, "optimal": best})
    else:
        out.line(str(best))
    return 0


def _keys(curve: Mapping[int, float]) -> dict[str, float]:
    return {str(gpus): rate for gpus, rate in curve.items()}


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
