"""The wheel and the archive of the sources: built from a copy, installed where nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WAIT_S = 1200

JOBS = """
[[job]]
name = "tiny"
command = "sh -c 'echo on $CUDA_VISIBLE_DEVICES'"
"""


def run(
    *words: str | Path, cwd: Path = ROOT, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that has to end well."""
    done = subprocess.run(
        words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done


def listed() -> list[str]:
    """The files of the repository; new ones, too, unless git ignores them."""
    words = ("git", "-c", "safe.directory=*", "ls-files", "-z")
    said = run(*words, "--cached", "--others", "--exclude-standard").stdout
    return sorted(name for name in said.split("\0") if name and (ROOT / name).exists())


def copy(to: Path) -> Path:
    """Copy the files of the repository, as ``git archive`` does, without .git."""
    for name in listed():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    return to


class Archives(NamedTuple):
    """Both files, as they are published."""

    wheel: Path
    sdist: Path


def build(source: Path, to: Path) -> Archives:
    """Build the archive of the sources, and from that the wheel, as ``python -m build`` does."""
    # What builds it is here already: no network.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", to, source, cwd=to.parent)
    (wheel,), (sdist,) = to.glob("*.whl"), to.glob("*.tar.gz")
    assert len([*to.iterdir()]) == 2
    return Archives(wheel, sdist)


class Environment:
    """A virtual environment, and a home of its own, with nothing of the repository in reach.

    Parameters
    ----------
    path : pathlib.Path
        Where it is made.
    python : str or pathlib.Path
    more : str
        A directory of packages that are not installed into it; none by default.
    """

    def __init__(self, path: Path, python: str | Path, more: str = "") -> None:
        self.path = path
        self.python = path / "env" / "bin" / "python"
        self.home = path / "home"
        self.home.mkdir(parents=True)
        path.chmod(0o755)
        self.environ = {
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
        }
        run(python, "-m", "venv", "--without-pip", path / "env")
        if more:
            # After its own packages; what was installed there to be edited is not found so.
            (packages,) = (path / "env" / "lib").glob("python*/site-packages")
            (packages / "more.pth").write_text(f"{more}\n")

    def install(self, *words: str | Path) -> None:
        """Install by our pip, so that old and new ones of other Pythons do not matter."""
        quiet = ("-q", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", *quiet, "--python", self.python, "install", *words)

    def run(self, *words: str | Path) -> str:
        """Run a command of it at home."""
        return run(*words, cwd=self.home, environ=self.environ).stdout

    def try_out(self, version: str) -> None:
        """Use what is installed as a newcomer and an administrator do first."""
        where = self.run(self.python, "-c", "import hpcext; print(hpcext.__file__)").strip()
        assert where.startswith(str(self.path / "env")), where
        assert self.run("hpcext", "--version") == f"hpcext {version}\n"
        (self.home / "jobs.toml").write_text(JOBS)
        said = json.loads(self.run("hpcext", "run", "jobs.toml", "--gpus", "1", "--json"))
        assert [job["state"] for job in said["jobs"]] == ["completed"], said
        if os.getuid() == 0:
            # It compiles the plugin of what was installed, and puts nothing in place.
            image, command = self.path / "image", self.python.with_name("hpcext")
            words = ("install", "slurm", "--prefix", str(image), "--hpcext", str(command))
            plan = self.run("hpcext-admin", *words, "--dry-run")
            assert "/hpcext.so" in plan
            assert not image.exists()
