"""An engine of LSF's line: its commands, options, fields of ``bjobs -o``, and release.

These are values and pure parsers; :mod:`hpcext.batch.lsf.probe` queries an engine, and keeps the
answers. Which form of a command an engine supports is known to its :class:`LsfEngine` alone.
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
"""Command → the options that print its help, on stderr (bsub(1), bjobs(1), bhosts(1))."""

_OPTION = re.compile(r"(?<![\w-])-[A-Za-z]\w*")
_WRONG = re.compile(r"\b(?:not a valid|invalid|illegal|unknown|unrecogni[sz]ed)\b", re.I)
_RELEASE = re.compile(r"\s*(\S.*?)\s+v?([0-9]+(?:\.[0-9]+)+)(?=[\s,]|$)")

JobsForm = Literal["json", "wide", "long"]
"""The form of a query of jobs: JSON, or a table of ``bjobs -w`` or ``bjobs -l``."""


class LsfRelease(NamedTuple):
    """The release of an engine, as lsid(1) prints it.

    Attributes
    ----------
    product : str
        Such as ``IBM Spectrum LSF Standard``, or what a compatible engine calls itself.
    number : str
        Such as ``10.1.0.15``.
    cluster : str
        The name of the cluster; empty if none answers.
    """

    product: str
    number: str
    cluster: str


class LsfEngine(NamedTuple):
    """An engine of LSF's line, with what it supports.

    Attributes
    ----------
    release : LsfRelease
    commands : frozenset of str
        Those of :data:`COMMANDS` that it has.
    options : Mapping[str, frozenset of str]
        Command → the options that its help names; none if there is no help.
    refused : frozenset of str
        Fields that ``bjobs -o`` has refused.
    arguments : bool or None
        Whether ``-a "name(arguments)"`` reaches an esub; None if no job has shown it yet.
    """

    release: LsfRelease
    commands: frozenset[str]
    options: Mapping[str, frozenset[str]]
    refused: frozenset[str] = frozenset()
    arguments: bool | None = None

    def takes(self, command: str, *options: str) -> bool:
        """Return whether a command exists, and its help names these options."""
        known = self.options.get(command, frozenset())
        return command in self.commands and all(option in known for option in options)

    def lacks(self, command: str, *options: str) -> bool:
        """Return whether the help of a command does not name all of these options.

        A command without help is taken for IBM's, which has them.
        """
        known = self.options.get(command, frozenset())
        return bool(known) and not all(option in known for option in options)

    def jobs_form(self, fields: Iterable[str]) -> JobsForm:
        """Return the form of a query that has these fields of jobs."""
        wanted = frozenset(fields)
        if not self.lacks("bjobs", "-o", "-json") and not wanted & self.refused:
            return "json"
        return "wide" if wanted <= IN_WIDE else "long"


IN_WIDE = frozenset({"jobid", "stat"})
"""The fields that ``bjobs -w`` shows reliably: later columns are cut, or contain blanks."""


def starts_on_hosts(wanted: str) -> str:
    """Return the command that starts processes on other hosts of a job: lsrun without blaunch.

    It must be called where the job runs, because other hosts may have other commands. lsrun(1) uses
    the same RES as blaunch(1), but LSF does not count its processes as part of the job.

    Parameters
    ----------
    wanted : str
        The setting ``lsf_launcher``.
    """
    if wanted == "blaunch" and not shutil.which("blaunch") and shutil.which("lsrun"):
        return "lsrun"
    return wanted


def parse_release(text: str) -> LsfRelease:
    """Parse the output of lsid: ``PRODUCT NUMBER, DATE`` and ``My cluster name is NAME``.

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
    """Return all options that a help text names.

    Examples
    --------
    >>> sorted(parse_options("bhosts [-w | -l] [-gpu] [host-name ...]"))
    ['-gpu', '-l', '-w']
    """
    return frozenset(_OPTION.findall(text))


def parse_parameters(text: str) -> dict[str, str]:
    """Parse the lines ``NAME = VALUE`` of ``bparams -a`` or ``bparams -l``."""
    found = re.findall(r"^\s*([A-Z][A-Z0-9_]*)\s*=\s*(.*?)\s*$", text, re.M)
    return dict(found)


def parse_refusal(stderr: str, fields: Iterable[str]) -> frozenset[str]:
    """Return the fields of ``bjobs -o`` that an error message refuses; it names the first only.

    Parameters
    ----------
    stderr : str
        What bjobs has printed.
    fields : iterable of str
        The requested fields.

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
    """Return the options of a failed command that its usage does not name, if it has printed one.

    Parameters
    ----------
    argv : sequence of str
        The command.
    said : str
        All that it has printed.

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


# What is kept of an engine.

SCHEMA = "hpcext.lsf-engine/1"


def document(engine: LsfEngine, identity: str) -> dict[str, Any]:
    """Return an engine as a document.

    Parameters
    ----------
    engine : LsfEngine
    identity : str
        The document is valid for as long as this text stays the same.
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
    """Return the engine of a document; None if it is invalid, or has another identity.

    Parameters
    ----------
    found : Mapping
    identity : str
        The identity that the document must have.
    """
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
