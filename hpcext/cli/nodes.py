"""``hpcext nodes``: the nodes of a pilot, and which of them are set aside."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from hpcext.cli import asking
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.core.world import World
from hpcext.manager import choosing
from hpcext.manager import directory as pilots
from hpcext.manager.views import reading
from hpcext.manager.waiting import asked
from hpcext.text import counted, listed

COLUMNS = ("node", "GPUs", "held", "jobs", "state")


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "nodes",
        help="show the nodes of a pilot; set one aside, or readmit it",
        epilog="example: hpcext nodes jobs --readmit n2",
    )
    parser.add_argument(
        "pilot", nargs="?", metavar="PILOT", help="directory, id or name (default: the newest)"
    )
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--set-aside", metavar="NODE", help="use it no more: what runs there goes on elsewhere"
    )
    change.add_argument("--readmit", metavar="NODE", help="use it again")
    parser.add_argument("--why", metavar="TEXT", help="the reason, with --set-aside")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, out: Output) -> int:
    """Print a table or a document of the nodes, or change one."""
    if args.why is not None and args.set_aside is None:
        raise InputError("can be given with --set-aside only", where="--why")
    if args.set_aside is None and args.readmit is None:
        return _show(args, out)
    if args.json:
        raise InputError("shows the nodes, and changes none", where="--json")
    directory = asking.pilot_to_change(args, out)
    if args.readmit is not None:
        answer = asked(directory, "readmit", node=args.readmit)
    else:
        answer = asked(directory, "set_aside", node=args.set_aside, why=args.why or "")
    out.line(str(answer["text"]))
    return 0


def _show(args: argparse.Namespace, out: Output) -> int:
    state_dir = load_settings().state_dir
    directory = pilots.find(args.pilot, state_dir) if args.pilot else choosing.newest(state_dir)
    if args.pilot is None:
        out.note(f"pilot {pilots.load(directory).id}, the newest")
    rows = list(_rows(reading.read(directory).world))
    if args.json:
        out.document({"schema": "hpcext.nodes/1", "nodes": rows})
        return 0
    out.table(
        COLUMNS,
        [
            (row["node"], str(row["gpus"]), str(row["held"]), listed(row["jobs"]), _state(row))
            for row in rows
        ],
    )
    return 0


def _rows(world: World) -> Iterator[dict[str, Any]]:
    """Yield what is known of each node: those that the pilot has, then others set aside."""
    for name in dict.fromkeys((*world.nodes, *world.aside)):
        node, said = world.nodes.get(name), world.suspects.get(name)
        here = [job for job in world.queue.busy() if job.held.get(name)]
        yield {
            "node": name,
            "gpus": node.gpus if node else 0,
            "held": sum(job.held[name] for job in here),
            "jobs": [job.name for job in here],
            "here": node is not None,
            "set_aside": world.aside.get(name),
            "failures": len(said.failed) if said else 0,
        }


def _state(row: dict[str, Any]) -> str:
    """Return the state of a node as words."""
    if row["set_aside"] is not None:
        return f"set aside: {row['set_aside']}"
    if not row["gpus"]:
        return "has to be given back"
    if row["failures"]:
        return f"{counted(row['failures'], 'attempt')} in a row failed there"
    return ""
