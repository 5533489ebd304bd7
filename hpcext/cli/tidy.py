"""``hpcext pilot rm`` and ``hpcext prune``: remove the files of pilots."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from hpcext.checks import age_s
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.manager import cleaning
from hpcext.manager import directory as pilots
from hpcext.manager.cleaning import Kept, RemovalPlan
from hpcext.text import counted, sized

SCHEMA = "hpcext.removed/1"

KEEP = ("last", "all", "none")


def add(subparsers: Any) -> None:
    """Register ``prune``."""
    parser = subparsers.add_parser(
        "prune",
        help="remove the files of pilots that have ended",
        epilog="example: hpcext prune --older-than 30d --keep-checkpoints last --dry-run",
    )
    parser.add_argument(
        "--older-than",
        required=True,
        metavar="AGE",
        help="only of pilots in which nothing has happened for this long: 30d, 12h, 2w",
    )
    parser.add_argument(
        "--keep-checkpoints",
        choices=KEEP,
        default="last",
        help="keep the newest of each job (last, the default) or all; none: remove whole pilots",
    )
    _add_options(parser)
    parser.set_defaults(run=prune)


def add_rm(actions: Any) -> None:
    """Register ``pilot rm``."""
    parser = actions.add_parser(
        "rm",
        help="remove pilots, with their checkpoints and logs",
        epilog="example: hpcext pilot rm jobs-20261124-120046-93d5",
    )
    parser.add_argument("pilot", nargs="+", metavar="PILOT", help="directory, id or name")
    _add_options(parser)
    parser.set_defaults(run=rm)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what would be removed, and how much"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def prune(args: argparse.Namespace, out: Output) -> int:
    """Remove the files of old pilots; return 1 if something could not be removed."""
    older_than_s = age_s(args.older_than, "--older-than")
    state_dir = load_settings().state_dir
    _finish(args, out)
    keep, now = args.keep_checkpoints, time.time()
    going, kept = cleaning.plan(state_dir, older_than_s=older_than_s, keep=keep, now=now)
    return 0 if _carry_out(going, kept, args, out) else 1


def rm(args: argparse.Namespace, out: Output) -> int:
    """Remove pilots by name; if one of them must stay, remove none."""
    state_dir = load_settings().state_dir
    gone = _finish(args, out)
    wanted = [handle for handle in args.pilot if handle not in gone]
    found = dict.fromkeys(pilots.find(handle, state_dir) for handle in wanted)
    needs = cleaning.Needs(state_dir)
    for directory in found:
        # All are removed together: that one of them needs another is no reason to keep it.
        needs.forget(directory)
    going = [cleaning.plan_whole(directory, needs) for directory in found]
    return 0 if _carry_out(going, [], args, out) else NoManagerError.exit_status


def _finish(args: argparse.Namespace, out: Output) -> list[str]:
    """Finish interrupted removals, without asking; return the ids of these pilots."""
    if args.dry_run:
        return []
    try:
        gone = cleaning.finish(load_settings().state_dir)
    except HpcextError as error:
        out.note(str(error))
        return []
    for each in gone:
        out.note(f"the removal of {each} was interrupted, and is now finished")
    return gone


def _carry_out(
    going: Sequence[RemovalPlan], kept: Sequence[Kept], args: argparse.Namespace, out: Output
) -> bool:
    """Show what is to be removed, ask, and remove it; return whether all of it is gone."""
    done: list[RemovalPlan] = []
    all_went = True
    size = sum(each.size.bytes for each in going)
    out.table(("pilot", "goes", "size", "directory"), [_row(each) for each in going])
    for stays in kept:
        out.note(f"{stays.id} stays: {stays.why}")
    what = f"{sized(size)} of {counted(len(going), 'pilot')}"
    if args.dry_run:
        out.line(f"{what} would be removed")
    elif not going:
        out.line("there is nothing to remove")
    elif _confirmed(f"Remove {what}?", going, args, out):
        done = cleaning.doing(going, load_settings().state_dir, out.note)
        all_went = len(done) == len(going)
        out.line(f"removed {sized(sum(each.size.bytes for each in done))}")
    else:
        out.line("nothing was removed")
    if args.json:
        out.document(_document(going, kept, done, dry_run=args.dry_run))
    return all_went


def _confirmed(
    question: str, going: Sequence[RemovalPlan], args: argparse.Namespace, out: Output
) -> bool:
    """Return whether the user confirms the removal.

    Raises
    ------
    InputError
        There is no terminal to ask on.
    """
    if left := sum(each.left for each in going):
        lost = f"{counted(left, 'job')} that could go on {'is' if left == 1 else 'are'} among them."
        question = f"{lost} {question}"
    if args.yes:
        return True
    answer = out.confirm(question)
    if answer is None:
        raise InputError(
            "there is no terminal to ask for confirmation on",
            valid="--yes, or --dry-run to look first",
        )
    return answer


def _row(plan: RemovalPlan) -> tuple[str, ...]:
    parts = counted(len(plan.parts), "part") if plan.parts else "all of it"
    left = f", with {counted(plan.left, 'unfinished job')}" if plan.left else ""
    return plan.id, parts + left, sized(plan.size.bytes), str(plan.directory)


def _document(
    going: Sequence[RemovalPlan],
    kept: Sequence[Kept],
    done: Sequence[RemovalPlan],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dry_run": dry_run,
        "bytes": sum(each.size.bytes for each in (going if dry_run else done)),
        "pilots": [
            {
                "id": each.id,
                "directory": str(each.directory),
                "bytes": each.size.bytes,
                "files": each.size.files,
                "parts": [str(part.relative_to(each.directory)) for part in each.parts],
                "unfinished_jobs": each.left,
                "removed": not dry_run and each in done,
            }
            for each in going
        ],
        "kept": [each._asdict() for each in kept],
    }
