"""The house: modules that can be read at one sitting."""

from __future__ import annotations

from pathlib import Path

import hpcext

MOST_LINES = 400
"""Lines that a module may have."""


def test_a_module_is_read_at_one_sitting() -> None:
    """A module that grows past it holds two concepts, and is divided by them."""
    modules = Path(hpcext.__file__).parent.rglob("*.py")
    lines = {str(path): len(path.read_text().splitlines()) for path in modules}
    assert len(lines) > 300
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
