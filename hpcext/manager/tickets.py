"""Tickets: batch jobs that stand for a trainer of their user's own harvester.

All tickets of a user share one harvester, in a directory of a fixed name. Its ``tickets/`` has, by
the key of each ticket::

    KEY.lock    held as long as the ticket's process is alive
    KEY.sh      the copy of the script that the trainer runs
    KEY.shown   how much of the trainer's log the ticket has shown
    KEY.held    its trainer was suspended when its job was told to end
    KEY.ended   its trainer was cancelled then, as it could not be suspended

The key is also the name of the request that submits the trainer, so the trainer is submitted only
once, however often the ticket is interrupted or requeued. Below, `directory` is the harvester's,
`key` is the ticket's, and `what` is ``held`` or ``ended``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcext import backends, checkpointers, documents, private, state
from hpcext.allocation import JobId
from hpcext.batch.jobs import as_job
from hpcext.config import Settings
from hpcext.containers import Container
from hpcext.core.errors import UNREADABLE, InputError, NoManagerError
from hpcext.harvest.leases import Terms
from hpcext.jobtext import job_text
from hpcext.launch import trackers
from hpcext.manager import directory as pilots
from hpcext.manager import locks, spool
from hpcext.manager.submissions import Submission

NAME = "trainers"

FOLDER = "tickets"

TRIES, PAUSE_S = 20, 0.2
"""How often, and with what pause in seconds, a lock is tried that may be held for a moment."""

_KEY = re.compile(r"ticket-([0-9_]{1,30})-[0-9a-f]{12}\Z")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST = 64

_OF_THE_NODE = ("CUDA_", "GPU_DEVICE_", "HIP_", "HPCEXT_", "ROCR_", "ZE_AFFINITY_")
"""Prefixes of variables that apply to the ticket and its node, and not to its trainer."""


class Range(NamedTuple):
    """A smallest and a largest number."""

    min: int
    max: int


class Ticket(NamedTuple):
    """The training for which a ticket stands.

    Attributes
    ----------
    job_id : int or str
        The ticket's, in its batch system.
    name : str
        Of that job.
    command : tuple of str
    workdir : str
    nodes, gpus : Range
        GPUs of each node.
    scaling : str
        Name of a stored curve; may be empty.
    environ : Mapping[str, str]
    checkpoint : str
        How its command saves by its own means, as a flag says it; may be empty.
    trackers : bool
        Whether its attempts continue one run of an experiment tracker.
    container : Container or None
        In which its command runs.
    """

    job_id: JobId
    name: str
    command: tuple[str, ...]
    workdir: str
    nodes: Range
    gpus: Range
    scaling: str
    environ: Mapping[str, str]
    checkpoint: str = ""
    trackers: bool = True
    container: Container | None = None

    @property
    def trainer(self) -> str:
        """The name of the trainer: ``train-4711``, or ``train-4711_2`` for a part of an array."""
        ending = f"-{_plain(self.job_id)}"
        kept = _NOT_ALLOWED.sub("_", self.name).lstrip("._-")[: _LONGEST - len(ending)]
        return f"{kept or 'job'}{ending}"

    def job_file(self) -> str:
        """Return a job file of the trainer."""
        job: dict[str, Any] = {
            "name": self.trainer,
            "command": self.command,
            "workdir": self.workdir,
            "nodes": self.nodes._asdict(),
            "gpus": self.gpus._asdict(),
            # Its exit code is what the user of the ticket is to see, at once.
            "retries": 0,
            "env": self.environ,
        }
        if self.scaling:
            job["scaling"] = self.scaling
        if self.checkpoint:
            job["checkpoint"] = checkpointers.stated(self.checkpoint)
        if not self.trackers:
            job["trackers"] = False
        if self.container is not None:
            job["container"] = msgspec.structs.asdict(self.container)
        return job_text(job)


def key_of(job_id: JobId, words: Sequence[str]) -> str:
    """Return the key of a ticket: a script may have several trainers, one after the other.

    Parameters
    ----------
    job_id : int or str
        The id in its batch system.
    words : sequence of str
        The command that it trains, the same in all of its runs.
    """
    digest = hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()[:12]
    return f"ticket-{_plain(job_id)}-{digest}"


def _plain(job_id: JobId) -> str:
    """Return an id for a name of a file or job: an element of LSF, ``4711[2]``, is ``4711_2``."""
    return str(job_id).replace("[", "_").rstrip("]")


def key_now(directory: Path, job_id: JobId, words: Sequence[str]) -> str:
    """Return the key of a ticket's present trainer; a trainer that ended with it gets a new one."""
    key, times = key_of(job_id, words), 0
    while was(directory, key, "ended"):
        times += 1
        key = key_of(job_id, [*words, str(times)])
    return key


def environment(environ: Mapping[str, str], *numbers: JobId) -> dict[str, str]:
    """Return the part of a ticket's environment that its trainer gets.

    Parameters
    ----------
    environ : Mapping[str, str]
        The environment without the batch system's variables for the ticket.
    *numbers : int or str
        The ticket's numbers, after which a directory for it may be named.
    """
    kept = {}
    for name, value in trackers.without_inherited(environ).items():
        # A directory for this job on this node, as some sites make one.
        local = name == "TMPDIR" and any(str(each) in value for each in numbers)
        if local or name.startswith(_OF_THE_NODE):
            continue
        with contextlib.suppress(UnicodeEncodeError):
            # Values other than UTF-8 cannot be written down, and are settings of nothing.
            f"{name}{value}".encode()
            kept[name] = value
    return kept


def open_harvester(settings: Settings, system: str, terms: Callable[[], Terms]) -> Path:
    """Return the directory of this user's harvester of tickets; make it if it does not exist.

    Parameters
    ----------
    settings : Settings
    system : str
        Name of the backend that the ticket is a job of.
    terms : callable
        Returns the terms on which it takes nodes.

    Raises
    ------
    InputError
        It cannot be made.
    BlockingIOError
        Somebody else makes it.
    """
    directory = settings.state_dir / NAME
    state.check_safe(state.make(settings.state_dir))
    try:
        with locks.held(directory.with_suffix(".lock")):
            if not (directory / "pilot.json").exists():
                # Begun, and not ended: nothing is in it.
                shutil.rmtree(directory, ignore_errors=True)
                asked = terms()
                pilots.create(
                    [],
                    pilots.NewPilot(
                        name=NAME,
                        gpus=range(asked.gpus),
                        logical=asked.logical,
                        nodes=asked.max_nodes,
                        harvest=asked,
                    ),
                    settings=settings,
                    where="",
                    directory=directory,
                )
    except locks.LockedError:
        raise BlockingIOError from None
    harvest = pilots.load(directory).harvest
    if harvest is None:
        raise InputError("is a pilot, not a harvester", where=str(directory))
    if harvest.system != system:
        raise InputError(
            f"is a harvester of {backends.title(harvest.system)}, but this is a job of "
            f"{backends.title(system)}",
            where=str(directory),
            do="set another HPCEXT_STATE_DIR for one of them",
        )
    private.make(directory / FOLDER)
    return directory


@contextlib.contextmanager
def alive(directory: Path, key: str) -> Iterator[None]:
    """Be a ticket, for others to see.

    Raises
    ------
    NoManagerError
        Another process is this ticket.
    """
    with contextlib.ExitStack() as lock:
        for left in range(TRIES, 0, -1):
            try:
                lock.enter_context(locks.held(_lock(directory, key)))
                break
            except locks.LockedError:
                # A command that checks whether we are alive may hold the lock for a moment.
                if left == 1:
                    raise NoManagerError("this ticket is already waiting", where=key) from None
                time.sleep(PAUSE_S)
        yield


def others(directory: Path, key: str) -> bool:
    """Return whether any other ticket is alive."""
    found = (path.stem for path in (directory / FOLDER).glob("ticket-*.lock"))
    return any(other != key and is_alive(directory, other) for other in found)


def is_alive(directory: Path, key: str) -> bool:
    """Return whether the process of a ticket is alive."""
    path = _lock(directory, key)
    if not path.exists():
        return False
    try:
        with locks.held(path):
            return False
    except locks.LockedError:
        return True


def submit(directory: Path, key: str, ticket: Ticket) -> None:
    """Ask the present manager, or the next one, for the trainer of a ticket."""
    text, where = ticket.job_file(), f"job {ticket.job_id}"
    # An answer to an earlier process of this ticket.
    spool.discard(directory / "replies" / f"{key}.json")
    # A script may have several at once: all are called after its job.
    words = {"text": text, "where": where, "base": ticket.workdir, "number": True}
    spool.put(directory, "submit", name=key, **words)


def waits(directory: Path, key: str) -> bool:
    """Return whether the manager has not taken the request yet."""
    return (directory / "requests" / f"{key}.json").exists()


def trainer_of(directory: Path, key: str) -> str | None:
    """Return the id of a ticket's trainer; None if it was not taken yet."""
    try:
        data = documents.read_own(directory / "submissions" / f"{key}.json")
        return str(msgspec.json.decode(data, type=Submission).first_id)
    except (OSError, *UNREADABLE):
        return None


def left_alone(directory: Path, unfinished: Callable[[str], bool]) -> dict[JobId, str]:
    """Return trainers whose tickets are not alive.

    Parameters
    ----------
    directory : pathlib.Path
    unfinished : callable
        Whether a trainer, by its id, has not ended.

    Returns
    -------
    dict of (int or str) to str
        The ticket's job, as in its key → the id of the trainer.
    """
    found: dict[JobId, str] = {}
    for path in (directory / "submissions").glob("ticket-*.json"):
        said = _KEY.match(path.stem)
        job_id = as_job(said[1]) if said else None
        trainer = trainer_of(directory, path.stem) if job_id is not None else None
        if job_id is None or trainer is None:
            continue
        if unfinished(trainer) and not is_alive(directory, path.stem):
            found[job_id] = trainer
    return found


def keep_script(directory: Path, key: str, script: Path) -> str:
    """Keep a copy of a script, as sbatch and bsub do; return its path."""
    copy = directory / FOLDER / f"{key}.sh"
    if not copy.exists():
        documents.write_file(copy, script.read_bytes(), mode=0o700)
    return str(copy)


def shown(directory: Path, key: str) -> int:
    """Return how much of the trainer's log was shown, in bytes."""
    try:
        return int((directory / FOLDER / f"{key}.shown").read_text())
    except (OSError, ValueError):
        return 0


def has_shown(directory: Path, key: str, position: int) -> None:
    """Record how much of the trainer's log was shown."""
    with contextlib.suppress(OSError):
        path = directory / FOLDER / f"{key}.shown"
        documents.write_file(path, str(position).encode(), durable=False)


def mark(directory: Path, key: str, what: str) -> None:
    """Note that the trainer was ``held`` or ``ended`` when its ticket was told to end."""
    (directory / FOLDER / f"{key}.{what}").touch(mode=0o600)


def was(directory: Path, key: str, what: str) -> bool:
    """Return whether that was noted."""
    return (directory / FOLDER / f"{key}.{what}").exists()


def release(directory: Path, key: str, trainer: str) -> None:
    """Resume a trainer that was suspended because its ticket was told to end."""
    if was(directory, key, "held"):
        spool.put(directory, "resume", job=trainer)
        (directory / FOLDER / f"{key}.held").unlink(missing_ok=True)


def forget(directory: Path, key: str) -> None:
    """Remove what was kept for a ticket that is done."""
    spool.discard(directory / "replies" / f"{key}.json")
    for ending in ("lock", "sh", "shown", "held"):
        (directory / FOLDER / f"{key}.{ending}").unlink(missing_ok=True)


def _lock(directory: Path, key: str) -> Path:
    return directory / FOLDER / f"{key}.lock"
