"""The doctor's check of containers: one is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpcext.batch.slurm import pyxis
from hpcext.config import load_settings
from hpcext.doctor import containers
from hpcext.doctor.checkup import CheckOptions, Finding

PROGRAMS = {"env": "/usr/bin/env", "python3": os.path.realpath(sys.executable)}
FAKES = Path(__file__).parents[1] / "fakes" / "containers"


def found(**environ: str) -> Finding:
    (finding,) = containers.check(CheckOptions(load_settings(environ=environ)))
    return finding


def test_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found()[:3] == ("containers", "note", "neither apptainer nor singularity is in PATH")
    finding = found(HPCEXT_CONTAINER_RUNTIME="singularity")
    assert finding.says == "no singularity is in PATH"
    assert "docs/containers.md" in finding.do


def test_one_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    finding = found()
    assert finding.verdict == "ok", finding
    version = "apptainer version 1.4.5-stand-in"
    assert finding.says == f"{version}, {FAKES}/apptainer: a container was run"
    monkeypatch.setenv("FAKE_APPTAINER", "broken")
    finding = found()
    assert finding.verdict == "note"
    assert finding.says.endswith("container creation failed: no user namespaces here")


def test_pyxis_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("env", "python3"):
        (tmp_path / name).symlink_to(PROGRAMS[name])
    (tmp_path / "srun").symlink_to(FAKES / "srun")
    monkeypatch.setenv("PATH", str(tmp_path))
    pyxis.offered.cache_clear()
    try:
        for runtime in ("auto", "pyxis"):
            finding = found(HPCEXT_CONTAINER_RUNTIME=runtime)
            assert (finding.verdict, "pyxis" in finding.says) == ("ok", True)
        assert found(HPCEXT_CONTAINER_RUNTIME="singularity").verdict == "note"
        pyxis.offered.cache_clear()
        (tmp_path / "srun").unlink()
        assert found(HPCEXT_CONTAINER_RUNTIME="pyxis").says == "no pyxis is in PATH"
    finally:
        pyxis.offered.cache_clear()
