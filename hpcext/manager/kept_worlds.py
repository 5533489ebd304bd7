"""Worlds of past days beside a compacted journal, for reports over months."""

from __future__ import annotations

import contextlib
import gzip
import logging
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcext.core.errors import UNREADABLE
from hpcext.documents import read_own, write_file
from hpcext.numerals import whole

log = logging.getLogger(__name__)

KEPT_DIR = "journal-past"
KEPT_EVERY_S, MOST_KEPT = 86_400.0, 70
"""The interval of worlds that compacting keeps, for reports over months, and their number."""
_KEPT = ".json.gz"


def keep(path: Path, now_s: float, header: bytes) -> None:
    """Keep the world of today, if it is the first time that it could be.

    Parameters
    ----------
    path : pathlib.Path
        Of the journal.
    now_s : float
        Its last instant.
    header : bytes
        The first line of the compacted journal.
    """
    kept = _found(path)
    # Rounded up: what is kept is not before the second in its name.
    name = f"{math.ceil(now_s):012d}{_KEPT}"
    if kept and kept[-1][0] + KEPT_EVERY_S > now_s:
        return
    try:
        (path.parent / KEPT_DIR).mkdir(mode=0o700, exist_ok=True)
        write_file(path.parent / KEPT_DIR / name, gzip.compress(header, 6), durable=False)
        for _, old in kept[: 1 - MOST_KEPT]:
            old.unlink()
    except OSError as error:
        # Reports are less exact then; nothing else needs it.
        log.warning("the state of today could not be stored for reports: %s", error.strerror)


def until(path: Path, instant_s: float) -> Iterator[Any]:
    """Yield the kept documents that are not after an instant, the newest first.

    Parameters
    ----------
    path : pathlib.Path
        Of the journal.
    instant_s : float
    """
    for second, kept in reversed(_found(path)):
        if second > instant_s:
            continue
        with contextlib.suppress(OSError, EOFError, zlib.error, *UNREADABLE):
            yield msgspec.json.decode(gzip.decompress(read_own(kept)))


def _found(path: Path) -> list[tuple[int, Path]]:
    """Return the files of these worlds, oldest first, with the second in each name."""
    found = (path.parent / KEPT_DIR).glob(f"*{_KEPT}")
    named = ((whole(each.name.removesuffix(_KEPT)), each) for each in found)
    return sorted((second, each) for second, each in named if second is not None)
