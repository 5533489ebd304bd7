"""Install fetched wheels for a Python without pip, and use them: run in ``in-release``.

Usage: try_wheel.py PYTHON DIR VERSION, with the wheels in DIR/wheels.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from archives import Environment


def main(python: str, place: Path, version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="hpcext-installed-") as name:
        here = Environment(Path(name), python)
        here.install("--no-index", "--find-links", place / "wheels", "hpcext[admin]")
        here.try_out(version)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
