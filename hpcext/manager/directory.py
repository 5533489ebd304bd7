"""The directory of a pilot: what it is (``pilot.json``), how it is made and found.

Every start of a suspendable job waits for these imports, so nothing slow is imported here.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from hpcext import __version__, documents, private, state
from hpcext.config import AUTO, DECISION_TIMEOUT_S, Settings
from hpcext.core.errors import UNREADABLE, InputError, NoManagerError
from hpcext.core.values import Node
from hpcext.executors.seats import Shared, machine_of, memory
from hpcext.harvest.leases import Terms
from hpcext.jobspec import JobSpec
from hpcext.manager import spool
from hpcext.manager.submissions import Submissions, check_fits
from hpcext.text import did_you_mean, shown

SCHEMA: Final = "hpcext.pilot/1"

_DRAFT = ".draft-"
"""The beginning of the name of a pilot's directory until it is complete."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


def host() -> str:
    """Return the short name of this machine."""
    return os.uname().nodename.partition(".")[0] or "localhost"


class NewPilot(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a pilot that its maker states.

    Attributes
    ----------
    name : str
    gpus : sequence of int
        Indices of the GPUs that it may use on each node; with `logical`, slots that stand for GPUs.
    logical : bool
    batch : str
        It is the script of a job of this batch system, if one is named.
    launcher : str
        The program that starts its jobs on the nodes of that job, if there is a choice.
    nodes : int
        The number of nodes of that job.
    lead_s : float
        Seconds before the end of that job at which its own jobs are suspended.
    requeue : bool
        Whether it goes on in the next allocation if it could not end in this one.
    alone : bool
        Whether it has one job, and ends as that does: a batch job of its own.
    harvest : Terms or None
        The terms on which a harvester takes idle nodes as leases.
    stay : bool
        Whether it waits for more jobs when all are done, until it is drained.
    shared : Shared or None
        The one of its GPUs that several jobs share through MPS.
    file : str
        The job file that it was begun with, absolute; empty if there was none.
    notify : str
        Whom to notify of its end and of jobs that fail, see :mod:`hpcext.manager.notifications`.
    """

    name: str
    gpus: Sequence[int]
    logical: bool = False
    batch: str = ""
    launcher: str = ""
    nodes: int = 1
    lead_s: float = 0.0
    requeue: bool = False
    alone: bool = False
    harvest: Terms | None = None
    stay: bool = False
    shared: Shared | None = None
    file: str = ""
    notify: str = ""


class Pilot(NewPilot, frozen=True, kw_only=True):
    """The description of a pilot; ``pilot.json``.

    Attributes
    ----------
    id : str
    policy : str
    node : str
        Name of the machine.
    report_interval_s, suspend_timeout_s, decision_timeout_s : float
        Settings that it was begun with.
    began_at : float
    profiles : str
        Directory of the stored scaling curves that its jobs name and refine.
    container_runtime : str
        A setting that it was begun with.
    """

    schema: Literal["hpcext.pilot/1"] = SCHEMA
    id: str
    policy: str
    node: str
    gpus: tuple[int, ...]
    logical: bool
    report_interval_s: float
    suspend_timeout_s: float
    began_at: float
    decision_timeout_s: float = DECISION_TIMEOUT_S
    profiles: str = ""
    container_runtime: str = AUTO
    version: str = __version__

    @property
    def own_gpus(self) -> tuple[int, ...]:
        """Its GPUs that one job at a time has."""
        return tuple(each for each in self.gpus if self.shared is None or each != self.shared.index)

    def indices(self, node: str) -> tuple[str, ...]:
        """Return the names of its GPUs on a node, or of the seats of its shared one."""
        if self.shared is not None and machine_of(node) != node:
            return tuple(seat.rpartition(":")[2] for seat in self.shared.names(self.node))
        return tuple(map(str, self.own_gpus))

    def offers(self) -> tuple[Node, ...]:
        """Return the node that it has, or one of several alike; its shared GPU is another one."""
        node = Node(self.node, len(self.own_gpus))
        return (node, self.shared.as_node(self.node)) if self.shared else (node,)


def create(
    specs: Sequence[JobSpec],
    new: NewPilot,
    *,
    settings: Settings,
    where: str,
    directory: Path | None = None,
) -> Path:
    """Make the directory of a pilot, with its first jobs in it; start nothing.

    Parameters
    ----------
    specs : sequence of JobSpec
    new : NewPilot
    settings : Settings
    where : str
        Where the jobs are stated, for errors.
    directory : pathlib.Path, optional
        By default one in the user's state directory.

    Raises
    ------
    InputError
        A name, a directory or a job that cannot be; nothing was made.
    """
    pilot = _pilot(new, settings)
    check_fits(specs, pilot.offers(), where, new.nodes, seat_bytes=memory(new.shared))
    path = directory.absolute() if directory else settings.state_dir / "pilots" / pilot.id
    name = pilot.id if directory else ""
    with _made_whole(path, settings.state_dir, name) as draft:
        if specs:
            Submissions(draft / "submissions").add("first", specs)
        documents.write_file(draft / "pilot.json", msgspec.json.encode(pilot))
    return path


def check_new(name: str, directory: Path | None) -> None:
    """Check that a pilot of this name can be made in this directory; leave nothing there.

    Parameters
    ----------
    name : str
    directory : pathlib.Path or None

    Raises
    ------
    InputError
        It cannot.
    """
    _check_name(name)
    if directory is None:
        return
    path = directory.absolute()
    with _about(path):
        if os.path.lexists(path):
            raise FileExistsError
        # Whether a directory can be made there, only an attempt shows.
        place = next(each for each in path.parents if os.path.lexists(each))
        tempfile.TemporaryDirectory(dir=place, prefix=_DRAFT).cleanup()


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        valid = "letters, digits, . _ -; at most 64"
        raise InputError(f"{shown(name)} is not a valid name", where="--name", valid=valid)


def _pilot(new: NewPilot, settings: Settings) -> Pilot:
    _check_name(new.name)
    if not new.alone:
        from hpcext.policies import find_policy  # noqa: PLC0415  (slow; one job needs no policy)

        find_policy(settings.policy, settings.origins.get("policy", "--policy"))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    said = msgspec.structs.asdict(new) | {"gpus": tuple(new.gpus)}
    return Pilot(
        **said,
        id=f"{new.name}-{stamp}-{secrets.token_hex(2)}",
        # One job that has everything: there is nothing to decide.
        policy="marble" if new.alone else settings.policy,
        node="a node of this pilot" if new.batch or new.harvest else host(),
        report_interval_s=settings.report_interval_s,
        suspend_timeout_s=settings.suspend_timeout_s,
        decision_timeout_s=settings.decision_timeout_s,
        began_at=time.time(),
        profiles=str(settings.state_dir.absolute() / "profiles"),
        container_runtime=settings.container_runtime,
    )


@contextlib.contextmanager
def _made_whole(path: Path, state_dir: Path, name: str) -> Iterator[Path]:
    """Make the directory of a pilot under another name, and rename it once it is filled.

    If this process is killed before that, it leaves no half-made pilot at `path`. A pilot outside
    the state directory is registered there by its `name`.
    """
    register = state.make(state_dir, "pilots")
    with contextlib.ExitStack() as stack:
        with _about(path):
            private.make_missing(path.parent)
            if os.path.lexists(path):
                raise FileExistsError
            draft = Path(tempfile.mkdtemp(prefix=f"{_DRAFT}{path.name[:64]}-", dir=path.parent))
            stack.callback(shutil.rmtree, draft, ignore_errors=True)
            for folder in (".", "jobs", "submissions"):
                private.make(draft / folder)
            spool.make(draft)
        yield draft
        with _about(path):
            if name:
                (register / name).symlink_to(path)
            draft.rename(path)
            documents.sync_directory(path.parent)


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Add the name of the directory that exists already, or cannot be made, to the error."""
    try:
        yield
    except FileExistsError:
        resume = f", or hpcext run --resume {path}" if (path / "pilot.json").exists() else ""
        do = f"choose another{resume}"
        raise InputError(f"{path} exists", where="--dir", do=do) from None
    except OSError as error:
        # Nobody has asked for a draft.
        place = path if _DRAFT in str(error.filename) else error.filename or path
        raise InputError(f"{place} cannot be made: {error.strerror}", where="--dir") from None


def load(directory: Path) -> Pilot:
    """Read what a pilot is.

    Raises
    ------
    NoManagerError
        There is no pilot there.
    """
    try:
        data = documents.read_untrusted(directory / "pilot.json")
        document = msgspec.json.decode(data, type=dict[str, Any])
        if documents.is_later(document, SCHEMA):
            what = documents.not_of(document, SCHEMA)
            raise NoManagerError(f"the pilot was {what}", where=str(directory))
        if document.pop("slurm", False):
            # As releases before LSF wrote it.
            document["batch"] = "slurm"
        return msgspec.convert(document, Pilot)
    except (OSError, *UNREADABLE) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise NoManagerError(f"no pilot there ({reason})", where=str(directory)) from None


def find(handle: str, state_dir: Path) -> Path:
    """Return the directory of a pilot, by directory, id or name (the newest of a name).

    Raises
    ------
    NoManagerError
        There is none.
    """
    return find_all(handle, state_dir)[0]


def find_all(handle: str, state_dir: Path) -> list[Path]:
    """Return the directories of the pilots that a directory, an id or a name means, newest first.

    Raises
    ------
    NoManagerError
        There is none.
    """
    # Not Path.exists, which raises for a name that is too long or holds a NUL.
    if os.path.exists(os.path.join(handle, "pilot.json")):
        return [Path(handle).absolute()]
    register = state_dir / "pilots"
    if _NAME.match(handle) and (register / handle / "pilot.json").exists():
        return [(register / handle).resolve()]
    there = known(state_dir)
    named = [path for path, pilot in there if pilot.name == handle]
    if not named:
        how = "hpcext pilot list" if there else "there is none yet; hpcext run JOBS.toml starts one"
        raise NoManagerError(
            f"no pilot {shown(handle)}",
            valid="a directory, an id or a name",
            do=did_you_mean(handle, [pilot.name for _, pilot in there]) or how,
        )
    return named


def find_or_none(handle: str, state_dir: Path) -> Path | None:
    """Return the directory of a pilot as :func:`find` does; None if there is no such pilot."""
    try:
        return find(handle, state_dir)
    except NoManagerError:
        return None


def how_to_go_on(directory: Path) -> str:
    """Return the command that goes on with a pilot whose manager has ended."""
    pilot = load(directory)
    if pilot.batch:
        return f"hpcext pilot resubmit {pilot.id}"
    return f"hpcext run --resume {shlex.quote(str(directory))}"


def known(state_dir: Path) -> list[tuple[Path, Pilot]]:
    """Return all pilots of this user and what they are, newest first."""
    found = []
    for path in (state_dir / "pilots").glob("*/pilot.json"):
        if path.parent.name.startswith(_DRAFT):
            continue
        with contextlib.suppress(NoManagerError):
            found.append((path.parent.resolve(), load(path.parent)))
    return sorted(found, key=lambda each: each[1].began_at, reverse=True)


def remove(directory: Path, state_dir: Path) -> None:
    """Remove a pilot that has never run."""
    name = load(directory).id
    shutil.rmtree(directory)
    (state_dir / "pilots" / name).unlink(missing_ok=True)
