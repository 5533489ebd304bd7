"""Process groups of ranks that ``hpcext launch`` started: formed, left, and formed again.

On one node each group finds its members under a prefix of its own in one store, a file outside
every rank. On several nodes each group has a store of its own, which rank 0 keeps for the life of
the group, behind a door (:mod:`hpcext.training.door`).
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d

from hpcext.protocol import environ
from hpcext.rendezvous import Group, Rendezvous
from hpcext.training import connections
from hpcext.training.checkpoint import CheckpointError
from hpcext.training.door import Door, LocalDoor, places
from hpcext.training.membership import Membership, Overtaken
from hpcext.training.ranks import Ranks
from hpcext.training.sockets import LOOPBACK, own_socket
from hpcext.training.torch.ranks import TorchRanks, init
from hpcext.training.torch.state import mapped

BUCKET_BYTES = 1 << 20
"""Bytes of a bucket in which small tensors are sent; larger ones are sent alone, uncopied."""

SILENT_S = 30
"""Seconds after which another node that is silent counts as unreachable, if ranks may go on without
it. The manager finds out which one it is. Shorter disturbances of a network are waited out."""

CONNECT_S = 6
"""Seconds for connecting with ranks that are all there, if some of them may die at this moment.
Gloo waits five times as long for a rank that is to connect with this one."""

LOOK_S, FAR_LOOK_S = 0.05, 1.0
"""Seconds between two looks whether a group that is being formed comes to nothing, on one node and
on several."""

_TENSOR = "hpcext.tensor"
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
        self._meetings = 0
        self.connecting = False
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
    def joins_later(cls) -> bool:
        """Return whether a session is to make this process join a running training."""
        return cls._early is not None and cls._early.joining

    def form_early(self) -> None:
        """Form the first group, before a session does."""
        self._first = super().ranks()

    def ranks(self) -> Ranks:
        """Form the first group with the others, unless that was done before."""
        # Kept here, it would outlive the group.
        first, self._first = self._first, None
        return first or super().ranks()

    def leave(self) -> None:
        """Leave the present group."""
        self._groups, self._sockets, self._meetings = [], set(), 0
        if dist.is_initialized():
            dist.destroy_process_group()
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
            with self._connecting() as options:
                ranks = TorchRanks(**options)
        finally:
            self._hooks = hook, sys.excepthook
        self._note(before, dist.group.WORLD, ranks.group)
        return ranks

    def subgroup(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Connect some of the ranks with each other; all ranks of the group call it.

        Parameters
        ----------
        ranks : sequence of int
        """
        before = connections.sockets()
        with self._connecting() as options:
            found: dist.ProcessGroup = dist.new_group(sorted(ranks), **options)
        if self.rank in ranks:
            self._note(before, found)
        return found

    def abort(self) -> None:
        """End, with errors, what waits for other members of the group; any thread calls it."""
        connections.end(self._sockets)
        for group in tuple(self._groups):
            _end_waiting(group)

    @property
    def _mends(self) -> bool:
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
        if not self._mends:
            yield {}
            return
        self._gather()
        self.connecting = True
        try:
            yield {"timeout": timedelta(seconds=CONNECT_S)}
        except RuntimeError as error:
            raise Overtaken(f"group {self.group.number}: {error}") from None
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
        for group in self._groups if self._mends else ():
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


def send(tree: Any, group: dist.ProcessGroup, *, source: int = 0) -> None:
    """Send a tree of plain values and tensors to some ranks; all but those call it.

    Parameters
    ----------
    tree : nested dicts, lists and tuples
        Used only on the rank that sends.
    group : ProcessGroup
        That rank and those that call :func:`receive`.
    source : int
        The rank that sends.
    """
    if dist.get_rank() != source:
        return
    tensors: list[torch.Tensor] = []
    plan = _detached(tree, tensors)
    file = io.BytesIO()
    torch.save(plan, file)
    _broadcast_bytes(file.getvalue(), group, source)
    for bucket in _buckets(tensors):
        if len(bucket) == 1:
            flat = bucket[0].detach().contiguous()
        else:
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
        dist.broadcast(flat, src=source, group=group)


def receive(device: torch.device, group: dist.ProcessGroup, *, source: int = 0) -> Any:
    """Receive the tree that another rank sends.

    Parameters
    ----------
    device : torch.device
        Device for the tensors.
    group : ProcessGroup
        That rank and those that receive it.
    source : int
        The rank that sends.
    """
    file = io.BytesIO(_broadcast_bytes(b"", group, source))
    plan = torch.load(file, map_location="cpu", weights_only=True)
    tensors: list[torch.Tensor] = []
    tree = _attached(plan, tensors, device)
    for bucket in _buckets(tensors):
        if len(bucket) == 1:
            dist.broadcast(bucket[0], src=source, group=group)
            continue
        flat = torch.empty(
            sum(tensor.numel() for tensor in bucket), dtype=bucket[0].dtype, device=device
        )
        dist.broadcast(flat, src=source, group=group)
        pieces = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, piece in zip(bucket, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))
    return tree


def check_equal(tensors: Iterable[torch.Tensor], ranks: Ranks) -> None:
    """Check by checksums that all ranks hold the same tensors.

    Raises
    ------
    CheckpointError
        On every rank alike: the tensors differ. The job goes on from its last checkpoint.
    """
    mine = checksum(tensors)
    # Reduce both before any rank compares, since the others would wait for one that raised early.
    least, most = ranks.smallest(mine), -ranks.smallest(-mine)
    if least != most:
        raise CheckpointError(
            "the ranks hold different weights after a change of their number",
            do="going on from the last checkpoint",
        )


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number that differs, most probably, between different tensors."""
    found = 0
    for tensor in tensors:
        found = (found * 31 + _checksum(tensor)) % 2**62
    return found


def _checksum(tensor: torch.Tensor) -> int:
    """Return the sum of a tensor's bytes as 64-bit numbers, plus the remaining bytes."""
    content = tensor.detach().reshape(-1).view(torch.uint8)
    # A view as 8-byte numbers must begin at a multiple of 8.
    content = content.clone() if content.storage_offset() % 8 else content
    whole = len(content) // 8 * 8
    return int(content[:whole].view(torch.int64).sum()) + int(content[whole:].sum())


def _detached(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return the tree without its large tensors; small and foreign ones stay in it."""
    if isinstance(value, torch.Tensor):
        sent = dist.get_backend() == "gloo" or value.device.type == "cuda"
        if not sent or value.numel() < 2 or value.dtype is torch.bool:
            return value.detach().cpu()
        tensors.append(value)
        return {_TENSOR: [tuple(value.shape), value.dtype]}
    if isinstance(value, dict | list | tuple):
        return mapped(value, lambda _, item: _detached(item, tensors))
    return value


def _attached(value: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Return the tree that :func:`_detached` was given, with empty tensors in place."""
    if isinstance(value, dict) and value.keys() == {_TENSOR}:
        shape, dtype = value[_TENSOR]
        tensors.append(torch.empty(shape, dtype=dtype, device=device))
        return tensors[-1]
    if isinstance(value, dict | list | tuple):
        return mapped(value, lambda _, item: _attached(item, tensors, device))
    return value


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield large tensors alone, and small neighbours of one type in buckets."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes >= BUCKET_BYTES:
            yield [tensor]
            continue
        if bucket and (size >= BUCKET_BYTES or bucket[0].dtype is not tensor.dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += nbytes
    if bucket:
        yield bucket


def _broadcast_bytes(data: bytes, group: Any, source: int) -> bytes:
    """Send bytes from one rank to the other ranks of a group."""
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    length = torch.tensor([len(data)], device=device)
    dist.broadcast(length, src=source, group=group)
    if dist.get_rank() == source:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    else:
        content = torch.zeros(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(content, src=source, group=group)
    return content.cpu().numpy().tobytes()
