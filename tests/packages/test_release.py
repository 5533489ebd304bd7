"""``make release``: what is published, and the recipes that take it. It needs the network."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import conda_channel
import pytest
from archives import ROOT, WAIT_S, copy, run

from hpcext import __version__

PACKAGING = ROOT / "site_configs" / "packaging"
OF_HERE = ROOT / "tests" / "system"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * WAIT_S)]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which a release was made, with our environment."""
    source = copy(tmp_path_factory.mktemp("release") / "source")
    (source / ".venv").symlink_to(sys.prefix)
    # What the target would do first is done for the tests, and would be done to their environment.
    stays = "#!/bin/sh\ntest $1 = release\n"
    (source / ".ci" / "venv").write_text(stays)
    run("make", "release", cwd=source)
    return source / "build" / "release"


def test_a_release_is_three_files(released: Path) -> None:
    name = f"hpcext-{__version__}"
    assert {path.name for path in released.iterdir()} == {
        f"{name}.tar.gz", f"{name}-py3-none-any.whl", f"{name}.cdx.json",
    }  # fmt: skip


def core() -> set[str]:
    """The packages that setup.cfg requires of this Python."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].strip().split("\n")
    return {line.split()[0] for line in lines if ";" not in line or sys.version_info < (3, 11)}


@pytest.fixture(scope="module")
def bill(released: Path) -> Any:
    return json.loads((released / f"hpcext-{__version__}.cdx.json").read_text())


def test_the_bill_of_materials_has_all_that_is_installed(bill: Any) -> None:
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"]) == ("hpcext", __version__)
    assert root["licenses"][0]["license"]["id"] == "Apache-2.0"
    parts = {part["bom-ref"]: part for part in bill["components"]}
    for part in parts.values():
        assert part["purl"] == f"pkg:pypi/{part['name'].lower()}@{part['version']}"
        assert part["licenses"], part
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    direct = {parts[ref]["name"] for ref in needs[root["bom-ref"]]}
    assert direct == core()
    reached = set(needs[root["bom-ref"]])
    for _ in parts:
        reached |= {each for ref in reached for each in needs[ref]}
    # Nothing stands there by accident, such as pip.
    assert reached == set(parts)


def test_the_bill_of_materials_is_as_the_standard_wants(released: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (released / f"hpcext-{__version__}.cdx.json").read_text()
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"components"', '"component"', 1)) is not None


@pytest.mark.skipif(
    sys.base_prefix == "/usr", reason="the Python of a distribution cannot be a package of conda"
)
def test_the_recipe_of_conda_builds_a_package_that_works(tmp_path: Path) -> None:
    """By rattler-build itself, which then runs the tests of the recipe where it is installed."""
    from rattler_build import Package, Stage0Recipe, ToolConfiguration

    source = copy(tmp_path / "source")
    needs = (*sorted(core()), "tomli", "pip", "setuptools", "wheel")
    parts = [
        conda_channel.python(tmp_path / "python"),
        *conda_channel.of_pypi(tmp_path / "pypi", *needs),
    ]
    channel = conda_channel.make(tmp_path / "channel", parts)
    recipe = Stage0Recipe.from_file(source / PACKAGING.relative_to(ROOT) / "conda/recipe.yaml")
    (one,) = recipe.render()
    one.run_build(
        tool_config=ToolConfiguration(test_strategy="skip"), channels=[channel],
        output_dir=tmp_path / "out",
    )  # fmt: skip
    (path,) = (tmp_path / "out" / "noarch").glob(f"hpcext-{__version__}-*.conda")
    package = Package.from_file(path)
    inside = {str(name) for name in package.files}
    assert {"site-packages/hpcext/py.typed", "share/hpcext/spank_hooks/Makefile"} <= inside
    # Commands are made where it is installed, for the Python there.
    assert not [name for name in inside if name.startswith("bin/")]
    assert len(package.tests) == 2
    results = package.run_tests(channel=[channel])
    assert len(results) == 2
    assert all(result.success for result in results), [result.output for result in results]


def apt_install(*words: str) -> None:
    run(ROOT / ".ci" / "install-packages", *words)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system that stands for the image that recipes begin with: Python 3.13 and pip.

    No registry of images can be reached here. The official image has a pip that installs into its
    Python; Debian's refuses that until its mark is gone.
    """
    if os.getuid() != 0:
        pytest.skip("only root can make a system")
    apt_install("debootstrap:debootstrap")
    root = tmp_path_factory.mktemp("base") / "root"
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
    address = targets.stdout.splitlines()[0]
    words = ("--variant=minbase", "--include=python3,python3-pip,ca-certificates", "trixie")
    run("debootstrap", *words, root, address)
    for mark in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    # As this machine reaches its registries.
    shutil.copy2("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
    shutil.copy2("/etc/resolv.conf", root / "etc/resolv.conf")
    return root


def try_image(program: Path, *words: str | Path) -> None:
    """Build and use an image where what is installed for it is gone afterwards."""
    done = subprocess.run(
        [*words, program], cwd=ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    assert f"hpcext {__version__}\n" in done.stdout
    assert re.search(r"^1 +tiny +completed", done.stdout, re.M), done.stdout


JOBS = """
[[job]]
name = "tiny"
command = "sh -c 'exit 0'"
"""

# The file system of the build may be one that no layers can be on.
DOCKERFILE = """#!/bin/sh
set -eux
{packages} buildah:buildah
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
storage="--root {work}/store --runroot {work}/run"
from=$(buildah $storage from scratch)
buildah $storage add "$from" {base} /
buildah $storage commit --rm "$from" localhost/base:latest
buildah $storage bud --pull-never --build-arg BASE=localhost/base:latest --tag localhost/hpcext \\
    --file {packaging}/containers/Dockerfile {released}
image=$(buildah $storage from --pull-never localhost/hpcext)
buildah $storage inspect --format '{{{{.OCIv1.Config.Entrypoint}}}}' "$image"
use() {{
    # A user whom the image does not know, as by docker run --user "$(id -u):$(id -g)".
    buildah $storage run --user 12345:12345 --volume {work}/jobs:/pilots "$image" -- hpcext "$@"
}}
use --version
use run jobs.toml --gpus 1
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can build an image here")
def test_the_image_of_docker_has_the_pilot(released: Path, base: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "jobs.toml").write_text(JOBS)
    os.chown(jobs, 12345, 12345)
    program = tmp_path / "build"
    program.write_text(
        DOCKERFILE.format(
            packages=ROOT / ".ci" / "install-packages", work=tmp_path, base=base,
            packaging=PACKAGING, released=released,
        )
    )  # fmt: skip
    program.chmod(0o755)
    try_image(program, OF_HERE / "in-overlay")


# As an ordinary user, as on a cluster: root's own build wants every capability, which not all
# machines have. That user has to be one that the system knows, and cannot make devices.
APPTAINER = """#!/bin/sh
set -eux
{packages} apptainer:apptainer
cd {work}
rm -r base/dev
mkdir base/dev made
chown -R daemon: base source made jobs
as_user() {{
    setpriv --reuid daemon --regid daemon --clear-groups \\
        env -i PATH="$PATH" HOME={work}/jobs APPTAINER_TMPDIR={work}/made "$@"
}}
cd source
as_user apptainer build --sandbox ../made/image ../hpcext.def
as_user apptainer test ../made/image
cd ../jobs
as_user apptainer run --home {work}/jobs ../made/image --version
as_user apptainer run --home {work}/jobs ../made/image run jobs.toml --gpus 1
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount another system")
def test_the_image_of_apptainer_has_the_pilot(released: Path, base: Path) -> None:
    """In Debian's sid, which has Apptainer; of this machine it sees the repository alone."""
    work = ROOT / "build" / "tried-image"
    shutil.rmtree(work, ignore_errors=True)
    (work / "jobs").mkdir(parents=True)
    (work / "jobs" / "jobs.toml").write_text(JOBS)
    # The base, and what the definition takes from the repository.
    shutil.move(base, work / "base")
    shutil.copytree(released, work / "source" / "build" / "release")
    definition = (PACKAGING / "containers" / "hpcext.def").read_text()
    wanted = "Bootstrap: docker\nFrom: python:3.13-slim\n"
    assert definition.count(wanted) == 1
    ours = f"Bootstrap: localimage\nFrom: {work}/base\n"
    (work / "hpcext.def").write_text(definition.replace(wanted, ours))
    program = work / "build"
    program.write_text(APPTAINER.format(packages=ROOT / ".ci" / "install-packages", work=work))
    program.chmod(0o755)
    try_image(program, OF_HERE / "in-release", "26.05")
    shutil.rmtree(work)
