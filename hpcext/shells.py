"""Commands and shells: what only a shell interprets, and what a shell hides."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcext.checks import string, wrong
from hpcext.core.errors import InputError
from hpcext.jobspec import PLACEHOLDERS, JobSpec
from hpcext.text import listed, shown
from hpcext.textfiles import parse_toml

SHELL = ("/bin/sh", "-c")
"""The command that runs a job's command if the job says ``shell = true``."""

_NEAR = 0.7
"""How alike a word in braces must be to a placeholder to be taken for a mistyped one."""

_BRACES = re.compile(r"(?<!\$)\{([A-Za-z_]{1,40})\}")
_SHELLS = re.compile(r"(?:.*/)?(?:sh|bash|dash|ksh|zsh|fish|csh|tcsh)")
_MEANT_FOR_A_SHELL = re.compile(r"\|\|?|&&?|;|[0-9]?>{1,2}|<")
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_UNQUOTED = re.compile(
    r"\|\|?|&&|&(?=\s|$)|;|>{1,2}|<|\$(?:[A-Za-z_][A-Za-z0-9_]*|[{(])|`|(?<=\s)~(?=/|\s|$)|(?<=\s)[^\s=]*\*\S*"
)


def for_shell(value: Any) -> tuple[str, ...]:
    """Check a command for a shell and return the argv of that shell."""
    if not isinstance(value, str):
        raise wrong(value, "a string, because shell = true")
    if not string(value).strip():
        raise InputError("empty", valid='what to run, as in "python train.py"')
    return (*SHELL, value)


def shell_only(value: str | list[str]) -> str:
    """Find the first part that only a shell interprets, in a command that no shell runs.

    Parameters
    ----------
    value : str or list of str
        The command as in the file, accepted by :func:`command`.

    Returns
    -------
    str
        An operator, a variable or a pattern of file names; empty if there is none.
    """
    text = value if isinstance(value, str) else ""
    argv = shlex.split(text) if text else list(value)
    if any(map(_is_shell, argv, argv[1:])):
        return ""  # what follows is for the shell that the command itself starts
    alone = next((word for word in argv if _MEANT_FOR_A_SHELL.fullmatch(word)), "")
    return _unquoted(text) if text else alone


def loses_failures(text: str) -> bool:
    """Return whether a shell would report only the exit code of the last command of a pipe."""
    return "pipefail" not in text and bool(_PIPE.search(_QUOTED.sub("x", text)))


def document(text: str, where: str) -> dict[str, Any]:
    """Parse a job file; of a script in its place, say how that is run.

    Parameters
    ----------
    text : str
    where : str
        The file, for messages.

    Raises
    ------
    InputError
        It is not TOML.
    """
    try:
        return parse_toml(text, where)
    except InputError as error:
        program = {".py": "python", ".sh": "bash"}.get(Path(where).suffix)
        if program is None:
            raise
        do = f"is it a script? hpcext run -- {program} {shlex.quote(where)}"
        raise InputError(error.what, where=where, do=do) from None


def warnings(
    specs: Sequence[JobSpec], commands: Sequence[Any], where: str, *, in_file: bool
) -> Iterator[str]:
    """Warn about commands that need a shell but have none, mistyped words, and hidden failures.

    Parameters
    ----------
    specs : sequence of JobSpec
    commands : sequence of str or list of str
        The command of each, as in the file.
    where : str
        The place of the jobs, for the warnings.
    in_file : bool
        Whether they are in a job file; else they are on a command line.
    """
    shell = "set shell = true" if in_file else "give --shell"
    found = [
        (spec.name, what)
        for spec, command in zip(specs, commands, strict=True)
        if not spec.shell and (what := shell_only(command))
    ]
    if found:
        jobs = listed((name for name, _ in found), most=8)
        yield (
            f"{where}: the command of {jobs} does not run in a shell, so {shown(found[0][1])} is "
            f"passed on literally; to run it in a shell, {shell}"
        )
    mistyped: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        for each in _mistyped(spec.command):
            mistyped.setdefault(each, []).append(spec.name)
    for (word, meant), names in mistyped.items():
        yield (
            f"{where}: the command of {listed(names, most=8)} has {{{word}}}, which is no "
            f"placeholder and is passed on literally; did you mean {{{meant}}}?"
        )
    pipefail = 'use command = ["bash", "-o", "pipefail", "-c", "..."]'
    if not in_file:
        pipefail = "give bash -o pipefail -c '...' as the command"
    hidden = [spec.name for spec in specs if spec.shell and loses_failures(spec.command[-1])]
    if hidden:
        yield (
            f"{where}: the exit code of a pipe is that of its last command, so a training earlier "
            f"in it that fails counts as completed: {listed(hidden, most=8)}; put the training "
            f"last, or {pipefail}"
        )


def _mistyped(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word in braces that is almost a placeholder, and that one."""
    words = dict.fromkeys(word for part in command for word in _BRACES.findall(part))
    for word in (each for each in words if each not in PLACEHOLDERS):
        for meant in difflib.get_close_matches(word, PLACEHOLDERS, n=1, cutoff=_NEAR):
            yield word, meant


def _is_shell(word: str, option: str) -> bool:
    return bool(_SHELLS.fullmatch(word) and re.fullmatch(r"-[a-z]*c", option))


def _unquoted(text: str) -> str:
    # A quotation is replaced by an x, because "a"* is a pattern as well. In double quotes a shell
    # would expand variables, so those are kept.
    def kept(match: re.Match[str]) -> str:
        inside = re.search(r"\$(?:[A-Za-z_{(])\w*", match[0]) if match[0][0] == '"' else None
        return inside[0] if inside else "x"

    found = _UNQUOTED.search(_QUOTED.sub(kept, text))
    return found[0] if found else ""
