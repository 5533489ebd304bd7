"""Directories and files that only their user can change, whatever the umask.

All that hpcext makes is private from its first directory down. Directories *above* it may be
writable by others, as in a folder that a group shares: they could rename its entries and replace
them. So every directory on the way to a path is checked (:func:`weakness`), and a file whose
content is obeyed must belong to the user, checked by the descriptor from which it is read
(:mod:`hpcext.documents`).

It needs only the standard library, because the supervisor and training processes import it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST_LINKS = 40
"""Largest number of symbolic links that Linux follows on a path (path_resolution(7))."""

ROOT = Path("/")


class Weakness(NamedTuple):
    """A place on the way to a path that another user could change.

    Attributes
    ----------
    place : pathlib.Path
    what : str
        The problem there, as a part of a sentence.
    remedy : str
        The command with which its owner can fix it.
    """

    place: Path
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def own_name() -> str:
    """Return the name of this user, or the number if there is none, as in a container."""
    import pwd  # noqa: PLC0415  (supervisors do not need it)

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# The way to a path.


def walk(path: Path, below: Path = ROOT) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every place on the way to a path, itself and targets of links included, if it exists.

    Parameters
    ----------
    path : pathlib.Path
        Absolute.
    below : pathlib.Path
        Places above this one are left out.

    Raises
    ------
    OSError
        There are too many links, or a place cannot be examined.
    """
    yield from _walk(path, below, MOST_LINKS)


def _walk(path: Path, below: Path, links: int) -> Iterator[tuple[Path, os.stat_result]]:
    for place in (*reversed(path.parents), path):
        if place in below.parents:
            continue
        try:
            facts = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        yield place, facts
        if stat.S_ISLNK(facts.st_mode):
            if not links:
                raise OSError(errno.ELOOP, "too many links", str(place))
            target = Path(os.path.normpath(place.parent / os.readlink(place)))
            yield from _walk(target, below, links - 1)


def fault(place: Path, facts: os.stat_result, *, as_user: bool = False) -> Weakness | None:
    """Return how others could change a place, or None if they cannot.

    Parameters
    ----------
    place : pathlib.Path
    facts : os.stat_result
        Status of the place itself, even if it is a link.
    as_user : bool
        Whether to accept that the user's private group may write (many sites have one for each
        user), and to treat an owner that is unknown in this container as root.
    """
    if facts.st_uid not in {0, os.geteuid()} and not (as_user and _is_unknown(facts.st_uid)):
        return Weakness(place, f"belongs to uid {facts.st_uid}", "chown root")
    if stat.S_ISLNK(facts.st_mode):
        # A link is as safe as its directory, which is checked as well.
        return None
    # In a sticky directory like /tmp other users cannot rename or remove our entries.
    sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    writers = facts.st_mode & 0o022
    if writers == 0o020 and as_user and _is_own_group(facts.st_gid):
        return None
    if writers and not sticky:
        what = f"others can write to it (mode {stat.S_IMODE(facts.st_mode):04o})"
        return Weakness(place, what, "chmod go-w")
    return None


def weakness(path: Path) -> Weakness | None:
    """Return the first place on the way to a path that others could replace; None if there is none.

    Raises
    ------
    OSError
        A place cannot be examined.
    """
    found = (fault(place, facts, as_user=True) for place, facts in walk(_plain(path)))
    return next((each for each in found if each), None)


def is_safe(path: Path) -> bool:
    """Return whether no other user can replace a path or a directory on the way to it."""
    try:
        return weakness(path) is None
    except OSError:
        return False


def _plain(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _is_unknown(uid: int) -> bool:
    """Return whether a uid is the one that represents all users unknown to a user namespace."""
    try:
        known = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        nobody = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    ranges = zip(map(int, known[::3]), map(int, known[2::3]), strict=True)
    return uid == nobody and not any(first <= uid < first + count for first, count in ranges)


def _is_own_group(gid: int) -> bool:
    """Return whether a group is the user's private one: of the same name, with no other member."""
    # Imported here, since few directories are writable by a group.
    import grp  # noqa: PLC0415
    import pwd  # noqa: PLC0415

    try:
        group, me = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == me.pw_name and not set(group.gr_mem) - {me.pw_name}


# Directories and files of this user.


def make(path: Path) -> bool:
    """Make a directory and every missing one above it, for this user alone.

    An existing directory must belong to the user, and is closed to others.

    Parameters
    ----------
    path : pathlib.Path

    Returns
    -------
    bool
        Whether it existed and others could enter it until now.

    Raises
    ------
    OSError
        It cannot be made, is a link, or belongs to another user.
    """
    make_missing(path)
    return close_to_others(path)


def make_missing(path: Path) -> None:
    """Make a directory as :func:`make` does, but do not change an existing one.

    Raises
    ------
    OSError
        It cannot be made.
    """
    missing = []
    above = _plain(path)
    while not os.path.lexists(above):
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        # It may be made meanwhile, by us or by another user; its owner is checked below.
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, 0o700)
        close_to_others(each)


def close_to_others(path: Path) -> bool:
    """Close a directory of this user to others; return whether it was open.

    Raises
    ------
    OSError
        It is a link, not a directory, or belongs to another user.
    """
    fd = open_directory(path)
    try:
        # A umask may have removed the owner's permissions, too. An inherited setgid bit stays.
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o777 != 0o700:
            os.fchmod(fd, mode & ~0o077 | 0o700)
        return bool(mode & 0o077)
    finally:
        os.close(fd)


def open_directory(path: Path, *, without: int = 0) -> int:
    """Open a directory of this user and return its descriptor, which the caller closes.

    Parameters
    ----------
    path : pathlib.Path
    without : int
        Permissions that it must not have: 0o077 if others may not enter it, 0o022 if they may not
        write to it.

    Raises
    ------
    OSError
        It is a link, not a directory, belongs to another user, or has such permissions.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    facts = os.fstat(fd)
    what = ""
    if facts.st_uid != os.geteuid():
        what = f"belongs to uid {facts.st_uid}"
    elif facts.st_mode & without:
        what = f"others may use it (mode {facts.st_mode & 0o777:o})"
    if what:
        os.close(fd)
        raise OSError(errno.EPERM, what, str(path))
    return fd


def open_log(path: Path) -> int:
    """Open a file of this user for appending, made for this user alone; the caller closes it.

    A link is followed only if it belongs to this user.

    Raises
    ------
    OSError
        It cannot be opened, or belongs to another user.
    """
    # O_NONBLOCK, since a FIFO without a reader must not block.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW, 0o600)
        owner = os.fstat(fd).st_uid
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        fd, owner = os.open(_target(path), flags, 0o600), os.geteuid()
    if owner != os.geteuid():
        os.close(fd)
        raise OSError(errno.EPERM, f"belongs to uid {owner}", str(path))
    os.set_blocking(fd, True)
    return fd


def _target(link: Path) -> str:
    """Return the target of a link of this user, read from the same link whose owner was checked."""
    fd = os.open(link, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if (owner := os.fstat(fd).st_uid) != os.geteuid():
            raise OSError(errno.EPERM, f"is a link of uid {owner}", str(link))
        return os.path.join(link.parent, os.readlink("", dir_fd=fd))
    finally:
        os.close(fd)
