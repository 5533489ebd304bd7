"""The images that CRIU makes of a process tree: whether they are complete, and what is in them.

An image is a magic number of eight bytes and then messages, each with its length before it; they
are protocol buffers (CRIU, ``images/*.proto``). Only the few fields that are needed are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PREPARED = "inventory.img"
"""The image that CRIU needs first, and writes when it has everything else."""

MOST_BYTES = 256 << 20
"""Larger images of these kinds are not read: a supervisor is small."""

_MAGIC_BYTES, _LENGTH_BYTES = 8, 4
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5

# pstree.proto
_PID, _THREADS = 1, 5
# core.proto: task_core_entry and its task_state
_COMMON, _STATE, _DEAD = 3, 1, 2
# fdinfo.proto: the file_entry of a regular file; regfile.proto
_REGULAR, _FLAGS, _NAME = 3, 2, 6


class OpenFile(NamedTuple):
    """A regular file that a process of the tree has open, or mapped.

    Attributes
    ----------
    path : str
    flags : int
        Of open(2).
    """

    path: str
    flags: int


def processes(directory: Path) -> dict[int, list[int]]:
    """Return the threads of each process in the images, the root first; of a zombie none.

    Raises
    ------
    OSError, ValueError
        There is no such image, or it makes no sense.
    """
    found: dict[int, list[int]] = {}
    for message in _messages(directory / "pstree.img"):
        pid, threads = 0, list[int]()
        for number, value in _fields(message):
            if number == _PID and isinstance(value, int):
                pid = value
            elif number == _THREADS:
                threads += [value] if isinstance(value, int) else _packed(value)
        if not pid:
            raise ValueError("pstree.img: a process without a pid")
        # Of a zombie CRIU 4.2.1 writes a number that is no thread's.
        found[pid] = threads if pid in threads else []
    if not found:
        raise ValueError("pstree.img: no process")
    return found


def open_files(directory: Path) -> list[OpenFile]:
    """Return the regular files that the processes in the images have open.

    Raises
    ------
    OSError, ValueError
        There is no such image, or it makes no sense.
    """
    found = []
    for message in _messages(directory / "files.img"):
        for number, value in _fields(message):
            if number == _REGULAR and isinstance(value, bytes):
                facts = dict(_fields(value))
                name, flags = facts.get(_NAME), facts.get(_FLAGS)
                if isinstance(name, bytes) and isinstance(flags, int):
                    found.append(OpenFile("/" + name.decode(errors="surrogateescape"), flags))
    return [each._replace(path="/" + each.path.lstrip("/")) for each in found]


def missing(directory: Path, root: int) -> str:
    """Return what the images of a tree lack, in words; empty if they are complete.

    Parameters
    ----------
    directory : pathlib.Path
    root : int
        The pid of the root of the tree.
    """
    try:
        found = processes(directory)
        open_files(directory)
    except (OSError, ValueError) as error:
        return f"the images are not complete: {error}"
    if root not in found:
        return f"the images are not complete: process {root} is not in them"
    names = [PREPARED, *(f"core-{tid}.img" for pid in found for tid in {pid, *found[pid]})]
    names += [f"{kind}-{pid}.img" for pid in found if found[pid] for kind in ("mm", "pagemap")]
    for name in names:
        if not _begun(directory / name):
            return f"the images are not complete: {name} is missing or empty"
    for pid in found:
        if not found[pid] and not _is_zombie(directory / f"core-{pid}.img"):
            return f"the images are not complete: no thread of process {pid} is in them"
    return ""


def _is_zombie(core: Path) -> bool:
    """Return whether a process had ended, and nobody had waited for it."""
    try:
        facts = dict(_fields(next(_messages(core))))
        common = facts.get(_COMMON)
        return isinstance(common, bytes) and dict(_fields(common)).get(_STATE) == _DEAD
    except (OSError, ValueError, StopIteration):
        return False


def _begun(path: Path) -> bool:
    try:
        return path.stat().st_size >= _MAGIC_BYTES
    except OSError:
        return False


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of an image."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name}: too large")
    data = path.read_bytes()
    at = _MAGIC_BYTES
    if len(data) < at:
        raise ValueError(f"{path.name}: too short")
    while at < len(data):
        length = int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        if at + length > len(data):
            raise ValueError(f"{path.name}: ends too soon")
        yield data[at : at + length]
        at += length


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer: number and value."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in {_EIGHT, _FOUR}:
            length = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"unknown type of field: {kind}")
        if at + length > len(message):
            raise ValueError("a field ends too late")
        yield key >> 3, message[at : at + length]
        at += length


def _packed(value: bytes) -> list[int]:
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number ends too late")
