"""The bound on callers who have not proved who they are, so that many cost others little."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
from collections.abc import Iterator
from typing import Any

MOST = 128
"""The most callers at a time, of all addresses."""

MOST_OF_ADDRESS = 32
"""The most of one address, which can be a login node with many users."""

TURNS = 2
"""How many of an address are looked at at a time, so that those of other addresses have turns."""

_IPV6_SITE = 64
"""Bits of an IPv6 address by which senders are told apart: of the rest a host has as it likes."""


class Crowd:
    """The callers of one address.

    Attributes
    ----------
    turns : asyncio.Semaphore
        To be held while something costly is done for one of them.
    """

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(TURNS)
        self.tasks: set[asyncio.Task[Any]] = set()


class Callers:
    """All callers, by address.

    If there are too many, one of the address with too many is given up, whichever it is. Who is
    honest is done within moments, and so is given up seldom; and he asks again.
    """

    def __init__(self, most: int = MOST, of_address: int = MOST_OF_ADDRESS) -> None:
        self._most = most
        self._of_address = of_address
        self._here: dict[str, Crowd] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(len(one.tasks) for one in self._here.values())

    @contextlib.contextmanager
    def one(self, address: str) -> Iterator[Crowd]:
        """Be a caller, in a task of its own, which is cancelled if it is given up.

        Parameters
        ----------
        address : str

        Yields
        ------
        Crowd
            The callers of the same address.
        """
        task = asyncio.current_task()
        assert task is not None
        self._make_room(address)
        here = self._here.setdefault(address, Crowd())
        here.tasks.add(task)
        try:
            yield here
        finally:
            here.tasks.discard(task)
            if not here.tasks and self._here.get(address) is here:
                del self._here[address]

    def _make_room(self, address: str) -> None:
        here = self._here.get(address)
        if here is not None and len(here.tasks) >= self._of_address:
            crowd = here
        elif len(self) >= self._most:
            crowd = max(self._here.values(), key=lambda one: len(one.tasks))
        else:
            return
        # Not the oldest: whoever knew that would know how many calls push somebody out.
        given_up = random.choice(list(crowd.tasks))
        crowd.tasks.discard(given_up)
        given_up.cancel()


def address_of(peer: Any) -> str:
    """Return by what a sender is told from others.

    Parameters
    ----------
    peer : tuple
        As ``socket.getpeername`` has it.
    """
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (ValueError, TypeError, IndexError):
        return "unknown"
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
