"""Which paths root may rely on: those that nobody else can change."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from hpcext import private
from hpcext.core.errors import InputError
from hpcext.private import Weakness
from hpcext.text import clean

ROOT = private.ROOT


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
    if not path.is_absolute() or ".." in path.parts:
        raise InputError(clean(str(path)), valid="an absolute path without ..")
    try:
        for place, facts in private.walk(path, below):
            if fault := private.fault(place, facts):
                raise _refuse(fault)
            if everybody and not stat.S_ISLNK(facts.st_mode) and not facts.st_mode & 0o001:
                raise InputError(
                    "other users cannot reach it",
                    where=clean(str(place)),
                    do="use a copy that they can, as under /opt",
                )
    except OSError as error:
        raise InputError(str(error.strerror), where=clean(str(error.filename or path))) from None


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
        check_word(path)
    if not is_there:
        return command
    # Jobs of all users run it: whoever could change it would run as all of them.
    check_trusted(command, everybody=True)
    if not command.is_file() or not command.stat().st_mode & 0o001:
        raise InputError("not a program that all users can run", where=clean(str(command)))
    return command


def check_word(path: Path) -> None:
    """Refuse a path that is more than one word where it will stand: in ``plugstack.conf``, in
    ``lsb.queues``, in a Lua string, for make and for shells."""
    if not re.fullmatch(r"[\w./+@=,-]+", str(path), re.ASCII):
        raise InputError(clean(str(path)), valid="letters, digits and . / + @ = , _ -")


def _refuse(fault: Weakness) -> InputError:
    where = clean(str(fault.place))
    return InputError(
        fault.what,
        where=where,
        valid="owned by root and writable by root alone",
        do=f"{fault.remedy} {where}, or choose another place",
    )
