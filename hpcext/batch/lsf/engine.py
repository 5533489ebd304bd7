"""An engine of LSF's line: its commands, options, fields of ``bjobs -o``, and release.

Values and pure parsers; :mod:`hpcext.batch.lsf.probe` asks, and keeps the answers. Whoever builds a
command of LSF asks an :class:`LsfEngine` which form it supports; nothing else knows.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hpcext.core.errors import BatchError
from hpcext.text import shown

COMMANDS = (
    "bsub", "bjobs", "bkill", "bstop", "bresume", "brequeue", "bhosts", "bqueues", "bparams",
    "bslots", "brsvs", "bresize", "bhist", "lsload", "lshosts", "blaunch", "jsrun", "lsrun",
)  # fmt: skip
"""The commands that hpcext may use."""

NEEDED = frozenset({"bsub", "bjobs", "bkill", "bhosts", "bqueues"})

HELP: Mapping[str, tuple[str, ...]] = {
    "bsub": ("-h", "all"), "bjobs": ("-h", "all"), "bhosts": ("-h",), "bparams": ("-h",),
    "bhist": ("-h",),
}  # fmt: skip
"""Command → the options that print its help: to stderr, as bsub(1), bjobs(1) and bhosts(1) say."""

_OPTION = re.compile(r"(?<![\w-])-[A-Za-z]\w*")
_WRONG = re.compile(r"\b(?:not a valid|invalid|illegal|unknown|unrecogni[sz]ed)\b", re.I)
_RELEASE = re.compile(r"\s*(\S.*?)\s+v?([0-9]+(?:\.[0-9]+)+)(?=[\s,]|$)")

Way = Literal["json", "wide", "long"]
"""The form in which jobs are asked for: as JSON, or else by ``bjobs -w`` or ``bjobs -l``."""


class LsfRelease(NamedTuple):
    """What lsid(1) says.

    Attributes
    ----------
    product : str
        Such as ``IBM Spectrum LSF Standard``, or what a compatible engine calls itself.
    number : str
        Such as ``10.1.0.15``.
    cluster : str
        Empty if no cluster answers.
    """

    product: str
    number: str
    cluster: str


class LsfEngine(NamedTuple):
    """An engine of LSF's line, and what it supports.

    Attributes
    ----------
    release : LsfRelease
    commands : frozenset of str
        Those of :data:`COMMANDS` that it has.
    options : Mapping[str, frozenset of str]
        Command → the options that its help names; none if that could not be read.
    refused : frozenset of str
        Fields that ``bjobs -o`` has refused.
    arguments : bool or None
        Whether ``-a "name(arguments)"`` reaches an esub; None: no job has found out yet.
    """

    release: LsfRelease
    commands: frozenset[str]
    options: Mapping[str, frozenset[str]]
    refused: frozenset[str] = frozenset()
    arguments: bool | None = None

    def takes(self, command: str, *options: str) -> bool:
        """Return whether a command is there and its help names these options."""
        known = self.options.get(command, frozenset())
        return command in self.commands and all(option in known for option in options)

    def lacks(self, command: str, *options: str) -> bool:
        """Return whether the help of a command is known, but does not name all of these options.

        A command whose help says nothing is taken for IBM's.
        """
        known = self.options.get(command, frozenset())
        return bool(known) and not all(option in known for option in options)

    def way_of_jobs(self, fields: Iterable[str]) -> Way:
        """Return the form in which these fields of jobs can be had."""
        wanted = frozenset(fields)
        if not self.lacks("bjobs", "-o", "-json") and not wanted & self.refused:
            return "json"
        return "wide" if wanted <= IN_WIDE else "long"


IN_WIDE = frozenset({"jobid", "stat"})
"""Fields that are read from ``bjobs -w``: the columns behind them are cut, or contain blanks."""


def starts_on_hosts(wanted: str) -> str:
    """Return the command that starts something on another host of a job, in place of a missing one.

    Call it where a job runs: only there is it known which commands there are. lsrun(1) starts it by
    the same RES that blaunch(1) asks, but LSF does not count it as a part of the job.

    Parameters
    ----------
    wanted : str
        The command that was set.
    """
    if wanted == "blaunch" and not shutil.which("blaunch") and shutil.which("lsrun"):
        return "lsrun"
    return wanted


def parse_release(text: str) -> LsfRelease:
    """Parse lsid's lines: ``PRODUCT NUMBER, DATE``, a copyright, and two that begin with ``My``.

    Examples
    --------
    >>> parse_release("IBM Spectrum LSF Standard 10.1.0.15, May 13 2025")
    LsfRelease(product='IBM Spectrum LSF Standard', number='10.1.0.15', cluster='')
    """
    for line in text.splitlines():
        if found := _RELEASE.match(line):
            cluster = re.search(r"^\s*My cluster name is (\S+)", text, re.M)
            return LsfRelease(found[1], found[2], cluster[1] if cluster else "")
    raise BatchError(f"lsid printed {shown(text.strip())}, not a release")


def parse_options(text: str) -> frozenset[str]:
    """Return every option that a help text names.

    Examples
    --------
    >>> sorted(parse_options("bhosts [-w | -l] [-gpu] [host-name ...]"))
    ['-gpu', '-l', '-w']
    """
    return frozenset(_OPTION.findall(text))


def parse_parameters(text: str) -> dict[str, str]:
    """Parse ``NAME = VALUE`` lines of ``bparams -a``, or of ``bparams -l``, which has more text."""
    found = re.findall(r"^\s*([A-Z][A-Z0-9_]*)\s*=\s*(.*?)\s*$", text, re.M)
    return dict(found)


def parse_refusal(stderr: str, fields: Iterable[str]) -> frozenset[str]:
    """Return the fields of ``bjobs -o`` that an error names; bjobs ends at the first.

    Examples
    --------
    >>> said = "<RUN_TIME> in the format string is not a valid field name."
    >>> parse_refusal(said, ["jobid", "run_time"])
    frozenset({'run_time'})
    """
    lines = [line for line in stderr.splitlines() if _WRONG.search(line)]
    named = {word.lower() for line in lines for word in re.findall(r"\w+", line)}
    return frozenset(field for field in fields if field.lower() in named)


def unknown_options(argv: Sequence[str], said: str) -> list[str]:
    """Return the options of a failed command that its own usage, if it printed one, does not name.

    Examples
    --------
    >>> unknown_options(["bsub", "-J", "a", "-gpu", "num=1"], "Usage: bsub [-h] [-J name]")
    ['-gpu']
    """
    if argv[0] not in COMMANDS or "usage" not in said.lower():
        return []
    known = parse_options(said)
    asked = [word for word in argv[1:] if _OPTION.fullmatch(word)]
    # If a usage names none of them, it does not list options at all.
    return [word for word in asked if word not in known] if known & set(asked) else []


# What is kept of it.

SCHEMA = "hpcext.lsf-engine/1"


def document(engine: LsfEngine, identity: str) -> dict[str, Any]:
    """Return an engine as a document.

    Parameters
    ----------
    engine : LsfEngine
    identity : str
        The document is valid for as long as this stays the same.
    """
    return {
        "schema": SCHEMA,
        "identity": identity,
        "release": list(engine.release),
        "commands": sorted(engine.commands),
        "options": {name: sorted(options) for name, options in engine.options.items()},
        "refused": sorted(engine.refused),
        "arguments": engine.arguments,
    }


def parse_document(found: Mapping[str, Any], identity: str) -> LsfEngine | None:
    """Return the engine of a document; None if it is invalid, or of another identity."""
    try:
        if found["identity"] != identity:
            return None
        arguments = found["arguments"]
        return LsfEngine(
            LsfRelease(*map(_text, found["release"])),
            frozenset(map(_text, found["commands"])) & frozenset(COMMANDS),
            {_text(name): frozenset(map(_text, each)) for name, each in found["options"].items()},
            frozenset(map(_text, found["refused"])),
            arguments if isinstance(arguments, bool) else None,
        )
    except (KeyError, TypeError, AttributeError):
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
