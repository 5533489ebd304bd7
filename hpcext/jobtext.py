"""The text of job files that hpcext itself writes, for :mod:`hpcext.jobfile`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hpcext.core.errors import InputError
from hpcext.jobfields import MAX_NAME_CHARS
from hpcext.text import clean

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def job_text(*jobs: Mapping[str, Any]) -> str:
    """Return a job file.

    Parameters
    ----------
    *jobs : Mapping of str to Any
        Fields of each job: strings, numbers, sequences and mappings of these.

    Raises
    ------
    InputError
        A string is not UTF-8; the name of a file need not be.

    Examples
    --------
    >>> print(job_text({"name": "a", "gpus": {"min": 1}}), end="")
    [[job]]
    name = "a"
    gpus = {min = 1}
    """
    tables = (
        "".join(f"{key} = {_value(value)}\n" for key, value in fields.items()) for fields in jobs
    )
    return "\n".join(f"[[job]]\n{table}" for table in tables)


def allowed_name(text: str, default: str) -> str:
    """Return a valid name like a text.

    Parameters
    ----------
    text : str
        Is reduced to the characters of names, and cut to their length.
    default : str
        The name if nothing is left of it; before a mere number, which would be the id of a job.

    Examples
    --------
    >>> allowed_name("my net: 3", "job")
    'my_net__3'
    >>> allowed_name("é3", "job")
    'job-3'
    """
    good = (char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in text)
    name = "".join(good).lstrip("._-")[:MAX_NAME_CHARS].rstrip("._-")
    return f"{default}-{name}"[:MAX_NAME_CHARS] if name.isdecimal() else name or default


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    """Return a string in TOML: as in JSON, except for non-ASCII characters and DEL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{clean(text)} is not UTF-8, so a job file cannot hold it", do="rename it"
        ) from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
