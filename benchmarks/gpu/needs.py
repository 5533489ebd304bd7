"""What hpcext needs beside the standard library, on a machine that has no network.

``carry.py`` collects it as wheels; ``run`` installs what that machine lacks.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WHEELS, SITE = ROOT / "build" / "gpu-wheels", ROOT / "build" / "gpu-site"

OF_RICH = ("markdown-it-py", "mdurl", "pygments")
"""What rich needs in turn; no other one needs anything."""

MODULES = {"nvidia-ml-py": "pynvml", "markdown-it-py": "markdown_it"}
"""Package → its module, where that has another name."""


class Need(NamedTuple):
    """A package, from some release on; the newest Python that needs it, as (3, N)."""

    name: str
    least: str
    below: tuple[int, int] | None


def needs() -> list[Need]:
    """Return the packages that ``setup.cfg`` states."""
    stated = (ROOT / "setup.cfg").read_text().partition("install_requires =\n")[2]
    found = []
    for line in stated.partition("\n\n")[0].splitlines():
        form = r'\s+([\w-]+) >= ([\d.]+)(?:; python_version < "3\.(\d+)")?'
        match = re.fullmatch(form, line)
        if match is None:
            raise ValueError(f"setup.cfg: {line.strip()!r} is not of the form NAME >= VERSION")
        below = (3, int(match[3])) if match[3] else None
        found.append(Need(match[1], match[2], below))
    return found


def missing() -> list[str]:
    """Return what this Python lacks, or has in an older release."""
    names = []
    for need in needs():
        if need.below and sys.version_info[:2] >= need.below:
            continue
        try:
            has = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            # What has no metadata may be there all the same.
            if importlib.util.find_spec(MODULES.get(need.name, need.name)) is None:
                names.append(need.name)
            continue
        if _numbers(has) < _numbers(need.least):
            names.append(need.name)
    if "rich" in names:
        names += [
            name for name in OF_RICH if importlib.util.find_spec(MODULES.get(name, name)) is None
        ]
    return names


def _numbers(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]


def install() -> None:
    """Put what is missing where the parts find it, from the wheels that were carried here.

    Raises
    ------
    FileNotFoundError
        There are none that fit.
    """
    shutil.rmtree(SITE, ignore_errors=True)
    names = missing()
    if not names:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--find-links", str(WHEELS), "--target", str(SITE)]
    done = subprocess.run([*command, *names], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise FileNotFoundError(
            f"{sys.executable} lacks {', '.join(names)}, which are not to be had from {WHEELS} "
            f"({last}): make it with benchmarks/gpu/carry.py where there is a network"
        )
