"""A probe of the LSF of this machine, or of a compatible engine: what it supports.

It looks for commands, reads options in their help and the release that lsid(1) prints, and notes
fields that bjobs(1) has refused. The answers are kept in a private file of the user until the
commands change (:func:`known`). What help texts do not show, a job does: arguments of ``-a``, the
warning of ``-wa``, quotes in commands (:func:`trial_script`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hpcext import documents, private, protocol
from hpcext.batch import runner
from hpcext.batch.lsf import engine as lsf_engine
from hpcext.batch.lsf.engine import COMMANDS, HELP, LsfEngine, LsfRelease
from hpcext.core.errors import BatchError

log = logging.getLogger(__name__)

ANSWER_S = 20.0
"""Seconds to wait for an answer, because a person waits for it."""

KEPT_S = 86_400.0
"""Seconds after which the probe is repeated, because a site may have changed a wrapper."""


class TrialJob(NamedTuple):
    """The results of a trial job.

    Attributes
    ----------
    esub : bool
        Whether an argument of ``-a`` has arrived as a variable of the job.
    intact : bool
        Whether two commands, with two blanks in quotes, have arrived as they were written.
    warned : bool or None
        Whether the signal of ``-wa`` has come; None if it was not requested.
    """

    esub: bool
    intact: bool
    warned: bool | None


def is_there() -> bool:
    """Return whether this machine has commands of LSF."""
    return shutil.which("lsid") is not None and shutil.which("bsub") is not None


def probe() -> LsfEngine:
    """Probe the LSF of this machine, and keep the answers; those of jobs stay valid.

    Raises
    ------
    BatchError
        lsid does not answer.
    """
    release = lsf_engine.parse_release(runner.run(["lsid"], timeout_s=ANSWER_S))
    commands = _commands()
    options: dict[str, frozenset[str]] = {}
    for command, words in HELP.items():
        if command not in commands:
            continue
        with contextlib.suppress(BatchError):
            text = runner.everything_said([command, *words], timeout_s=ANSWER_S)
            options[command] = lsf_engine.parse_options(text)
    engine = LsfEngine(release, commands, options)
    if (before := _kept()) is not None and before.release == release:
        engine = engine._replace(refused=before.refused, arguments=before.arguments)
    return _keep(engine)


def known() -> LsfEngine:
    """Return the engine as it was last probed, or probe it for the first time.

    An engine without lsid is taken for IBM's.

    Raises
    ------
    BatchError
        It must be probed, and lsid does not answer.
    """
    identity = _identity()
    if _memory is None or _memory[0] != identity:
        engine = _kept(KEPT_S)
        if engine is None and shutil.which("lsid") is None:
            _remember(identity, engine := LsfEngine(LsfRelease("LSF", "", ""), _commands(), {}))
        elif engine is not None:
            _remember(identity, engine)
        return engine or probe()
    return _memory[1]


def learn(
    engine: LsfEngine, refused: Iterable[str] = (), arguments: bool | None = None
) -> LsfEngine:
    """Note fields that ``bjobs -o`` has refused, or whether arguments of ``-a`` have arrived.

    Parameters
    ----------
    engine : LsfEngine
    refused : iterable of str
    arguments : bool, optional

    Returns
    -------
    LsfEngine
        The engine with these facts, which are also kept.
    """
    if arguments is None:
        arguments = engine.arguments
    more = engine.refused | frozenset(refused)
    return _keep(engine._replace(refused=more, arguments=arguments))


def parameters() -> dict[str, str]:
    """Return the settings of lsb.params, which bparams(1) shows.

    Raises
    ------
    BatchError
        bparams does not answer.
    """
    form = "-l" if known().lacks("bparams", "-a") else "-a"
    return lsf_engine.parse_parameters(runner.run(["bparams", form], timeout_s=ANSWER_S))


_memory: tuple[str, LsfEngine] | None = None
"""The identity and the engine, as this process knows them."""


def _remember(identity: str, engine: LsfEngine) -> None:
    global _memory  # noqa: PLW0603
    _memory = (identity, engine)


def _commands() -> frozenset[str]:
    return frozenset(name for name in COMMANDS if shutil.which(name))


def _keep(engine: LsfEngine) -> LsfEngine:
    identity = _identity()
    _remember(identity, engine)
    path = _path()
    try:
        private.make(path.parent)
        documents.write_json(path, lsf_engine.document(engine, identity), durable=False)
    except OSError as error:
        log.info("the capabilities of this LSF could not be stored in %s: %s", path, error.strerror)
    return engine


def _kept(most_s: float = math.inf) -> LsfEngine | None:
    return read_kept(_path(), _identity(), most_s)


def read_kept(path: Path, identity: str, most_s: float = math.inf) -> LsfEngine | None:
    """Return a kept engine; None if it is missing, too old, invalid, or of another identity.

    Parameters
    ----------
    path : pathlib.Path
    identity : str
        The state of the commands.
    most_s : float
        The largest age, in seconds.
    """
    try:
        if not 0 <= time.time() - path.stat().st_mtime < most_s:
            return None
        found = documents.read_json(path, lsf_engine.SCHEMA)
    except (OSError, ValueError):
        return None
    return lsf_engine.parse_document(found, identity)


def _path() -> Path:
    """Return the file for the LSF in this user's PATH; clusters may share a home directory."""
    of = f"{protocol.environ().get('LSF_ENVDIR', '')}\n{shutil.which('bjobs')}"
    name = hashlib.sha256(os.fsencode(of)).hexdigest()[:12]
    return protocol.user_directory("state") / f"lsf-engine-{name}.json"


def _identity() -> str:
    """Return the paths, times and sizes of the commands, which change with the release."""
    parts = [protocol.environ().get("LSF_ENVDIR", "")]
    for name in COMMANDS:
        if found := shutil.which(name):
            facts = os.stat(found)
            parts.append(f"{os.path.realpath(found)} {facts.st_mtime_ns} {facts.st_size}")
    return "\n".join(parts)


# What only a job can show.

TRIAL_ENDS = "hpcext-doctor ends"
_TWO = "a  b"


def trial_script(wait_s: int) -> str:
    """Return the command of a job whose output :func:`parse_trial` reads.

    Parameters
    ----------
    wait_s : int
        Seconds that it waits for the signal of ``-wa``; 0 if that was not requested.
    """
    lines = [f'echo "{_TWO}"', 'echo "esub=$HPCEXT_GPUS"']
    if wait_s:
        # In a loop, because a shell handles a signal only when its present command has ended. USR2
        # is the signal at the end of -W.
        lines[:0] = ["trap 'echo warned; i=9999' URG", "trap 'i=9999' USR2", "i=0"]
        lines += [f"while [ $i -lt {wait_s} ]; do sleep 1; i=$((i + 1)); done"]
    return "; ".join([*lines, f"echo {TRIAL_ENDS}"])


def trial_command(engine: LsfEngine, output: str, queue: str, *, esub: bool) -> list[str]:
    """Return the command that submits a trial job.

    Parameters
    ----------
    engine : LsfEngine
    output : str
        Its output file, on a file system that all hosts share.
    queue : str
        Empty for the default of the site.
    esub : bool
        Whether there is an esub that takes arguments.
    """
    warning = engine.takes("bsub", "-wa", "-wt")
    words = ["bsub", "-o", output, "-n", "1", "-J", "hpcext-doctor"]
    words += ["-q", queue] if queue else []
    words += ["-a", "hpcext(gpus=1)"] if esub else []
    # -wt is in whole minutes before the end of the run limit.
    words += ["-W", "2", "-wa", "URG", "-wt", "1"] if warning else ["-W", "5"]
    return [*words, trial_script(110 if warning else 0)]


def parse_trial(text: str, engine: LsfEngine) -> TrialJob:
    """Parse the output of a trial job, among lines that LSF adds.

    Parameters
    ----------
    text : str
    engine : LsfEngine
        The engine for which :func:`trial_command` was made.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    warned = "warned" in lines if engine.takes("bsub", "-wa", "-wt") else None
    return TrialJob("esub=1" in lines, _TWO in lines, warned)
