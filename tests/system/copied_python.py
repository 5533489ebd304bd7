"""A copy of this Python, where any account may run it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def copy(root: Path) -> Path:
    """Put it below a directory: its own may be closed to others, as root's home is."""
    home, version = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = root / "bin" / "python3"
    python.parent.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), python)
    shutil.copytree(
        home / "lib" / version,
        root / "lib" / version,
        ignore=shutil.ignore_patterns("site-packages", "test", "*.a"),
        symlinks=True,
    )
    # If it has a shared library, its copy would find the system's, of a like version.
    for library in (home / "lib").glob(f"lib{version}.so*"):
        shutil.copy2(library, root / "lib")
    python.with_name("python").symlink_to(python)
    return python
