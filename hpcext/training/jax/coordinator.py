"""The coordinator of ``jax.distributed``, which only the processes of one job reach.

It is a gRPC service of rank 0 that authenticates nobody (JAX 0.10): who reaches it can read and
write its keys, take a process's place, or end the job. Therefore it listens on a Unix socket. On
one node this is in the private directory in which the ranks meet. Ranks of several nodes reach it
through a door that requires a key (:mod:`hpcext.training.door`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time

from hpcext.training.door import LocalSocket, SocketDoor, places
from hpcext.training.sockets import LOOPBACK, held
from hpcext.training.star import Launched

FINISH_S = 10.0
"""Longest wait for the last words of the coordinator to the other nodes, in seconds."""

_PAUSE_S = 0.02
_NAME = "jax-coordinator"
_MEETING = f"meeting-{_NAME}"


class Coordinator:
    """The way to the coordinator; this one is for the ranks of one node.

    Parameters
    ----------
    here : Launched

    Attributes
    ----------
    address : str
        Where this process reaches the coordinator, and where that of rank 0 listens.
    """

    def __init__(self, here: Launched) -> None:
        # The descriptor is for the life of the process, and the path always short (unix(7)).
        fd = os.open(here.place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = f"/proc/self/fd/{fd}/{_NAME}"
        self.address = f"unix:{path}"
        # A client that comes too early tries again only after a second. The launcher ends all
        # ranks when one fails.
        while here.rank != 0 and not os.path.exists(path):
            time.sleep(_PAUSE_S)

    @property
    def node(self) -> str:
        """The address of this node for the other ranks; empty if it is not known."""
        return LOOPBACK

    def connected(self) -> None:
        """Note that all ranks are connected."""

    def finish(self) -> None:
        """Have the other ranks hear what the coordinator has told them last."""


class OfFirst(Coordinator):
    """The coordinator on rank 0 of several nodes."""

    def __init__(self, here: Launched) -> None:
        # Removed at the end of the process, if not before.
        self._directory = tempfile.TemporaryDirectory(prefix="hpcext-", ignore_cleanup_errors=True)
        fd = os.open(self._directory.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = f"/proc/self/fd/{fd}/{_NAME}"
        self.address = f"unix:{path}"
        self._door = SocketDoor(here.place.host, path)
        self._door.publish(here.place, _MEETING)

    @property
    def node(self) -> str:
        """The address of this node for the other ranks; empty if it is not known."""
        return self._door.reached

    def connected(self) -> None:
        """Remove the socket's name, so that nothing is left however this process ends."""
        self._door.path = held(self._door.path)
        self._directory.cleanup()

    def finish(self) -> None:
        """Have the other ranks hear what the coordinator has told them last."""
        self._door.finish(FINISH_S)


class OfOther(Coordinator):
    """The way to the coordinator from the other ranks of several nodes."""

    def __init__(self, here: Launched) -> None:
        self._window = LocalSocket(*places(here.place, _MEETING, _PAUSE_S))
        # JAX would not say what it cannot reach.
        self._window.reach()
        self.address = f"unix:{self._window.path}"

    @property
    def node(self) -> str:
        """The address of this node for the other ranks; empty if it is not known."""
        return self._window.address


def coordinator(here: Launched) -> Coordinator:
    """Return the way of this process to the coordinator."""
    if not here.place.host:
        return Coordinator(here)
    return OfFirst(here) if here.rank == 0 else OfOther(here)


def let_gloo_listen_on(address: str) -> None:
    """Have gloo, which connects CPUs, listen on this address.

    By itself it takes the address that this node's name resolves to: on one node it need not be
    reached from elsewhere, and where names resolve to loopback other nodes would not reach it.
    JAX has no setting for it; a version that has this function elsewhere does as by itself.
    """
    if not address:
        return
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import lib  # noqa: PLC0415

        # It has another name in JAX 0.6.
        jaxlib = getattr(lib, "_jax", None) or lib.xla_client._xla
        jaxlib.make_gloo_tcp_collectives = functools.partial(
            jaxlib.make_gloo_tcp_collectives, hostname=address
        )
