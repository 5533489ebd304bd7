"""Lmod's module, systemd's units, tmpfiles, logrotate, recipes of Spack and conda: all is so."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import hpcext
from hpcext.cli import main as cli

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site_configs"
UNITS = [
    SITE / "systemd" / "hpcext-pilot@.service",
    ROOT / "examples" / "harvest" / "hpcext-harvest@.service",
]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_hardened_and_leave_the_gpus(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(unit)
    service = parsed["Service"]
    assert service["NoNewPrivileges"] == service["RestrictSUIDSGID"] == "yes"
    assert not {"PrivateDevices", "DevicePolicy", "MemoryDenyWriteExecute", "User"} & set(service)
    words = service["ExecStart"].split()
    assert words[:2] == ["/usr/bin/env", "hpcext"]
    cli.parse(words[2:])
    copy = tmp_path / unit.name.replace("@", "@jobs")
    copy.write_text(unit.read_text())
    if shutil.which("systemd-analyze"):
        said = run("systemd-analyze", "verify", copy)
        assert (said.returncode, said.stderr) == (0, ""), said


def test_a_pilot_has_time_to_suspend() -> None:
    unit = UNITS[0].read_text()
    longest = max(
        int(found[1])
        for path in SITE.glob("*.toml")
        if (found := re.search(r"^suspend_timeout_s = (\d+)", path.read_text(), re.M))
    )
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert found
    assert int(found[1]) > longest


def test_tmpfiles_make_the_directory_of_the_prolog() -> None:
    text = (SITE / "systemd" / "hpcext.tmpfiles").read_text()
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    kind, path, mode, user, group, _ = line.split()
    assert (kind, mode, user, group) == ("d", "0755", "root", "root")
    prolog = (ROOT / "spank_hooks" / "prolog" / "hpcext-prolog").read_text()
    assert f'BASE = "{path}"' in prolog


def test_logs_are_rotated(tmp_path: Path) -> None:
    text = (SITE / "systemd" / "hpcext.logrotate").read_text()
    (log,) = re.findall(r"^(/\S+) \{$", text, re.M)
    assert log in (SITE / "systemd" / "hpcext.rsyslog").read_text()
    tags = {
        match
        for kind in ("prolog", "epilog")
        for match in re.findall(
            r"<\{DAEMON_ERR\}>([\w-]+)\[", (ROOT / f"spank_hooks/{kind}/hpcext-{kind}").read_text()
        )
    }
    assert tags == {"hpcext-prolog", "hpcext-epilog"}
    here = tmp_path / "hpcext.log"
    here.write_text("a line\n")
    conf = tmp_path / "logrotate.conf"
    own = text.replace(log, str(here)).replace("create 0640 root adm", "create 0640")
    conf.write_text(own)
    conf.chmod(0o644)
    said = run("logrotate", "--force", "--state", tmp_path / "state", conf)
    assert said.returncode == 0, said
    assert (tmp_path / "hpcext.log.1").read_text() == "a line\n"
    assert here.read_text() == ""


def test_the_module_of_lmod(tmp_path: Path) -> None:
    """In Lmod itself, at another place than /opt."""
    base = tmp_path / "opt" / "1.2"
    (base / "command").mkdir(parents=True)
    command = base / "command" / "hpcext"
    command.write_text("#!/bin/sh\necho of the module\n")
    command.chmod(0o755)
    modules = tmp_path / "modules" / "hpcext"
    modules.mkdir(parents=True)
    text = (SITE / "lmod" / "hpcext.lua").read_text()
    assert '"/opt/hpcext"' in text
    (modules / "1.2.lua").write_text(text.replace("/opt/hpcext", str(tmp_path / "opt")))
    script = (
        f". /usr/share/lmod/lmod/init/bash; module use {modules.parent}; module load hpcext/1.2;"
        "hpcext; echo $MANPATH; module unload hpcext; command -v hpcext"
    )
    said = run("env", "-i", "PATH=/usr/bin:/bin", f"HOME={tmp_path}", "bash", "-c", script)
    first, manpath = said.stdout.splitlines()
    assert first == "of the module", said
    assert str(base / "share/man") in manpath.split(":")


class Recipe:
    """In the place of Spack's PythonPackage."""


TYPES = {"build", "link", "run", "test"}


class Directives:
    """In the place of Spack's package API, version 2: what a recipe says, and whether it may.

    Spack itself cannot be had here. The parameters are those of its directives ``version``,
    ``depends_on``, ``variant`` and ``license``; specs are read as far as recipes here use them.
    """

    def __init__(self) -> None:
        self.needed: dict[str, str] = {}
        self.versions: list[str] = []
        self.variants: set[str] = set()

    def depends_on(self, spec: str, when: str = "", type: Any = ("build", "link")) -> None:
        match = re.fullmatch(r"([a-z][a-z0-9-]*)(?:@([\d.]+):)?", spec)
        assert match, f"{spec}: no name with @VERSION:"
        types = {type} if isinstance(type, str) else set(type)
        assert types <= TYPES
        variant = when.removeprefix("+")
        assert not when or variant in self.variants or re.fullmatch(r"\^python@:3\.\d+", when)
        self.needed[match[1].removeprefix("py-")] = match[2] or ""
        assert (
            when or "run" in types or match[1] in {"py-setuptools", "py-hatchling", "py-hatch-vcs"}
        )

    def version(self, number: str, sha256: str = "") -> None:
        assert not sha256 or re.fullmatch("[0-9a-f]{64}", sha256)
        self.versions.append(number)

    def variant(self, name: str, default: bool, description: str) -> None:
        assert description
        self.variants.add(name)

    def license(self, name: str) -> None:
        assert name


def of_spack(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Directives, Any]:
    """What a recipe says, and its class."""
    said = Directives()
    # Classes are in the repository of packages since Spack 1.0, and no longer in Spack.
    stand_ins = {
        "spack.package": {each: getattr(said, each) for each in dir(said) if each[0] != "_"},
        "spack_repo.builtin.build_systems.python": {"PythonPackage": Recipe},
    }
    for module_name, holds in stand_ins.items():
        module = types.ModuleType(module_name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, module_name, module)
        above = module_name
        while above := above.rpartition(".")[0]:
            monkeypatch.setitem(sys.modules, above, types.ModuleType(above))
    path = SITE / f"spack/spack_repo/hpcext/packages/{name}/package.py"
    found: dict[str, Any] = {}
    exec(compile(path.read_text(), path, "exec"), found)
    # Spack finds a class by the name of its directory.
    return said, found["".join(part.capitalize() for part in name.split("_"))]


def required() -> dict[str, str]:
    """Package → the oldest version, as setup.cfg has them; and Python's."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = {
        name: version
        for line in setup["options"]["install_requires"].split("\n")
        if (match := re.match(r"([\w-]+) >= ([\d.]+)", line))
        for name, version in [match.groups()]
    }
    assert len(wanted) > 8
    return {**wanted, "python": setup["options"]["python_requires"].removeprefix(">=")}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_recipe_of_spack_needs_what_setup_cfg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = of_spack("py_hpcext", monkeypatch)
    assert said.versions == [hpcext.__version__]
    wanted = required()
    assert wanted.items() <= said.needed.items()
    assert said.needed.keys() - wanted.keys() == {"setuptools", "docutils", "torch"}


def test_our_filelock_of_spack_is_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    said, recipe = of_spack("py_filelock", monkeypatch)
    (version,) = said.versions
    assert numbers(version) >= numbers(required()["filelock"])
    assert recipe.pypi == f"filelock/filelock-{version}.tar.gz"


IMPORT = """
import importlib, sys
from importlib.abc import MetaPathFinder

core, *packages = sys.argv[1:]

class Core(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        # Of what is installed here only what every installation has.
        if name in core.split(","):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Core())
for package in packages:
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        print(package)
"""

OPTIONAL = (
    "torch", "tensorflow", "keras", "jax", "lightning", "pytorch_lightning", "transformers",
    "accelerate", "pyslurm", "pulp", "highspy", "argcomplete", "IPython", "ipykernel", "matplotlib",
    "prometheus_client", "optuna", "submitit", "textual", "docutils", "sklearn",
)  # fmt: skip
"""Modules of extras."""


def test_spack_imports_what_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are told to it: ``spack install --test=root`` imports each package of ours."""
    _, recipe = of_spack("py_hpcext", monkeypatch)
    folders = (path.parent for path in (ROOT / "hpcext").rglob("__init__.py"))
    packages = sorted(".".join(path.relative_to(ROOT).parts) for path in folders)
    assert len(packages) > 20
    said = run(sys.executable, "-c", IMPORT, ",".join(OPTIONAL), *packages)
    assert said.stdout.split() == [*recipe.skip_modules], said.stderr


def test_commands_of_packages_are_those_of_setup_cfg() -> None:
    """Another beginning lacks what the hooks ask of the real one: ``suspendable --prepare``."""
    text = (SITE / "packaging" / "install-tree").read_text()
    assert "from hpcext.__main__ import ${command#*:}\n" in text
    (line,) = re.findall(r"^for command in (.*); do$", text, re.M)
    made = {path.rpartition("/")[2]: name for path, name in (w.split(":") for w in line.split())}
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    points = setup["options.entry_points"]["console_scripts"].strip().split("\n")
    assert made == dict(
        re.match(r"(\S+) = hpcext.__main__:(\w+)", each).groups() for each in points
    )


def test_the_recipe_of_conda_needs_what_setup_cfg_says() -> None:
    """Read as far as it is lists; tests/packages has the whole read by rattler-build."""
    text = (SITE / "packaging" / "conda" / "recipe.yaml").read_text()
    assert f'version: "{hpcext.__version__}"' in text
    run_needs = text.partition("  run:\n")[2].partition("\ntests:")[0]
    found = dict(re.findall(r"^    - ([\w-]+) >=([\d.]+)$", run_needs, re.M))
    assert found == required()
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    points = setup["options.entry_points"]["console_scripts"].strip().split("\n")
    assert re.findall(r"^      - (hpcext.* = .*)$", text, re.M) == points
