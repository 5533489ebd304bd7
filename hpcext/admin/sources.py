"""The sources of the hooks: beside the package in a checkout, or where pip installed them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import hpcext
from hpcext.admin.trust import check_trusted
from hpcext.core.errors import HpcextError

FOLDER = "share/hpcext"
"""Their directory below the prefix (``[options.data_files]`` of ``setup.cfg``)."""


def find() -> Path:
    """Return the directory that has ``spank_hooks``, ``lsf_scripts`` and ``man``.

    Raises
    ------
    HpcextError
        The installation has none.
    InputError
        Others than root can write to it.
    """
    checkout = Path(hpcext.__file__).parents[1]
    if (checkout / "spank_hooks" / "Makefile").is_file():
        return checkout
    mark = f"{FOLDER}/spank_hooks/Makefile"
    # pip install --target moves the files, and its list of them is wrong.
    if (checkout / mark).is_file():
        return checkout / FOLDER
    try:
        files = importlib.metadata.files("hpcext") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    # For a virtual environment, --user and --prefix, that list is right.
    for file in files:
        path = Path(str(file.locate())).resolve()
        if file.as_posix().endswith(mark) and path.is_file():
            # If it is wrong all the same, anybody may have put a file there.
            check_trusted(path)
            return path.parents[1]
    raise HpcextError(
        "the sources of the hooks are missing",
        where=str(checkout),
        do="install hpcext again: pip install --force-reinstall hpcext",
    )
