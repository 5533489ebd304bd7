"""Numbers that come from outside as text. Standard library only, as what imports it needs."""

from __future__ import annotations

DIGITS = 18
"""As many as fit into 64 bits whatever they are; Python reads no integer of thousands of them."""


def whole(text: str | None, digits: int = DIGITS) -> int | None:
    """The number that a text is, or None if it is not one.

    Parameters
    ----------
    text : str or None
        Decimal digits of ASCII, and nothing else. :meth:`str.isdecimal` takes those of any
        script, as many as there are.
    digits : int
        So many at most.

    Examples
    --------
    >>> whole("7"), whole("007"), whole("-7"), whole(""), whole("1_000"), whole("9" * 5000)
    (7, 7, None, None, None, None)
    """
    if text is None or len(text) > digits or not (text.isascii() and text.isdecimal()):
        return None
    return int(text)
