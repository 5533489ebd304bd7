"""Who asks: what the kernel says of the other end, and nothing that is in a message.

What the system says of users may come from a directory server. While it is away nobody becomes
somebody else: what it has said holds, and it is asked again for the rest.
"""

from __future__ import annotations

import functools
import grp
import logging
import math
import os
import pwd
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from hpcext.text import clean

log = logging.getLogger(__name__)

_PEER = struct.Struct("3i")

GROUPS_S = 60.0
"""Seconds for which it is remembered who is in which group."""


class Peer(NamedTuple):
    """Somebody who has proved who he is.

    Attributes
    ----------
    uid : int
    user : str
        The name, as the batch system has it; the number if there is none.
    """

    uid: int
    user: str


class Identity(Protocol):
    """A way for a user to prove who he is."""

    def who(self, line: socket.socket) -> Peer:
        """Return who is at the other end; OSError if that cannot be known."""


class PeerCredentials:
    """The credentials of the process that connected to a Unix socket (SO_PEERCRED, unix(7))."""

    def who(self, line: socket.socket) -> Peer:
        """Return who is at the other end."""
        said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, uid, _ = _PEER.unpack(said)
        return Peer(uid, name_of(uid))


def name_of(uid: int) -> str:
    """Return the name of a user, or the number while the system does not know it."""
    try:
        return _known_name(uid)
    except KeyError:
        return str(uid)


@functools.cache
def _known_name(uid: int) -> str:
    """Ask the system, until it has once said the name: no error is remembered."""
    return pwd.getpwuid(uid).pw_name


class Groups:
    """The groups of users, for which the system is asked once in a while.

    Parameters
    ----------
    clock : callable
        Seconds, which never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[str, tuple[float, frozenset[str]]] = {}
        self._missed: set[str] = set()

    def of(self, user: str) -> frozenset[str]:
        """Return the names of the groups; of a user whom the system does not know now the last."""
        at_s, known = self._asked.get(user, (-math.inf, frozenset[str]()))
        now_s = self._clock()
        if now_s - at_s < GROUPS_S:
            return known
        try:
            known = _groups(user)
            self._missed.discard(user)
        except (KeyError, OSError):
            if known and user not in self._missed:
                log.warning(
                    "the system does not know %s now: the groups stay as they were", clean(user)
                )
            self._missed.add(user)
        self._asked[user] = now_s, known
        return known


def _groups(user: str) -> frozenset[str]:
    """Ask the system; KeyError if it does not know the user."""
    names = set()
    for gid in os.getgrouplist(user, pwd.getpwnam(user).pw_gid):
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            # There are groups without a name.
            continue
    return frozenset(names)


groups_of = Groups().of
"""Of the users of this broker."""
