"""What the words of a command run: a script, by which interpreter, and whether as ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from hpcext.numerals import whole

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]{0,8}t?")
_FLAG = re.compile(r"-[BEIOPRSbdqsuv]+")
_WITH_VALUE = frozenset({"-W", "-X"})
_LAUNCH = {"--ranks": "ranks", "--replace": "replace"}

MAX_RANKS = 1024
MAX_REPLACED = 100


class Ranks(NamedTuple):
    """A command that runs another one as ranks: ``hpcext launch``.

    Attributes
    ----------
    argv : tuple of str
        The other one.
    ranks : int
        On each node; 0: one for each GPU of the attempt.
    replace : int or None
        How many ranks that die are replaced; None: it is not said.
    """

    argv: tuple[str, ...]
    ranks: int = 0
    replace: int | None = None


def interpreter(argv: Sequence[str]) -> int:
    """Return how many words of a command are Python and its options; 0 if it runs no script.

    Parameters
    ----------
    argv : sequence of str

    Examples
    --------
    >>> interpreter(["python3", "-u", "train.py"]), interpreter(["python", "-m", "train"])
    (2, 1)
    >>> interpreter(["torchrun", "train.py"]), interpreter(["python", "-c", "..."])
    (0, 0)
    """
    if not argv or not _PYTHON.fullmatch(argv[0]):
        return 0
    at = 1
    while at < len(argv) and (argv[at] in _WITH_VALUE or _FLAG.fullmatch(argv[at])):
        at += 2 if argv[at] in _WITH_VALUE else 1
    rest = argv[at:]
    runs = (rest[0] == "-m" and len(rest) > 1) or not rest[0].startswith("-") if rest else False
    return at if runs else 0


def launched(argv: Sequence[str]) -> Ranks | None:
    """Return what ``hpcext launch`` is to run; None if a command is not that, or is wrong.

    Parameters
    ----------
    argv : sequence of str

    Examples
    --------
    >>> launched(["hpcext", "launch", "--ranks=2", "python", "train.py"])
    Ranks(argv=('python', 'train.py'), ranks=2, replace=None)
    """
    rest = _after_launch(argv)
    options: dict[str, int] = {}
    while rest and rest[0].startswith("-"):
        if rest[0] == "--":
            rest = rest[1:]
            break
        name, equals, text = rest[0].partition("=")
        if not equals:
            text = rest[1] if len(rest) > 1 else ""
        number = whole(text)
        if name not in _LAUNCH or number is None:
            return None
        options[_LAUNCH[name]] = number
        rest = rest[1 if equals else 2 :]
    if not rest:
        return None
    found = Ranks(tuple(rest), **options)
    allowed = found.ranks <= MAX_RANKS and (found.replace or 0) <= MAX_REPLACED
    return found if allowed and options.get("ranks") != 0 else None


def script(argv: Sequence[str]) -> Sequence[str]:
    """Return the words that each process of a command runs: after ``hpcext launch``, if that runs.

    Parameters
    ----------
    argv : sequence of str
    """
    found = launched(argv)
    return argv if found is None else found.argv


def _after_launch(argv: Sequence[str]) -> Sequence[str]:
    """Return what follows ``hpcext launch`` or ``python -m hpcext launch``; nothing if neither."""
    python = interpreter(argv)
    if python and list(argv[python : python + 3]) == ["-m", "hpcext", "launch"]:
        return argv[python + 3 :]
    if len(argv) > 1 and os.path.basename(argv[0]) == "hpcext" and argv[1] == "launch":
        return argv[2:]
    return ()
