"""Tests have a place of their own for the state and the settings of hpcext, and leave none in
the user's.

It is in the environment, so that all processes that tests start have it too. The user's other
settings (of pip, say) stay as they are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MADE = "HPCEXT_TESTS_HOME"
"""Names the place, for workers and for tests that start tests."""

_LARGEST = 1 << 20


def user_state() -> Path:
    """Where the user's own pilots are listed, whatever tests are told."""
    return Path.home() / ".local" / "state" / "hpcext"


def begin() -> Path | None:
    """Make the place and name it in the environment; None where a test session above has."""
    if MADE in os.environ:
        return None
    made = Path(tempfile.mkdtemp(prefix="hpcext-tests-"))
    os.environ[MADE] = str(made)
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for kind in ("state", "config"):
        (made / kind).mkdir(0o700)
        os.environ[f"XDG_{kind.upper()}_HOME"] = str(made / kind)
    for other in settings.iterdir() if settings.is_dir() else ():
        if other.name != "hpcext":
            (made / "config" / other.name).symlink_to(other)
    # It would go before the place.
    os.environ.pop("HPCEXT_STATE_DIR", None)
    return made


def end(made: Path) -> None:
    """Remove the place."""
    shutil.rmtree(made, ignore_errors=True)


def entries(state: Path) -> set[Path]:
    """What a user's state directory holds, down to its pilots and profiles."""
    return {*state.glob("*"), *state.glob("*/*")}


def left_by(tests: Path, state: Path, before: set[Path]) -> Iterator[Path]:
    """What came into the user's state directory while tests ran, and is theirs.

    The user's own pilots may begin meanwhile, and other tests: what leads to files of these tests,
    or names one, is of these tests.

    Parameters
    ----------
    tests : pathlib.Path
        Above all files of the tests.
    state : pathlib.Path
    before : set of pathlib.Path
        What was there.
    """
    for path in sorted(entries(state) - before):
        if path.is_symlink():
            if os.readlink(path).startswith(f"{tests}/"):
                yield path
        elif any(_names(each, str(tests)) for each in (path, *path.glob("*"))):
            yield path


def _names(path: Path, text: str) -> bool:
    try:
        return path.is_file() and text.encode() in path.read_bytes()[:_LARGEST]
    except OSError:
        return False
