"""``hpcext trace``: make traces from what a site can export, generate them, and describe them."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcext.checks import check_range
from hpcext.cli.output import Output
from hpcext.cli.trace import pilot as trace_pilot
from hpcext.cli.trace.report import idle_document, log_document, print_idle, print_log
from hpcext.core.errors import InputError
from hpcext.render.words import duration
from hpcext.sim.replay.mainqueue import BACKFILLS, DEPTH, EASY, MainQueue
from hpcext.sim.traces import looks, lsf, slurm
from hpcext.sim.traces.fragments import IdleStats, IdleTally, idle_stats
from hpcext.sim.traces.generate import MACHINES, find_machine, generate
from hpcext.sim.traces.idle import HEADER, MOST_NODES, read_idle, write_idle
from hpcext.sim.traces.lines import parsed, read_lines, write_lines
from hpcext.sim.traces.swf import (
    MOST_LINE_BYTES,
    REORDER,
    SwfJob,
    SwfTally,
    header_count,
    in_order,
    read_header,
    read_swf,
    swf_stats,
    write_swf,
)
from hpcext.text import counted, listed

MOST_TEXT_BYTES = 4 << 20
"""The longest line of an export: ``bhist -UF`` prints all hosts of a job on one line."""

MOST_HOURS = 10 * 365 * 24
MOST_DEPTH = MOST_REORDER = 10_000_000


def add(subparsers: Any) -> None:
    """Register the commands."""
    parser = subparsers.add_parser(
        "trace",
        help="make traces of jobs and of idle nodes, or inspect them",
        epilog="example: hpcext trace generate summit --hours 168 -o idle.csv",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_exports(actions)
    _add_made(actions)
    trace_pilot.add(actions)
    stat_ = actions.add_parser(
        "stat",
        help="print statistics of a trace",
        epilog="example: hpcext trace stat idle.csv --nodes 4608",
    )
    stat_.add_argument(
        "file", type=Path, metavar="FILE", help="trace of idle nodes, or log of jobs"
    )
    stat_.add_argument("--nodes", type=int, help="number of nodes of the machine")
    stat_.add_argument("--json", action="store_true", help="print one JSON document")
    stat_.set_defaults(run=stat)


def _add_exports(actions: Any) -> None:
    """Register the commands that convert what a batch system prints."""
    slurm_ = _export(
        actions,
        "slurm",
        from_slurm,
        example="sacct.txt",
        goal="log.swf",
        help="make a log of jobs from what sacct prints",
        how=slurm.SACCT,
    )
    lsf_ = _export(
        actions,
        "lsf",
        from_lsf,
        example="bhist.txt",
        goal="log.swf",
        help="make a log of jobs from what bhist or bacct prints",
        how=f"{lsf.BHIST}\n  or (without run limits) {lsf.BACCT}",
    )
    lsf_.add_argument("--year", type=int, help="year of the first entry, if LSF prints none")
    lsf_.add_argument(
        "--without", default="", metavar="HOSTS", help="hosts to leave out, as in batch*"
    )
    for made in (slurm_, lsf_):
        _reorder(made)
    idle = _export(
        actions,
        "idle",
        from_sinfo,
        example="nodes.txt",
        goal="idle.csv",
        help="make a trace of idle nodes from what sinfo prints, again and again",
        how=slurm.SINFO,
    )
    idle.add_argument(
        "--names", type=Path, metavar="FILE", help="write the names of the nodes to this file"
    )


def _export(
    actions: Any, name: str, run: Any, *, example: str, goal: str, help: str, how: str
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(
        name,
        help=help,
        # argparse takes % for itself in help texts, not in a description of this form.
        description=f"reads the output of:\n  {how}",
        epilog=f"example: hpcext trace {name} --from {example} -o {goal}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--from", dest="source", type=Path, required=True, metavar="FILE")
    _output(made, run)
    return made


def _add_made(actions: Any) -> None:
    """Register the commands that make a trace by simulation or at random."""
    holes_ = actions.add_parser(
        "holes",
        help="simulate a main queue that runs a log of jobs, and write the nodes that it leaves "
        "idle",
        epilog="example: hpcext trace holes --from log.swf --nodes 4360 -o idle.csv",
    )
    holes_.add_argument("--from", dest="source", type=Path, required=True, metavar="LOG")
    _output(holes_, holes)
    holes_.add_argument(
        "--nodes", type=int, help="nodes of the machine (default: those of the log)"
    )
    holes_.add_argument(
        "--procs-per-node", type=int, help="processors of a node (default: those of the log, or 1)"
    )
    holes_.add_argument(
        "--depth",
        type=int,
        default=DEPTH,
        help=f"most waiting jobs to try for backfill each time (default: {DEPTH})",
    )
    holes_.add_argument(
        "--backfill",
        choices=BACKFILLS,
        metavar="NAME",
        default=EASY,
        help="reserve for the first waiting job, or for each (default: easy)",
    )
    holes_.add_argument(
        "--planned", action="store_true", help="write the planned ends of holes, too"
    )
    _reorder(holes_)
    make = actions.add_parser(
        "generate",
        help="generate a trace of idle nodes like those of a known machine",
        epilog="example: hpcext trace generate summit --hours 168 --seed 1 -o idle.csv",
    )
    make.add_argument("machine", metavar="MACHINE", help=", ".join(MACHINES))
    _output(make, generate_trace)
    make.add_argument("--hours", type=float, default=168.0, help="length (default: 168)")
    make.add_argument(
        "--seed", type=int, default=0, help="seed; another one gives another trace (default: 0)"
    )
    make.add_argument(
        "--nodes", type=int, help="another number of nodes, with the same share of them idle"
    )


def _output(parser: Any, run: Any) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def _reorder(parser: Any) -> None:
    parser.add_argument(
        "--reorder",
        type=int,
        default=REORDER,
        metavar="JOBS",
        help=f"how far a job may be from the order of submission (default: {REORDER})",
    )


def from_slurm(args: argparse.Namespace, out: Output) -> int:
    """Make a log from the output of sacct."""
    rows = parsed(args.source, slurm.parse_sacct, MOST_LINE_BYTES)
    return _write_log(args, out, rows, "Slurm, by sacct")


def from_lsf(args: argparse.Namespace, out: Output) -> int:
    """Make a log from the output of bhist or bacct."""
    if args.year is not None:
        check_range("--year", args.year, 1990, 2100)

    def parse(lines: Iterable[str]) -> Iterator[slurm.Row]:
        return lsf.parse_lsf(lines, year=args.year, without=args.without)

    rows = parsed(args.source, parse, MOST_TEXT_BYTES)
    return _write_log(args, out, rows, "LSF, by bhist or bacct")


def _write_log(
    args: argparse.Namespace, out: Output, rows: Iterable[tuple[int, slurm.Row]], origin: str
) -> int:
    check_range("--reorder", args.reorder, 0, MOST_REORDER)
    left: Counter[str] = Counter()
    tally = SwfTally()
    jobs = in_order(_jobs_only(rows, left), args.source, args.reorder)
    first = next(jobs, None)
    if first is None:
        why = f": {_reasons(left)}" if left else ""
        raise InputError(f"no job that has ended{why}", where=str(args.source))
    shifted = (
        job._replace(submit_s=job.submit_s - first.submit_s)
        for job in itertools.chain((first,), jobs)
    )
    header = {
        "Version": "2.2",
        "Computer": origin,
        "UnixStartTime": int(first.submit_s),
        "Note": "a processor is a node",
    }
    write_swf(args.output, tally(shifted), header)
    stats = tally.stats()
    if args.json:
        out.document(log_document(args.output, stats, None) | {"left_out": dict(left)})
        return 0
    out.line(
        f"{args.output}: {counted(stats.jobs, 'job')} of {duration(stats.end_s - stats.start_s)}"
    )
    if left:
        out.note(f"left out: {_reasons(left)}")
    return 0


def _jobs_only(
    rows: Iterable[tuple[int, slurm.Row]], left: Counter[str]
) -> Iterator[tuple[int, SwfJob]]:
    """Yield the rows that are jobs, and count the others by the reason to leave them out."""
    for number, row in rows:
        if row.job is None:
            left[row.why] += 1
        else:
            yield number, row.job


def _reasons(left: Mapping[str, int]) -> str:
    return listed(f"{count} ({why})" for why, count in left.items())


def from_sinfo(args: argparse.Namespace, out: Output) -> int:
    """Make a trace from the repeated output of sinfo."""
    names: dict[str, int] = {}
    tally, seen = IdleTally(), 0

    def parse(lines: Iterable[str]) -> Iterator[slurm.IdleSample]:
        return slurm.parse_sinfo(lines, names)

    def records() -> Iterator[slurm.IdleSample]:
        nonlocal seen
        for _, record in parsed(args.source, parse, MOST_LINE_BYTES):
            seen += 1
            yield record
        if seen < 2:
            raise InputError(f"{seen} records", where=str(args.source), valid="two or more")

    write_idle(args.output, tally(looks.changes(records())))
    if args.names:
        write_lines(args.names, names)
    return _print_idle(args, out, tally.stats(nodes=len(names)), f"{seen} records")


def holes(args: argparse.Namespace, out: Output) -> int:
    """Simulate a main queue that runs a log, and write the nodes that it leaves idle."""
    check_range("--depth", args.depth, 0, MOST_DEPTH)
    check_range("--reorder", args.reorder, 0, MOST_REORDER)
    nodes, procs_per_node = _machine(args)
    queue = MainQueue(
        nodes, procs_per_node=procs_per_node, depth=args.depth, backfill=args.backfill
    )
    tally = IdleTally()
    jobs = read_swf(args.source, reorder=args.reorder)
    write_idle(args.output, tally(queue.changes(jobs, planned=args.planned)), planned=args.planned)
    if queue.too_large:
        out.note(
            f"left out: {counted(queue.too_large, 'job')} of more than {counted(nodes, 'node')}, "
            f"the largest of {queue.most_needed}"
        )
    if queue.skipped:
        skipped = counted(queue.skipped, "job")
        out.note(f"left out: {skipped} that did not run or that the log does not describe")
    wait_s = queue.waited_s / max(1, queue.started)
    said = f"{counted(queue.started, 'job')} started, after {wait_s / 3600:.2g} h on average"
    left = {"started": queue.started, "skipped": queue.skipped, "too_large": queue.too_large}
    return _print_idle(args, out, tally.stats(nodes=nodes), said, left | {"mean_wait_s": wait_s})


def _machine(args: argparse.Namespace) -> tuple[int, int]:
    """Return the number of nodes, and of processors of each: of the options, or else of the log."""
    header = read_header(args.source)
    stated = header_count(header, "MaxNodes")
    nodes, procs_per_node = args.nodes or stated, args.procs_per_node
    if args.nodes is not None:
        check_range("--nodes", args.nodes, 1, MOST_NODES)
    if nodes is None:
        do = "give --nodes"
        raise InputError("no MaxNodes in its header", where=str(args.source), do=do)
    if procs_per_node is None:
        procs_per_node = max(1, (header_count(header, "MaxProcs") or 1) // (stated or nodes))
    check_range("--procs-per-node", procs_per_node, 1, MOST_NODES)
    return nodes, procs_per_node


def generate_trace(args: argparse.Namespace, out: Output) -> int:
    """Generate a trace of idle nodes."""
    machine = find_machine(args.machine)
    if args.nodes is not None:
        check_range("--nodes", args.nodes, 1, MOST_NODES)
        machine = machine.resized(args.nodes)
    if not 0 < args.hours <= MOST_HOURS:
        valid = f"more than 0, at most {MOST_HOURS}"
        raise InputError(f"{args.hours:g}", where="--hours", valid=valid)
    check_range("--seed", args.seed, 0, (1 << 63) - 1)
    tally = IdleTally()
    write_idle(args.output, tally(generate(machine, args.seed, args.hours)))
    stats = tally.stats(nodes=machine.nodes, end_s=3600 * args.hours)
    return _print_idle(args, out, stats, f"like {args.machine}")


def stat(args: argparse.Namespace, out: Output) -> int:
    """Print statistics of a trace or a log."""
    if args.nodes is not None:
        check_range("--nodes", args.nodes, 1, MOST_NODES)
    first = next(read_lines(args.file, MOST_TEXT_BYTES))[1]
    args.output = args.file
    if first.removeprefix("\ufeff").startswith(HEADER):
        return _print_idle(args, out, idle_stats(read_idle(args.file), nodes=args.nodes), "")
    if not first.startswith(";") and len(first.split()) <= 1:
        raise InputError(
            "neither a trace of idle nodes nor a log of jobs",
            where=str(args.file),
            valid=f"{HEADER} as first line, or the Standard Workload Format",
        )
    nodes = args.nodes or header_count(read_header(args.file), "MaxProcs")
    stats = swf_stats(read_swf(args.file, reorder=None))
    if args.json:
        out.document(log_document(args.file, stats, nodes))
    else:
        print_log(out, args.file, stats, nodes)
    return 0


def _print_idle(
    args: argparse.Namespace,
    out: Output,
    stats: IdleStats,
    said: str,
    more: Mapping[str, float] | None = None,
) -> int:
    if args.json:
        out.document(idle_document(args.output, stats, more))
    else:
        print_idle(out, args.output, stats, said)
    return 0
