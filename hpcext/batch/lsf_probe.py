"""What the LSF of this machine can do, or an engine that is compatible: asked, not guessed.

Commands that are there, options that their own help names (bsub(1), bjobs(1), bhosts(1): ``-h``
prints to stderr and exits, with ``all`` every option), the release that lsid(1) prints, and what
bparams(1) and bqueues(1) say. What help texts cannot tell, a job does: arguments of ``-a``, the
warning of ``-wa``, quotes in commands (:func:`trial_script`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from hpcext.batch import runner
from hpcext.core.errors import BatchError
from hpcext.text import shown

ANSWER_S = 20.0
"""So long a question waits: somebody sits in front of it."""

COMMANDS = (
    "bsub", "bjobs", "bkill", "bstop", "bresume", "bhosts", "bqueues", "bparams", "bslots",
    "brsvs", "bresize", "blaunch", "jsrun",
)  # fmt: skip
"""Those that hpcext could use."""

NEEDED = frozenset({"bsub", "bjobs", "bkill", "bhosts", "bqueues"})

_HELP = {"bsub": ("-h", "all"), "bjobs": ("-h", "all"), "bhosts": ("-h",)}
_OPTION = re.compile(r"(?<![\w-])-[A-Za-z]\w*")


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
        Command → the options that its help names.
    """

    release: Release
    commands: frozenset[str]
    options: Mapping[str, frozenset[str]]

    def takes(self, command: str, *options: str) -> bool:
        """Whether a command is there and its help names these options."""
        known = self.options.get(command, frozenset())
        return command in self.commands and all(option in known for option in options)


class Trial(NamedTuple):
    """What a job has found out.

    Attributes
    ----------
    esub : bool
        An argument of ``-a`` has become a variable of the job.
    intact : bool
        Two commands with two blanks in quotes came through as they were written.
    warned : bool or None
        The signal of ``-wa`` has come; None where it was not asked for.
    """

    esub: bool
    intact: bool
    warned: bool | None


def parse_release(text: str) -> Release:
    """The lines of lsid: ``PRODUCT NUMBER, DATE``, a copyright, and two that begin with ``My``.

    Examples
    --------
    >>> parse_release("IBM Spectrum LSF Standard 10.1.0.15, May 13 2025")
    Release(product='IBM Spectrum LSF Standard', number='10.1.0.15', cluster='')
    """
    for line in text.splitlines():
        found = re.match(r"\s*(\S.*?)\s+v?([0-9]+(?:\.[0-9]+)+)(?=[\s,]|$)", line)
        if found:
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
    """``NAME = VALUE`` lines of ``bparams -a``."""
    found = re.findall(r"^\s*([A-Z][A-Z0-9_]*)\s*=\s*(.*?)\s*$", text, re.M)
    return dict(found)


def is_there() -> bool:
    """Whether this machine has commands of an LSF."""
    return shutil.which("lsid") is not None and shutil.which("bsub") is not None


def probe() -> Engine:
    """Ask the LSF of this machine.

    Raises
    ------
    BatchError
        lsid does not answer.
    """
    release = parse_release(runner.run(["lsid"], timeout_s=ANSWER_S))
    commands = frozenset(name for name in COMMANDS if shutil.which(name))
    options: dict[str, frozenset[str]] = {}
    for command, words in _HELP.items():
        with contextlib.suppress(BatchError):
            text = runner.everything_said([command, *words], timeout_s=ANSWER_S)
            options[command] = parse_options(text)
    return Engine(release, commands, options)


def parameters() -> dict[str, str]:
    """What lsb.params sets, as bparams(1) shows it to every user.

    Raises
    ------
    BatchError
    """
    return parse_parameters(runner.run(["bparams", "-a"], timeout_s=ANSWER_S))


# What a job alone can tell.

TRIAL_ENDS = "hpcext-doctor ends"
_TWO = "a  b"


def trial_script(wait_s: int) -> str:
    """The command of a job whose output :func:`parse_trial` reads.

    Parameters
    ----------
    wait_s : int
        So long it waits for the signal of ``-wa``; 0: it was not asked for.
    """
    lines = [f'echo "{_TWO}"', 'echo "esub=$HPCEXT_GPUS"']
    if wait_s:
        # In a loop: a shell hears of a signal when the command that it waits for has ended. USR2
        # would be that of the end of -W.
        lines[:0] = ["trap 'echo warned; i=9999' URG", "trap 'i=9999' USR2", "i=0"]
        lines += [f"while [ $i -lt {wait_s} ]; do sleep 1; i=$((i + 1)); done"]
    return "; ".join([*lines, f"echo {TRIAL_ENDS}"])


def trial_command(engine: Engine, output: str, queue: str, *, esub: bool) -> list[str]:
    """Submit that job.

    Parameters
    ----------
    engine : Engine
    output : str
        Where it writes; the job's directory must be the same on all hosts.
    queue : str
        Empty: that of the site.
    esub : bool
        Whether there is an esub that takes arguments.
    """
    warning = engine.takes("bsub", "-wa", "-wt")
    words = ["bsub", "-o", output, "-n", "1", "-J", "hpcext-doctor"]
    words += ["-q", queue] if queue else []
    words += ["-a", "hpcext(gpus=1)"] if esub else []
    # bsub(1), -wt: whole minutes, before the end of the run limit.
    words += ["-W", "2", "-wa", "URG", "-wt", "1"] if warning else ["-W", "5"]
    return [*words, trial_script(110 if warning else 0)]


def parse_trial(text: str, engine: Engine) -> Trial:
    """What the job has written, among what LSF adds to the output of a job."""
    lines = [line.rstrip() for line in text.splitlines()]
    warned = "warned" in lines if engine.takes("bsub", "-wa", "-wt") else None
    return Trial("esub=1" in lines, _TWO in lines, warned)
