"""The only place that starts a command of a batch system."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcext import documents
from hpcext.core.errors import BatchError
from hpcext.text import clean

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""A controller that is restarted answers within that; slurm.conf's MessageTimeout is 10 to 30."""

_SAID_CHARS = 400

_ELSEWHERE = "no slurm.conf is found here: run it where Slurm is set up, or set SLURM_CONF"


def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    script: Path | None = None,
) -> str:
    """Run a command of a batch system and give what it printed.

    Parameters
    ----------
    argv : sequence of str
        Never a shell's line.
    environ : Mapping[str, str], optional
        In place of ours.
    timeout_s : float
    script : pathlib.Path, optional
        A file of ours that it reads: as its standard input, because by its name it might find
        another one there.

    Returns
    -------
    str
        Its standard output.

    Raises
    ------
    BatchError
        It is not there, failed, or took too long; carries argv, exit code and both outputs.
    """
    ended = _ended(argv, environ, timeout_s, script)
    if ended.returncode:
        raise BatchError(
            f"{argv[0]} failed: {_said(ended.stderr) or f'exit code {ended.returncode}'}",
            argv=argv,
            exit_code=ended.returncode,
            stdout=ended.stdout,
            stderr=ended.stderr,
            do=_ELSEWHERE if "configuration source" in ended.stderr else "",
        )
    return ended.stdout


def everything_said(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Both outputs of a command, however it ended: help texts, whose exit codes say nothing.

    Raises
    ------
    BatchError
        It is not there, or took too long.
    """
    ended = _ended(argv, None, timeout_s)
    return ended.stdout + ended.stderr


def _ended(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    timeout_s: float,
    script: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    try:
        stdin = documents.open_own(script) if script else os.open(os.devnull, os.O_RDONLY)
    except (OSError, ValueError) as error:
        raise BatchError(f"{script or os.devnull} cannot be read: {error}") from None
    try:
        return subprocess.run(
            argv,
            env=dict(environ) if environ is not None else None,
            stdin=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise BatchError(
            f"{argv[0]} is not there", do="run it where the commands of the batch system are"
        ) from None
    except OSError as error:
        raise BatchError(f"{argv[0]} could not be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BatchError(
            f"{argv[0]} gave no answer within {timeout_s:g} s", argv=argv, do="try again later"
        ) from None
    finally:
        os.close(stdin)


def _said(text: str) -> str:
    """What a command complained of in one line, without its own name before each part."""
    parts = [line.rpartition(": error: ")[2].strip() for line in text.splitlines()]
    return clean("; ".join(part for part in parts if part))[:_SAID_CHARS]
