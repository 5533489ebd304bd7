"""Locks that die with their holder: one manager of a pilot, one harvester of a partition."""

from __future__ import annotations

import contextlib
import errno
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import filelock

from hpcext import documents, state
from hpcext.core.errors import NoManagerError
from hpcext.text import shown

HARVESTER = "hpcext.harvester/1"


_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}


class LockedError(Exception):
    """The error that somebody else holds the lock."""


@contextlib.contextmanager
def held(path: Path, *, do: str = "", mode: int = 0o644) -> Iterator[None]:
    """Hold a lock.

    Parameters
    ----------
    path : pathlib.Path
    do : str
        What the user can do if the file system has no locks.
    mode : int
        Permissions of the file: whoever can read it can hold the lock.

    Raises
    ------
    LockedError
        Somebody else does.
    NoManagerError
        The file system has no locks that can be relied on.
    """
    # Without flock, filelock would fall back to a mere marker file, which a killed manager leaves
    # behind, and in which two machines can both believe.
    lock = filelock.UnixFileLock(path, mode=mode, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise LockedError from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        raise NoManagerError(
            "this file system does not support locks", where=str(path.parent), do=do
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def sole_harvester(directory: Path, partition: str, state_dir: Path) -> Iterator[None]:
    """Be the only harvester of this user on some partitions: two would want the same nodes.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    partition : str
        As sbatch takes it: one, or several with commas between.
    state_dir : pathlib.Path

    Raises
    ------
    NoManagerError
        There is another one, which it names.
    """
    register = state.make(state_dir, "harvesters")
    with contextlib.ExitStack() as locks:
        # Sorted, so that one of two harvesters that want the same partitions gets them all.
        for name in sorted(set(partition.split(","))):
            path = register / f"{urllib.parse.quote(name, safe='')}.lock"
            try:
                locks.enter_context(held(path, do="use another state_dir"))
            except LockedError:
                raise NoManagerError(
                    f"{_holder(path)} already harvests partition {shown(name)}",
                    where=str(directory),
                    do="submit the jobs to it with hpcext submit; on another cluster, set another "
                    "HPCEXT_STATE_DIR",
                ) from None
            facts = {"schema": HARVESTER, "directory": str(directory), "pid": os.getpid()}
            documents.write_json(path.with_suffix(".json"), facts, durable=False)
        yield


def _holder(path: Path) -> str:
    try:
        facts = documents.read_json(path.with_suffix(".json"), HARVESTER)
        return f"the harvester in {facts['directory']}"
    except documents.UNFIT:
        return "another harvester"
