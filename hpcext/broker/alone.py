"""One broker for a partition: what a second one runs into, whatever its state directory is.

Marks say that a broker is there; they go with its process. A lock beside its socket, where only
its account and root can make files, keeps others from taking the socket, and a lock in each shared
directory others from answering there, on other hosts too. An abstract socket (unix(7)), whose name
is made of the batch system and the partition, is seen by brokers with another socket on this host.
Everybody can take such a name, so that of a stranger stops nobody. A broker on another host that
harvesters ask on the network is asked, too, before this one listens anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from hpcext import private
from hpcext.addresses import DropAddress
from hpcext.broker import drop
from hpcext.broker.identity import PeerCredentials, name_of
from hpcext.broker.settings import Settings
from hpcext.core.errors import InputError, NoManagerError, refused
from hpcext.harvest import leave, ways
from hpcext.harvest.ways.remote import Remote
from hpcext.manager import locks
from hpcext.text import clean, shown

log = logging.getLogger(__name__)

CLUSTERS = {"SLURM_CONF": "/etc/slurm/slurm.conf", "LSF_ENVDIR": "/etc"}
"""Variables that say which cluster commands ask, and what holds without them."""

_ASK_S = 2.0
"""Seconds in which the holder of the name is to be seen."""


@contextlib.contextmanager
def alone(settings: Settings, asked: str = leave.NONE) -> Iterator[socket.socket | None]:
    """Be the only broker at a socket and in shared directories, and for a partition on this host.

    Parameters
    ----------
    settings : Settings
    asked : str
        Where harvesters ask, as their setting has it.

    Yields
    ------
    socket.socket or None
        The name of the partition: whoever connects is to be hung up on. None: a stranger has it.

    Raises
    ------
    NoManagerError
        There is another broker.
    HpcextError
        The directory of the socket cannot be used.
    """
    with _beside(settings.socket), contextlib.ExitStack() as stack:
        for address in settings.listen:
            if isinstance(address, DropAddress):
                stack.enter_context(_sole_in(address.directory))
        _ask(settings, asked)
        name = _claim(settings)
        if name is not None:
            stack.enter_context(name)
        yield name


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[None]:
    """Hold the lock beside a socket."""
    where, parent = clean(str(path)), path.parent
    try:
        _make(parent)
        facts = parent.stat()
    except OSError as error:
        raise refused(error, where) from None
    if facts.st_uid not in {0, os.geteuid()} or facts.st_mode & 0o022:
        raise InputError(
            f"{clean(str(parent))} belongs to uid {facts.st_uid} and has mode "
            f"{stat.S_IMODE(facts.st_mode):04o}: harvesters would not believe a socket there",
            where=where,
            valid="a directory of this account or root, to which nobody else can write",
        )
    lock = locks.held(
        path.with_name(f"{path.name}.lock"), do="put the socket elsewhere", mode=0o600
    )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except locks.LockedError:
            raise NoManagerError("another broker listens there", where=where, do=_DO) from None
        except OSError as error:
            raise refused(error, where) from None
        yield


def _make(directory: Path) -> None:
    """Make the directory of a socket if it is missing, so that everybody reaches what is in it."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        # Whatever the umask.
        fd = private.open_directory(directory)
        try:
            os.fchmod(fd, 0o755)
        finally:
            os.close(fd)


LOCK = "broker.lock"
"""In a shared directory."""


@contextlib.contextmanager
def _sole_in(directory: Path) -> Iterator[None]:
    """Hold the lock in a shared directory."""
    drop.check(directory)
    where = clean(f"drop://{directory}")
    lock = locks.held(directory / LOCK, do="use a file system with locks", mode=0o600)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except locks.LockedError:
            raise NoManagerError("another broker answers there", where=where, do=_DO) from None
        except OSError as error:
            raise drop.unusable(error, directory) from None
        yield


def _ask(settings: Settings, asked: str) -> None:
    """Ask whoever answers harvesters on the network whether he divides the same partition.

    Raises
    ------
    NoManagerError
        He does. It is not this broker, which listens nowhere yet.
    """
    way = ways.find(asked)
    if not isinstance(way, Remote):
        return
    try:
        partition = ways.status(way).get("partition")
    except leave.BrokerError as error:
        log.info("no broker answers yet where harvesters ask: %s", error)
        return
    if partition == settings.partition:
        raise NoManagerError(
            f"another broker divides partition {shown(settings.partition)}",
            where=clean(str(way)),
            do=_DO,
        )


_DO = (
    "there is one for a partition: end the other one, or give this one another partition and socket"
)


def name_for(settings: Settings) -> str:
    """Return the abstract name of the broker of a partition."""
    clusters = [os.path.realpath(os.environ.get(key) or usual) for key, usual in CLUSTERS.items()]
    text = "\n".join((settings.batch, *clusters, settings.partition))
    return f"\0hpcext-broker-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _claim(settings: Settings) -> socket.socket | None:
    """Take the name of the partition; None: somebody has it who is no broker, as far as is known.

    Raises
    ------
    NoManagerError
        A broker has it.
    """
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(name_for(settings))
        name.listen()
        name.setblocking(False)
        return name
    except OSError as error:
        name.close()
        if error.errno != errno.EADDRINUSE:
            raise refused(error, "the name of the partition") from None
    uid, partition = _holder(settings), shown(settings.partition)
    if uid in _owners(settings):
        raise NoManagerError(
            f"another broker divides partition {partition}, with another socket",
            where=clean(str(settings.socket)),
            do=_DO,
        )
    who = "somebody" if uid is None else f"user {name_of(uid)} (uid {uid})"
    log.warning(
        "%s has the name by which a second broker of %s is found out; if that is a broker, end one",
        who,
        partition,
    )
    return None


def _holder(settings: Settings) -> int | None:
    """Return who has the name; None if that cannot be seen."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(_ASK_S)
            line.connect(name_for(settings))
            return PeerCredentials().who(line).uid
    except OSError:
        return None


def _owners(settings: Settings) -> set[int]:
    """Return the users whose process is believed to be a broker."""
    found = {0, os.geteuid()}
    # What systemd has made for the account of the service, where root begins a second one by hand.
    for path in (leave.SOCKET.parent, settings.socket.parent, settings.state_dir):
        with contextlib.suppress(OSError):
            found.add(path.stat().st_uid)
    return found


def hang_up(name: socket.socket) -> None:
    """End a call at the name of the partition, where nothing is said."""
    with contextlib.suppress(OSError):
        name.accept()[0].close()
