"""Accounts that are summed up from look to look, each in a small file."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcext import documents
from hpcext.core.errors import UNREADABLE

log = logging.getLogger(__name__)

Account = TypeVar("Account")


def load(path: Path, kind: type[Account]) -> Account:
    """Read an account; return a new one if it cannot be read.

    Parameters
    ----------
    path : pathlib.Path
    kind : type
        That needs no arguments.
    """
    with contextlib.suppress(OSError, *UNREADABLE):
        return msgspec.json.decode(documents.read_untrusted(path), type=kind)
    return kind()


def save(account: Any, path: Path) -> None:
    """Replace the file; a full disk costs what was counted since the last time."""
    try:
        documents.write_file(path, msgspec.json.encode(account), durable=False)
    except OSError as error:
        log.warning("%s", error)
