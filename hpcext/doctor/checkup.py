"""Checks and their findings: each check has a time limit, and none can stop the others.

A check is a function that yields findings. To add one, write it and put it in the table of
:mod:`hpcext.doctor.checks`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hpcext.config import Settings
from hpcext.core.errors import HpcextError
from hpcext.text import clean

Verdict = Literal["ok", "note", "wrong"]
"""The verdict of a finding; ``note``: something is missing that only some users need."""


class CheckOptions(NamedTuple):
    """The arguments of a check.

    Attributes
    ----------
    settings : Settings or None
        None if they cannot be read.
    submit : bool
        Whether a test job may be submitted to LSF.
    queue : str
        The queue for that job; empty for the default of the batch system.
    jobs : pathlib.Path or None
        A job file whose first training is started and suspended, if it is given.
    probe : str
        A partition in which a lease is taken and preempted; empty for none.
    """

    settings: Settings | None
    submit: bool = False
    queue: str = ""
    jobs: Path | None = None
    probe: str = ""


class Finding(NamedTuple):
    """One result of a check.

    Attributes
    ----------
    name : str
    verdict : Verdict
    says, do : str
        What was found, and what to do about it.
    why : str
        Why it matters, unless the verdict is ok; by default the reason of the check.
    """

    name: str
    verdict: Verdict
    says: str
    do: str = ""
    why: str = ""


class Check(NamedTuple):
    """A row of the table of checks.

    Attributes
    ----------
    name : str
    run : callable
        Yields findings; an exception becomes a finding.
    why : str
        Why its findings matter, if they do not say so themselves.
    within_s : float
        Seconds to wait for it.
    """

    name: str
    run: Callable[[CheckOptions], Iterable[Finding]]
    why: str
    within_s: float = 60.0


def run_python(*words: str, within_s: float) -> subprocess.CompletedProcess[str]:
    """Run this Python in a process of its own, for code that may crash the process.

    Parameters
    ----------
    *words : str
        Arguments of Python.
    within_s : float
        Seconds to wait for its end.

    Raises
    ------
    subprocess.TimeoutExpired
        It did not end in time.
    """
    return subprocess.run(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=within_s,
        check=False,
    )


class _Run:
    """A running check, in a thread, where it stays if it hangs on a file system for ever."""

    def __init__(self, check: Check, asked: CheckOptions) -> None:
        self._check = check
        self._asked = asked
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        name = self._check.name
        try:
            for finding in self._check.run(self._asked):
                self._found.append(finding)
        except HpcextError as error:
            said = f"{error.where}: {error.what}" if error.where else error.what
            self._found.append(Finding(name, "wrong", clean(said), error.do))
        except Exception as error:  # a faulty check must not hide the others
            said = clean(f"{type(error).__name__}: {error}")
            self._found.append(Finding(name, "wrong", f"could not be checked: {said}"))

    def found(self, until: float) -> list[Finding]:
        """Return the findings once the check has ended, or at an instant of the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))
        late = self._thread.is_alive()
        findings = list(self._found)
        if late:
            says = f"no answer within {self._check.within_s:g} s"
            findings.append(Finding(self._check.name, "wrong", says))
        return [self._explained(finding) for finding in findings]

    def _explained(self, finding: Finding) -> Finding:
        if finding.verdict == "ok" or finding.why:
            return finding
        return finding._replace(why=self._check.why)


def examine(checks: Sequence[Check], asked: CheckOptions) -> Iterator[Finding]:
    """Run all checks at once, and yield their findings in the order of the checks."""
    began = time.monotonic()
    for check, run in [(check, _Run(check, asked)) for check in checks]:
        yield from run.found(began + check.within_s)
