"""Runs of trainings whose speed is known."""

from __future__ import annotations

import pytest
from lab import Lab
from site_of_test import Site


@pytest.fixture
def lab(site: Site, monkeypatch: pytest.MonkeyPatch) -> Lab:
    found = Lab(site)
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)
    return found
