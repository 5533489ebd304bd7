"""Numbers on the command line that are one number or a range: N or MIN:MAX."""

from __future__ import annotations

from hpcext.core.errors import InputError
from hpcext.numerals import whole
from hpcext.text import shown


def parse(text: str, *, most: int, where: str = "", valid: str = "") -> tuple[int, int]:
    """Parse a range; of one number both ends are that.

    Parameters
    ----------
    text : str
    most : int
        The greatest number that makes sense.
    where : str
        The flag or variable that has the text.
    valid : str
        What is valid there, if it is more or less than any range.

    Raises
    ------
    InputError
        It is no range from 1 to ``most``.
    """
    low, colon, high = text.partition(":")
    fewest, greatest = whole(low), whole(high if colon else low)
    if fewest is None or greatest is None or not 1 <= fewest <= greatest <= most:
        raise InputError(shown(text), where=where, valid=valid or f"N or MIN:MAX, 1 to {most}")
    return fewest, greatest
