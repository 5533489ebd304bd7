"""The words between harvesters and the broker of their site, and the call that asks it.

A call is one line of JSON each way, over a Unix socket. The broker knows who asks by the socket
(``SO_PEERCRED``), so that no message says it. A message has no names, paths, arguments or speeds of
trainers: only the sizes in which each could use nodes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union

import msgspec

from hpcext import private
from hpcext.core.errors import UNREADABLE, HpcextError
from hpcext.text import clean

SOCKET: Final = Path("/run/hpcext-broker/socket")
"""Where a broker listens, unless a setting says otherwise: only root makes its directory."""

AUTO: Final = "auto"
NONE: Final = "none"

MOST_BYTES = 256 << 10
"""The longest line in bytes, either way."""

MOST_TRAINERS = 256
"""The most trainers of one harvester that a broker hears of: the first of its queue."""

MOST_SIZES = 128
"""The most sizes of a trainer: of more, the largest and the smallest ones are said."""

MOST_NODES = 10_000
MOST_GPUS = 1024

TRIES, AGAIN_S = 3, 1.0
"""How often a status is asked for that is refused, and seconds in between."""

ANSWER_S = 5.0
"""Seconds for which an answer is waited for."""

SCHEMA: Final = "hpcext.broker/1"

_SAID_CHARS = 200

_PEER = struct.Struct("3i")
"""pid, uid and gid, as SO_PEERCRED has them (unix(7))."""

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS * MOST_NODES)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Trainer(_Message, frozen=True):
    """A trainer, as far as a broker hears of it.

    Attributes
    ----------
    number : int
        Differs from that of any other trainer of its harvester, and stays.
    sizes : tuple of int
        GPU counts, ascending: on each of its nodes where `nodes` is set, else in all.
    nodes : (int, int) or None
        The fewest and the most nodes that it runs on.
    weight : float
        Beside other trainers of the same user.
    priority : float
        The same.
    """

    number: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    sizes: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=MOST_SIZES)]
    nodes: Union[tuple[Count, Count], None] = None  # noqa: UP007  (read at run time)
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    priority: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)] = 0.0


class Ask(_Message, frozen=True, tag="ask"):
    """A harvester asks how many nodes it may have.

    Attributes
    ----------
    harvester : str
        The name of the jobs of its leases.
    partition : str
    gpus : int
        That it uses on each node, or slots.
    want : int
        The most nodes that its trainers can use together, and that it may take.
    trainers : tuple of Trainer
        In the order of its queue.
    """

    harvester: Annotated[
        str, msgspec.Meta(pattern=r"^hpcext-[A-Za-z0-9._-]{1,64}-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
    ]
    partition: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    want: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)]
    trainers: Annotated[tuple[Trainer, ...], msgspec.Meta(max_length=MOST_TRAINERS)] = ()
    schema: Literal["hpcext.broker/1"] = SCHEMA


class AskStatus(_Message, frozen=True, tag="status"):
    """Somebody asks what is going on: administrators see all users, others themselves."""

    schema: Literal["hpcext.broker/1"] = SCHEMA


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The broker's answer; later releases may say more.

    Attributes
    ----------
    nodes : int
        The most nodes that the harvester may have now.
    next : bool
        Whether the next node that becomes free should be its.
    claim : tuple of str
        Nodes that others have beyond what they may have: to be claimed first.
    keep : str
        Why nothing is decided now; the harvester keeps what it has, and takes nothing new.
    refused : str
        What is wrong with the message.
    elsewhere : bool
        The broker has nothing to do with this partition.
    of : int
        How many nodes are divided among all harvesters; 0: it does not say.
    less : str
        Why the harvester may have fewer than it wants; empty if it may have these.
    """

    nodes: Annotated[int, msgspec.Meta(ge=0)] = 0
    next: bool = False
    claim: tuple[str, ...] = ()
    keep: str = ""
    refused: str = ""
    elsewhere: bool = False
    of: Annotated[int, msgspec.Meta(ge=0)] = 0
    less: str = ""


class BrokerError(HpcextError):
    """An error for a broker that cannot be asked, or that is not to be believed."""


def find(setting: str) -> Path | None:
    """Return where the broker of the site is to be asked; None: there is none.

    Parameters
    ----------
    setting : str
        ``auto``, ``none``, or the path of a socket.
    """
    if setting == NONE:
        return None
    if setting == AUTO:
        return SOCKET if os.path.lexists(SOCKET) else None
    return Path(setting)


def call(path: Path, message: Ask | AskStatus, answer_s: float = ANSWER_S) -> bytes:
    """Send one message to a broker, and return its line.

    Parameters
    ----------
    path : pathlib.Path
        Of the socket.
    message : Ask or AskStatus
    answer_s : float
        Seconds for which each step of the call may last.

    Raises
    ------
    BrokerError
        Nobody answers, or somebody who could be another user.
    """
    where = str(path)
    owner = _owner(path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(answer_s)
            line.connect(where)
            _, uid, _ = _PEER.unpack(
                line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            )
            if uid not in {0, owner}:
                raise BrokerError(f"is served by uid {uid}, and belongs to {owner}", where=where)
            # It refuses a call before it has read it: then its answer is there all the same.
            with contextlib.suppress(BrokenPipeError):
                line.sendall(msgspec.json.encode(message) + b"\n")
            return _line(line, where)
    except OSError as error:
        raise BrokerError(f"does not answer ({error.strerror or error})", where=where) from None


def ask(path: Path, message: Ask, answer_s: float = ANSWER_S) -> Answer:
    """Ask a broker how many nodes a harvester may have; raise errors as :func:`call` does."""
    line = call(path, message, answer_s)
    try:
        return msgspec.json.decode(line, type=Answer)
    except UNREADABLE as error:
        raise BrokerError(f"answers what cannot be read ({error})", where=str(path)) from None


def status(path: Path) -> dict[str, Any]:
    """Return what a broker says of itself and of whoever asks; raise errors as :func:`call` does.

    Parameters
    ----------
    path : pathlib.Path
        Of the socket.

    Raises
    ------
    BrokerError
        Nobody answers, or not with a status.
    """
    where = str(path)
    for left in reversed(range(TRIES)):
        try:
            document = msgspec.json.decode(call(path, AskStatus()))
        except UNREADABLE as error:
            raise BrokerError(f"answers what cannot be read ({error})", where=where) from None
        if not (left and isinstance(document, dict) and document.get("refused")):
            break
        # A harvester of the same user may be asking just now.
        time.sleep(AGAIN_S)
    if not isinstance(document, dict) or "users" not in document:
        said = document if isinstance(document, dict) else {}
        why = clean(str(said.get("refused") or said.get("keep") or "no status"))[:_SAID_CHARS]
        raise BrokerError(f"refuses: {why}", where=where, do="try again in a few seconds")
    return document


def _line(line: socket.socket, where: str) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = line.recv(1 << 16)
        if not part:
            raise BrokerError("hangs up in the middle of its answer", where=where)
        data += part
        if len(data) > 2 * MOST_BYTES:
            raise BrokerError("answers too much", where=where)
    return data


def _owner(path: Path) -> int:
    """Return the uid that a socket belongs to, if nobody else could have put one in its place.

    That is the account of the service. Its directory may be its own; what is above that must be
    root's, or ours where a setting of ours named the path.

    Raises
    ------
    BrokerError
        There is no socket, or somebody else could have.
    """
    where = str(path)
    try:
        facts = path.lstat()
        if not stat.S_ISSOCK(facts.st_mode):
            raise BrokerError("is not a socket", where=where)
        for place, each in private.walk(path.parent):
            if weak := _weak(place, each, facts.st_uid, path.parent):
                raise BrokerError(f"is not believed: {place} {weak}", where=where)
    except OSError as error:
        raise BrokerError(f"is not there ({error.strerror})", where=where) from None
    return facts.st_uid


def _weak(place: Path, facts: os.stat_result, owner: int, last: Path) -> str:
    """Return how somebody else could change a place on the way to a socket; empty if nobody can."""
    trusted = {0, os.geteuid()} | ({owner} if place == last else set())
    if facts.st_uid not in trusted:
        return f"belongs to uid {facts.st_uid}"
    if stat.S_ISLNK(facts.st_mode):
        return ""
    sticky = facts.st_mode & stat.S_ISVTX and place != last
    if facts.st_mode & 0o022 and not sticky:
        return f"can be written by others (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""
