"""The tests of this folder share a server that has imported Transformers, and the harness."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "training")]
