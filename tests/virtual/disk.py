"""The file system of a virtual machine room: inodes, what of them is on the disk, and its faults.

It has what the code under test uses, as Linux has it: hard and symbolic links, descriptors that
outlive names, advisory locks, modes. What was written is in memory until it is synchronised; when a
machine crashes, each change that was not may be on the disk or not, as the seed says.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator

MOST_LINKS = 40
_SPECIAL = {"", ".", ".."}
_errors: dict[int, str] = {}


def failed(number: int, path: object = None) -> OSError:
    """Return the error of a system call."""
    if (text := _errors.get(number)) is None:
        text = _errors[number] = os.strerror(number)
    return OSError(number, text, None if path is None else str(path))


class Inode:
    """What has no name of its own.

    Attributes
    ----------
    number, mode, uid, links : int
    mtime : float
        Seconds since the epoch.
    """

    def __init__(self, number: int, mode: int, uid: int, mtime: float) -> None:
        self.number, self.mode, self.uid, self.links, self.mtime = number, mode, uid, 0, mtime
        self.above: tuple[Directory, str] | None = None

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return 0

    def facts(self) -> os.stat_result:
        """Return what stat(2) says."""
        at, uid = self.mtime, self.uid
        second, ns = int(at), round(at * 1e9)
        return os.stat_result(
            (self.mode, self.number, 1, self.links, uid, uid, self.size,
             second, second, second, at, at, at, ns, ns, ns)
        )  # fmt: skip


class File(Inode):
    """A regular file: its content, and the content that would survive a crash."""

    def __init__(self, number: int, mode: int, uid: int, mtime: float) -> None:
        super().__init__(number, stat.S_IFREG | mode, uid, mtime)
        self.data = bytearray()
        self.durable = b""
        self.locked_by: object = None

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return len(self.data)


class Directory(Inode):
    """A directory: its entries, and those that would survive a crash."""

    def __init__(self, number: int, mode: int, uid: int, mtime: float) -> None:
        super().__init__(number, stat.S_IFDIR | mode, uid, mtime)
        self.entries: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}


class Link(Inode):
    """A symbolic link."""

    def __init__(self, number: int, target: str, uid: int, mtime: float) -> None:
        super().__init__(number, stat.S_IFLNK | 0o777, uid, mtime)
        self.target = target


class Device(Inode):
    """The null device."""

    def __init__(self, number: int) -> None:
        super().__init__(number, stat.S_IFCHR | 0o666, 0, 0.0)


class Disk:
    """A file system.

    Parameters
    ----------
    now : callable
        Seconds since the epoch.

    Attributes
    ----------
    fault : int
        Error number of each call that would change it, 0 for none: ENOSPC, EIO, EROFS.
    left : int
        Bytes that can still be written at ENOSPC.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._number = 1
        self.fault = self.left = 0
        self._places: dict[str, Directory] = {}  # of paths that were walked, until a name goes
        self.root = Directory(1, 0o755, 0, now())
        self.root.links = 1
        dev = self._child(self.root, "dev", lambda number: Directory(number, 0o755, 0, now()))
        self._child(dev, "null", Device)
        self.settle()

    # Finding.

    def find(self, path: str, *, follow: bool = True) -> Inode:
        """Return what an absolute path leads to; raise as the kernel does."""
        parent, name = self.locate(path, follow=follow)
        if not name:
            return parent
        found = self.entry(parent, name)
        if found is None:
            raise failed(errno.ENOENT, path)
        return found

    def entry(self, parent: Directory, name: str) -> Inode | None:
        """Return what a name in a directory leads to."""
        return parent.entries.get(name)

    def opened(self, path: str, *, follow: bool) -> Inode:
        """Return what an absolute path leads to, to open it."""
        return self.find(path, follow=follow)

    def listed(self, directory: Directory) -> None:
        """Note that a directory is listed."""

    def locate(self, path: str, *, follow: bool) -> tuple[Directory, str]:
        """Return the directory of an absolute path, and the name there; the root has none."""
        above, _, name = path.rpartition("/")
        if name in _SPECIAL:
            return self._walk(path, follow=follow)
        here = self._places.get(above)
        if here is None:
            here = self._places[above] = self._directory(above, path)
        if follow and isinstance(here.entries.get(name), Link):
            return self._walk(path, follow=True)
        return here, name

    def _directory(self, above: str, path: str) -> Directory:
        parent, name = self._walk(above, follow=True)
        found = parent.entries.get(name) if name else parent
        if found is None:
            raise failed(errno.ENOENT, path)
        if not isinstance(found, Directory):
            raise failed(errno.ENOTDIR, path)
        return found

    def _walk(self, path: str, *, follow: bool) -> tuple[Directory, str]:
        links = 0
        parts = [part for part in path.split("/") if part and part != "."]
        place: list[Directory] = [self.root]
        if not parts:
            return self.root, ""
        while True:
            part = parts.pop(0)
            if part == "..":
                if len(place) > 1:
                    place.pop()
                if not parts:
                    return place[-1], ""
                continue
            here = place[-1]
            found = self.entry(here, part)
            if isinstance(found, Link) and (parts or follow):
                links += 1
                if links > MOST_LINKS:
                    raise failed(errno.ELOOP, path)
                target = [each for each in found.target.split("/") if each and each != "."]
                if found.target.startswith("/"):
                    place = [self.root]
                parts = target + parts
                if not parts:
                    return place[-1], ""
                continue
            if not parts:
                return here, part
            if found is None:
                raise failed(errno.ENOENT, path)
            if not isinstance(found, Directory):
                raise failed(errno.ENOTDIR, path)
            place.append(found)

    # Changing.

    def writable(self, path: object = None) -> None:
        """Raise the present fault, if there is one."""
        if self.fault:
            raise failed(self.fault, path)

    def room_for(self, data: bytes) -> bytes:
        """Return what of some bytes can be written: on a disk that fills up, perhaps a part."""
        if self.fault == errno.ENOSPC and self.left:
            data, self.left = data[: self.left], max(0, self.left - len(data))
        else:
            self.writable()
        return data

    def make(self, path: str, mode: int, uid: int) -> File:
        """Make a regular file where there is none."""
        return self._new(path, lambda number: File(number, mode, uid, self._now()), follow=True)

    def make_directory(self, path: str, mode: int, uid: int) -> Directory:
        """Make a directory."""
        return self._new(path, lambda number: Directory(number, mode, uid, self._now()))

    def make_link(self, target: str, path: str, uid: int) -> Link:
        """Make a symbolic link."""
        return self._new(path, lambda number: Link(number, target, uid, self._now()))

    def link(self, source: str, path: str) -> None:
        """Give a file one more name."""
        inode = self.find(source, follow=False)
        self._new(path, lambda _: inode)

    def _new(self, path: str, what: Callable[[int], Inode], *, follow: bool = False) -> Inode:
        parent, name = self.locate(path, follow=follow)
        if not name or name in parent.entries:
            raise failed(errno.EEXIST, path)
        self.writable(path)
        return self._child(parent, name, what)

    def _child(self, parent: Directory, name: str, what: Callable[[int], Inode]) -> Inode:
        self._number += 1
        inode = what(self._number)
        inode.links += 1
        parent.entries[name] = inode
        inode.above = (parent, name)
        parent.mtime = self._now()
        return inode

    def remove(self, path: str) -> None:
        """Remove a name that is not a directory's."""
        parent, name = self.locate(path, follow=False)
        found = parent.entries.get(name)
        if found is None:
            raise failed(errno.ENOENT, path)
        if isinstance(found, Directory):
            raise failed(errno.EISDIR, path)
        if self.fault == errno.EROFS:
            raise failed(errno.EROFS, path)
        del parent.entries[name]
        found.links -= 1
        self._gone(found)
        parent.mtime = self._now()

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        parent, name = self.locate(path, follow=False)
        found = parent.entries.get(name)
        if found is None:
            raise failed(errno.ENOENT, path)
        if not isinstance(found, Directory):
            raise failed(errno.ENOTDIR, path)
        if found.entries:
            raise failed(errno.ENOTEMPTY, path)
        if self.fault == errno.EROFS:
            raise failed(errno.EROFS, path)
        del parent.entries[name]
        self._gone(found)

    def _gone(self, gone: Inode | None) -> None:
        if not isinstance(gone, File | None):
            self._places.clear()

    def rename(self, old: str, new: str) -> None:
        """Rename, and replace what had the new name."""
        old_parent, old_name = self.locate(old, follow=False)
        new_parent, new_name = self.locate(new, follow=False)
        moved = old_parent.entries.get(old_name)
        if moved is None:
            raise failed(errno.ENOENT, old)
        there = new_parent.entries.get(new_name)
        if there is moved:
            return
        if isinstance(there, Directory) and (not isinstance(moved, Directory) or there.entries):
            raise failed(errno.ENOTEMPTY if isinstance(moved, Directory) else errno.EISDIR, new)
        if there is not None and isinstance(moved, Directory) and not isinstance(there, Directory):
            raise failed(errno.ENOTDIR, new)
        if self.fault in {errno.EROFS, errno.EIO}:
            raise failed(self.fault, new)
        if there is not None:
            there.links -= 1
        self._gone(moved)
        self._gone(there)
        del old_parent.entries[old_name]
        new_parent.entries[new_name] = moved
        moved.above = (new_parent, new_name)
        old_parent.mtime = new_parent.mtime = self._now()

    # What is on the disk.

    def sync(self, inode: Inode) -> None:
        """Have what was written of an inode survive a crash; fsync(2).

        Of a directory that includes that it is there: journals of ext4 and XFS keep the order, and
        Btrfs logs new directories above. The name of a file is its directory's affair.
        """
        if self.fault == errno.EIO:
            raise failed(errno.EIO)
        if isinstance(inode, File):
            inode.durable = bytes(inode.data)
        elif isinstance(inode, Directory):
            inode.durable = dict(inode.entries)
            below: Inode = inode
            while below.above is not None:
                parent, name = below.above
                if parent.entries.get(name) is below:
                    parent.durable[name] = below
                below = parent

    def keeps(self, path: str) -> bool:
        """Return whether a file or a directory would survive a crash, as it is now."""
        here: Inode | None = self.root
        for part in path.split("/"):
            if part:
                here = here.durable.get(part) if isinstance(here, Directory) else None
        if isinstance(here, File):
            return bytes(here.data) == here.durable
        return here is not None

    def settle(self) -> None:
        """Have all of it survive, as after a minute of quiet."""
        for inode in list(self._all()):
            self.sync(inode)

    def crash(self, chance: random.Random) -> None:
        """Lose, of what was not synchronised, what a crash of the machine may lose."""
        self._places.clear()
        for inode in list(self._all()):
            if isinstance(inode, File):
                if bytes(inode.data) != inode.durable:
                    inode.data = bytearray(_torn(bytes(inode.data), inode.durable, chance))
                inode.durable = bytes(inode.data)
                inode.locked_by = None
            elif isinstance(inode, Directory):
                for names in _changes(inode.durable, inode.entries):
                    if chance.random() < 0.5:
                        for name in names:
                            inode.entries.pop(name, None)
                            if name in inode.durable:
                                inode.entries[name] = inode.durable[name]
                inode.durable = dict(inode.entries)

    def _all(self) -> Iterator[Inode]:
        rest: list[Inode] = [self.root]
        seen = set()
        while rest:
            inode = rest.pop()
            if inode.number in seen:
                continue
            seen.add(inode.number)
            yield inode
            if isinstance(inode, Directory):
                rest += inode.entries.values()
                rest += inode.durable.values()


def _changes(old: dict[str, Inode], new: dict[str, Inode]) -> list[list[str]]:
    """Return the names in a directory that changed, each with those that changed at once with it.

    A renaming is one change: no file system with a journal has both names of it, or neither.
    """
    changed = [
        name for name in sorted(old.keys() | new.keys()) if old.get(name) is not new.get(name)
    ]
    groups: list[list[str]] = []
    for name in changed:
        came_from = [each for each in changed if name in new and old.get(each) is new[name]]
        went_to = [each for each in changed if name in old and new.get(each) is old[name]]
        together = {name, *came_from, *went_to}
        joined = [group for group in groups if together & set(group)]
        groups = [group for group in groups if not together & set(group)]
        groups.append(sorted(together.union(*joined)))
    return groups


def _torn(new: bytes, old: bytes, chance: random.Random) -> bytes:
    """Return what is left of a file of which `old` was synchronised: it may end anywhere."""
    if new.startswith(old):
        return new[: chance.randint(len(old), len(new))]
    return chance.choice([old, new, new[: chance.randint(0, len(new))]])
