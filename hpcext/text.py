"""Text of other origin, made readable for a person on one line."""

from __future__ import annotations

import codecs
import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

SHOWN_CHARS = 60
"""Length beyond which values are cut in messages."""


def clean(text: str) -> str:
    r"""Make text safe for a terminal by escaping characters that do not print.

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
"""Escape sequences that are kept: colours (SGR) and clearing of a line (EL), ECMA-48."""

_BEGUN = re.compile(r"\x1b(?:\[[0-9;:]{0,40})?\Z")

_MOVES = "\n\t\r\b"


class Harmless:
    """A filter for the output of a program that may only write on the terminal's current lines.

    Colours are kept, and so is what progress bars need: carriage return, backspace, clearing of the
    line. Other characters that do not print are escaped as by :func:`clean`: sequences that would
    move the cursor to other lines, set a title, make links, ask the terminal for an answer, or
    reverse the direction of writing.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""
        self._coloured = False

    def feed(self, data: bytes) -> str:
        """Return the text for further output; an incomplete sequence at its end is held back."""
        text = self._rest + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._rest = text[begun.start() :] if begun else ""
        return self._shown(text[: begun.start()] if begun else text)

    def end(self) -> str:
        """Return the text that was held back, and reset the colours."""
        text = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        return self._shown(text) + ("\x1b[0m" if self._coloured else "")

    def _shown(self, text: str) -> str:
        parts = _KEPT.split(text)
        # Every second part is a sequence that is kept.
        self._coloured = self._coloured or len(parts) > 1
        parts[::2] = map(_harmless, parts[::2])
        return "".join(parts)


def _harmless(text: str) -> str:
    good = text.isprintable()
    return text if good else "".join(c if c in _MOVES else clean(c) for c in text)


def shown(value: Any) -> str:
    """Format a value for a message: as its file would state it, cut and escaped."""
    if isinstance(value, bool):
        return str(value).lower()
    # A megabyte of text is cut before it is formatted, and numbers too, because Python refuses to
    # print integers of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        cut = value[:SHOWN_CHARS]
        return clean(repr(cut)) + ("..." if len(value) > SHOWN_CHARS else "")
    text = repr(value)
    return clean(text[:SHOWN_CHARS]) + ("..." if len(text) > SHOWN_CHARS else "")


def columns(text: str) -> int:
    """Count the columns of a terminal that a text takes: a Chinese character two, an accent none.

    Unicode Standard Annex #11; characters of ambiguous width take one, as outside East Asia.
    """
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def padded(text: str, width: int) -> str:
    """Pad a text with blanks to a number of columns."""
    return text + " " * (width - columns(text))


def listed(words: Iterable[str], most: int = 12) -> str:
    """Join words as ``a, b, c``; of a long list show the first ones and the number of others.

    Parameters
    ----------
    words : iterable of str
    most : int
        Largest number of words to show.
    """
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return clean(", ".join(every[:most])) + more


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: ``1 GPU``, ``3 GPUs``.

    Parameters
    ----------
    number : int
    noun : str
        The noun in the singular.
    plural : str
        The plural, unless it is made with an s.
    """
    return f"{number} {noun}" if number == 1 else f"{number} {plural or f'{noun}s'}"


def sized(number: int) -> str:
    """Format a number of bytes in a readable unit: ``512 B``, ``1.5 GiB``."""
    amount, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def are(number: int) -> str:
    """Return ``is`` for one and ``are`` for any other number."""
    return "is" if number == 1 else "are"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Suggest the nearest of the known words as ``did you mean WORD?``, or return an empty string.

    Parameters
    ----------
    word : str
    words : iterable of str
        The known ones.
    """
    near: Sequence[str] = difflib.get_close_matches(word[:200], list(words), n=1)
    return f"did you mean {clean(near[0])}?" if near else ""
