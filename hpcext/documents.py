"""Small files that one process writes and another reads: whole or not at all, and not trusted.

Standard library only, and of that only what is quick to import: training processes and the
supervisor import it, as they do :mod:`hpcext.protocol`, which says what the files are.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext.numerals import whole

MAX_FILE_BYTES = 1 << 20
"""Files written by others (reports, requests) that are larger are refused unread."""

UNFIT = (OSError, ValueError, LookupError, TypeError, OverflowError)
"""What comes of a document that is not there, or does not hold what it should: ``int(1e999)``."""


def sync_directory(path: Path) -> None:
    """Make renames inside a directory survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Replace a file as a whole: temporary name, flush, rename.

    Parameters
    ----------
    path : pathlib.Path
    data : bytes
    durable : bool
        Wait for the disk, so that the file survives a crash of the machine.
    mode : int, optional
        Permissions; for the owner alone if not said.

    Raises
    ------
    OSError
        Names the file. Nothing was replaced, and no temporary file is left.
    """
    name = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
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
            # A write into a full disk does not know where, and all else names the draft.
            error.filename = str(path)
        raise
    if durable:
        sync_directory(path.parent)


def write_json(path: Path, document: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace a file by a JSON document, as :func:`write_file` does."""
    write_file(path, json.dumps(document).encode() + b"\n", durable=durable)


def read_untrusted(path: Path, *, owner: int | None = None) -> bytes:
    """Read a small regular file that somebody else wrote.

    Parameters
    ----------
    path : pathlib.Path
    owner : int, optional
        The uid that must own it.

    Raises
    ------
    FileNotFoundError
        It is not there.
    ValueError
        It is a link, a FIFO, a device, somebody else's, or larger than :data:`MAX_FILE_BYTES`.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path.name}: cannot be opened ({error.strerror})") from None
    try:
        facts = os.fstat(fd)
        # Before open(), which raises for a directory and leaves the descriptor open.
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path.name}: not a regular file")
        if owner is not None and facts.st_uid != owner:
            raise ValueError(f"{path.name}: owned by uid {facts.st_uid}, not {owner}")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{path.name}: larger than {MAX_FILE_BYTES} bytes")
    return data


def decoded(data: bytes | str) -> Any:
    """Read JSON that somebody else wrote.

    Raises
    ------
    ValueError
        It is not JSON, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None


def read_json(path: Path, schema: str, *, owner: int | None = None) -> dict[str, Any]:
    """Read a JSON object of a given schema that somebody else wrote.

    Raises
    ------
    FileNotFoundError
        It is not there.
    ValueError
        It is not such a document; the message says why.
    """
    data = read_untrusted(path, owner=owner)
    try:
        document = decoded(data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ValueError(f"{path.name}: {not_of(document, schema)}")
    return document


def is_later(document: object, schema: str) -> bool:
    """Whether a document says that it is of a later version of a schema."""
    found = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(found, str):
        return False
    (name, _, number), (wanted, _, known) = found.rpartition("/"), schema.rpartition("/")
    return name == wanted and (whole(number) or 0) > int(known)


def not_of(document: object, schema: str) -> str:
    """Why a document is not of a schema."""
    if is_later(document, schema):
        return f"written by a later release of hpcext, and this one reads {schema}"
    return f"not a document of schema {schema}"
