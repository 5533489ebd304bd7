"""The doctor's check of containers: one is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcext.config import load_settings
from hpcext.doctor import containers
from hpcext.doctor.checkup import CheckOptions, Finding

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
