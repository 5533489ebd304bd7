"""Modules that are imported once for all attempts of a job: the key ``preload``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from hpcext.checks import wrong
from hpcext.core.errors import InputError
from hpcext.launch import words
from hpcext.text import shown

if TYPE_CHECKING:
    from hpcext.jobspec import JobSpec

MAX_MODULES = 32

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


def runs_python(spec: JobSpec) -> bool:
    """Return whether a job runs a script by Python, each of its ranks if it has several."""
    # Placeholders are filled later, with numbers.
    filled = [word.replace("{gpus}", "1").replace("{nodes}", "1") for word in spec.command]
    return words.interpreter(words.script(filled)) > 0


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
    if not runs_python(spec):
        raise InputError(
            f"the command is {shown(shlex.join(spec.command[:3]))}",
            valid='only for a command such as "python train.py" or "python -m train", '
            'or one of these after "hpcext launch"',
        )
    what = "container" if spec.container else None
    if spec.checkpoint is not None and spec.checkpoint.transparent:
        what = "checkpoint"
    if what:
        raise InputError(f"stated beside {what}", do="leave one of them out")
