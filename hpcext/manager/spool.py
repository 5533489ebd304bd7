"""The spool: requests and replies as files renamed into place.

A directory that only its user can enter holds ``requests/`` and ``replies/``. A client writes
``requests/ID.json``, sends SIGUSR1 to the manager (*look now*), and waits for ``replies/ID.json``.
Files work across nodes of a shared file system, and a request that was written while no manager ran
is not lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from hpcext import backends, documents, private, protocol
from hpcext.allocation import JobId
from hpcext.batch import standing
from hpcext.batch.jobs import as_job
from hpcext.batch.standing import Is, Standing
from hpcext.core.errors import BatchError, HpcextError, InputError, NoManagerError
from hpcext.launch.tree import boot_id
from hpcext.manager import first_life
from hpcext.process import Process

log = logging.getLogger(__name__)

REQUEST = "hpcext.request/1"
REPLY = "hpcext.reply/1"
MANAGER = "hpcext.manager/1"
MANAGER_FILE = "manager.json"

ASK_BATCH_S = 5.0
"""Seconds between two questions to a batch system whether a manager is still there."""

ASK_MOST_S = 60.0
"""The longest such time, after questions without an answer."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def make(directory: Path) -> None:
    """Make the spool's folders, for their user alone."""
    for name in ("requests", "replies"):
        private.make(directory / name)


def is_gone(directory: Path) -> bool:
    """Return whether a pilot has been deleted; not so if its file system is away."""
    return not os.path.lexists(directory / "pilot.json") and directory.parent.is_dir()


def check_private(directory: Path) -> None:
    """Refuse a directory that is not ours alone: files in it are orders.

    Raises
    ------
    InputError
        It is somebody else's, a link, or others may enter it.
    """
    try:
        facts = directory.lstat()
    except OSError as error:
        raise InputError(f"cannot be used: {error.strerror}", where=str(directory)) from None
    if facts.st_uid != os.getuid():
        raise InputError(
            f"belongs to uid {facts.st_uid}, and you are uid {os.getuid()}",
            where=str(directory),
            do="only its owner may use a pilot",
        )
    if facts.st_mode & 0o077:
        raise InputError(
            f"other users may enter it (mode {facts.st_mode & 0o777:o})",
            where=str(directory),
            do=f"chmod 700 {directory}",
        )


def pending(directory: Path) -> Iterator[tuple[str, dict[str, Any] | InputError]]:
    """Yield requests that wait, oldest first.

    Yields
    ------
    id : str
    request : dict or InputError
        The error, if the request cannot be read; it has been removed then.
    """
    for path in _by_age(directory / "requests"):
        name = path.stem
        if path.suffix != ".json" or not _ID.match(name):
            discard(path)
            continue
        try:
            yield name, documents.read_json(path, REQUEST)
        except FileNotFoundError:
            continue
        except ValueError as error:
            discard(path)
            yield name, InputError(f"request refused: {error}")


def _by_age(directory: Path) -> list[Path]:
    """Return the files of a directory, oldest first, without those that are being written."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime_ns, entry.name))
    except OSError as error:
        log.warning("%s: cannot be read: %s", directory, error.strerror)
    return [directory / name for _, name in sorted(found)]


def discard(path: Path) -> None:
    """Remove a request, of whatever kind its file is."""
    with contextlib.suppress(OSError):
        path.unlink()


def reply(directory: Path, name: str, document: dict[str, Any]) -> None:
    """Answer a request, then forget it: in this order, so that none is forgotten unanswered.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot.
    name : str
        The name of the request.
    document : dict
        The answer.
    """
    with contextlib.suppress(OSError):  # a full disk: the client times out and asks again
        documents.write_json(
            directory / "replies" / f"{name}.json", {"schema": REPLY, **document}, durable=False
        )
    discard(directory / "requests" / f"{name}.json")


class Manager(Protocol):
    """A process that runs a pilot."""

    def alive(self) -> bool:
        """Return whether it still does."""

    def send(self, signum: int) -> bool:
        """Send it a signal; return False if it is gone."""


def standings(system: str, job_ids: Collection[JobId]) -> dict[JobId, Standing]:
    """Return how batch jobs stand, by one question."""
    try:
        backend = backends.find(system)
        seen = backend.jobs().seen(list(job_ids))
    except (BatchError, InputError) as error:
        name = backends.title(system)
        return {each: standing.not_told(name, each, error.what) for each in job_ids}
    return {each: backend.standing(each, seen.get(each)) for each in job_ids}


def standing_of(system: str, job_id: JobId) -> Standing:
    """Return how a batch job stands; asks once."""
    return standings(system, [job_id])[job_id]


class BatchManager:
    """The manager in the script of a batch job, seen from another machine.

    It is there until the batch system has said that it is not: a stopped job goes on, and one of
    which nothing is known may run.

    Parameters
    ----------
    job_id : int or str
    system : str
        Name of its batch system.
    polls : bool
        Whether its script does not pass signals on, or would die of them: then the manager polls.
    directory : pathlib.Path, optional
        The pilot's directory, which shows whether its job waits for its own earlier life.
    """

    def __init__(
        self, job_id: JobId, *, system: str, polls: bool = False, directory: Path | None = None
    ) -> None:
        self._job_id = job_id
        self._directory = directory
        self._system = system
        self._polls = polls
        self._pause_s = ASK_BATCH_S
        self._standing = Standing(Is.RUNS)
        self._asked_s = float("-inf")

    def __str__(self) -> str:
        return f"in job {self._job_id} of {backends.title(self._system)}"

    def alive(self) -> bool:
        """Return whether the job may run; the batch system is not asked at every call."""
        there = self._standing.state.there
        if there and time.monotonic() - self._asked_s >= self._pause_s:
            self._standing = standing_of(self._system, self._job_id)
            # Ask ever less often while there is no answer.
            unknown = self._standing.state is Is.UNKNOWN
            self._pause_s = min(2 * self._pause_s, ASK_MOST_S) if unknown else ASK_BATCH_S
            self._asked_s = time.monotonic()
        return self._standing.state.there

    @property
    def standing(self) -> Standing:
        """The standing of its job when that was asked last."""
        waits = None
        if self._directory is not None and self._standing.state is Is.RUNS:
            waits = first_life.standing(self._directory)
        return waits or self._standing

    def send(self, signum: int) -> bool:
        """Have the batch system signal the script, which passes it on, unless the manager polls."""
        return self._polls or backends.find(self._system).send(self._job_id, signum)


def manager_of(directory: Path) -> Manager | None:
    """Return the manager that runs this pilot, if there is one."""
    try:
        facts = documents.read_json(directory / MANAGER_FILE, MANAGER)
        process = Process(int(facts["pid"]), int(facts["start"]))
        elsewhere = _elsewhere(directory, facts)
    except documents.UNFIT:
        return None
    here = facts.get("boot_id", boot_id()) == boot_id()
    manager: Manager | None = process if here else elsewhere
    return manager if manager is not None and manager.alive() else None


def batch_job_of(directory: Path) -> tuple[str, JobId | None]:
    """Return the batch system and job in which the last manager ran, if not on this machine."""
    try:
        facts = documents.read_json(directory / MANAGER_FILE, MANAGER)
        if facts.get("boot_id", boot_id()) == boot_id():
            return "", None
        return _batch_job(facts)
    except documents.UNFIT:
        return "", None


def _batch_job(facts: dict[str, Any]) -> tuple[str, JobId | None]:
    # Releases before LSF wrote the first one, and no system.
    job_id = as_job(facts.get("slurm_job") or facts.get("batch_job"))
    system = str(facts.get("batch") or "slurm")
    return (system, job_id) if job_id else ("", None)


def _elsewhere(directory: Path, facts: dict[str, Any]) -> Manager | None:
    """Return the manager that ``manager.json`` names, if it is in a batch job."""
    system, job_id = _batch_job(facts)
    if job_id is None:
        return None
    polls = facts.get("deaf") is True
    return BatchManager(job_id, system=system, polls=polls, directory=directory)


def doubt_of(manager: Manager | None) -> Standing:
    """Return the standing of a manager's job: that it runs, unless something else is known."""
    return manager.standing if isinstance(manager, BatchManager) else Standing(Is.RUNS)


def place_of(manager: Manager) -> str:
    """Return where a manager is, for a sentence."""
    return f"with pid {manager.pid}" if isinstance(manager, Process) else str(manager)


def ask(directory: Path, verb: str, *, timeout_s: float = 30.0, **words: Any) -> dict[str, Any]:
    """Send a request to a manager and wait for its answer.

    Parameters
    ----------
    directory : pathlib.Path
        Of the pilot.
    verb : str
        What is asked for, such as ``suspend``.
    timeout_s : float
        Seconds to wait for the answer.
    **words : object
        What the verb needs, in JSON.

    Raises
    ------
    NoManagerError
        No manager runs, or it ended before it answered.
    HpcextError
        The manager refused, or did not answer in time.
    """
    check_private(directory)
    manager = manager_of(directory)
    if manager is None:
        raise NoManagerError("no manager runs this pilot", where=str(directory))
    in_doubt = doubt_of(manager)
    if in_doubt.state is Is.STOPPED:
        what = f"{in_doubt.what}, so its manager cannot answer"
        raise HpcextError(what, where=str(directory), do=in_doubt.do)
    name = put(directory, verb, **words)
    manager.send(protocol.NEWS_SIGNAL)
    deadline = time.monotonic() + timeout_s
    pause_s = 0.005
    while time.monotonic() < deadline:
        if (document := answer(directory, name)) is not None:
            return document
        if not manager.alive():
            raise NoManagerError("the manager ended before it answered", where=str(directory))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)
    in_doubt = doubt_of(manager)
    raise HpcextError(
        f"the manager did not answer within {timeout_s:g} s"
        + (f"; {in_doubt.what}" if in_doubt.what else ""),
        where=str(directory),
        do="the request stays in its spool",
    )


def put(directory: Path, verb: str, *, name: str = "", **words: Any) -> str:
    """Write a request, for the present manager or the next one.

    Parameters
    ----------
    directory : pathlib.Path
    verb : str
    name : str
        The request's name: a request that is made twice under one name is carried out once.
    **words
        The arguments of the verb.

    Returns
    -------
    str
        Its name.

    Raises
    ------
    InputError
        It is too large.
    """
    name = name or f"{time.time_ns():x}-{secrets.token_hex(4)}"
    path = directory / "requests" / f"{name}.json"
    request = {"schema": REQUEST, "verb": verb, **words}
    data = json.dumps(request).encode() + b"\n"
    if len(data) > documents.MAX_FILE_BYTES:
        raise InputError(
            f"the request is larger than {documents.MAX_FILE_BYTES} bytes",
            do="submit the jobs in several files",
        )
    try:
        documents.write_file(path, data, durable=False)
    except FileNotFoundError:
        # Somebody has removed the folder; its manager looks there again once it is back.
        if not directory.is_dir():
            raise
        make(directory)
        documents.write_file(path, data, durable=False)
    return name


def answer(directory: Path, name: str) -> dict[str, Any] | None:
    """Return the answer to a request and remove it; None if there is no answer yet.

    Raises
    ------
    HpcextError
        The manager refused.
    """
    path = directory / "replies" / f"{name}.json"
    try:
        document = documents.read_json(path, REPLY)
    except FileNotFoundError:
        return None
    discard(path)
    if "error" in document:
        raise InputError(**document["error"])
    return document
