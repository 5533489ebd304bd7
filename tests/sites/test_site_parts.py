"""Lmod's module, systemd's units, tmpfiles, logrotate and Spack's recipe say what is so."""

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


def test_the_recipe_of_spack_needs_what_setup_cfg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: dict[str, str] = {}
    versions = []

    class Recipe:
        pass

    def depends_on(what: str, type: Any = (), when: str = "") -> None:
        name, _, version = what.partition("@")
        needed[name.removeprefix("py-")] = version.rstrip(":")
        assert when or "run" in type or name == "py-setuptools"

    # Classes are in the repository of packages since Spack 1.0, and no longer in Spack.
    stand_ins = {
        "spack.package": {
            "depends_on": depends_on, "version": versions.append,
            "license": lambda name: None, "variant": lambda *args, **facts: None,
        },
        "spack_repo.builtin.build_systems.python": {"PythonPackage": Recipe},
    }  # fmt: skip
    for name, holds in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)
        while name := name.rpartition(".")[0]:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    path = SITE / "spack/spack_repo/hpcext/packages/py_hpcext/package.py"
    exec(compile(path.read_text(), path, "exec"), {})
    assert versions == [hpcext.__version__]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = {
        name: version
        for line in setup["options"]["install_requires"].split("\n")
        if (match := re.match(r"([\w-]+) >= ([\d.]+)", line))
        for name, version in [match.groups()]
    }
    wanted["python"] = setup["options"]["python_requires"].removeprefix(">=")
    assert wanted.items() <= needed.items()
    assert needed.keys() - wanted.keys() == {"setuptools", "docutils", "torch"}
