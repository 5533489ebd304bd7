"""The batch job of a pilot on any batch system: its script, and notes on it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext import documents
from hpcext.allocation import JobId
from hpcext.batch.jobs import as_job
from hpcext.core.errors import NoManagerError

SCRIPT = "batch.sh"

HPCEXT = (sys.executable, "-m", "hpcext")

LEAD_S, MIN_LEAD_S, MAX_LEAD_S = 120, 10, 86_400
"""The lead, in seconds before the end of a batch job: its default, and its range."""

_SCRIPT = """#!/bin/sh
# The manager of an hpcext pilot; its jobs are parts of this job.
manager= told=
pass() {{ [ -z "$manager" ] || kill "-$1" "$manager"; }}
trap 'pass USR1' USR1
trap 'pass USR2' USR2
# A manager that does not handle signals yet ignores INT.
trap 'told=1; pass TERM' {ends}
{begin}for try in 1 2 3 4 5; do
    # Until it handles them, USR1 and USR2 would end it; it looks for news when it begins.
    (trap '' USR1 USR2; exec {manage}) &
    manager=$!
    # A wait that a signal interrupts is not the end of the manager.
    while :; do
        wait "$manager"
        code=$?
        kill -0 "$manager" 2>/dev/null || break
    done
    [ -z "$told" ] || break
    # Killed, or crashed: its trainings go on, and the next manager takes them over.
    case "$code" in 132|134|135|136|137|139) ;; *) break ;; esac
    echo "hpcext: the manager was killed by signal $((code - 128)) (try $try)" >&2
done
{finish}exit "$code"
"""


def write_script(
    directory: Path,
    *,
    begin: str = "",
    ends: str = "TERM",
    finish: str = "",
    as_log: bool = False,
    hpcext: Sequence[str] = HPCEXT,
) -> Path:
    """Write the batch script of a pilot; return its path.

    Parameters
    ----------
    directory : pathlib.Path
    begin, finish : str
        Lines to run before the manager begins, and when it has ended for good: ``$code`` is its
        exit status then, and ``$told`` is set if the script was told to end.
    ends : str
        The signals that tell the script to end.
    as_log : bool
        Whether to print a log of events in JSON, or else errors only.
    hpcext : sequence of str
        The command ``hpcext`` and its first arguments.
    """
    manage = [*hpcext, *([] if as_log else ["--quiet"])]
    manage += ["run", "--resume", str(directory), *(["--log-format=json"] if as_log else [])]
    script = _SCRIPT.format(manage=shlex.join(manage), begin=begin, ends=ends, finish=finish)
    # In the encoding of the file system, because a path need not be UTF-8.
    documents.write_file(directory / SCRIPT, os.fsencode(script))
    return directory / SCRIPT


class SubmittedPilot:
    """Notes on the job of a pilot, in a file of the pilot's directory.

    Parameters
    ----------
    name : str
        The name of the batch system.
    file : str
        The name of the file.
    title : str
        The batch system, for people.
    submit : str
        Its command that submits a job.
    """

    def __init__(self, name: str, file: str, title: str, *, submit: str) -> None:
        self._file = file
        self._schema = f"hpcext.{name}-job/1"
        self._system = title
        self._submit = submit

    def write(self, directory: Path, job_id: JobId, options: Sequence[str] | None) -> None:
        """Note a job.

        Parameters
        ----------
        directory : pathlib.Path
            The pilot's.
        job_id : int or str
        options : sequence of str or None
            The options with which we have submitted it; None if we have not.
        """
        document = {
            "schema": self._schema,
            "job_id": job_id,
            "options": list(options or ()),
            "submitted": options is not None,
        }
        documents.write_json(directory / self._file, document)

    def read(self, directory: Path) -> dict[str, Any]:
        """Return what was noted.

        Raises
        ------
        NoManagerError
            The pilot was never submitted, or the file is invalid.
        """
        try:
            found = documents.read_json(directory / self._file, self._schema)
            if as_job(found.get("job_id")) is None or type(found.get("options")) is not list:
                raise ValueError(f"{self._file} does not name a job and its options")
            return found
        except FileNotFoundError:
            raise NoManagerError(
                f"it was not submitted to {self._system}",
                where=str(directory),
                do=f"hpcext run --resume {directory} goes on with it here",
            ) from None
        except (OSError, ValueError) as error:
            raise NoManagerError(
                f"its job of {self._system} cannot be determined ({error})", where=str(directory)
            ) from None

    def job_of(self, directory: Path) -> JobId | None:
        """Return the id of the last job of a pilot; None if it has none."""
        try:
            return as_job(self.read(directory)["job_id"])
        except NoManagerError:
            return None

    def options(self, directory: Path) -> list[str]:
        """Return the options with which a pilot was submitted.

        Raises
        ------
        NoManagerError
            We have never submitted it.
        """
        found = self.read(directory)
        options = found["options"]
        # Older releases did not write "submitted", but all that they submitted had options.
        if not found.get("submitted", bool(options)):
            raise NoManagerError(
                "was not submitted by hpcext",
                where=str(directory),
                do=f"submit its script again, with {self._submit}",
            )
        return list(options)


def name_of(directory: Path) -> str:
    """Return the name of a pilot's job in the batch system."""
    return f"hpcext-{directory.name}"[:64]
