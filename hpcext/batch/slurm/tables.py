"""The forms in which commands of Slurm print many things: tables, and ``KEY=VALUE``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator


def new_mark() -> str:
    """Return a word that nobody can have foreseen, to stand before each row of one table.

    squeue prints names and comments of jobs as they are, and these may hold line ends and whatever
    looks like further rows.
    """
    return secrets.token_hex(8)


def table(columns: str, mark: str) -> str:
    """Return the option for a format of squeue(1), with a mark before each row if there is one."""
    return f"--format={mark}|{columns}" if mark else f"--format={columns}"


def lines_of(text: str) -> list[str]:
    """Split an output at newlines alone: ``str.splitlines`` also splits at others, as in names."""
    return text.removesuffix("\n").split("\n") if text else []


def rows(text: str, columns: int, mark: str = "") -> Iterator[list[str]]:
    r"""Yield the cells of each row of a table, in which ``|`` separates them.

    Parameters
    ----------
    text : str
    columns : int
        The number of cells of a row. The last one may contain anything; missing ones are empty.
    mark : str
        The word before each row; without it each line is a row.

    Examples
    --------
    >>> list(rows("7|RUNNING\n8|PENDING|a|b", 3))
    [['7', 'RUNNING', ''], ['8', 'PENDING', 'a|b']]
    >>> list(rows("f00|7|a\n8|b\nf00|9|c\n", 2, "f00"))
    [['7', 'a'], ['9', 'c']]
    """
    found = text.split(f"{mark}|")[1:] if mark else lines_of(text)
    for row in found:
        cells = row.split("|", columns - 1)
        # The rest of the last cell is the line end of the row, or of a name that has several.
        cells[-1] = cells[-1].partition("\n")[0]
        yield [cell.strip() for cell in cells] + [""] * (columns - len(cells))


def facts(line: str) -> dict[str, str]:
    """Parse ``KEY=VALUE KEY=VALUE ...``, a line of ``scontrol --oneliner show``."""
    return dict(word.partition("=")[::2] for word in line.split())
