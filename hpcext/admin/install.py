"""Put files in place and take them out again, each as a whole, and none that is not ours.

The manifest is written before the first file: whenever an installation is cut short, running it
again, or ``uninstall``, finds all that it left.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcext import __version__, protocol
from hpcext.admin import manifest
from hpcext.admin.manifest import Manifest, checksum, digest
from hpcext.admin.trust import check_trusted
from hpcext.core.errors import InputError
from hpcext.text import clean


@dataclass(frozen=True)
class Piece:
    """A file to be put in place.

    Attributes
    ----------
    path : pathlib.Path
    data : bytes
    mode : int
    """

    path: Path
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Change:
    """What is to be done with one file.

    Attributes
    ----------
    verb : {"write", "replace", "keep", "remove", "changed", "missing"}
        ``keep``: it is as it should be. ``changed``: not what was installed; it stays.
        ``missing``: to be removed, and gone already.
    path : pathlib.Path
    piece : Piece or None
        None where something is taken out.
    """

    verb: str
    path: Path
    piece: Piece | None = None


def plan(home: Path, pieces: Sequence[Piece]) -> list[Change]:
    """What an installation would do, in its order.

    Parameters
    ----------
    home : pathlib.Path
        Where the manifest is.
    pieces : sequence of Piece
        What must be there first comes first.

    Raises
    ------
    InputError
        A place is not root's alone, or holds a file that is not what was installed.
    """
    installed = _installed(home)
    changes = []
    for piece in pieces:
        check_trusted(piece.path)
        changes.append(Change(_verb(piece, installed), piece.path, piece))
    wanted = {str(piece.path) for piece in pieces}
    # From an older version, or from an installation with other directories.
    changes += [change for change in _removals(installed) if str(change.path) not in wanted]
    return changes


def _verb(piece: Piece, installed: Manifest) -> str:
    found = checksum(piece.path)
    if found is None:
        return "write"
    if found == digest(piece.data):
        same_mode = stat.S_IMODE(piece.path.stat().st_mode) == piece.mode
        return "keep" if same_mode else "replace"
    known = installed.files.get(str(piece.path))
    if known and found in known:
        return "replace"
    raise InputError(
        "was changed since it was installed" if known else "is there, and not from hpcext-admin",
        where=clean(str(piece.path)),
        do="move it away and try again",
    )


def apply(home: Path, changes: Sequence[Change]) -> None:
    """Carry out a plan of :func:`plan`.

    Raises
    ------
    OSError
        The disk is full or the like; what was done is in the manifest.
    """
    before = _installed(home)
    pieces = [change.piece for change in changes if change.piece]
    after = {str(piece.path): [digest(piece.data)] for piece in pieces}
    left = {str(each.path): before.files[str(each.path)] for each in changes if not each.piece}
    old = {**before.files, **left}
    # Both checksums, while it is not known which of the two files is there.
    during = {name: [*old.get(name, []), *after.get(name, [])] for name in {**old, **after}}
    made = [*before.directories, *_missing_directories([home, *(p.path.parent for p in pieces)])]
    _make_directories(home)
    # One order whatever was there before, so that nothing to do changes nothing.
    directories = sorted(set(made))
    manifest.save(home, Manifest(hpcext=__version__, files=during, directories=directories))
    for change in changes:
        if change.piece and change.verb != "keep":
            _make_directories(change.path.parent)
            protocol.write_file(change.path, change.piece.data, mode=change.piece.mode)
        elif change.verb == "remove":
            change.path.unlink()
    kept = {str(each.path): left[str(each.path)] for each in changes if each.verb == "changed"}
    final = Manifest(hpcext=__version__, files={**after, **kept}, directories=directories)
    manifest.save(home, final)


def plan_removal(home: Path, flag: str) -> list[Change]:
    """What an uninstallation would do.

    Parameters
    ----------
    home : pathlib.Path
        Where the manifest is.
    flag : str
        The option that says where that is.

    Raises
    ------
    InputError
        Nothing is installed there.
    """
    installed = manifest.load(home)
    if installed is None:
        raise InputError(
            "nothing is installed",
            where=clean(str(home)),
            do=f"say the {flag} that was given to install",
        )
    return _removals(installed)


def remove(home: Path, changes: Sequence[Change]) -> None:
    """Carry out a plan of :func:`plan_removal`; what was changed stays, and in the manifest."""
    installed = _installed(home)
    for change in changes:
        if change.verb == "remove":
            change.path.unlink()
    kept = [str(change.path) for change in changes if change.verb == "changed"]
    if kept:
        files = {name: installed.files[name] for name in kept}
        rest = Manifest(hpcext=installed.hpcext, files=files, directories=installed.directories)
        manifest.save(home, rest)
    else:
        (home / manifest.NAME).unlink()
    for name in sorted(installed.directories, reverse=True):
        with contextlib.suppress(OSError):  # not empty: somebody else uses it
            Path(name).rmdir()


def _removals(installed: Manifest) -> list[Change]:
    """The last installed goes first: what is loaded by others before what it loads."""
    changes = []
    for name, known in reversed(installed.files.items()):
        path = Path(name)
        check_trusted(path.parent)
        try:
            found = checksum(path)
        except InputError:  # a link or a directory is not what was installed
            found = "another"
        verb = "missing" if found is None else "remove" if found in known else "changed"
        changes.append(Change(verb, path))
    return changes


def _installed(home: Path) -> Manifest:
    return manifest.load(home) or Manifest()


def _missing_directories(wanted: Sequence[Path]) -> list[str]:
    return [str(each) for path in wanted for each in (path, *path.parents) if not each.exists()]


def _make_directories(path: Path) -> None:
    """Make a directory and those above it, whatever the umask is."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir()
            each.chmod(0o755)
