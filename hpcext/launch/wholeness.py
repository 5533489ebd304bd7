"""Whether a file that a training writes as its checkpoint is whole.

A file that is being written is not, nor one whose own format says that something is missing, as a
writer that was killed leaves it. Standard library only, as all that a supervisor imports.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from hpcext.numerals import whole
from hpcext.process import Process

_MARKERS = ("checkpoint-is-incomplete.txt",)
"""Files that libraries put beside a checkpoint while they write it: transformers."""

_UNFINISHED = (".orbax-checkpoint-tmp",)
"""Parts of the names of directories in which libraries write a checkpoint: Orbax."""

_SUFFIXES = (
    ".bin", ".ckpt", ".h5", ".hdf5", ".joblib", ".keras", ".msgpack", ".npy", ".npz", ".pkl",
    ".pt", ".pth", ".safetensors",
)  # fmt: skip
"""Endings of files that belong to a checkpoint, by which they are told from logs beside it."""

_ZIP, _HDF5 = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
_MAX_HEADER = 16 << 20
"""Larger documents are not read: a supervisor is small."""


def is_whole(path: Path) -> bool:
    """Return whether a file can be a finished checkpoint, as far as that can be seen.

    It has to have a content; what its format says of its length has to hold (zip, which PyTorch,
    Keras and NumPy write, HDF5, safetensors, JSON); and no library may have marked it as
    unfinished. Of other formats more is not known: :func:`written_by` tells who still writes.
    """
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode) or not facts.st_size:
            return False
        if any(mark in part for part in path.parts for mark in _UNFINISHED):
            return False
        if any(os.path.lexists(path.parent / name) for name in _MARKERS):
            return False
        with open(path, "rb") as file:
            return _is_complete(file, path, facts.st_size)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # A training may write anything: what makes no sense is not whole.
        return False


def _is_complete(file: BinaryIO, path: Path, size: int) -> bool:
    begin = file.read(64)
    if begin.startswith(_ZIP):
        return _ends_zip(file, size)
    if begin.startswith(_HDF5):
        return _hdf5_length(begin) <= size
    if path.suffix == ".safetensors":
        return _safetensors_length(file, size) == size
    if path.suffix == ".json":
        if size <= _MAX_HEADER:
            file.seek(0)
            json.load(file)
        return True
    return True


def _ends_zip(file: BinaryIO, size: int) -> bool:
    """Return whether a zip file has its end: the directory, written last, and its record."""
    # APPNOTE.TXT 4.3.16: 22 bytes and a comment of at most 65,535.
    length = min(size, 22 + 65_535)
    file.seek(size - length)
    return b"PK\x05\x06" in file.read(length)


def _hdf5_length(begin: bytes) -> int:
    """Return the length that the superblock of an HDF5 file states; 0 if it cannot be read."""
    # HDF5 file format specification 3.0, II.A: version at 8. Versions 0 and 1 have the size of
    # offsets at 13 and the end of file as the third address; 2 and 3 at 9 and as the third, too.
    version = begin[8]
    offset_at, first = (13, 24 if version == 0 else 28) if version < 2 else (9, 12)
    size = begin[offset_at]
    at = first + 2 * size
    return int.from_bytes(begin[at : at + size], "little") if version <= 3 else 0


def _safetensors_length(file: BinaryIO, size: int) -> int:
    """Return the length that the header of a safetensors file states."""
    file.seek(0)
    header = int.from_bytes(file.read(8), "little")
    if header > _MAX_HEADER:
        return size if header <= size else -1
    tensors = json.loads(file.read(header))
    ends = (int(each["data_offsets"][1]) for name, each in tensors.items() if name[:2] != "__")
    return 8 + header + max(ends, default=0)


def written_by(process: Process) -> Iterator[str]:
    """Yield the files that a process has open for writing; proc(5)."""
    own = f"/proc/{process.pid}"
    try:
        names = os.listdir(f"{own}/fd")
    except OSError:
        return
    for name in names:
        try:
            path = os.readlink(f"{own}/fd/{name}")
            if not path.startswith("/") or path.startswith(("/dev/", "/proc/")):
                continue
            with open(f"{own}/fdinfo/{name}", encoding="ascii") as file:
                flags = next((line for line in file if line.startswith("flags:")), "")
        except OSError:
            continue
        mode = whole(flags.removeprefix("flags:").strip()[-1:])
        if mode is not None and mode & os.O_ACCMODE != os.O_RDONLY:
            yield path


def beside(path: str, checkpoints: Collection[str]) -> bool:
    """Return whether a file belongs to a checkpoint of which one of these files is another part."""
    directory = os.path.dirname(path)
    return path.endswith(_SUFFIXES) and any(
        os.path.dirname(each) == directory for each in checkpoints
    )
