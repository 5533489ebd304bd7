"""Tables as files that spreadsheets open."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from hpcext.text import clean

_FORMULA = ("=", "+", "-", "@")


def as_csv(lines: Iterable[Sequence[object]]) -> bytes:
    """Return lines as CSV, in UTF-8; None becomes an empty cell."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for line in lines:
        writer.writerow([_cell(value) if isinstance(value, str) else value for value in line])
    return written.getvalue().encode()


def _cell(words: str) -> str:
    """Return text as a cell: one line, and not a formula of a spreadsheet.

    The name of somebody else's job must not run in the program that opens the file.
    """
    return clean(f"'{words}" if words.startswith(_FORMULA) else words)
