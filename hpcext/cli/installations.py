"""What the commands of ``hpcext-admin`` have in common: options, and what they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcext.admin import install as installing
from hpcext.admin.edits import Edit, as_json
from hpcext.admin.install import FileChange, InstallLocation
from hpcext.admin.status import Status
from hpcext.admin.trust import ROOT
from hpcext.cli import main as cli
from hpcext.cli.output import Output

Run = Callable[[argparse.Namespace, Output], int]
"""A command: what it was given, and where it prints; its exit status."""


def add_common(parser: cli.Parser, run: Run) -> None:
    """Add the options of all commands about an installation."""
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        type=Path,
        default=ROOT,
        help="staging directory that stands for / while a package is built; no file names it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def add_dry_run(parser: cli.Parser) -> None:
    """Add the option of commands that change files."""
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")


def own_command(name: str = "hpcext") -> Path | None:
    """Return a command of the installation that this process runs from."""
    for folder in (Path(sys.argv[0]).absolute().parent, Path(sys.executable).parent):
        if (folder / name).is_file():
            return folder / name
    return None


def show_edits(edits: Sequence[Edit], out: Output) -> None:
    """Print changes that the administrator is to make."""
    for line in ("", "left to you, as a diff for patch -p1 -d /:") if edits else ():
        out.line(line)
    for edit in edits:
        if edit.first:
            out.line(f"first: {edit.first}")
        for sentence in edit.why:
            out.line(f"{edit.path.name}, {sentence}")
        out.diff(edit.diff())


def uninstall(
    place: InstallLocation,
    changes: Sequence[FileChange],
    args: argparse.Namespace,
    out: Output,
    unneeded: Sequence[Edit] = (),
) -> int:
    """Remove what was installed; return the exit status.

    Parameters
    ----------
    place : InstallLocation
    changes : sequence of FileChange
        As planned. If some of these files were changed, they stay, and the status is 1.
    args : argparse.Namespace
    out : Output
    unneeded : sequence of Edit
        Lines of the site's files that only we needed.
    """
    show(changes, out)
    if not args.dry_run:
        installing.remove(place, changes)
    changed = [str(change.path) for change in changes if change.verb == "changed"]
    for path in changed:
        out.note(f"{path}: changed since it was installed, so it stays; remove it yourself")
    if not args.dry_run:
        out.line("done" if not changed else "done, except for the changed files")
    if unneeded:
        out.line("hpcext had also asked for these lines; remove them if nothing else needs them:")
    for edit in unneeded:
        out.diff(edit.diff())
    document(changes, args, out, left=as_json(unneeded))
    return 1 if changed else 0


def show_status(found: Status, args: argparse.Namespace, out: Output) -> int:
    """Print the state of an installation, `found`, as `args` ask; return the exit status."""
    if not found.hpcext:
        out.line("hpcext is not installed there")
    else:
        built = f", for Slurm {found.built_for}" if found.built_for else ""
        here = f"; this machine has Slurm {found.runs}" if found.runs else ""
        out.line(f"installed by hpcext {found.hpcext}{built}{here}")
        if not found.fits:
            out.line(
                "Slurm does not load a plugin that was built for another release: install it again"
            )
    if found.files:
        out.table(("", "file"), [(state, str(path)) for state, path in found.files])
    show_edits(found.left, out)
    for step in found.steps:
        if step.do:
            out.line(f"{step.daemon}: {step.do}  ({step.why})")
        else:
            out.line(f"{step.daemon}: not asked, {step.why}")
    if args.json:
        out.document(found.as_json())
    # A package being built has no files of a site beside it.
    return 0 if (found.whole if args.prefix != ROOT else found.complete) else 1


def show(changes: Sequence[FileChange], out: Output) -> None:
    """Print the planned changes."""
    out.table(("", "file"), [(change.verb, str(change.path)) for change in changes])


def document(
    changes: Sequence[FileChange], args: argparse.Namespace, out: Output, **more: Any
) -> None:
    """Print `changes` and `more` as a document, if `args` ask for one."""
    if args.json:
        done = [{"do": change.verb, "path": str(change.path)} for change in changes]
        document = {"schema": f"hpcext.{args.command}/1", "dry_run": args.dry_run, "files": done}
        out.document({**document, **more})
