"""What an engine of LSF's line has: commands, options, fields of ``bjobs -o``; and what it says of
itself.

Values and pure parsers; :mod:`hpcext.batch.lsf.probe` asks, and keeps the answers. Whoever builds a
command of LSF asks an :class:`Engine` which way it has: there is no second place that knows.
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
"""Those that hpcext could use."""

NEEDED = frozenset({"bsub", "bjobs", "bkill", "bhosts", "bqueues"})

HELP: Mapping[str, tuple[str, ...]] = {
    "bsub": ("-h", "all"), "bjobs": ("-h", "all"), "bhosts": ("-h",), "bparams": ("-h",),
    "bhist": ("-h",),
}  # fmt: skip
"""What prints the options of a command: to stderr, as bsub(1), bjobs(1) and bhosts(1) say."""

_OPTION = re.compile(r"(?<![\w-])-[A-Za-z]\w*")
_WRONG = re.compile(r"\b(?:not a valid|invalid|illegal|unknown|unrecogni[sz]ed)\b", re.I)
_RELEASE = re.compile(r"\s*(\S.*?)\s+v?([0-9]+(?:\.[0-9]+)+)(?=[\s,]|$)")

Way = Literal["json", "wide", "long"]
"""How jobs are asked for: as JSON, or where that does not do, by ``bjobs -w`` or ``bjobs -l``."""


class Release(NamedTuple):
    """What lsid(1) says.

    Attributes
    ----------
    product : str
        As ``IBM Spectrum LSF Standard``, or what a compatible engine calls itself.
    number : str
        As ``10.1.0.15``.
    cluster : str
        Empty where no cluster answers.
    """

    product: str
    number: str
    cluster: str


class Engine(NamedTuple):
    """What there is.

    Attributes
    ----------
    release : Release
    commands : frozenset of str
        Of :data:`COMMANDS`.
    options : Mapping[str, frozenset of str]
        Command → the options that its help names; none where that could not be read.
    refused : frozenset of str
        Fields that ``bjobs -o`` has refused.
    arguments : bool or None
        Whether ``-a "name(arguments)"`` reaches an esub; None: no job has found out yet.
    """

    release: Release
    commands: frozenset[str]
    options: Mapping[str, frozenset[str]]
    refused: frozenset[str] = frozenset()
    arguments: bool | None = None

    def takes(self, command: str, *options: str) -> bool:
        """Whether a command is there and its help names these options."""
        known = self.options.get(command, frozenset())
        return command in self.commands and all(option in known for option in options)

    def lacks(self, command: str, *options: str) -> bool:
        """Whether the help of a command is known, and does not name one of these options.

        One whose help says nothing is taken for IBM's.
        """
        known = self.options.get(command, frozenset())
        return bool(known) and not all(option in known for option in options)

    def way_of_jobs(self, fields: Iterable[str]) -> Way:
        """How these fields of jobs can be had."""
        wanted = frozenset(fields)
        if not self.lacks("bjobs", "-o", "-json") and not wanted & self.refused:
            return "json"
        return "wide" if wanted <= IN_WIDE else "long"


IN_WIDE = frozenset({"jobid", "stat"})
"""Fields that are read from ``bjobs -w``: columns behind them are cut, or have blanks in them."""


def starts_on_hosts(wanted: str) -> str:
    """The command that starts something on another host of a job, for the one that was set.

    Only where a job runs is it known which there are. lsrun(1) starts it by the same RES that
    blaunch(1) asks, and LSF does not count it as a part of the job.
    """
    if wanted == "blaunch" and not shutil.which("blaunch") and shutil.which("lsrun"):
        return "lsrun"
    return wanted


def parse_release(text: str) -> Release:
    """The lines of lsid: ``PRODUCT NUMBER, DATE``, a copyright, and two that begin with ``My``.

    Examples
    --------
    >>> parse_release("IBM Spectrum LSF Standard 10.1.0.15, May 13 2025")
    Release(product='IBM Spectrum LSF Standard', number='10.1.0.15', cluster='')
    """
    for line in text.splitlines():
        if found := _RELEASE.match(line):
            cluster = re.search(r"^\s*My cluster name is (\S+)", text, re.M)
            return Release(found[1], found[2], cluster[1] if cluster else "")
    raise BatchError(f"lsid printed {shown(text.strip())}, and no release")


def parse_options(text: str) -> frozenset[str]:
    """Every option that a help text names.

    Examples
    --------
    >>> sorted(parse_options("bhosts [-w | -l] [-gpu] [host-name ...]"))
    ['-gpu', '-l', '-w']
    """
    return frozenset(_OPTION.findall(text))


def parse_parameters(text: str) -> dict[str, str]:
    """``NAME = VALUE`` lines of ``bparams -a``, or of ``bparams -l``, which explains them too."""
    found = re.findall(r"^\s*([A-Z][A-Z0-9_]*)\s*=\s*(.*?)\s*$", text, re.M)
    return dict(found)


def parse_refusal(stderr: str, fields: Iterable[str]) -> frozenset[str]:
    """Which of the fields of ``bjobs -o`` an error names; bjobs ends at the first.

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
    """Which options of a command its own usage does not name, if it printed that; for an error.

    Examples
    --------
    >>> unknown_options(["bsub", "-J", "a", "-gpu", "num=1"], "Usage: bsub [-h] [-J name]")
    ['-gpu']
    """
    if argv[0] not in COMMANDS or "usage" not in said.lower():
        return []
    known = parse_options(said)
    asked = [word for word in argv[1:] if _OPTION.fullmatch(word)]
    # A usage that names none of them says nothing of options.
    return [word for word in asked if word not in known] if known & set(asked) else []


# What is kept of it.

SCHEMA = "hpcext.lsf-engine/1"


def document(engine: Engine, identity: str) -> dict[str, Any]:
    """What is written down of an engine; `identity` says when that is true no more."""
    return {
        "schema": SCHEMA,
        "identity": identity,
        "release": list(engine.release),
        "commands": sorted(engine.commands),
        "options": {name: sorted(options) for name, options in engine.options.items()},
        "refused": sorted(engine.refused),
        "arguments": engine.arguments,
    }


def parse_document(found: Mapping[str, Any], identity: str) -> Engine | None:
    """The engine of a document; None if it is of another one, or is none."""
    try:
        if found["identity"] != identity:
            return None
        arguments = found["arguments"]
        return Engine(
            Release(*map(_text, found["release"])),
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
