"""Checks of paths that root relies on: nobody else may be able to change them."""

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
    """Refuse a path of which others than root could change a component.

    Of a path that does not exist yet, the directories that exist are checked.

    Parameters
    ----------
    path : pathlib.Path
        Absolute.
    everybody : bool
        Whether all users must be able to reach it.
    below : pathlib.Path
        Directories above this one are not checked; a package is built in it.

    Raises
    ------
    InputError
        Others can change a component; it names the first. For a user other than root, the user's
        own files are fine.
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
                    do="use a copy that they can reach, for example under /opt",
                )
    except OSError as error:
        raise InputError(str(error.strerror), where=clean(str(error.filename or path))) from None


def check_command(
    command: Path | None,
    others: Sequence[Path] = (),
    *,
    is_there: bool = True,
    name: str = "hpcext",
    flag: str = "--hpcext",
) -> Path:
    """Return a program of ours as all users run it, if they may.

    Parameters
    ----------
    command : pathlib.Path or None
        None if none was found.
    others : sequence of pathlib.Path
        Other paths that files of the site must be able to hold.
    is_there : bool
        Whether it must be installed already; a package may bring it later.
    name : str
        Of the program.
    flag : str
        The option that names it, for messages.

    Raises
    ------
    InputError
        The command is missing, others can change it, or a path has characters that the files of
        the site cannot hold.
    """
    if command is None or (is_there and not command.exists()):
        raise InputError(
            "no such command" if command else f"the command {name} is not beside hpcext-admin",
            where=clean(str(command or flag)),
            do=f"give its absolute path with {flag}",
        )
    for path in (command, *others):
        check_word(path)
    if not is_there:
        return command
    # Whoever could change the command would run programs as all users.
    check_trusted(command, everybody=True)
    if not command.is_file() or not command.stat().st_mode & 0o001:
        raise InputError("not a program that all users can run", where=clean(str(command)))
    return command


def check_word(path: Path) -> None:
    """Refuse a path with characters that have a meaning to a file or program that uses it.

    It is written into ``plugstack.conf``, ``lsb.queues`` and Lua, and passed to make and shells.
    """
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
