"""``hpcext reproduce``: run the experiments of a paper, and compare our figures with its."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcext.checks import check_range
from hpcext.cli.output import Output
from hpcext.core.errors import InputError, refused
from hpcext.extras import need
from hpcext.papers import PAPERS, find_papers, reproduce
from hpcext.papers.study import FAR, Extent, Row, Study, Table
from hpcext.render.csv import as_csv

SCHEMA = "hpcext.reproduce/1"

SEEDS = (0, 1, 2)
"""The default seeds."""

MOST_SEED = 2**32 - 1
MOST_WORKERS = 1024


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "reproduce",
        help="run the experiments of a paper on the simulator, and compare with what the paper "
        "says",
        epilog="example: hpcext reproduce marble --quick",
    )
    parser.add_argument("paper", metavar="PAPER", help=f"one of {', '.join(PAPERS)}, or all")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="recorded data, for papers that need some"
    )
    parser.add_argument(
        "--seed",
        type=int,
        nargs="+",
        default=SEEDS,
        metavar="N",
        help="seeds of the experiments (default: 0 1 2)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of processes (default: 1)"
    )
    parser.add_argument("--quick", action="store_true", help="run only a part, in about a minute")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write study.json and study.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run the experiments of the named papers, and show each comparison."""
    names = find_papers(args.paper, "PAPER")
    how = _extent(args)
    for name in names:
        _note_left_out(name, out)
    if args.out:
        _make_directory(args.out)
    studies = {}
    for name in names:
        studies[name] = reproduce(name, how)
        # Shown at once, because the next one may take minutes.
        _show(out, studies[name])
    document = _document(studies, how)
    if args.out:
        text = json.dumps(json.loads(msgspec.json.encode(document)), indent=2) + "\n"
        (args.out / "study.json").write_text(text, encoding="utf-8")
        (args.out / "study.csv").write_bytes(as_csv(_lines(studies)))
    if args.json:
        out.document(document)
    return 0


def _note_left_out(name: str, out: Output) -> None:
    """Print, before the work begins, which part of it is left out for want of a package."""
    if name in PAPERS and (wants := PAPERS[name].wants):
        try:
            need(wants)
        except InputError as error:
            out.note(f"{name}: without one comparison, as {error}")


def _extent(args: argparse.Namespace) -> Extent:
    for seed in args.seed:
        check_range("--seed", seed, 0, MOST_SEED)
    check_range("--workers", args.workers, 1, MOST_WORKERS)
    if args.data and not args.data.is_dir():
        raise InputError("no such directory", where=f"--data {args.data}")
    # The same seed twice would make a spread look smaller than it is.
    return Extent(args.data, tuple(dict.fromkeys(args.seed)), args.workers, args.quick)


def _make_directory(path: Path) -> None:
    """Create the directory of the results first, so that no work is lost if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(error, f"--out {path}") from None


def _document(studies: dict[str, Study], how: Extent) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "seeds": list(how.seeds),
        "quick": how.quick,
        "far": FAR,
        "studies": {name: _study(study) for name, study in studies.items()},
    }


def _study(study: Study) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(study)
    for table, told in zip(study.tables, plain["tables"], strict=True):
        for row, each in zip(table.rows, told["rows"], strict=True):
            each["ratio"], each["far"] = row.ratio, row.far
    return plain


def _lines(studies: dict[str, Study]) -> Iterator[Sequence[object]]:
    yield ("study", "table", "what", "ours", "paper", "unit", "ratio", "why")
    for name, study in studies.items():
        for table in study.tables:
            for row in table.rows:
                numbers = (row.ours, row.paper, row.unit, row.ratio)
                yield (name, table.title, row.what, *numbers, row.why)


def _show(out: Output, study: Study) -> None:
    out.line(study.title)
    for table in study.tables:
        out.line("")
        out.line(table.title)
        if table.note:
            out.line(f"({table.note})")
        out.table(("", "ours", "paper", "ratio", ""), [_cells(row) for row in table.rows])
        for line in _remarks(table):
            out.line(line)
    out.line("")
    out.line("What was assumed")
    for each in study.assumed:
        out.line(f"- {each}")
    out.line("")


def _cells(row: Row) -> Sequence[str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    mark = "far" if row.far else ""
    return (row.what, _figure(row.ours, row.unit), _figure(row.paper, row.unit), ratio, mark)


def _remarks(table: Table) -> Iterator[str]:
    """Yield the remarks on rows; rows with the same remark share a line."""
    said: dict[str, list[str]] = {}
    for row in table.rows:
        if row.why:
            said.setdefault(row.why, []).append(row.what)
    for why, rows in said.items():
        yield f"  {'; '.join(rows)}: {why}"


def _figure(number: float | None, unit: str) -> str:
    """Format a number with four significant digits, without an exponent, and its unit."""
    if number is None:
        return "-"
    text = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    return f"{text} {unit}".rstrip()
