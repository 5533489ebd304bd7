"""The directory of a user's state, private and checked before programs are run from it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hpcext import private
from hpcext.core.errors import InputError
from hpcext.text import clean

log = logging.getLogger(__name__)


def make(state_dir: Path, *names: str) -> Path:
    """Make a directory of a user's state, and missing ones above it, for the user alone.

    A directory that an older release left open to others is closed.

    Parameters
    ----------
    state_dir : pathlib.Path
    *names : str
        Names of directories below it.

    Raises
    ------
    InputError
        It cannot be made, or belongs to another user.
    """
    path = state_dir.absolute()
    for name in ("", *names):
        path /= name
        try:
            if private.make(path):
                log.warning(
                    "%s: others could enter it until now; its mode is 700 from here on", path
                )
        except OSError as error:
            raise InputError(
                f"cannot be used: {error.strerror}",
                where=clean(str(error.filename or path)),
                do="make it yours, or set another state_dir",
            ) from None
    return path


def check_safe(path: Path) -> None:
    """Refuse a place that others could replace, because programs are run from there by name.

    Hidden directories of this user's home are closed to other writers instead: a umask of 002 left
    them open, and they are not shared.

    Raises
    ------
    InputError
        The message names the place, and what to do.
    """
    weak = _weakness(path)
    while weak and _is_hidden(weak.place):
        weak.place.chmod(weak.place.stat().st_mode & ~0o022)
        log.warning("%s: %s; they cannot any more", weak.place, weak.what)
        weak = _weakness(path)
    if weak:
        raise InputError(
            f"{weak.what}, and programs that are run as you lie below",
            where=clean(str(weak.place)),
            valid="directories that are root's or yours, and writable by you alone",
            do=f"{weak.remedy} {weak.place} if it is yours, or set another state_dir",
        )


def warn_of(path: Path) -> None:
    """Warn of a directory that others could take away; files that they put there are not obeyed."""
    if weak := _weakness(path.parent):
        log.warning(
            "%s: %s: they could take %s away, though not what runs there over", *weak[:2], path
        )


def _weakness(path: Path) -> private.Weakness | None:
    try:
        return private.weakness(path)
    except OSError as error:
        return private.Weakness(path, f"cannot be looked at ({error.strerror})", "see to")


def _is_hidden(place: Path) -> bool:
    """Return whether a place is a hidden directory of our home, or in one, and ours."""
    try:
        home = Path.home()
    except RuntimeError:
        return False
    below = place.relative_to(home).parts if place.is_relative_to(home) else ()
    hidden = bool(below) and below[0].startswith(".")
    return hidden and place.lstat().st_uid == os.geteuid()
