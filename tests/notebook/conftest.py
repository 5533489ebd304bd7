"""Pilots that the tests of this folder begin in their own process, and end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from site_of_test import Site

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboard"))


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose settings, state and directory this process has, as a kernel would."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HPCEXT_REPORT_INTERVAL_S"):
        monkeypatch.setenv(name, site.environ[name])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(site.path)
    yield site
    for path in site.path.rglob("manager.json"):
        pid = json.loads(path.read_text())["pid"]
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if str(path.parent) in psutil.Process(pid).cmdline():
                psutil.Process(pid).kill()
