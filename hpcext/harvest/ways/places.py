"""Whom a place in the file system belongs to, if nobody else could have put one there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hpcext import private
from hpcext.harvest.leave import BrokerError


def owner(path: Path, within: Path) -> int:
    """Return the uid that a place of a broker belongs to, if nobody else could have made it.

    That is the account of the service. Its directory may be its own; what is above that must be
    root's, or ours where a setting of ours named the path.

    Parameters
    ----------
    path : pathlib.Path
        A socket, or the directory itself.
    within : pathlib.Path
        The directory of the service.

    Raises
    ------
    BrokerError
        It is not there, or somebody else could have made it.
    """
    where = str(path)
    try:
        uid = path.lstat().st_uid
        for place, facts in private.walk(within):
            if weak := _weak(place, facts, uid, within):
                raise BrokerError(f"is not believed: {place} {weak}", where=where)
    except OSError as error:
        raise BrokerError(f"is not there ({error.strerror})", where=where) from None
    return uid


def _weak(place: Path, facts: os.stat_result, uid: int, last: Path) -> str:
    """Return how somebody else could change a place on the way; empty if nobody can."""
    trusted = {0, os.geteuid()} | ({uid} if place == last else set())
    if facts.st_uid not in trusted:
        return f"belongs to uid {facts.st_uid}"
    if stat.S_ISLNK(facts.st_mode):
        return ""
    sticky = facts.st_mode & stat.S_ISVTX and place != last
    if facts.st_mode & 0o022 and not sticky:
        return f"can be written by others (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""
