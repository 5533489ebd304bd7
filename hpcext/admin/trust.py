"""Which paths root may rely on: those that nobody else can change."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from hpcext.core.errors import InputError
from hpcext.text import clean

ROOT = Path("/")

MOST_LINKS = 40
"""As many as Linux follows (path_resolution(7))."""


def check_trusted(path: Path, *, everybody: bool = False, below: Path = ROOT) -> None:
    """Refuse a path that somebody else could change, at whatever place in it.

    What does not exist yet is judged by the directories that do.

    Parameters
    ----------
    path : pathlib.Path
        Absolute.
    everybody : bool
        All users must be able to reach it, too.
    below : pathlib.Path
        Where a package is put together: what lies above it is not looked at.

    Raises
    ------
    InputError
        Names the first place that is not root's alone. Who is not root may use his own files.
    """
    _walk(path, everybody, below, MOST_LINKS)


def check_command(
    command: Path | None, others: Sequence[Path] = (), *, is_there: bool = True
) -> Path:
    """The command ``hpcext``, if jobs of all users may run it.

    Parameters
    ----------
    command : pathlib.Path or None
        None where none was found.
    others : sequence of pathlib.Path
        They stand beside it in files of the site.
    is_there : bool
        It is installed already; not so where a package of its own brings it.

    Raises
    ------
    InputError
        It is not there, can be changed by others, or a path has letters that such files cannot.
    """
    if command is None or (is_there and not command.exists()):
        raise InputError(
            "no such command" if command else "the command hpcext is not beside hpcext-admin",
            where=clean(str(command or "--hpcext")),
            do="give its absolute path with --hpcext",
        )
    for path in (command, *others):
        # Paths are words of plugstack.conf, of a Lua string and of shells.
        if not re.fullmatch(r"[\w./+@=,-]+", str(path), re.ASCII):
            raise InputError(clean(str(path)), valid="letters, digits and . / + @ = , _ -")
    if not is_there:
        return command
    # Jobs of all users run it: whoever could change it would run as all of them.
    check_trusted(command, everybody=True)
    if not command.is_file() or not command.stat().st_mode & 0o001:
        raise InputError("not a program that all users can run", where=clean(str(command)))
    return command


def _walk(path: Path, everybody: bool, below: Path, links: int) -> None:
    if not path.is_absolute() or ".." in path.parts:
        raise InputError(clean(str(path)), valid="an absolute path without ..")
    for place in (*reversed(path.parents), path):
        if place in below.parents:
            continue
        try:
            facts = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        where = clean(str(place))
        if facts.st_uid not in {0, os.geteuid()}:
            raise _not_ours(where, f"belongs to uid {facts.st_uid}", "chown root")
        if stat.S_ISLNK(facts.st_mode):
            if not links:
                raise InputError("too many links", where=where)
            # In a directory that is trusted; where it leads must be, too.
            target = Path(os.path.normpath(place.parent / os.readlink(place)))
            _walk(target, everybody, below, links - 1)
            continue
        # In one like /tmp (sticky) nobody can rename or remove an entry of root.
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
        if facts.st_mode & 0o022 and not sticky:
            mode = f"mode {stat.S_IMODE(facts.st_mode):04o}"
            raise _not_ours(where, f"others can write to it ({mode})", "chmod go-w")
        if everybody and not facts.st_mode & 0o001:
            raise InputError(
                "other users cannot reach it",
                where=where,
                do="use a copy that they can, as under /opt",
            )


def _not_ours(where: str, what: str, remedy: str) -> InputError:
    return InputError(
        what,
        where=where,
        valid="owned by root and writable by root alone",
        do=f"{remedy} {where}, or choose another place",
    )
