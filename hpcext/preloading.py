"""Modules that are imported once for all attempts of a job: the key ``preload``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcext.checks import wrong
from hpcext.core.errors import InputError
from hpcext.text import shown

if TYPE_CHECKING:
    from hpcext.jobspec import JobSpec

MAX_MODULES = 32

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]{0,8}t?")
_FLAG = re.compile(r"-[BEIOPRSbdqsuv]+")
_WITH_VALUE = frozenset({"-W", "-X"})
_VALID = 'an array of names of modules, as ["torch"]'


def preload(value: Any) -> tuple[str, ...]:
    """Check the names of modules; a single name needs no array."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        raise wrong(value, _VALID)
    if len(names) > MAX_MODULES:
        raise InputError(f"{len(names)} modules", valid=f"at most {MAX_MODULES}")
    for name in names:
        if not isinstance(name, str):
            raise wrong(name, _VALID)
        if not all(map(str.isidentifier, name.split("."))):
            raise InputError(f"{shown(name)} is not the name of a module", valid=_VALID)
    return tuple(dict.fromkeys(names))


def interpreter(argv: Sequence[str]) -> int:
    """Return how many words of a command are Python and its options; 0 if it runs no script.

    Parameters
    ----------
    argv : sequence of str

    Examples
    --------
    >>> interpreter(["python3", "-u", "train.py"]), interpreter(["python", "-m", "train"])
    (2, 1)
    >>> interpreter(["torchrun", "train.py"]), interpreter(["python", "-c", "..."])
    (0, 0)
    """
    if not argv or not _PYTHON.fullmatch(argv[0]):
        return 0
    at = 1
    while at < len(argv) and (argv[at] in _WITH_VALUE or _FLAG.fullmatch(argv[at])):
        at += 2 if argv[at] in _WITH_VALUE else 1
    rest = argv[at:]
    runs = (rest[0] == "-m" and len(rest) > 1) or not rest[0].startswith("-") if rest else False
    return at if runs else 0


def check(spec: JobSpec) -> None:
    """Check that modules can be imported beforehand for a job.

    Parameters
    ----------
    spec : JobSpec

    Raises
    ------
    InputError
        They cannot.
    """
    if not spec.preload:
        return
    if not interpreter(spec.command):
        raise InputError(
            f"the command is {shown(shlex.join(spec.command[:3]))}",
            valid='only for a command such as "python train.py" or "python -m train"',
        )
    what = "container" if spec.container else None
    if spec.checkpoint is not None and spec.checkpoint.transparent:
        what = "checkpoint"
    if what:
        raise InputError(f"stated beside {what}", do="leave one of them out")
