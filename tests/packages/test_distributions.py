"""The wheel and the archive of the sources have what they should have, and install anywhere.

They are built from a copy of the repository's files, and used outside of it. The quick part needs
no network; the slow one installs them, with what they need, for each Python that hpcext is for.
"""

from __future__ import annotations

import configparser
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from fnmatch import fnmatch
from pathlib import Path

import pytest
from archives import ROOT, WAIT_S, Archives, Environment, build, copy, listed, run

from hpcext import __version__

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""What hpcext is for; each is tried, or the test says that it cannot be had."""

SHARED = (
    "spank_hooks/", "lsf_scripts/", "man/", "site_configs/slurm/", "site_configs/lsf/",
    "site_configs/grafana/", "site_configs/ondemand/", "site_configs/systemd/system/",
)  # fmt: skip
"""What hpcext-admin puts in place: in the wheel it is beside the package."""

MADE = {"PKG-INFO", "hpcext.egg-info/*"}
"""What building adds to the archive of the sources."""

RECORDS = {
    "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt",
}  # fmt: skip

pytestmark = pytest.mark.timeout(2 * WAIT_S)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    where = tmp_path_factory.mktemp("built")
    return build(copy(where / "source"), where / "dist")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach, as hpcext-admin wants of a command."""
    with tempfile.TemporaryDirectory(prefix="hpcext-installed-") as name:
        yield Path(name)


def in_sdist(sdist: Path) -> dict[str, int]:
    """The files of an archive, without the directory that all of them are in, and their modes."""
    with tarfile.open(sdist) as archive:
        files = [member for member in archive.getmembers() if not member.isdir()]
    top = f"hpcext-{__version__}/"
    assert all(file.isreg() and file.name.startswith(top) for file in files)
    return {file.name.removeprefix(top): file.mode for file in files}


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_the_archive_of_the_sources_has_every_file_and_no_other(archives: Archives) -> None:
    inside = in_sdist(archives.sdist)
    made = {name for name in inside if any(fnmatch(name, each) for each in MADE)}
    assert sorted(inside.keys() - made) == listed()
    # Scripts can still be run.
    wrong = [
        name for name in listed() if bool(inside[name] & 0o100) != os.access(ROOT / name, os.X_OK)
    ]
    assert not wrong


def test_the_wheel_has_the_package_and_what_is_installed_with_it(archives: Archives) -> None:
    top = f"hpcext-{__version__}"
    shared = f"{top}.data/data/share/hpcext/"
    wanted = {name for name in listed() if name.startswith("hpcext/")}
    wanted |= {shared + name for name in listed() if name.startswith(SHARED)}
    inside = in_wheel(archives.wheel)
    assert inside - wanted == {f"{top}.dist-info/{name}" for name in RECORDS}
    assert wanted <= inside, sorted(wanted - inside)
    assert {"hpcext/py.typed", "hpcext/dashboard/static/live.js"} <= inside
    # Nothing in it was compiled for one machine.
    assert archives.wheel.name == f"{top}-py3-none-any.whl"


def test_the_metadata_are_those_of_setup_cfg(archives: Archives) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    with zipfile.ZipFile(archives.wheel) as archive:
        said = message_from_string(
            archive.read(f"hpcext-{__version__}.dist-info/METADATA").decode()
        )
        points = archive.read(f"hpcext-{__version__}.dist-info/entry_points.txt").decode()
    assert (said["Name"], said["Version"]) == ("hpcext", __version__)
    assert said["Requires-Python"] == f">={PYTHONS[0]}"
    # One of them, as old and new setuptools say it.
    assert "Apache-2.0" in {said["License"], said["License-Expression"]}
    classified = {
        line.rpartition(" :: ")[2]
        for line in said.get_all("Classifier", [])
        if line.startswith("Programming Language :: Python :: 3.")
    }
    assert classified == set(PYTHONS)
    assert set(said.get_all("Provides-Extra", [])) == set(setup["options.extras_require"])
    for name in ("hpcext", "hpcext-admin", "hpcext-broker"):
        assert f"{name} = hpcext.__main__:" in points


@pytest.mark.slow
def test_a_used_working_directory_builds_the_same(tmp_path: Path, archives: Archives) -> None:
    """What is compiled, ignored or left of an older build stays out."""
    source = copy(tmp_path / "source")
    for name in (
        "hpcext/__pycache__/a.cpython-311.pyc", "spank_hooks/hpcext.so", "build/lib/hpcext/old.py",
        ".venv/lib/x.py", "tests/__pycache__/b.pyc", ".mypy_cache/3.11/c.json", "dist/old.whl",
    ):  # fmt: skip
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    built = build(source, tmp_path / "dist")
    assert in_sdist(built.sdist).keys() == in_sdist(archives.sdist).keys()
    assert in_wheel(built.wheel) == in_wheel(archives.wheel)


def test_the_wheel_works_outside_of_the_repository(archives: Archives, place: Path) -> None:
    """With what it needs borrowed from the tests' environment, so without network."""
    here = Environment(place, sys.executable, more=sysconfig.get_path("purelib"))
    here.install("--no-deps", archives.wheel)
    here.try_out(__version__)


@functools.cache
def find_python(version: str) -> str | None:
    """Return a Python of this machine: in PATH, or where pyenv and uv keep theirs."""
    home = Path.home()
    kept = [
        *home.glob(f".pyenv/versions/{version}.*/bin/python3"),
        *home.glob(f".local/share/uv/python/cpython-{version}.*/bin/python3"),
    ]
    # A shim in PATH may have nothing behind it.
    for path in (shutil.which(f"python{version}"), *map(str, sorted(kept))):
        if path is None:
            continue
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return path
    return None


@functools.cache
def fetch_python(version: str) -> str:
    """Return one that uv has fetched; where it cannot, the test says so."""
    where = ROOT / "build" / "pythons"
    uv = where / "uv"
    run(sys.executable, "-m", "pip", "-q", "install", "--upgrade", "--target", uv, "uv")
    environ = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(where), "UV_HTTP_TIMEOUT": "30"}
    done = subprocess.run(
        [uv / "bin" / "uv", "python", "install", version],
        env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    found = sorted(where.glob(f"cpython-{version}.*/bin/python3"))
    if done.returncode or not found:
        why = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"no Python {version} is here, and none can be fetched: {why}")
    return str(found[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_with_what_it_needs(
    version: str, kind: str, archives: Archives, place: Path
) -> None:
    here = Environment(place, find_python(version) or fetch_python(version))
    here.install(f"{getattr(archives, kind)}[admin]")
    here.try_out(__version__)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount another system")
def test_it_installs_for_the_newest_python_of_debian(archives: Archives) -> None:
    """Debian's sid, where the tests have Slurm 26.05; wheels are fetched here, as it has no pip."""
    place = ROOT / "build" / "tried"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    version = PYTHONS[-1]
    words = ("--only-binary", ":all:", "--python-version", version, "--dest", place / "wheels")
    run(sys.executable, "-m", "pip", "-q", "download", *words, f"{archives.wheel}[admin]")
    release = (ROOT / "tests" / "system" / "in-release", "26.05")
    program = (sys.executable, Path(__file__).with_name("try_wheel.py"))
    run(*release, *program, f"/usr/bin/python{version}", place, __version__)
    shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_it_installs_as_a_tool(tool: str, archives: Archives, place: Path) -> None:
    """By `uv tool install` and `pipx install`, which keep an environment for each program."""
    tools = Environment(place, sys.executable)
    tools.install(tool)
    commands = place / "commands"
    tools.environ |= {
        "UV_TOOL_DIR": str(place / "env" / "tools"), "UV_TOOL_BIN_DIR": str(commands),
        "UV_PYTHON_DOWNLOADS": "never", "UV_CACHE_DIR": str(place / "cache"),
        "PIPX_HOME": str(place / "env" / "tools"), "PIPX_BIN_DIR": str(commands),
        **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))},
    }  # fmt: skip
    python = ("--python", sys.executable)
    words = ("tool", "install") if tool == "uv" else ("install",)
    tools.run(tool, *words, *python, f"{archives.wheel}[admin]")
    assert {path.name for path in commands.iterdir()} == {
        "hpcext", "hpcext-admin", "hpcext-broker",
    }  # fmt: skip
    (tools.python,) = (place / "env" / "tools").glob("**/hpcext/bin/python")
    tools.environ["PATH"] = f"{commands}:/usr/bin:/bin"
    tools.try_out(__version__)
