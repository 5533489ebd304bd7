"""Process groups of ranks that ``hpcext launch`` started: formed, left, and formed again.

On one node each group finds its members under a prefix of its own in one store, a file outside
every rank. On several nodes each group has a store of its own, which rank 0 keeps for the life of
the group, behind a door (:mod:`hpcext.training.door`).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d

from hpcext.protocol import environ
from hpcext.rendezvous import Group, Rendezvous
from hpcext.training import connections
from hpcext.training.door import Door, LocalDoor, places
from hpcext.training.membership import Membership, Overtaken
from hpcext.training.ranks import Ranks
from hpcext.training.sockets import LOOPBACK, own_socket
from hpcext.training.torch.ranks import TorchRanks, init
from hpcext.training.torch.surviving import Surviving, Survivor, call, register

SILENT_S = 30
"""Seconds after which another node that is silent counts as unreachable, if ranks may go on without
it. The manager finds out which one it is. Shorter disturbances of a network are waited out."""

CONNECT_S = 6
"""Seconds for connecting with ranks that are all there, if some of them may die at this moment.
Gloo waits five times as long for a rank that is to connect with this one."""

LOOK_S, FAR_LOOK_S = 0.05, 1.0
"""Seconds between two looks whether a group that is being formed comes to nothing, on one node and
on several."""

_NEVER_SENT = 2**31 - 1
_AT_ONCE = timedelta(milliseconds=1)


class Member(Membership):
    """The membership of this process in process groups of PyTorch.

    Parameters
    ----------
    rendezvous : Rendezvous
    rank, size : int
        Rank and number of ranks at its start.
    device : torch.device
        The device of this rank, which determines the backend.

    Attributes
    ----------
    connecting : bool
        Whether it connects with others, which ends soon in any case.
    survivor : Survivor or None
        Asked about errors in the layers of sharded models.
    """

    _early: ClassVar[Member | None] = None

    def __init__(
        self, rendezvous: Rendezvous, *, rank: int, size: int, device: torch.device
    ) -> None:
        super().__init__(rendezvous, rank=rank, size=size)
        self._device = device
        self._first: Ranks | None = None
        self._store: Store | None = None
        self._kept: Store | None = None  # on rank 0, the store of all ranks
        self._services: list[Door | LocalDoor] = []
        self._sockets: set[int] = set()
        self._groups: list[dist.ProcessGroup] = []
        self._layers: dict[str, Surviving] = {}
        self._meetings = 0
        self._freed = threading.Event()
        self.connecting = False
        self.survivor: Survivor | None = None
        self._hooks = sys.excepthook, sys.excepthook

    @property
    def replaces(self) -> bool:
        """Whether ranks that die are replaced, which is not possible on GPUs so far."""
        # After an abort of NCCL the kernels behind it go on, with gradients of no meaning.
        return super().replaces and self._device.type != "cuda"

    @classmethod
    def here(cls, device: torch.device) -> Member | None:
        """Make this process a member; None if it was started otherwise, or has its own group."""
        early, cls._early = cls._early, None
        if early is not None:
            return early
        rendezvous = Rendezvous.from_environ()
        if rendezvous is None or not dist.is_available() or dist.is_initialized():
            return None
        env = environ()
        return cls(rendezvous, rank=int(env["RANK"]), size=int(env["WORLD_SIZE"]), device=device)

    @classmethod
    def before_session(cls, device: torch.device) -> Member | None:
        """Make this process a member, as :meth:`here` does; the next session takes it over."""
        cls._early = cls.here(device)
        return cls._early

    @classmethod
    def early(cls) -> Member | None:
        """Return the membership that the next session takes over."""
        return cls._early

    def form_early(self) -> None:
        """Form the first group, before a session does."""
        self._first = super().ranks()

    def ranks(self) -> Ranks:
        """Form the first group with the others, unless that was done before."""
        # Kept here, it would outlive the group.
        first, self._first = self._first, None
        return first or super().ranks()

    def free(self) -> None:
        """Have no operation of the present group be waited for any more; any thread calls it."""
        self._freed.set()

    def leave(self) -> None:
        """Leave the present group."""
        if self._freed.is_set():
            # Threads of gloo may never end, and the end of a group waits for them.
            for group in self._groups:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        self._freed = threading.Event()
        self._groups, self._sockets, self._meetings, self._layers = [], set(), 0, {}
        if dist.is_initialized():
            dist.destroy_process_group()
        # Groups find each other by their numbers, of which one that was not formed has taken some.
        distributed_c10d._world.group_count = 0
        before, present = self._hooks
        if sys.excepthook is present:
            # Each group adds one that puts the rank before each line of a traceback.
            sys.excepthook = before
        self._store = None
        for service in self._services:
            service.close()
        self._services, self._kept = [], None

    def connect(self, group: Group) -> Ranks:
        """Connect with the other members of a group; this waits for them."""
        if dist.is_initialized():
            # A new rank has sharded its model alone.
            dist.destroy_process_group()
        self._store = self._meet(group) if self._rendezvous.host else self._file()
        store = PrefixStore(f"group-{group.number}", self._store)
        before, hook = connections.sockets(), sys.excepthook
        try:
            with self._connecting() as options:
                init(self._device, store=store, rank=self.rank, world_size=group.size, **options)
        finally:
            self._hooks = hook, sys.excepthook
        self._note(before, dist.group.WORLD)
        return self.further_ranks()

    def further_ranks(self) -> TorchRanks:
        """Connect the ranks of the group once more, for a traffic of its own; all ranks call it."""
        before = connections.sockets()
        with self._connecting() as options:
            ranks = TorchRanks(**options)
        ranks.freed = self._freed if self.replaces else None
        self._note(before, ranks.group)
        return ranks

    def subgroup(self, ranks: Sequence[int], backend: str | None = None) -> dist.ProcessGroup:
        """Connect some of the ranks with each other; all ranks of the group call it.

        Parameters
        ----------
        ranks : sequence of int
        backend : str, optional
            Another one than that of the group.
        """
        before = connections.sockets()
        with self._connecting() as options:
            found: dist.ProcessGroup = dist.new_group(sorted(ranks), backend=backend, **options)
        if self.rank in ranks:
            self._note(before, found)
        return found

    def surviving(self, name: str, parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Connect ranks for the layers of sharded models; all ranks of the group call it.

        Parameters
        ----------
        name : str
            What it is to be called. DTensor may go on using a mesh of an earlier group of as many
            ranks, which finds this one by that name.
        parts : sequence of sequences of int
            The ranks of each group.

        Returns
        -------
        ProcessGroup
            That of this rank, whose operations do nothing in a step that a dead rank has broken.
        """
        mine = self._layers.get(name)
        for ranks in parts if mine is None else ():
            group = self.subgroup(ranks, register())
            mine = group if isinstance(group, Surviving) else mine
        assert mine is not None
        if name not in self._layers:
            mine.survivor, mine.freed = self.survivor, self._freed
            call(mine, name)
            self._layers[name] = mine
        return mine

    def survive(self, survivor: Survivor) -> None:
        """Ask an object about errors in the layers of sharded models."""
        self.survivor = survivor
        for group in self._layers.values():
            group.survivor = survivor

    def abort(self) -> None:
        """End, with errors, what waits for other members of the group; any thread calls it."""
        connections.end(self._sockets)
        for group in tuple(self._groups):
            _end_waiting(group)

    @property
    def _forms_anew(self) -> bool:
        """Whether the group is formed anew if ranks die meanwhile."""
        return self.group.of is not None and self.mending

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[dict[str, Any]]:
        """Connect within a short time, where another group may be formed instead.

        Yields
        ------
        options : dict
            Those for PyTorch.

        Raises
        ------
        Overtaken
            Some ranks have died meanwhile.
        """
        if not self._forms_anew:
            yield {}
            return
        self._gather()
        self.connecting = True
        try:
            yield {"timeout": timedelta(seconds=CONNECT_S)}
        except RuntimeError as error:
            raise Overtaken(f"group {self.group.number}: {error}") from error
        finally:
            self.connecting = False

    def _gather(self) -> None:
        """Wait until all ranks are there: PyTorch would wait for those that have died, too."""
        group, store, self._meetings = self.group, self._store, self._meetings + 1
        assert store is not None
        prefix = f"there-{group.number}-{self._meetings}-"
        store.set(f"{prefix}{self.rank}", "")
        all_of_them = [f"{prefix}{rank}" for rank in range(group.size)]
        look_s = FAR_LOOK_S if self.far else LOOK_S
        next_s = time.monotonic() + look_s
        while not store.check(all_of_them):
            if time.monotonic() >= next_s:
                if self.repair() is not None:
                    raise Overtaken(f"group {group.number} comes to nothing")
                next_s = time.monotonic() + look_s
            time.sleep(self._pause_s)

    def _note(self, before: set[int], *groups: dist.ProcessGroup | None) -> None:
        """Note which connections belong to groups that have been formed."""
        sockets = connections.sockets() - before
        self._sockets |= sockets
        self._groups += [group for group in groups if group is not None]
        for group in self._groups if self._forms_anew else ():
            # Collectives may take longer than connecting.
            distributed_c10d._set_pg_timeout(distributed_c10d.default_pg_timeout, group)
        if self.far and self.replaces:
            connections.end_if_silent(sockets, SILENT_S)

    def _file(self) -> Store:
        # Opened again, since FileStore keeps a descriptor, which a fork would share.
        return FileStore(str(self._rendezvous.store), -1)

    def _meet(self, group: Group) -> Store:
        """Return the store of a group on several nodes."""
        file = f"store-{group.number}"
        if self.rank == 0:
            kept, listening = own_socket(_store_at, _is_empty)
            self._kept = kept
            door = Door(self._rendezvous.host, listening)
            self._services.append(door)
            door.publish(self._rendezvous, file)
        window = LocalDoor(*places(self._rendezvous, file, self._pause_s))
        self._services.append(window)
        return TCPStore(LOOPBACK, window.port, is_master=False, wait_for_workers=False)


def _store_at(port: int, listening: int) -> TCPStore:
    """Make a store that listens only on a given descriptor."""
    return TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening
    )


def _is_empty(store: TCPStore) -> bool:
    return bool(store.num_keys() == 0)


def _end_waiting(group: dist.ProcessGroup) -> None:
    """End what waits in a group of gloo, which may have missed that its connections have ended.

    After a message for an operation that has failed meanwhile, gloo reads nothing more from that
    rank, so it does not notice the end of the connection either (PyTorch 2.13: ``Pair::read``
    returns where the buffer is gone). An operation that waits too long ends all others of its
    group, so here is one that waits for a millisecond for what nobody sends.
    """
    with contextlib.suppress(RuntimeError):
        group.recv_anysource([torch.zeros(1)], _NEVER_SENT).wait(_AT_ONCE)
