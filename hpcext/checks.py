"""Checks of text that people write: whole files, and the values in them.

Each check returns the value in its proper type, or raises an InputError that says what is valid;
its caller adds the place of the value.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from hpcext.core.errors import InputError
from hpcext.text import SHOWN_CHARS, clean, did_you_mean, listed, shown

if sys.version_info >= (3, 11):
    pass
else:
    pass


MAX_STRING_BYTES = 64 << 10
"""Half of the longest argument or variable in Linux (``MAX_ARG_STRLEN``, execve(2))."""


_TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false"}
"""The common name of a type by its name in msgspec."""

MAX_AGE_S = 100 * 365 * 86_400.0

_AGE_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGE = re.compile(rf"([0-9]{{1,9}})([{''.join(_AGE_UNITS_S)}])")

Options = TypeVar("Options", bound=msgspec.Struct)


def age_s(text: str, where: str) -> float:
    """Parse an age such as ``30d``; return it in seconds.

    Parameters
    ----------
    text : str
    where : str
        The option or file that has it, for messages.

    Raises
    ------
    InputError
        The text is not an age.
    """
    found = _AGE.fullmatch(text)
    seconds = int(found[1]) * _AGE_UNITS_S[found[2]] if found else math.inf
    if seconds > MAX_AGE_S:
        valid = "a number followed by s, m, h, d or w, such as 30d; at most a hundred years"
        raise InputError(shown(text), where=where, valid=valid)
    return seconds


def check_range(where: str, value: float, least: float, most: float, unit: str = "") -> None:
    """Refuse a number that is out of range.

    Parameters
    ----------
    where : str
        The place of the value, for the message.
    value, least, most : int or float
    unit : str
        The unit after the range in the message, with a blank in front.

    Raises
    ------
    InputError
        It is out of range.
    """
    if not least <= value <= most:
        said = f"{value:g}" if isinstance(value, float) else str(value)
        raise InputError(said, where=where, valid=f"{least} to {most}{unit}")


def read_options(kind: type[Options], given: str, where: str) -> Options:
    """Parse the options after a name and a colon: ``key=value,key=value``.

    Parameters
    ----------
    kind : type
        A struct with a field for each option.
    given : str
        The options; empty for the defaults.
    where : str
        The option of the command line, for messages.

    Raises
    ------
    InputError
        An option is unknown, or its value is invalid.
    """
    fields = kind.__struct_fields__
    values: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        key, equals, value = part.partition("=")
        if key not in fields or not equals:
            raise InputError(
                f"unknown option {shown(part)}" if key not in fields else f"{key} has no value",
                where=where,
                valid=", ".join(f"{field}=VALUE" for field in fields),
                do=did_you_mean(key, fields),
            )
        values[key] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _not_this_value(kind, values, str(error), where) from None


def _not_this_value(
    kind: type[msgspec.Struct], values: Mapping[str, str], said: str, where: str
) -> InputError:
    """Rephrase msgspec's message about an option's value for its user."""
    # "Expected `float | null` <= 1.0 - at `$.p`": both halves are meant for the user.
    what, _, at = said.replace("`", "").partition(" - at $.")
    given = f"{at}={clean(values[at][:SHOWN_CHARS])}" if at in values else ""
    choices = get_args(get_type_hints(kind).get(at))
    if given and choices and all(isinstance(choice, str) for choice in choices):
        return InputError(given, where=where, valid=", ".join(choices))
    for name, words in _TYPES.items():
        what = what.replace(f"Expected {name}", f"expected {words}")
    what = what.replace(" | null", "").removesuffix(", got str")
    return InputError(f"{given}: {what}" if given else what, where=where)


def placed(error: InputError, *places: str) -> InputError:
    """Return the same error with `places` in front of its place, the widest first."""
    where = ": ".join(place for place in (*places, error.where) if place)
    return InputError(error.what, where=where, valid=error.valid, do=error.do)


@contextlib.contextmanager
def at(*places: str) -> Iterator[None]:
    """Put `places`, the widest first, in front of the place of an InputError of the block."""
    try:
        yield
    except InputError as error:
        raise placed(error, *places) from None


def kind_of(value: Any) -> str:
    """Return the name of a value's type in TOML, for messages."""
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        (list, "an array"),
        (dict, "a table"),
        ((datetime.date, datetime.time), "a date or time"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)


def wrong(value: Any, valid: str, *, do: str = "") -> InputError:
    """Build the error for a value of the wrong type.

    Parameters
    ----------
    value : Any
    valid : str
        What is valid.
    do : str
        What to do.
    """
    if isinstance(value, (dict, list)):
        return InputError(kind_of(value), valid=valid, do=do)
    return InputError(f"{shown(value)} is {kind_of(value)}", valid=valid, do=do)


def unknown(
    what: str, name: str, known: Collection[str], *, where: str = "", valid: str = ""
) -> InputError:
    """Build the error for an unknown name.

    Parameters
    ----------
    what : str
        The kind of thing that `name` should be.
    name : str
    known : collection of str
    where : str
    valid : str
        A description of the known names; by default it lists all of them.
    """
    return InputError(
        f"unknown {what} {shown(name)}",
        where=where,
        valid=valid or ", ".join(known),
        do=did_you_mean(name, known),
    )


def known_keys(table: Mapping[str, Any], keys: Collection[str], what: str = "key") -> None:
    """Refuse a table with a key that is not one of `keys`.

    Parameters
    ----------
    table : Mapping[str, Any]
    keys : collection of str
    what : str
        The kind of key, for the message.

    Raises
    ------
    InputError
        A key is unknown; the message names the first such key and the nearest known one.
    """
    if table.keys() <= set(keys):
        return
    key = next(key for key in table if key not in keys)
    raise unknown(what, key, keys, valid=listed(keys, most=40))


def integer(value: Any, low: int, high: int) -> int:
    """Check an integer in `low`..`high`; a boolean is not one.

    Parameters
    ----------
    value : Any
    low, high : int
    """
    valid = f"an integer, {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(value, valid)
    if not low <= value <= high:
        raise InputError(shown(value), valid=valid)
    return value


def number(value: Any, low: float, high: float, *, above: bool = False) -> float:
    """Check a finite number in `low`..`high`, with `low` itself excluded if `above`.

    Parameters
    ----------
    value : Any
    low, high : float
    above : bool
    """
    valid = f"a number, {f'above {low:g}, at most' if above else f'{low:g} to'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(value, valid)
    # NaN and infinity fail these comparisons; math.isfinite raises for an integer like 10**400.
    if not low <= value <= high or (above and value == low):
        raise InputError(shown(value), valid=valid)
    return float(value)


def string(value: Any) -> str:
    """Check a string that can be an argument or a variable of a process."""
    if not isinstance(value, str):
        raise wrong(value, "a string", do="put it in quotes" if _quotable(value) else "")
    if "\0" in value:
        raise InputError(f"{shown(value)} has a NUL byte, which no argument can hold")
    if len(value) * 4 > MAX_STRING_BYTES and len(value.encode()) > MAX_STRING_BYTES:
        raise InputError(f"{len(value.encode())} bytes", valid=f"at most {MAX_STRING_BYTES} bytes")
    return value


def boolean(value: Any) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise wrong(value, "true or false")
    return value


def _quotable(value: Any) -> bool:
    return isinstance(value, (bool, int, float))
