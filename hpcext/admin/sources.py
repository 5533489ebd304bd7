"""Where the sources of the hooks are: beside the package in a checkout, else where pip put them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import hpcext
from hpcext.core.errors import HpcextError

FOLDER = "share/hpcext"
"""Under the prefix of the installation (``[options.data_files]`` of ``setup.cfg``)."""


def find() -> Path:
    """The directory that has ``spank_hooks`` and ``man``.

    Raises
    ------
    HpcextError
        The installation has none.
    """
    checkout = Path(hpcext.__file__).parents[1]
    if (checkout / "spank_hooks" / "Makefile").is_file():
        return checkout
    mark = f"{FOLDER}/spank_hooks/Makefile"
    try:
        files = importlib.metadata.files("hpcext") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    # The list of what was installed is right under every scheme: virtual environments, --user.
    for file in files:
        if file.as_posix().endswith(mark):
            return Path(str(file.locate())).resolve().parents[1]
    # pip install --target moves the files, and the list is wrong.
    if (checkout / mark).is_file():
        return checkout / FOLDER
    raise HpcextError(
        "the sources of the hooks are not there",
        where=str(checkout),
        do="install hpcext again: pip install --force-reinstall hpcext",
    )
