"""The installation and removal of files: each as a whole, and never a file that is not ours.

The manifest is written before the first file. So an interrupted installation can be repeated or
removed: either finds all that it has left, half-written files included.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcext import __version__, documents
from hpcext.admin import manifest
from hpcext.admin.manifest import Manifest, checksum, digest
from hpcext.admin.trust import ROOT, check_trusted
from hpcext.core.errors import InputError
from hpcext.text import clean


@dataclass(frozen=True)
class InstallLocation:
    """The location of an installation, in paths of the machine that will use it.

    Attributes
    ----------
    home : pathlib.Path
        The directory of the manifest.
    root : pathlib.Path
        The directory that stands for ``/`` while a package or the image of a node is built.
    """

    home: Path
    root: Path = ROOT

    def on_disk(self, path: Path) -> Path:
        """Return where a file is on this machine."""
        return self.root / path.relative_to(ROOT)

    def check(self, path: Path) -> None:
        """Refuse a path that others than root could change."""
        check_trusted(self.on_disk(path), below=self.root)

    def installed(self, *, trusted: bool = True) -> Manifest | None:
        """Return the manifest of what is installed here; None if nothing is.

        Parameters
        ----------
        trusted : bool
            As in :func:`hpcext.admin.manifest.load`.
        """
        return manifest.load(self.on_disk(self.home), trusted=trusted, below=self.root)

    def save(self, what: Manifest) -> None:
        """Write the manifest."""
        manifest.save(self.on_disk(self.home), what)

    @property
    def own(self) -> list[Path]:
        """Directories that are ours by their names, innermost first.

        They hold the manifest, which is removed before them, so it cannot name their creator.
        """
        return [self.home, *(each for each in self.home.parents if each.name == "hpcext")]


@dataclass(frozen=True)
class Piece:
    """A file to be installed.

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
class FileChange:
    """The planned change of one file.

    Attributes
    ----------
    verb : {"write", "replace", "keep", "remove", "changed", "missing", "make"}
        ``keep``: the file is as it should be. ``changed``: it is not what was installed, and stays.
        ``missing``: it should be removed, but is gone already. ``make``: it is a directory.
    path : pathlib.Path
    piece : Piece or None
        None for a file that is removed.
    """

    verb: str
    path: Path
    piece: Piece | None = None


def plan(place: InstallLocation, pieces: Sequence[Piece]) -> list[FileChange]:
    """Return the changes of an installation, in order.

    Parameters
    ----------
    place : InstallLocation
    pieces : sequence of Piece
        In the order in which they must be installed.

    Raises
    ------
    InputError
        Others than root can change a path, or there is a file that we have not installed.
    """
    installed = place.installed() or Manifest()
    for piece in pieces:
        place.check(piece.path)
    changes = _drafts(place, [*installed.files, *(str(piece.path) for piece in pieces)])
    for piece in pieces:
        changes.append(FileChange(_verb(place, piece, installed), piece.path, piece))
    wanted = {str(piece.path) for piece in pieces}
    # Files of an older version, or of an installation with other directories.
    changes += [each for each in _removals(place, installed) if str(each.path) not in wanted]
    return changes


def _verb(place: InstallLocation, piece: Piece, installed: Manifest) -> str:
    path = place.on_disk(piece.path)
    found = checksum(path)
    if found is None:
        return "write"
    if found == digest(piece.data):
        same_mode = stat.S_IMODE(path.stat().st_mode) == piece.mode
        return "keep" if same_mode else "replace"
    known = installed.files.get(str(piece.path))
    if known and found in known:
        return "replace"
    raise InputError(
        "has been changed since it was installed"
        if known
        else "is in the way: hpcext-admin did not install it",
        where=clean(str(path)),
        do="move it away and try again",
    )


def apply(place: InstallLocation, changes: Sequence[FileChange], built_for: str = "") -> None:
    """Carry out the changes of :func:`plan`.

    Parameters
    ----------
    place : InstallLocation
    changes : sequence of FileChange
    built_for : str
        As in the manifest.

    Raises
    ------
    OSError
        For example, the disk is full. The manifest lists all that was written until then.
    """
    before = place.installed() or Manifest()
    pieces = [change.piece for change in changes if change.piece]
    after = {str(piece.path): [digest(piece.data)] for piece in pieces}
    out = {str(each.path) for each in changes if not each.piece}
    left = {name: known for name, known in before.files.items() if name in out}
    old = {**before.files, **left}
    # Until all is written, the old file or the new one may be there: both checksums are listed.
    during = {name: [*old.get(name, []), *after.get(name, [])] for name in {**old, **after}}
    wanted = [place.home, *(piece.path.parent for piece in pieces)]
    # Sorted, so that an installation with nothing to do leaves the manifest as it is.
    directories = sorted({*before.directories, *_missing_directories(place, wanted)})
    _make_directories(place.on_disk(place.home))
    now = Manifest(hpcext=__version__, built_for=built_for, files=during, directories=directories)
    place.save(now)
    for change in changes:
        path = place.on_disk(change.path)
        if change.piece and change.verb != "keep":
            _make_directories(path.parent)
            documents.write_file(path, change.piece.data, mode=change.piece.mode)
        elif change.verb == "remove":
            path.unlink()
    kept = {str(each.path): left[str(each.path)] for each in changes if each.verb == "changed"}
    place.save(msgspec.structs.replace(now, files={**after, **kept}))


def plan_removal(place: InstallLocation, flag: str) -> list[FileChange]:
    """Return the changes of an uninstallation, in order.

    Parameters
    ----------
    place : InstallLocation
    flag : str
        The option that names this location, for the error message.

    Raises
    ------
    InputError
        Nothing is installed there.
    """
    installed = place.installed()
    cut_short = any(place.on_disk(each).is_dir() for each in place.own)
    if installed is None and not cut_short:
        raise InputError(
            "nothing is installed",
            where=clean(str(place.on_disk(place.home))),
            do=f"give the {flag} that was given to install",
        )
    installed = installed or Manifest()
    return [*_drafts(place, list(installed.files)), *_removals(place, installed)]


def remove(place: InstallLocation, changes: Sequence[FileChange]) -> None:
    """Carry out the changes of :func:`plan_removal`; changed files stay, and remain listed.

    Parameters
    ----------
    place : InstallLocation
    changes : sequence of FileChange
        Those that :func:`plan_removal` has returned.
    """
    installed = place.installed() or Manifest()
    for change in changes:
        if change.verb == "remove":
            place.on_disk(change.path).unlink()
    kept = [str(change.path) for change in changes if change.verb == "changed"]
    above = {str(each) for each in (place.home, *place.home.parents)}
    # The manifest is removed last: while it exists, whatever it names can be found again.
    _remove_directories(place, set(installed.directories) - above)
    if kept:
        files = {name: installed.files[name] for name in kept}
        place.save(msgspec.structs.replace(installed, files=files))
    else:
        (place.on_disk(place.home) / manifest.NAME).unlink(missing_ok=True)
    _remove_directories(place, {*map(str, place.own), *installed.directories} & above)


def _remove_directories(place: InstallLocation, names: Collection[str]) -> None:
    for name in sorted(names, reverse=True):
        with contextlib.suppress(OSError):  # not empty: somebody else uses it
            place.on_disk(Path(name)).rmdir()


def _drafts(place: InstallLocation, names: Sequence[str]) -> list[FileChange]:
    """Return the removals of half-written files that an interrupted installation has left."""
    changes = []
    for path in (place.home / manifest.NAME, *map(Path, names)):
        place.check(path.parent)
        for draft in documents.drafts(place.on_disk(path)):
            # In a shared directory, such as /tmp, another user may own a file of that name.
            if draft.lstat().st_uid in {0, os.geteuid()}:
                changes.append(FileChange("remove", path.with_name(draft.name)))
    return list(dict.fromkeys(changes))


def _removals(place: InstallLocation, installed: Manifest) -> list[FileChange]:
    """Return the removals of the installed files: each is removed before those that it loads."""
    changes = []
    for name, known in reversed(installed.files.items()):
        path = Path(name)
        place.check(path.parent)
        found = checksum_on_disk(place, path)
        verb = "missing" if found is None else "remove" if found in known else "changed"
        changes.append(FileChange(verb, path))
    return changes


def checksum_on_disk(place: InstallLocation, path: Path) -> str | None:
    """Return the checksum of a file: None if it is missing, ``another`` if it is not regular.

    Parameters
    ----------
    place : InstallLocation
    path : pathlib.Path
        The path on the machine that will use the installation.
    """
    try:
        return checksum(place.on_disk(path))
    except InputError:  # a link or a directory in its place
        return "another"


def _missing_directories(place: InstallLocation, wanted: Sequence[Path]) -> list[str]:
    return [
        str(each)
        for path in wanted
        for each in (path, *path.parents)
        if not place.on_disk(each).exists()
    ]


def _make_directories(path: Path) -> None:
    """Create a directory and those above it, readable by all whatever the umask is."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir()
            each.chmod(0o755)
