"""Text files that people write, and standard input: reading them, and TOML in them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from hpcext.core.errors import InputError
from hpcext.text import clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE_BYTES = 32 << 20
"""Size in bytes above which files are refused unread."""


def read_text(path: Path, *, must_be_roots: bool = False) -> str:
    """Read a text file that a person wrote.

    Parameters
    ----------
    path : pathlib.Path
    must_be_roots : bool
        Whether to refuse it unless root owns it and only root can write to it.

    Raises
    ------
    InputError
        The file does not exist, is not a regular file, is too large or not UTF-8, or must belong to
        root and does not.
    """
    where = clean(str(path))
    try:
        # O_NONBLOCK, because opening a FIFO without a writer would block.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise InputError(_reason(error), where=where) from None
    # The descriptor must be closed here, because open() refuses that of a directory without
    # closing it.
    try:
        facts = os.fstat(fd)
        _check_file(facts, where, must_be_roots=must_be_roots)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(_reason(error), where=where) from None
    finally:
        os.close(fd)
    if len(data) > MAX_FILE_BYTES:  # it grew meanwhile
        raise _too_large(len(data), where)
    return _decoded(data, where)


def read_stream(stream: BinaryIO, where: str) -> str:
    """Read all of standard input as text.

    Parameters
    ----------
    stream : file object
        Open for reading bytes.
    where : str
        The name of the input in messages.

    Raises
    ------
    InputError
        It is too large, or not UTF-8.
    """
    try:
        data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(_reason(error), where=where) from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError("too much", where=where, valid=f"at most {MAX_FILE_BYTES >> 20} MiB")
    return _decoded(data, where)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML document.

    Parameters
    ----------
    text : str
    where : str
        The file, for messages.

    Raises
    ------
    InputError
        It is invalid; the message names the line and column.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise InputError("not TOML: nested too deeply", where=where) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML: {clean(str(error))[:300]}", where=where) from None
    except ValueError:
        # Python reads no integer of more than 4,300 digits.
        raise InputError(
            "not TOML: it has a number with thousands of digits", where=where
        ) from None
    return document


def _check_file(facts: os.stat_result, where: str, *, must_be_roots: bool) -> None:
    """Refuse a file that must not be read, before reading it."""
    if not stat.S_ISREG(facts.st_mode):
        kind = "a directory" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
        raise InputError(kind, where=where, valid="a text file")
    if must_be_roots and (facts.st_uid != 0 or facts.st_mode & 0o022):
        raise InputError(
            f"owned by uid {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}",
            where=where,
            valid="owned by root and writable by root alone",
            do=f"chown root {where} && chmod go-w {where}",
        )
    if facts.st_size > MAX_FILE_BYTES:
        raise _too_large(facts.st_size, where)


def _too_large(size_bytes: int, where: str) -> InputError:
    valid = f"at most {MAX_FILE_BYTES >> 20} MiB"
    return InputError(f"{size_bytes} bytes", where=where, valid=valid)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return str(error.strerror) if isinstance(error, OSError) else str(error)


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            where=where,
            do="save it as UTF-8",
        ) from None
