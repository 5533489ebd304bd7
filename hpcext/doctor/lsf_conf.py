"""A check of lsf.conf: whether jobs of several slots are notified before they are killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hpcext import protocol
from hpcext.doctor.checkup import Finding
from hpcext.text import clean

_MOST_BYTES = 1 << 20
_LINE = re.compile(r"^[ \t]*([A-Z][A-Z0-9_]*)[ \t]*=[ \t]*([^\n#]*)", re.M)
SEQUENTIAL = "LSB_USE_SEQUENTIAL_SIGNAL"


def parse(text: str) -> dict[str, str]:
    r"""Parse lines of the form ``NAME=VALUE`` (lsf.conf(5)).

    Examples
    --------
    >>> parse('# LSB_A=N\nLSB_A="Y" # why\n')
    {'LSB_A': 'Y'}
    """
    return {name: value.strip().strip("\"'") for name, value in _LINE.findall(text)}


def check() -> Iterator[Finding]:
    """Check how bkill(1), brequeue(1), bmig(1) and TERMINATE_WHEN end a job of several slots."""
    name = "lsf.conf"
    place = protocol.environ().get("LSF_ENVDIR", "")
    path = Path(place or "/etc") / "lsf.conf"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            said = parse(file.read(_MOST_BYTES))
    except OSError as error:
        says = f"{SEQUENTIAL} was not checked: {path}: {error.strerror}"
        yield Finding(name, "note", clean(says), f"make sure that lsf.conf says {SEQUENTIAL}=Y")
        return
    if said.get(SEQUENTIAL, "N").upper() == "Y":
        says = f"{SEQUENTIAL}=Y: jobs of several slots are notified before they are killed"
        yield Finding(name, "ok", says)
        return
    # "LSB_USE_SEQUENTIAL_SIGNAL", its default: "When killing a parallel job, only the SIGKILL
    # signal is sent."
    yield Finding(
        name,
        "note",
        f"{SEQUENTIAL} is not Y: according to IBM's documentation jobs of several slots get "
        "SIGKILL only",
        clean(f"an administrator adds {SEQUENTIAL}=Y to {path}, and runs badmin hrestart all"),
        "pilots and leases lose the work since their last checkpoint",
    )
