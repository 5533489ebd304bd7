"""Text that came from outside, made fit for a person to read on one line."""

from __future__ import annotations

import codecs
import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

SHOWN_CHARS = 60
"""Longer values are cut in messages."""


def clean(text: str) -> str:
    r"""Make text safe for a terminal: whatever does not print is escaped.

    Escape sequences, newlines, characters that reverse the direction of writing and bytes that
    were not UTF-8 (surrogates) all become ``\x1b``, ``\n``, ``\u202e``, ``\udcff``.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        One line of printable characters.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


_KEPT = re.compile(r"(\x1b\[[0-9;:]{0,40}m|\x1b\[[0-2]?K)")
"""Colours and the like, and what clears a line; ECMA-48, SGR and EL."""

_BEGUN = re.compile(r"\x1b(?:\[[0-9;:]{0,40})?\Z")

_MOVES = "\n\t\r\b"


class Harmless:
    """What a program wrote, for a terminal: it can do nothing but write on the lines that it has.

    Colours stay, and what progress bars need: carriage return, backspace, clearing of the line. All
    else that does not print is shown as :func:`clean` shows it: what would move the cursor to
    other lines, set a title, make links, ask the terminal for an answer, or turn the direction of
    writing.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """What is to be shown of some more of it; the end of it may be shown with the next."""
        text = self._rest + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._rest = text[begun.start() :] if begun else ""
        return self._shown(text[: begun.start()] if begun else text)

    def end(self) -> str:
        """What is left, and the end of colours."""
        text = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        return self._shown(text) + ("\x1b[0m" if self._coloured else "")

    def _shown(self, text: str) -> str:
        parts = _KEPT.split(text)
        # Every second one is a sequence that stays.
        self._coloured = self._coloured or len(parts) > 1
        parts[::2] = map(_harmless, parts[::2])
        return "".join(parts)


def _harmless(text: str) -> str:
    good = text.isprintable()
    return text if good else "".join(c if c in _MOVES else clean(c) for c in text)


def shown(value: Any) -> str:
    """A value as messages show it: as its file would state it, cut and clean."""
    if isinstance(value, bool):
        return str(value).lower()
    # A megabyte of text is cut before it is formatted, and numbers too: Python refuses to print
    # integers of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        cut = value[:SHOWN_CHARS]
        return clean(repr(cut)) + ("..." if len(value) > SHOWN_CHARS else "")
    text = repr(value)
    return clean(text[:SHOWN_CHARS]) + ("..." if len(text) > SHOWN_CHARS else "")


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: a Chinese character two, an accent none.

    Unicode Standard Annex #11; characters of ambiguous width take one, as outside East Asia.
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def padded(text: str, width: int) -> str:
    """A text with blanks at its end, until it takes so many columns."""
    return text + " " * (width - columns(text))


def listed(words: Iterable[str], most: int = 12) -> str:
    """``a, b, c``; of a long list the first ones and how many there are besides."""
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return clean(", ".join(every[:most])) + more


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 GPU``, ``3 GPUs``.

    Parameters
    ----------
    number : int
    noun : str
        In the singular.
    plural : str
        If an s does not make it.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def sized(number: int) -> str:
    """Bytes in the unit in which they are read best: ``512 B``, ``1.5 GiB``."""
    amount, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def are(number: int) -> str:
    """``is`` of one, ``are`` of any other number."""
    return "is" if number == 1 else "are"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """``did you mean WORD?`` with the nearest of the known words, or nothing.

    Parameters
    ----------
    word : str
    words : iterable of str
        The known ones.
    """
    near: Sequence[str] = difflib.get_close_matches(word[:200], list(words), n=1)
    return f"did you mean {clean(near[0])}?" if near else ""
