"""What the hooks need to be tested without a batch system: programs built from their C."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

HOOKS = Path(__file__).parents[2] / "spank_hooks"
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Make a target with variables of make; the file."""

    def made(target: str, *variables: str) -> Path:
        where = tmp_path_factory.mktemp("hooks")
        subprocess.run(
            ["make", "-C", str(HOOKS), f"BUILD={where}", *variables, f"{where}/{target}"],
            capture_output=True,
            check=True,
        )
        return where / target

    return made


@pytest.fixture(scope="session")
def checked_harness(build: Build) -> Path:
    """The options under ASan and UBSan."""
    return build("harness")
