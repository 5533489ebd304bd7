"""The utility that a user wants of a harvester's nodes, as ``LOW:HIGH``."""

from __future__ import annotations

import math
import re

import msgspec

from hpcext.core.errors import InputError
from hpcext.text import shown

EVERY_S = 60.0
"""The scheduling interval of Pollux (section 5.1)."""

LONGEST_S = 86_400.0

NONE = "none"

VALID = "LOW:HIGH or LOW:HIGH:SECONDS with 0 < LOW < HIGH < 1, such as 0.4:0.7; or none"

_FORM = re.compile(r"[0-9.]{1,12}(:[0-9.]{1,12}){1,2}", re.ASCII)


class Band(msgspec.Struct, frozen=True):
    """A band of utilities (:mod:`hpcext.policies.autoscale`) that leaves the nodes as they are.

    Attributes
    ----------
    low, high : float
    every_s : float
        Seconds for which a number of nodes stays, unless jobs arrive or end.
    """

    low: float
    high: float
    every_s: float = EVERY_S

    @property
    def aim(self) -> float:
        """The utility to aim for when the number of nodes changes."""
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        """Return the band as it is written on a command line."""
        every = "" if self.every_s == EVERY_S else f":{self.every_s:g}"
        return f"{self.low:g}:{self.high:g}{every}"


def read_band(text: str, where: str = "--autoscale") -> Band | None:
    """Read a band as a user writes it; None for ``none``.

    Parameters
    ----------
    text : str
    where : str
        Where it was written, for the error.

    Raises
    ------
    InputError
        The text is not a band.

    Examples
    --------
    >>> read_band("0.4:0.7")
    Band(low=0.4, high=0.7, every_s=60.0)
    """
    if text == NONE:
        return None
    try:
        numbers = [float(part) for part in text.split(":")] if _FORM.fullmatch(text) else []
    except ValueError:
        numbers = []
    low, high, every_s = [*numbers, *[math.nan] * (2 - len(numbers)), EVERY_S][:3]
    # No utility exceeds 1, so a band that reached there would never ask for more nodes.
    if not (0 < low < high < 1 and 1 <= every_s <= LONGEST_S):
        raise InputError(shown(text), where=where, valid=VALID)
    return Band(low, high, every_s)
