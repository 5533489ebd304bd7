"""Where a site's broker is asked, as settings have it: a socket, a host with MUNGE, a directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hpcext.core.errors import InputError
from hpcext.numerals import whole
from hpcext.text import shown

MUNGE, DROP = "munge://", "drop://"

ACCOUNT = "hpcext-broker"
"""The account of a site's broker, unless an address names another."""

VALID = (
    f"an absolute path without .. of a socket, {MUNGE}HOST:PORT, {MUNGE}ACCOUNT@HOST:PORT, "
    f"or {DROP} and an absolute path of a directory"
)

_MUNGE = re.compile(
    r"(?:(?P<account>[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})@)?"
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[\w-]{1,63}(?:\.[\w-]{1,63})*))"
    r":(?P<port>[0-9]{1,5})"
    r"(?P<socket>/.*)?\Z",
    re.ASCII | re.DOTALL,
)

_MOST_PORT = 65_535

_MOST_HOST_CHARS = 253


class SocketAddress(NamedTuple):
    """A Unix socket on this host.

    Attributes
    ----------
    path : pathlib.Path
    """

    path: Path

    def __str__(self) -> str:
        """Return it as settings have it."""
        return str(self.path)


class MungeAddress(NamedTuple):
    """A port of a host, where everybody proves by MUNGE who he is.

    Attributes
    ----------
    host : str
    port : int
    account : str
        The name or the number of the broker's account; empty: the usual one.
    socket : str
        The path of munged's socket; empty: the usual one.
    """

    host: str
    port: int
    account: str = ""
    socket: str = ""

    def __str__(self) -> str:
        """Return it as settings have it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        account = f"{self.account}@" if self.account else ""
        return f"{MUNGE}{account}{host}:{self.port}{self.socket}"


class DropAddress(NamedTuple):
    """A directory that hosts share, where the owner of a file is who asks.

    Attributes
    ----------
    directory : pathlib.Path
    """

    directory: Path

    def __str__(self) -> str:
        """Return it as settings have it."""
        return f"{DROP}{self.directory}"


Address = SocketAddress | MungeAddress | DropAddress


def read_address(text: str) -> Address:
    """Read where a broker is asked.

    Parameters
    ----------
    text : str

    Raises
    ------
    InputError
        It is none of these.
    """
    if text.startswith(MUNGE):
        return _munge(text)
    is_drop = text.startswith(DROP)
    path = Path(text.removeprefix(DROP))
    if not path.is_absolute() or ".." in path.parts or "\0" in text:
        raise InputError(shown(text), valid=VALID)
    return DropAddress(path) if is_drop else SocketAddress(path)


def _munge(text: str) -> MungeAddress:
    found = _MUNGE.match(text.removeprefix(MUNGE))
    port = whole(found["port"]) if found else None
    long = found is not None and len(found["host"] or "") > _MOST_HOST_CHARS
    if found is None or long or port is None or not 0 < port <= _MOST_PORT:
        raise InputError(
            shown(text),
            valid=f"{MUNGE}HOST:PORT with a port from 1 to {_MOST_PORT}; ACCOUNT@ may come before "
            "the host, and the path of munged's socket after the port",
        )
    socket = found["socket"] or ""
    if "\0" in socket or ".." in Path(socket).parts:
        raise InputError(shown(text), valid="a path of munged's socket without ..")
    return MungeAddress(found["six"] or found["host"], port, found["account"] or "", socket)
