"""The execution of plans, such that an interrupted removal can be finished."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.manager.cleaning.emptying import empty
from hpcext.manager.cleaning.in_use import claimed
from hpcext.manager.cleaning.needs import Needs
from hpcext.manager.cleaning.places import (
    DRAFT,
    GOING,
    LOCK,
    PILOT,
    REMOVED,
    entries,
    is_own_directory,
)
from hpcext.manager.cleaning.plans import RemovalPlan
from hpcext.text import counted

DRAFT_S = 86400.0
"""The seconds after which a directory that was to become a pilot is taken for abandoned."""


def remove(plan: RemovalPlan, state_dir: Path) -> int:
    """Carry a plan out.

    Returns
    -------
    int
        Files that stay, since they are somebody else's, or on another file system.

    Raises
    ------
    HpcextError
        Somebody runs it by now, or something cannot be removed: the next removal goes on.
    """
    try:
        with claimed(plan.directory):
            if plan.parts:
                return sum(_remove_part(part) for part in plan.parts)
            os.replace(plan.directory / PILOT, plan.directory / REMOVED)
            return _finish(plan.directory, state_dir / "pilots" / plan.id)
    except OSError as error:
        raise _stuck(error, plan.directory) from None


def finish(state_dir: Path) -> list[str]:
    """Finish removals that were begun and interrupted, and return the names of what is gone.

    A directory that should have become a pilot a day ago, and did not, is removed as well: it never
    had a name.

    Raises
    ------
    HpcextError
        Something cannot be removed.
    """
    gone: list[str] = []
    register = state_dir / "pilots"
    for entry in sorted(entries(register)):
        try:
            if entry.name.startswith(DRAFT):
                _drop_abandoned(entry)
            elif _finished(entry, register):
                gone.append(entry.name.removeprefix(GOING))
        except OSError as error:
            raise _stuck(error, entry) from None
    return gone


def _drop_abandoned(draft: Path) -> None:
    """Remove a directory that was left when the process that made a pilot in it was killed."""
    # That process may still be at work, or have renamed the directory by now.
    with contextlib.suppress(FileNotFoundError):
        old = time.time() - draft.lstat().st_mtime >= DRAFT_S
        if old and is_own_directory(draft) and not empty(draft):
            draft.rmdir()


def _finished(entry: Path, register: Path) -> bool:
    """Finish one, if its removal was begun."""
    directory = Path(os.path.realpath(entry))
    begun = (directory / REMOVED).is_file() and not os.path.lexists(directory / PILOT)
    if begun and is_own_directory(directory):
        try:
            with claimed(directory):
                return _finish(directory, entry) == 0
        except NoManagerError:
            # Another process of ours is at it.
            return False
    if not entry.name.startswith(GOING):
        return False
    if is_own_directory(directory) and not set(os.listdir(directory)) - {LOCK}:
        _close(directory, entry)
    elif os.path.lexists(directory):
        return False
    else:
        entry.unlink(missing_ok=True)
    return True


def _finish(directory: Path, entry: Path) -> int:
    """Empty what is no pilot any more, then remove its entry in the list of pilots."""
    left = empty(directory, keep={REMOVED, LOCK})
    if left:
        return left
    going = entry.with_name(f"{GOING}{entry.name.removeprefix(GOING)}")
    if os.path.lexists(entry) and entry != going:
        os.rename(entry, going)
        if directory == Path(os.path.realpath(entry.parent)) / entry.name:
            directory = Path(os.path.realpath(going))
    (directory / REMOVED).unlink(missing_ok=True)
    _close(directory, going)
    return 0


def _close(directory: Path, entry: Path) -> None:
    """Take away a directory that has nothing but a lock, and what leads to it."""
    (directory / LOCK).unlink(missing_ok=True)
    directory.rmdir()
    if entry.is_symlink():
        entry.unlink()


def _remove_part(path: Path) -> int:
    """Take a directory away; from the beginning on it is not what it was."""
    going = path if path.name.startswith(GOING) else path.with_name(f"{GOING}{path.name}")
    try:
        if path != going:
            os.rename(path, going)
        if not stat.S_ISDIR(going.lstat().st_mode):
            going.unlink()
            return 0
        left = empty(going)
        if not left:
            going.rmdir()
    except FileNotFoundError:
        return 0
    return left


def _stuck(error: OSError, directory: Path) -> HpcextError:
    return HpcextError(
        f"cannot be removed: {error.strerror}",
        where=str(error.filename or directory),
        do="the next hpcext prune or hpcext pilot rm removes the rest",
    )


def doing(
    plans: Sequence[RemovalPlan], state_dir: Path, tell: Callable[[str], None]
) -> list[RemovalPlan]:
    """Carry out plans and return those that succeeded; a failure is reported and stops no other.

    Parameters
    ----------
    plans : sequence of RemovalPlan
    state_dir : pathlib.Path
        The directory of all pilots, profiles and leases.
    tell : callable
        Prints a line that says what could not be removed.
    """
    done: list[RemovalPlan] = []
    needs: Needs | None = None
    for each in plans:
        try:
            if needs is not None and (other := needs.who(each.directory)):
                raise InputError(f"pilot {other} needs its files", where=each.id)
            left = remove(each, state_dir)
        except HpcextError as error:
            tell(str(error))
            # It stays, and so does what it needs.
            needs = Needs(state_dir)
            continue
        if left:
            tell(
                f"{each.id}: {counted(left, 'file')} not removed (of other users, or on other "
                "file systems)"
            )
        done.append(each)
    return done
