"""Placeholders of a command, ``{gpus}`` and others, and how they are filled."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from hpcext.jobspec import PLACEHOLDERS

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
_IN_SHELL = re.compile(rf"{_PLACEHOLDER.pattern}|\\.|['\"]", re.DOTALL)

_VARIABLE = "HPCEXT_FILLED_"


def fill(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Fill the placeholders of a command; other braces are left alone.

    Parameters
    ----------
    argv : sequence of str
    values : Mapping[str, str]
        ``gpus, nodes, checkpoint_dir, name, rendezvous``.
    """
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in argv]


def fill_shell(text: str, values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Fill the placeholders in the text of a shell, where any value stays one word.

    A value that means nothing to a shell is put in as it is. For any other, a variable is put in,
    quoted as its place requires, so that nothing in a value is ever run.

    Parameters
    ----------
    text : str
    values : Mapping[str, str]
        As for :func:`fill`.

    Returns
    -------
    text : str
    environ : Mapping of str to str
        The variables.
    """
    environ: dict[str, str] = {}
    quote = ""

    def filled(match: re.Match[str]) -> str:
        nonlocal quote
        if match[1] is None:
            if match[0] in {"'", '"'} and quote in {"", match[0]}:
                quote = "" if quote else match[0]
            elif match[0][0] == "\\" and quote == "'" and match[0][1:] == "'":
                quote = ""  # Between such quotes a backslash is one, and this one ends them.
            return match[0]
        value = values[match[1]]
        if value and shlex.quote(value) == value:
            return value
        variable = f"{_VARIABLE}{match[1].upper()}"
        environ[variable] = value
        around = {"": '"', "'": "'\"", '"': ""}[quote]
        return f"{around}${{{variable}}}{around[::-1]}"

    return _IN_SHELL.sub(filled, text), environ
