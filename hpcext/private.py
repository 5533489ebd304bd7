"""Directories and files that nobody but their user can change, whatever the umask.

What hpcext makes is private from its first directory down. What lies *above* others may be able to
change, as in a folder that a group shares: they can rename what is there and put something of
their own in its place. So the way to a directory is looked at (:func:`weakness`), and what is
obeyed must be a file of ours, by the descriptor that it is read from (:mod:`hpcext.documents`).

Standard library only: the supervisor and training processes import it.
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
"""As many as Linux follows (path_resolution(7))."""

ROOT = Path("/")


class Weakness(NamedTuple):
    """A place on the way to a path that somebody else could change.

    Attributes
    ----------
    place : pathlib.Path
    what : str
        What is wrong there, for a sentence.
    remedy : str
        The command that its owner would mend it with.
    """

    place: Path
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


# The way to a path.


def walk(path: Path, below: Path = ROOT) -> Iterator[tuple[Path, os.stat_result]]:
    """Every place on the way to a path, itself and where links lead included, as far as it exists.

    Parameters
    ----------
    path : pathlib.Path
        Absolute.
    below : pathlib.Path
        What lies above it is left out.

    Raises
    ------
    OSError
        Too many links, or a place that cannot be looked at.
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
    """How others could change what is at a place; None if they cannot.

    Parameters
    ----------
    place : pathlib.Path
    facts : os.stat_result
        Of the place itself, were it a link.
    as_user : bool
        A group that is its user's own, as many sites give one to each, may write; and what belongs
        to nobody that this container knows is taken for root's.
    """
    if facts.st_uid not in {0, os.geteuid()} and not (as_user and _is_unknown(facts.st_uid)):
        return Weakness(place, f"belongs to uid {facts.st_uid}", "chown root")
    if stat.S_ISLNK(facts.st_mode):
        # In a directory that is looked at as well.
        return None
    # In one like /tmp (sticky) nobody else can rename or remove an entry of ours.
    sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    writers = facts.st_mode & 0o022
    if writers == 0o020 and as_user and _is_own_group(facts.st_gid):
        return None
    if writers and not sticky:
        what = f"others can write to it (mode {stat.S_IMODE(facts.st_mode):04o})"
        return Weakness(place, what, "chmod go-w")
    return None


def weakness(path: Path) -> Weakness | None:
    """The first place on the way to a path where others could put something else; None: nowhere.

    Raises
    ------
    OSError
        It cannot be looked at.
    """
    found = (fault(place, facts, as_user=True) for place, facts in walk(_plain(path)))
    return next((each for each in found if each), None)


def is_safe(path: Path) -> bool:
    """Whether nobody else can put something else at a path."""
    try:
        return weakness(path) is None
    except OSError:
        return False


def _plain(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _is_unknown(uid: int) -> bool:
    """Whether this uid is what a user namespace shows for all whom it does not know."""
    try:
        known = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        nobody = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    ranges = zip(map(int, known[::3]), map(int, known[2::3]), strict=True)
    return uid == nobody and not any(first <= uid < first + count for first, count in ranges)


def _is_own_group(gid: int) -> bool:
    """Whether nobody but this user is in a group: it is called as he is, and lists no other."""
    # Few directories are writable by a group.
    import grp  # noqa: PLC0415
    import pwd  # noqa: PLC0415

    try:
        group, me = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == me.pw_name and not set(group.gr_mem) - {me.pw_name}


# What is ours.


def make(path: Path) -> bool:
    """Make a directory, and every one that is missing above it, for this user alone.

    One that is there already must be ours, and is closed to others.

    Returns
    -------
    bool
        Whether it was there, and others could enter it until now.

    Raises
    ------
    OSError
        It cannot be made, is a link, or is somebody else's.
    """
    make_missing(path)
    return close_to_others(path)


def make_missing(path: Path) -> None:
    """As :func:`make`, but leave a directory alone that is there already.

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
        # Another process of ours may make it meanwhile, or somebody, which is looked at.
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, 0o700)
        close_to_others(each)


def close_to_others(path: Path) -> bool:
    """Close a directory of ours to others; whether it was open.

    Raises
    ------
    OSError
        It is a link, no directory, or somebody else's.
    """
    fd = open_directory(path)
    try:
        # Of a umask that takes from the owner, too. setgid stays as it is inherited.
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o777 != 0o700:
            os.fchmod(fd, mode & ~0o077 | 0o700)
        return bool(mode & 0o077)
    finally:
        os.close(fd)


def open_directory(path: Path, *, without: int = 0) -> int:
    """A descriptor of a directory of ours; the caller closes it.

    Parameters
    ----------
    path : pathlib.Path
    without : int
        The permissions that it must not have: 0o077, others enter it; 0o022, they write to it.

    Raises
    ------
    OSError
        It is a link, no directory, somebody else's, or open to others.
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
    """Open a file of ours to write at its end, made for this user alone; the caller closes it.

    A link leads to where its user wants it: one of ours is followed, and no other.

    Raises
    ------
    OSError
        It cannot be opened, or is somebody else's.
    """
    # O_NONBLOCK: a FIFO that nobody reads must not hold us up.
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
    """Where a link of ours leads; read from the very link whose owner was looked at."""
    fd = os.open(link, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if (owner := os.fstat(fd).st_uid) != os.geteuid():
            raise OSError(errno.EPERM, f"is a link of uid {owner}", str(link))
        return os.path.join(link.parent, os.readlink("", dir_fd=fd))
    finally:
        os.close(fd)
