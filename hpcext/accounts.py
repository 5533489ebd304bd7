"""Accounts that are summed up from look to look, each in a small file."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcext import documents
from hpcext.core.errors import UNREADABLE
from hpcext.text import clean

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""The largest account: of far more users than a site has."""

Account = TypeVar("Account")


def load(path: Path, kind: type[Account]) -> Account:
    """Read an account to look at it; return a new one if it cannot be read.

    Parameters
    ----------
    path : pathlib.Path
    kind : type
        That needs no arguments.
    """
    with contextlib.suppress(OSError, *UNREADABLE):
        return _read(path, kind)
    return kind()


def go_on(path: Path, kind: type[Account]) -> Account:
    """Read an account to go on with it; one that cannot be read is kept beside the new one.

    Parameters
    ----------
    path : pathlib.Path
    kind : type
        That needs no arguments.
    """
    try:
        return _read(path, kind)
    except FileNotFoundError:
        return kind()
    except (OSError, *UNREADABLE) as error:
        why = clean(str(error))
    # As after a power failure, or on a file server that failed a moment ago.
    kept = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(kept)
    except OSError as error:
        log.warning(
            "%s cannot be read (%s), nor kept (%s): counted anew", path, why, error.strerror
        )
    else:
        log.warning("%s cannot be read (%s): counted anew; the old one is %s", path, why, kept)
    return kind()


def _read(path: Path, kind: type[Account]) -> Account:
    return msgspec.json.decode(documents.read_untrusted(path, most_bytes=MOST_BYTES), type=kind)


def save(account: Any, path: Path) -> None:
    """Replace the file; a full disk costs what was counted since the last time."""
    try:
        documents.write_file(path, msgspec.json.encode(account), durable=False)
    except OSError as error:
        log.warning("%s", error)
