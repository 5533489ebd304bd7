"""The parsing of numbers in text of other origin.

It needs only the standard library, like the modules that import it.
"""

from __future__ import annotations

DIGITS = 18
"""Largest number of digits that always fit into 64 bits; Python refuses 4,300 and more."""


def whole(text: str | None, digits: int = DIGITS) -> int | None:
    """Parse a whole number; return None for anything else.

    Parameters
    ----------
    text : str or None
        ASCII decimal digits only; :meth:`str.isdecimal` accepts those of any script.
    digits : int
        Largest number of digits.

    Examples
    --------
    >>> whole("7"), whole("007"), whole("-7"), whole(""), whole("1_000"), whole("9" * 5000)
    (7, 7, None, None, None, None)
    """
    if text is None or len(text) > digits or not (text.isascii() and text.isdecimal()):
        return None
    return int(text)
