"""The batch job of a pilot, of whichever batch system: its script, and what is known of it."""

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
"""Seconds before the end of a batch job at which its trainings are suspended: default and range."""

_SCRIPT = """#!/bin/sh
# The manager of an hpcext pilot; its jobs are parts of this job.
manager= told=
pass() {{ [ -z "$manager" ] || kill "-$1" "$manager"; }}
trap 'pass USR1' USR1
trap 'pass USR2' USR2
# A manager that has not begun to listen does not hear INT.
trap 'told=1; pass TERM' {ends}
{begin}for try in 1 2 3 4 5; do
    # Until it listens it would die of them. What they tell it looks for when it begins.
    (trap '' USR1 USR2; exec {manage}) &
    manager=$!
    # A wait that a signal interrupts is not the end of the manager.
    while :; do
        wait "$manager"
        code=$?
        kill -0 "$manager" 2>/dev/null || break
    done
    [ -z "$told" ] || break
    # Killed, or crashed: what it started goes on, and the next manager takes it over.
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
    """Write the batch script of a pilot; where it is.

    Parameters
    ----------
    directory : pathlib.Path
    begin, finish : str
        Lines before the manager begins, and when it has ended for good: ``$code`` is its exit
        status then, and ``$told`` is set if the script was told to end.
    ends : str
        The signals that do so.
    as_log : bool
        What happens is printed, as JSON; else errors alone.
    hpcext : sequence of str
        How hpcext is run there.
    """
    manage = [*hpcext, *([] if as_log else ["--quiet"])]
    manage += ["run", "--resume", str(directory), *(["--log-format=json"] if as_log else [])]
    script = _SCRIPT.format(manage=shlex.join(manage), begin=begin, ends=ends, finish=finish)
    # As the file system has it: a path need not be UTF-8.
    documents.write_file(directory / SCRIPT, os.fsencode(script))
    return directory / SCRIPT


class SubmittedPilot:
    """What is written down of the job of a pilot.

    Parameters
    ----------
    name : str
        Of the batch system.
    file : str
        Its name in the directory of the pilot.
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
        """Note which job it is, and with which options we submitted it; None: we did not."""
        document = {
            "schema": self._schema,
            "job_id": job_id,
            "options": list(options or ()),
            "submitted": options is not None,
        }
        documents.write_json(directory / self._file, document)

    def read(self, directory: Path) -> dict[str, Any]:
        """Read what was noted.

        Raises
        ------
        NoManagerError
            It was never submitted.
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
        """Return the id of the last job of a pilot, or None if it has none."""
        try:
            return as_job(self.read(directory)["job_id"])
        except NoManagerError:
            return None

    def options(self, directory: Path) -> list[str]:
        """Return the options that it was submitted with.

        Raises
        ------
        NoManagerError
            It was never submitted by us.
        """
        found = self.read(directory)
        options = found["options"]
        # Releases before other backends did not write it; all that they submitted had options.
        if not found.get("submitted", bool(options)):
            raise NoManagerError(
                "was not submitted by hpcext",
                where=str(directory),
                do=f"submit its script again, with {self._submit}",
            )
        return list(options)


def name_of(directory: Path) -> str:
    """Return the name of the job of a pilot in the lists of a batch system."""
    return f"hpcext-{directory.name}"[:64]
