"""Debian and RPM packages: built without network, installed, and used with a real Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcext import __version__
from hpcext.admin import slurm

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WAIT_S = 1800

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="packages are installed, and a Slurm started"),
    pytest.mark.slow,
    pytest.mark.timeout(2 * WAIT_S),
]


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    # Of the distribution, whatever the tests run in.
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environ = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _wheels() -> None:
    """All that is fetched."""
    run("make", "packages-environment", "wheels")


@pytest.fixture(scope="module")
def debs() -> list[Path]:
    # Without network, in a namespace that has none.
    run("unshare", "--net", "make", "deb")
    return made(ROOT / "build" / "packages", f"*_{__version__}_*.deb")


@pytest.fixture(scope="module")
def rpms() -> list[Path]:
    run("unshare", "--net", "make", "rpm")
    return made(ROOT / "build" / "packages" / "rpm" / "RPMS", f"*/*-{__version__}-*.rpm")


def made(where: Path, pattern: str) -> list[Path]:
    """That of hpcext, and that of its plugin."""
    first, second = sorted(where.glob(pattern), key=lambda path: len(path.name))
    assert second.name.startswith("hpcext-slurm")
    return [first, second]


def next_release() -> tuple[str, str]:
    """The Slurm that is here, and the one that the plugin is not for."""
    here = slurm.release(slurm.INCLUDE)
    first, _, last = here.rpartition(".")
    return here, f"{first}.{int(last) + 1}"


def try_out(packages: list[Path], *where: str | Path) -> None:
    program = [*where, HERE / "in-overlay"]
    if where:
        # What the packages take from the distribution; on this machine it was there to build them.
        needed = ":python3-numpy :python3-scipy rpm:rpm patch:patch"
        program += ["sh", "-c", f'{ROOT}/.ci/install-packages {needed} && exec "$@"', "sh"]
    program += ["env", f"PYTHONPATH={ROOT}", sys.executable]
    done = subprocess.run(
        [*program, HERE / "try_packages.py", *packages],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"


def test_debian_packages_work(debs: list[Path]) -> None:
    here, after = next_release()
    needs = run("dpkg-deb", "-f", debs[1], "Depends")
    assert f"slurm-wlm-basic-plugins (>= {here})" in needs
    assert f"slurm-wlm-basic-plugins (<< {after}~)" in needs
    assert re.search(r"python3 \(<< 3\.\d+\)", run("dpkg-deb", "-f", debs[0], "Depends"))
    try_out(debs)
    assert not Path("/usr/lib/hpcext").exists()


def test_rpm_packages_work(rpms: list[Path]) -> None:
    here, after = next_release()
    needs = run("rpm", "-qp", "--requires", rpms[1]).splitlines()
    assert {f"slurm >= {here}", f"slurm < {after}"} <= set(needs)
    needs = run("rpm", "-qp", "--requires", rpms[0])
    assert re.search(r"python3\.\d+dist\(scipy\) >= 1\.10", needs)
    try_out(rpms)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_packages_for_another_release_work(release: str, kind: str) -> None:
    """Built and used where that is; the plugin is for that Slurm, the rest for the Python there."""
    run("make", kind, f"RELEASE={release}")
    where = ROOT / "build" / "packages" / f"slurm-{release}"
    if kind == "deb":
        packages = made(where, f"*_{__version__}_*.deb")
        needs = run("dpkg-deb", "-f", packages[1], "Depends")
        assert re.search(rf"slurm-wlm-basic-plugins \(>= {re.escape(release)}\.\d+\)", needs)
    else:
        packages = made(where / "rpm" / "RPMS", f"*/*-{__version__}-*.rpm")
        needs = run("rpm", "-qp", "--requires", packages[1])
        assert re.search(rf"^slurm >= {re.escape(release)}\.\d+$", needs, re.M)
    try_out(packages, HERE / "in-release", release)


def test_no_file_of_a_package_names_where_it_was_built(debs: list[Path], tmp_path: Path) -> None:
    for package in debs:
        run("dpkg-deb", "-x", package, tmp_path)
    built = str(ROOT / "build").encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 100
    assert [path for path in files if built in path.read_bytes()] == []
