"""A site of the contract engine, with our esub where LSF looks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lsf_site import Site
    from lsf_tools import MakeSite

TESTS = Path(__file__).parents[1]
sys.path[:0] = [
    str(TESTS / folder) for folder in ("lsf", "fakes/lsf", "hooks", "security", "system")
]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[MakeSite]:
    """A site with settings, and with quirks by their names; nothing of it survives the test."""
    import lsf_tools

    made_at: list[Path] = []

    def made(*quirks: str, name: str = "lsf", **settings: Any) -> Site:
        made_at.append(tmp_path / name)
        return lsf_tools.make_site(tmp_path / name, quirks, **settings)

    yield made
    lsf_tools.end_all(made_at)


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()
