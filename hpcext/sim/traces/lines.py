"""Text files of any length, read line by line and written as a whole, with gzip or without.

A CSV table is read from such lines: its columns, and each row with its place.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, TypeVar, cast

from hpcext.core.errors import InputError
from hpcext.numerals import whole
from hpcext.text import clean, shown

MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file (RFC 1952), whatever its name."""

BUFFER_BYTES = 1 << 17

T = TypeVar("T")


def place(path: Path | str, number: int) -> str:
    """Return the place of a line, as in messages.

    Parameters
    ----------
    path : Path or str
    number : int
        Number of the line, from 1.
    """
    return f"{clean(str(path))}: line {number}"


class TableRow(NamedTuple):
    """A row of a table: its place, and its cells by column."""

    where: str
    cells: Mapping[str, str]

    def number(self, column: str, *, above: bool = False) -> float:
        """Return the finite number in a column, at least 0, or above 0 if `above`.

        Parameters
        ----------
        column : str
        above : bool

        Raises
        ------
        InputError
            The cell has no such number.
        """
        try:
            value = float(self.cells[column])
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or (above and not value):
            raise self.wrong(column, f"a number, {'above 0' if above else '0 or more'}")
        return value

    def whole(self, column: str, most: int) -> int:
        """Return the whole number in a column, from 1 to `most`.

        Parameters
        ----------
        column : str
        most : int

        Raises
        ------
        InputError
            The cell has no such number.
        """
        count = whole(self.cells[column].strip())
        if count is None or not 1 <= count <= most:
            raise self.wrong(column, f"a whole number, 1 to {most}")
        return count

    def wrong(self, column: str, valid: str) -> InputError:
        """Return an error about the cell in a column; `valid` says what it should be."""
        return InputError(f"{column} {shown(self.cells[column])}", where=self.where, valid=valid)


class Table(NamedTuple):
    """A CSV table: its columns, the place of the line that names them, and its rows."""

    columns: Sequence[str]
    where: str
    rows: Iterator[TableRow]


def table_of(path: Path, lines: Iterable[tuple[int, str]]) -> Table:
    """Read a table from the numbered lines of a file.

    Parameters
    ----------
    path : Path
        For messages.
    lines : iterable of (int, str)
        As from :func:`read_lines`.

    Raises
    ------
    InputError
        A line is not CSV, because of a misplaced quote or end of line, or a cell of more than
        128 KiB; or the number of its cells is not that of the columns.
    """
    following = iter(lines)
    first, header = next(following, (1, ""))
    # Some programs write a mark of the byte order before the first column.
    header = header.removeprefix("\ufeff")
    columns = [column.strip() for column in _cells(header, place(path, first))]

    def rows() -> Iterator[TableRow]:
        for number, line in following:
            where = place(path, number)
            cells = _cells(line, where)
            if len(cells) != len(columns):
                raise InputError(f"{len(cells)} fields", where=where, valid=str(len(columns)))
            yield TableRow(where, dict(zip(columns, cells, strict=True)))

    return Table(columns, place(path, first), rows())


def _cells(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise InputError(f"not a line of CSV: {error}", where=where) from None


def read_lines(path: Path, most_bytes: int) -> Iterator[tuple[int, str]]:
    """Read a text file, compressed with gzip or not, one line at a time.

    Parameters
    ----------
    path : pathlib.Path
    most_bytes : int
        The longest valid line; the memory used is bounded by it.

    Yields
    ------
    (int, str)
        Number of the line, from 1, and the line without its end.

    Raises
    ------
    InputError
        The file cannot be read, is empty, is not UTF-8, or was cut short, so that the last line or
        the gzip trailer is not complete.
    """
    number = 0
    with _opened(path) as file:
        while True:
            number += 1
            try:
                data = file.readline(most_bytes + 1)
            except EOFError:
                _refuse(path, number, "the compressed file was cut short", "copy it again")
            except (OSError, zlib.error) as error:
                _refuse(path, number, f"cannot be read: {error}")
            if not data:
                break
            if len(data) > most_bytes:
                _refuse(path, number, f"longer than {most_bytes} bytes")
            if not data.endswith(b"\n"):
                what = "has no end: the file was cut short"
                _refuse(path, number, what, "if it is complete, add a newline at its end")
            yield number, _decoded(data, path, number)
    if number == 1:
        raise InputError("empty", where=clean(str(path)))


def _decoded(data: bytes, path: Path, number: int) -> str:
    try:
        return data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte 0x{data[error.start]:02x} in column {error.start + 1}"
        raise InputError(what, where=place(path, number), do="save it as UTF-8") from None


def _refuse(path: Path, number: int, what: str, do: str = "") -> NoReturn:
    raise InputError(what, where=place(path, number), do=do) from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    where = clean(str(path))
    try:
        # O_NONBLOCK, because opening a FIFO without a writer would block.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(str(reason).lower(), where=where) from None
    # The descriptor must be closed here, because open() refuses that of a directory without
    # closing it.
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InputError("not a regular file", where=where, valid="a text file, plain or gzip")
        with io.BufferedReader(io.FileIO(fd, closefd=False), BUFFER_BYTES) as file:
            try:
                begins = file.peek(2)[:2]
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", where=where) from None
            if begins != MAGIC:
                yield cast(BinaryIO, file)
                return
            with gzip.GzipFile(fileobj=file) as packed:
                # GzipFile itself reads lines slowly.
                yield cast(BinaryIO, io.BufferedReader(packed, BUFFER_BYTES))
    finally:
        os.close(fd)


def parsed(
    path: Path, parse: Callable[[Iterator[str]], Iterable[T]], most_bytes: int
) -> Iterator[tuple[int, T]]:
    """Read a file with a parser of lines.

    Parameters
    ----------
    path : pathlib.Path
    parse : callable
        Parses the lines. Its errors need not contain the place.
    most_bytes : int

    Yields
    ------
    (int, T)
        The number of lines read so far, and the value from the parser.

    Raises
    ------
    InputError
        The error of the file or of the parser, with the number of the line.
    """
    number = 0

    def counted() -> Iterator[str]:
        nonlocal number
        for number, line in read_lines(path, most_bytes):  # noqa: B007 (what is known outside)
            yield line

    try:
        for found in parse(counted()):
            yield number, found
    except InputError as error:
        where = error.where or place(path, number)
        raise InputError(error.what, where=where, valid=error.valid, do=error.do) from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file line by line; it is renamed into place when it is complete.

    Parameters
    ----------
    path : pathlib.Path
        Path of the file, compressed if it ends in ``.gz``. Equal lines give equal bytes.
    lines : iterable of str
        Lines without their ends.
    """
    if path.exists() and not path.is_file():  # /dev/stdout, a FIFO: nothing to rename onto
        with path.open("wb") as file:
            _write(file, path, lines)
        return
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(fd, "wb", buffering=BUFFER_BYTES) as file:
            _write(file, path, lines)
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # the name of the draft would mean nothing to the user
        raise


def _write(file: BinaryIO, path: Path, lines: Iterable[str]) -> None:
    with _packing(path, file) as out:
        out.writelines(f"{line}\n".encode() for line in lines)


@contextlib.contextmanager
def _packing(path: Path, file: BinaryIO) -> Iterator[BinaryIO]:
    if path.suffix != ".gz":
        yield file
        return
    # Without name and time, so that equal lines give equal bytes.
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        yield cast(BinaryIO, packed)
