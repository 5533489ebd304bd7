"""Virtual nodes: each its own kernel, clock and disk, and a home that all of them share.

The home is a :class:`~virtual.disk.Disk` on a file server that does not fail as a whole. A node
sees it through a client that remembers for a while which name led where, as NFS does (nfs(5),
ac*min and "Close-to-open cache consistency"): what another node has made, replaced or removed may
go unnoticed until then. What the node changes itself it sees at once. Two things end what is
remembered, as they do in NFS: to list a directory asks the server, and to open a file whose inode
is gone looks it up anew. Contents are the server's at each open.
"""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Callable, Iterable

from virtual.disk import Directory, Disk, File, Inode, Link, failed
from virtual.kernel import EPOCH, Kernel, Machine

HOME = "/home"
STALE_S = 3.0
"""The longest that a node may remember a name, in seconds: the least of acregmin and acdirmin."""

SILENT_S = 30.0
"""Seconds after which connections to a node without power end (hpcext/training/connections.py)."""


class Client(Disk):
    """The view that a node has of the file server.

    Parameters
    ----------
    server : Disk
    now : callable
        Seconds.
    stale_s : float
        How long a name is remembered; 0: not at all, as on the server itself.
    """

    def __init__(self, server: Disk, now: Callable[[], float], stale_s: float) -> None:
        self._server, self._clock, self._stale_s = server, now, stale_s
        self._names: dict[tuple[int, str], tuple[float, Inode | None]] = {}
        self.root = server.root

    def entry(self, parent: Directory, name: str) -> Inode | None:
        """Return what a name in a directory leads to, as far as this node knows."""
        if not self._stale_s:
            return parent.entries.get(name)
        key, now = (parent.number, name), self._clock()
        seen = self._names.get(key)
        if seen is None or now >= seen[0] + self._stale_s:
            seen = self._names[key] = (now, parent.entries.get(name))
        return seen[1]

    def locate(self, path: str, *, follow: bool) -> tuple[Directory, str]:
        """Return the directory of a path, and the name there."""
        if not self._stale_s:
            return self._server.locate(path, follow=follow)
        return self._walk(path, follow=follow)

    def opened(self, path: str, *, follow: bool) -> Inode:
        """Return what is to be opened: what is gone is looked up anew (ESTALE)."""
        found = self.find(path, follow=follow)
        if not isinstance(found, Directory | Link) and not found.links:
            self._forget(path)
            found = self.find(path, follow=follow)
        return found

    def listed(self, directory: Directory) -> None:
        """Ask the server for what is in a directory."""
        for key in [key for key in self._names if key[0] == directory.number]:
            del self._names[key]

    # Changes go to the server, and are seen here at once.

    def writable(self, path: object = None) -> None:
        """Raise the present fault of the server, if there is one."""
        self._server.writable(path)

    def room_for(self, data: bytes) -> bytes:
        """Return what of some bytes can be written there."""
        return self._server.room_for(data)

    def _new(self, path: str, what: Callable[[int], Inode], *, follow: bool = False) -> Inode:
        try:
            return self._server._new(path, what, follow=follow)
        finally:
            self._forget(path)

    def make(self, path: str, mode: int, uid: int) -> File:
        """Make a regular file."""
        try:
            return self._server.make(path, mode, uid)
        finally:
            self._forget(path)

    def make_directory(self, path: str, mode: int, uid: int) -> Directory:
        """Make a directory."""
        try:
            return self._server.make_directory(path, mode, uid)
        finally:
            self._forget(path)

    def make_link(self, target: str, path: str, uid: int) -> Link:
        """Make a symbolic link."""
        try:
            return self._server.make_link(target, path, uid)
        finally:
            self._forget(path)

    def link(self, source: str, path: str) -> None:
        """Give a file one more name."""
        try:
            self._server.link(source, path)
        finally:
            self._forget(path)

    def remove(self, path: str) -> None:
        """Remove a name."""
        try:
            self._server.remove(path)
        finally:
            self._forget(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        try:
            self._server.remove_directory(path)
        finally:
            self._forget(path)

    def rename(self, old: str, new: str) -> None:
        """Rename, and replace what had the new name."""
        try:
            self._server.rename(old, new)
        finally:
            self._forget(old)
            self._forget(new)

    def sync(self, inode: Inode) -> None:
        """Have the server keep what was written."""
        self._server.sync(inode)

    def boot(self) -> None:
        """Remember nothing."""
        self._names.clear()

    def _forget(self, path: str) -> None:
        name = path.rpartition("/")[2]
        for key in [key for key in self._names if key[1] == name]:
            del self._names[key]


class Mounts:
    """The file systems of a node, as one: its own, and the home from the server.

    What has no path (the space for some bytes) is asked of the server, where all of ours lies.
    """

    def __init__(self, own: Disk, home: Client) -> None:
        self.own, self.home = own, home
        self.writable, self.room_for, self.sync = home.writable, home.room_for, home.sync

    def at(self, path: str) -> Disk:
        """Return the file system that an absolute path is on."""
        return self.home if path == HOME or path.startswith(f"{HOME}/") else self.own

    def find(self, path: str, *, follow: bool = True) -> Inode:
        """Return what a path leads to."""
        return self.at(path).find(path, follow=follow)

    def opened(self, path: str, *, follow: bool) -> Inode:
        """Return what is to be opened."""
        return self.at(path).opened(path, follow=follow)

    def listed(self, directory: Directory) -> None:
        """Ask for what is in a directory."""
        self.home.listed(directory)

    def make(self, path: str, mode: int, uid: int) -> File:
        """Make a regular file."""
        return self.at(path).make(path, mode, uid)

    def make_directory(self, path: str, mode: int, uid: int) -> Directory:
        """Make a directory."""
        return self.at(path).make_directory(path, mode, uid)

    def make_link(self, target: str, path: str, uid: int) -> Link:
        """Make a symbolic link."""
        return self.at(path).make_link(target, path, uid)

    def link(self, source: str, path: str) -> None:
        """Give a file one more name."""
        self._one(source, path).link(source, path)

    def remove(self, path: str) -> None:
        """Remove a name."""
        self.at(path).remove(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self.at(path).remove_directory(path)

    def rename(self, old: str, new: str) -> None:
        """Rename."""
        self._one(old, new).rename(old, new)

    def _one(self, path: str, other: str) -> Disk:
        found = self.at(path)
        if found is not self.at(other):
            raise failed(errno.EXDEV, other)
        return found


class Node(Machine):
    """A node: it may lose its power, and have it again.

    Attributes
    ----------
    up : bool
    lost_s : float
        When it has last lost its power.
    """

    def __init__(self, kernel: Kernel, name: str, server: Disk, stale_s: float = 0.0) -> None:
        own = Disk(lambda: EPOCH + kernel.now)
        own.make_directory(HOME, 0o755, 0)
        own.make_directory("/tmp", 0o1777, 0)
        own.settle()
        home = Client(server, lambda: kernel.now, stale_s)
        self.up, self.lost_s = True, 0.0
        super().__init__(kernel, name, Mounts(own, home))  # type: ignore[arg-type]
        kernel.machines.append(self)

    def begin(self) -> None:
        """Boot."""
        self.up = True
        super().begin()

    def lose_power(self) -> None:
        """End all that runs here, at once; nothing does until it boots."""
        self.kernel.tell(f"{self.name} loses its power")
        unsaved = self._written()
        for process in list(self.processes.values()):
            if not process.dead and process is not self.init:
                process.parent, process.children = None, []
                process.end(-signal.SIGKILL)
        self.processes.clear()
        disk: Mounts = self.disk  # type: ignore[assignment]
        disk.own.crash(self.kernel.chance)
        disk.home.boot()
        for inode in unsaved:
            _lose(inode, self.kernel.chance)
        self.up, self.lost_s = False, self.kernel.now
        self.kernel.touched()
        self.kernel.at(self.kernel.now + SILENT_S, self.kernel.touched)

    def boot(self) -> None:
        """Begin anew."""
        self.kernel.tell(f"{self.name} boots")
        self.begin()
        self.kernel.touched()

    def crash(self) -> None:
        """Lose the power for a moment."""
        self.lose_power()
        self.boot()

    def _written(self) -> Iterable[File]:
        """Return files that are open here for writing: what they have may be on no disk yet.

        Others are: an NFS client writes back when a file is closed.
        """
        found = {}
        for process in self.processes.values():
            for opened in process.fds.values():
                if isinstance(opened.inode, File) and opened.flags & 3:
                    found[opened.inode.number] = opened.inode
        return [found[number] for number in sorted(found)]


def _lose(file: File, chance: random.Random) -> None:
    data = bytes(file.data)
    if data != file.durable:
        kept = len(file.durable) if data.startswith(file.durable) else 0
        del file.data[chance.randint(kept, len(data)) :]


def cluster(kernel: Kernel, names: Iterable[str], stale_s: float = 0.0) -> list[Node]:
    """Make nodes that share a home directory.

    Parameters
    ----------
    kernel : Kernel
    names : iterable of str
    stale_s : float
        How long a node remembers a name, at most :data:`STALE_S`.
    """
    server = Disk(lambda: EPOCH + kernel.now)
    server.make_directory(HOME, 0o755, 0)
    server.settle()
    return [Node(kernel, name, server, stale_s) for name in names]
