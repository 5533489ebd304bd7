"""Tools of others, each in an environment of its own, as their users have them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from site_of_test import Site

ROOT = Path(__file__).parents[2]
Install = Callable[..., Path]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Make an environment with hpcext and more, from folders of the repository or by name."""

    def make(name: str, *packages: str, folders: tuple[Path, ...] = ()) -> Path:
        place = tmp_path_factory.mktemp(name)
        subprocess.run([sys.executable, "-m", "venv", place / "env"], check=True)
        copies = []
        for number, folder in enumerate((ROOT, *folders)):
            # Not in the repository, where setuptools would leave files.
            copy = place / f"source-{number}"
            kept = shutil.ignore_patterns(".*", "build", "*.egg-info", "tests")
            shutil.copytree(folder, copy, ignore=kept, symlinks=True)
            copies.append(str(copy))
        programs = place / "env" / "bin"
        words = ["-m", "pip", "install", "-q", *copies, *packages]
        subprocess.run([programs / "python", *words], check=True)
        return programs

    return make


@pytest.fixture
def pool(site: Site) -> Iterator[Callable[[Path], Site]]:
    """Begin a pilot of two slots, whose jobs find the programs of such an environment."""

    def begin(programs: Path) -> Site:
        site.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        begun = site.run("run", "--stay", "--name", "pool", "--gpus", "2", "--detach")
        assert begun.code == 0, begun
        return site

    yield begin
    for process in psutil.process_iter():
        try:
            if str(site.path).encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                process.kill()
        except (OSError, psutil.NoSuchProcess):
            continue
