"""Small files that one process writes atomically and another one reads as untrusted.

It imports only parts of the standard library that are quick to import, because training processes
and the supervisor import it, like :mod:`hpcext.protocol`, which defines these files.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext.numerals import whole

MAX_FILE_BYTES = 1 << 20
"""Size in bytes above which files of other writers (reports, requests) are refused unread."""

_DRAFT_CHARS = 12
_PART_BYTES = 1 << 20
_HEXADECIMAL = set("0123456789abcdef")

UNFIT = (OSError, ValueError, LookupError, TypeError, OverflowError)
"""Errors from a document that is missing or has unexpected content, such as ``int(1e999)``."""


def sync_directory(path: Path) -> None:
    """Flush a directory, so that renames in it survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Replace a file atomically: write a temporary file, flush it, rename it.

    Parameters
    ----------
    path : pathlib.Path
    data : bytes
    durable : bool
        Whether to wait for the disk, so that the file survives a crash of the machine.
    mode : int, optional
        Permissions; by default only for the owner.

    Raises
    ------
    OSError
        The file could not be written; the error names it. Nothing was replaced, and no temporary
        file is left. Only if it is its directory that could not be flushed, the file is replaced.
    """
    name = draft(path)
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            # The error of a full disk names no file, and other errors name the temporary one.
            error.filename = str(path)
        raise
    if durable:
        sync_directory(path.parent)


def draft(path: Path) -> Path:
    """Return a name for a temporary file that is to replace a file, beside it."""
    return path.with_name(f".{path.name}.{os.urandom(_DRAFT_CHARS // 2).hex()}")


def drafts(path: Path) -> list[Path]:
    """List the temporary files that a killed :func:`write_file` left beside a file."""
    start = f".{path.name}."
    found = []
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(path.parent) as there,
    ):
        for entry in there:
            end = entry.name.removeprefix(start)
            is_draft = len(entry.name) == len(start) + _DRAFT_CHARS == len(start) + len(end)
            if is_draft and set(end) <= _HEXADECIMAL and entry.is_file(follow_symlinks=False):
                found.append(path.with_name(entry.name))
    return sorted(found)


def look_anew(directory: Path) -> None:
    """Have NFS learn which files other hosts have created in a directory, and forget what it knew.

    For some seconds it remembers that a file did not exist; opening its directory ends that
    (nfs(5), "Close-to-open cache consistency").
    """
    with contextlib.suppress(OSError):
        os.listdir(directory)


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace a file by a JSON document, as :func:`write_file` does.

    Parameters
    ----------
    path : pathlib.Path
    document : Mapping[str, Any]
    durable : bool
        Whether to wait for the disk.
    """
    write_file(path, json.dumps(document).encode() + b"\n", durable=durable)


def open_regular(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading and return its descriptor, which the caller closes.

    Parameters
    ----------
    path : pathlib.Path or str
    dir_fd : int, optional
        The directory to which a relative path refers.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    ValueError
        It is a link, a FIFO, a device, a directory, or cannot be opened.
    """
    name = os.path.basename(path)
    # O_NONBLOCK, because opening a FIFO without a writer would block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{name}: cannot be opened ({error.strerror})") from None
    # Before open(), which raises for a directory and leaves the descriptor open.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{name}: not a regular file")
    return fd


def open_own(path: Path, *, dir_fd: int | None = None) -> int:
    """Open a file as :func:`open_regular` does, but refuse it unless this user owns it."""
    fd = open_regular(path, dir_fd=dir_fd)
    if (owner := os.fstat(fd).st_uid) != os.geteuid():
        os.close(fd)
        raise ValueError(f"{path.name}: owned by uid {owner}, not {os.geteuid()}")
    return fd


def read_untrusted(
    path: Path,
    *,
    most_bytes: int | None = MAX_FILE_BYTES,
    of_anybody: bool = False,
    dir_fd: int | None = None,
) -> bytes:
    """Read a regular file that another user may have put there.

    Parameters
    ----------
    path : pathlib.Path
    most_bytes : int, optional
        Larger files are refused unread; None for files that only this user can have written.
    of_anybody : bool
        Whether it may belong to another user, because its content is not obeyed.
    dir_fd : int, optional
        The directory to which a relative path refers.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    ValueError
        It is a link, a FIFO, a device, another user's, or too large.
    """
    fd = open_regular(path, dir_fd=dir_fd) if of_anybody else open_own(path, dir_fd=dir_fd)
    try:
        size = os.fstat(fd).st_size
        most = sys.maxsize if most_bytes is None else most_bytes
        # It may grow while it is read.
        data = b"" if size > most else _read(fd, size, most + 1)
    finally:
        os.close(fd)
    if most_bytes is not None and max(size, len(data)) > most_bytes:
        raise ValueError(f"{path.name}: larger than {most_bytes} bytes")
    return data


def _read(fd: int, size: int, most: int) -> bytes:
    """Read a file of this size to its end, but no more than so many bytes."""
    data = os.read(fd, min(size + 1, most))
    if len(data) == size:
        return data  # as nearly always
    parts = [data]
    while part := os.read(fd, min(_PART_BYTES, most - sum(map(len, parts)))):
        parts.append(part)
    return b"".join(parts)


def read_own(path: Path) -> bytes:
    """Read a file that only this user can have written, however large."""
    return read_untrusted(path, most_bytes=None)


def decoded(data: bytes | str) -> Any:
    """Decode JSON of another writer.

    Parameters
    ----------
    data : bytes or str

    Raises
    ------
    ValueError
        It is not JSON, is nested too deeply, or has a number of 4,300 digits or more.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None


def read_json(path: Path, schema: str, *, dir_fd: int | None = None) -> dict[str, Any]:
    """Read a JSON object of a given schema, which another user may have put there.

    The content of such documents is obeyed or relied on, so the file must belong to this user.

    Parameters
    ----------
    path : pathlib.Path
    schema : str
    dir_fd : int, optional
        The directory to which a relative path refers.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    ValueError
        It is not such a document; the message says why.
    """
    data = read_untrusted(path, dir_fd=dir_fd)
    try:
        document = decoded(data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ValueError(f"{path.name}: {not_of(document, schema)}")
    return document


def is_later(document: object, schema: str) -> bool:
    """Return whether a document states a later version of a schema.

    Parameters
    ----------
    document : object
    schema : str
        With its version, such as ``hpcext.report/1``.
    """
    found = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(found, str):
        return False
    (name, _, number), (wanted, _, known) = found.rpartition("/"), schema.rpartition("/")
    return name == wanted and (whole(number) or 0) > int(known)


def not_of(document: object, schema: str) -> str:
    """Explain why a document is not of a schema."""
    if is_later(document, schema):
        return f"written by a later release of hpcext, and this one reads {schema}"
    return f"not a document of schema {schema}"
