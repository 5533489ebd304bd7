"""The registry of backends, which run pilots, tickets and suspendable jobs on a batch system.

Each batch system has a folder, and only this table lists them; installed packages bring more
(:data:`hpcext.seams.BACKENDS`). A backend is imported when it is used.

A backend is a class that ``base.py`` describes, and nothing else branches on the name of a batch
system. Its folder has the class (``backend.py``), attempts on its nodes (``steps.py``), the one
training of a suspendable job (``script.py``), a pilot as a job (``job.py``), ``ticket.py``,
``suspend.py``, and on LSF how each of these goes back into the queue (``requeue.py``). Beside the
folders stands what they share: the script of a job and notes on it (``batch_job.py``), and what is
asked of the job that a ticket or a suspendable script is (``own_job.py``, ``suspendable_job.py``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import shutil
from typing import TYPE_CHECKING, Any

from hpcext import seams
from hpcext.config import AUTO, load_settings
from hpcext.core.errors import InputError
from hpcext.text import did_you_mean, shown

if TYPE_CHECKING:
    from hpcext.backends.base import Backend
    from hpcext.backends.batch_job import SubmittedPilot
    from hpcext.batch.leasing import Leasing

BUILT_IN = {
    "slurm": ("hpcext.backends.slurm.backend", "Slurm"),
    "lsf": ("hpcext.backends.lsf.backend", "Lsf"),
}
"""Name → module and class."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")


def names() -> tuple[str, ...]:
    """Return the names of all backends, ours first, then those that installed packages bring."""
    found = seams.names(seams.BACKENDS)
    return (*BUILT_IN, *(each for each in found if each not in BUILT_IN))


def find(name: str, where: str = "batch") -> Backend:
    """Return a backend by its name.

    Parameters
    ----------
    name : str
    where : str
        Where the name was given, for the error message.

    Raises
    ------
    InputError
        There is no such backend, or what a package brings is none.
    """
    try:
        return _create(name)
    except KeyError:
        raise InputError(
            f"unknown batch system {shown(name)}",
            where=where,
            valid=", ".join(names()),
            do=did_you_mean(name, names()) or "install the package that brings it",
        ) from None
    except seams.SeamError as error:
        raise InputError(str(error), where=where) from None


@functools.cache
def _create(name: str) -> Backend:
    """Create a backend, once.

    Raises
    ------
    KeyError
        There is no backend of that name.
    SeamError
        What a package brings is not a backend.
    """
    if name in BUILT_IN:
        module, kind = BUILT_IN[name]
        ours: Backend = getattr(importlib.import_module(module), kind)()
        return ours
    from hpcext.backends.base import Backend  # noqa: PLC0415  (it imports what is in this folder)

    brought = seams.load(seams.BACKENDS, name)
    lacks = _fault(brought, Backend, name)
    if lacks:
        package = seams.source(seams.BACKENDS, name)
        raise seams.SeamError(f"{name} of {package} is not a backend: {lacks}")
    theirs: Backend = brought()
    return theirs


def _fault(brought: Any, base: type, name: str) -> str:
    """Return what an object of a package lacks to be a backend; empty if nothing."""
    if not (inspect.isclass(brought) and issubclass(brought, base)):
        return "it is not a subclass of hpcext.backends.base.Backend"
    missing = sorted(getattr(brought, "__abstractmethods__", ()))
    missing += [each for each in ("name", "title", "command") if not hasattr(brought, each)]
    if missing:
        return f"it has no {', '.join(missing)}"
    own_name = getattr(brought, "name", None)
    if own_name != name or not _NAME.match(name):
        return f"its name {shown(str(own_name))} is not that of its entry point, in lower case"
    return ""


def choose(said: str) -> Backend:
    """Return the batch system to use.

    Parameters
    ----------
    said : str
        The setting ``batch``: a name, or ``auto``.

    Raises
    ------
    InputError
        It is ``auto``, and there is no batch system here, or several; or the name is unknown.
    """
    if said != AUTO:
        return find(said)
    ours = tuple(map(find, BUILT_IN))
    there = tuple(filter(is_here, ours)) or tuple(
        each for name in names() if name not in BUILT_IN and is_here(each := find(name))
    )
    if len(there) == 1:
        return there[0]
    commands = [each.command for each in there or ours]
    raise InputError(
        f"both {' and '.join(commands)} are here"
        if there
        else f"neither {' nor '.join(commands)} is here",
        where="batch",
        valid=", ".join(names()),
        do="set HPCEXT_BATCH"
        if there
        else "run it on a machine that has the commands of a batch system",
    )


def is_here(backend: Backend) -> bool:
    """Return whether jobs can be submitted to a batch system from this machine."""
    return shutil.which(backend.command) is not None


def here(named: str = "") -> Backend | None:
    """Return the batch system in a job of which this process runs; None if it is in no job.

    Parameters
    ----------
    named : str
        The batch system to ask first: that of the pilot, or of the setting ``batch``. Backends of
        other packages are asked only if they are named here.

    Raises
    ------
    InputError
        There is no backend of that name.
    """
    asked = dict.fromkeys((*([named] if named not in {"", AUTO} else []), *BUILT_IN))
    found = (find(name) for name in asked)
    return next((each for each in found if each.own_job() is not None), None)


def leasing(name: str) -> Leasing:
    """Return what lends idle nodes of a batch system to a harvester, by the name of its backend.

    Raises
    ------
    InputError
        There is no backend of that name, or it lends no nodes.
    """
    return find(name).leasing(load_settings())


def title(name: str) -> str:
    """Return the title of a batch system, for people; its name if its backend is not installed."""
    try:
        return find(name).title
    except InputError:
        return name


def submitted(name: str) -> SubmittedPilot:
    """Return the notes on jobs of pilots, even if the backend is not installed any more."""
    from hpcext.backends.batch_job import SubmittedPilot  # noqa: PLC0415  (it is in this folder)

    try:
        return find(name).submitted
    except InputError:
        return SubmittedPilot(name, "job.json", name, submit="")
