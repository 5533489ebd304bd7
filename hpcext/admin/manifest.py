"""The manifest of an installation: its files with checksums, so that no others are removed."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Literal

import msgspec

from hpcext import __version__, documents
from hpcext.admin.trust import ROOT, check_trusted
from hpcext.core.errors import UNREADABLE, InputError
from hpcext.text import clean
from hpcext.textfiles import read_text

NAME = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``.

    Attributes
    ----------
    hpcext : str
        The version of hpcext that was installed.
    built_for : str
        The release of Slurm whose headers the plugin was compiled with; empty if there is none.
    files : dict of str to list of str
        Path → SHA-256 of what may be there: two while an installation replaces the file.
    directories : list of str
        Directories that were created, outermost first.
    """

    schema: Literal["hpcext.installed/1", "hpcext.installed/2"] = "hpcext.installed/2"
    hpcext: str = ""
    built_for: str = ""
    files: dict[str, list[str]] = {}
    directories: list[str] = []


def load(home: Path, *, trusted: bool = True, below: Path = ROOT) -> Manifest | None:
    """Read the manifest of an installation; return None if there is none.

    Parameters
    ----------
    home : pathlib.Path
    trusted : bool
        Whether files will be changed by it, so that nobody but root may have written it. A manifest
        that is only shown may be anybody's.
    below : pathlib.Path
        As in :func:`hpcext.admin.trust.check_trusted`.

    Raises
    ------
    InputError
        Others than root can change the manifest, or hpcext has not written it.
    """
    path = home / NAME
    if trusted:
        check_trusted(path, below=below)
    if not path.exists():
        return None
    try:
        found = msgspec.json.decode(read_text(path), type=Manifest)
    except UNREADABLE as error:
        raise InputError(
            f"is not a manifest: {clean(str(error))[:200]}",
            where=clean(str(path)),
            do="remove the installed files by hand",
        ) from None
    for name in (*found.files, *found.directories):
        if not Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"is not a manifest: {clean(name)[:200]}", where=clean(str(path)))
    return found


def save(home: Path, manifest: Manifest) -> None:
    """Write the manifest, replacing an earlier one as a whole.

    Parameters
    ----------
    home : pathlib.Path
        The directory of the installation.
    manifest : Manifest
    """
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    documents.write_file(home / NAME, data + b"\n", mode=0o644)


def differs(installed: Manifest) -> str:
    """Return how an installation differs from this release or its manifest, or an empty text."""
    if installed.hpcext != __version__:
        return f"it is of hpcext {installed.hpcext}, this is {__version__}"
    for name, known in installed.files.items():
        try:
            found = checksum(Path(name))
        except PermissionError:
            continue  # only root can check this file
        except (InputError, OSError) as error:
            return f"{name}: {error}"
        if found not in known:
            return f"{name} is not {'there' if found is None else 'what was installed'}"
    return ""


def checksum(path: Path) -> str | None:
    """Return the SHA-256 of a file; None if it does not exist.

    Raises
    ------
    InputError
        The path is something other than a regular file.
    """
    try:
        facts = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(facts.st_mode):
        raise InputError("is not a regular file", where=clean(str(path)), do="move it away")
    return digest(path.read_bytes())


def digest(data: bytes) -> str:
    """Return the SHA-256 of data as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
