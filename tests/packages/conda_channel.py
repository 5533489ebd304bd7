"""A channel of conda on this disk, in the place of conda-forge: Python, and what is on PyPI.

conda-forge cannot be reached here. Its packages have other builds of the same programs, and for a
recipe the same names; that they have the versions that are asked for is not shown by this.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any, NamedTuple

from archives import ROOT, run

sys.path.insert(0, str(ROOT / "tests" / "system"))

import copied_python

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLATFORM = "linux-64"
BUILD = "0"


class Part(NamedTuple):
    """A package of the channel: its facts, and the directory that it installs."""

    name: str
    version: str
    files: Path
    depends: tuple[str, ...] = ()


def python(place: Path) -> Part:
    """This Python, as it was built, without what was installed for it."""
    (place / "lib").mkdir(parents=True)
    copied = copied_python.copy(place)
    # To be moved as a whole.
    copied.with_name("python").unlink()
    for name in ("python", f"python{VERSION}"):
        copied.with_name(name).symlink_to(copied.name)
    # A package must have the directory that others install into.
    packages = place / "lib" / f"python{VERSION}" / "site-packages"
    packages.mkdir()
    (packages / "README").write_text("of the tests\n")
    return Part("python", ".".join(map(str, sys.version_info[:3])), place)


def of_pypi(place: Path, *wanted: str) -> Iterable[Part]:
    """What pip installs for some requirements, each by itself."""
    whole = place / "whole"
    run(sys.executable, "-m", "pip", "-q", "install", "--target", whole, *wanted)
    for found in whole.glob("*.dist-info"):
        one = PathDistribution(found)
        yield Part(one.name.lower(), one.version, _apart(one, whole, place), ("python",))


def _apart(one: Distribution, whole: Path, place: Path) -> Path:
    """Copy the modules of a distribution to a directory of its own."""
    to = place / one.name
    inside = to / "lib" / f"python{VERSION}" / "site-packages"
    for file in one.files or ():
        if file.parts[0] != ".." and (whole / file).is_file():
            (inside / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(whole / file, inside / file)
    return to


def make(place: Path, parts: Iterable[Part]) -> str:
    """Make a channel of packages; return its address."""
    from rattler_build import assemble_package

    rows: dict[str, Mapping[str, Any]] = {}
    for name in (PLATFORM, "noarch"):
        (place / name).mkdir(parents=True)
    for part in parts:
        made = assemble_package(
            name=part.name, version=part.version, target_platform=PLATFORM, build_string=BUILD,
            output_dir=place / PLATFORM, files_dir=part.files, depends=part.depends,
            compression_level=1,
        )  # fmt: skip
        data = Path(made.path).read_bytes()
        rows[Path(made.path).name] = {
            "name": part.name, "version": part.version, "build": BUILD, "build_number": 0,
            "subdir": PLATFORM, "depends": [*part.depends], "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }  # fmt: skip
    for name, packages in {PLATFORM: rows, "noarch": {}}.items():
        index = {"info": {"subdir": name}, "packages": {}, "packages.conda": packages}
        (place / name / "repodata.json").write_text(json.dumps(index))
    return place.as_uri()
