"""The manifest of a checkpoint, and the check of all files against it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hpcext.documents import decoded, not_of, open_regular, read_untrusted
from hpcext.training.checkpoint.errors import CheckpointError
from hpcext.training.checkpoint.hashing import checksum, checksum_of_file

SCHEMA = "hpcext.checkpoint/1"
MANIFEST = "manifest.json"

MOST_MANIFEST_BYTES = 64 << 20
"""Largest manifest that is read or written; one of a hundred thousand files has a quarter of this
size."""

MOST_COUNT = 10**18
"""Upper limit of steps, attempts and bytes; it has more digits than a checkpoint's name allows."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified when it was found.

    Attributes
    ----------
    path : pathlib.Path
    manifest : Mapping[str, Any]
    """

    path: Path
    manifest: Mapping[str, Any]

    def part(self, name: object) -> Path:
        """Return the path of a file or directory of the checkpoint that its manifest names.

        Raises
        ------
        CheckpointError
            The manifest names no such part.
        """
        if name not in _parts(self.manifest):
            raise CheckpointError("its manifest names no such file", where=self.path / str(name))
        return self.path / str(name)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Take an error in the block for invalid contents of the manifest.

        Raises
        ------
        CheckpointError
            In place of what the block raised.
        """
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"its manifest has invalid contents ({type(error).__name__}: {error})",
                where=self.path,
                do="restore one from a backup, or remove it",
            ) from error


def encoded(manifest: dict[str, Any], path: Path) -> bytes:
    """Return a manifest as it is written to a checkpoint, with its own checksum.

    Parameters
    ----------
    manifest : dict
    path : pathlib.Path
        The checkpoint, for messages.

    Raises
    ------
    OSError
        It is too large to be read again.
    """
    manifest["sha256"] = _digest(manifest)
    data = json.dumps(manifest).encode() + b"\n"
    if len(data) > MOST_MANIFEST_BYTES:
        what = f"its manifest would have {len(data)} bytes; the limit is"
        raise OSError(errno.EFBIG, f"{what} {MOST_MANIFEST_BYTES}", str(path))
    return data


def verify(path: Path, needs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the manifest of a checkpoint, and compare every file with it.

    This is safe for a checkpoint of any origin: only regular files inside it are opened, and no
    more of each is read than its size in the manifest.

    Parameters
    ----------
    path : pathlib.Path
    needs : Mapping[str, str], optional
        By format, the file that a checkpoint of it must have.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    CheckpointError
        The message names the file and says what is wrong with it.
    """
    manifest = read_manifest(path / MANIFEST)
    for entry in manifest["files"]:
        file = Path(f"{path}/{entry['name']}")
        try:
            _compare(path, entry)
        except FileNotFoundError:
            raise CheckpointError("is missing", where=file) from None
        except ValueError as error:
            raise CheckpointError(str(error).removeprefix(f"{file.name}: "), where=file) from None
        except OSError as error:
            raise CheckpointError(f"cannot be read ({error.strerror})", where=file) from None
    name = (needs or {}).get(manifest.get("format", ""))
    if name is not None and name not in _parts(manifest):
        raise CheckpointError("its manifest names no such file", where=path / name)
    return manifest


def _parts(manifest: Mapping[str, Any]) -> set[str]:
    """Return the files that a manifest names, and their directories."""
    names = [PurePosixPath(entry["name"]) for entry in manifest["files"]]
    return {str(part) for name in names for part in (name, *name.parents)} - {"."}


def _compare(path: Path, entry: Mapping[str, Any]) -> None:
    """Compare a file with its entry in the manifest; raise OSError or ValueError."""
    with open(open_inside(path, entry["name"]), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry["size"]:
            raise ValueError(f"{size} bytes, not {entry['size']}")
        if checksum_of_file(file, size) != entry["sha256"]:
            raise ValueError("its content has changed (checksum differs)")


def open_inside(path: Path, name: str) -> int:
    """Open a regular file inside a checkpoint without following links; the caller closes it.

    Parameters
    ----------
    path : pathlib.Path
        The checkpoint.
    name : str
        The file, relative to it.

    Returns
    -------
    int
        A file descriptor.

    Raises
    ------
    OSError, ValueError
        It is not a regular file, or is not inside the checkpoint.
    """
    parts = name.split("/")
    if {"", ".", ".."} & set(parts):
        raise ValueError("not a file of this checkpoint")
    # Directories above belong to the user: a link there may lead to the checkpoints.
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = below
        return open_regular(parts[-1], dir_fd=fd)
    finally:
        os.close(fd)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest of any origin; raise CheckpointError if it is not valid."""
    try:
        data = read_untrusted(path, most_bytes=MOST_MANIFEST_BYTES, of_anybody=True)
        manifest = decoded(data)
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise CheckpointError(not_of(manifest, SCHEMA), where=path)
        stated = manifest.pop("sha256", None)
        if stated != _digest(manifest):
            raise CheckpointError("its content has changed (checksum differs)", where=path)
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error.strerror})", where=path) from None
    except (ValueError, RecursionError) as error:
        what = str(error).removeprefix(f"{path.name}: ")
        raise CheckpointError(what, where=path) from None
    if wrong := _wrong(manifest):
        raise CheckpointError(f"its {wrong} is missing or invalid", where=path)
    return manifest


def _wrong(manifest: Mapping[str, Any]) -> str:
    """Return the first key of a manifest whose value is not valid; empty if none is."""
    for key in ("step", "attempt"):
        if not _is_count(manifest.get(key)):
            return key
    files = manifest.get("files")
    if not isinstance(files, list) or not all(map(_is_entry, files)):
        return "list of files"
    for key, kind in (("format", str), ("run_id", str)):
        if key in manifest and not isinstance(manifest[key], kind):
            return key
    return ""


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and "\0" not in entry["name"]
        and isinstance(entry.get("sha256"), str)
        and _is_count(entry.get("size"))
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_COUNT


def _digest(manifest: Mapping[str, Any]) -> str:
    return checksum(json.dumps(manifest, sort_keys=True).encode())
