"""The tests of this folder share a server that has imported Lightning, and the harness."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "training")]

os.environ.setdefault("OMP_NUM_THREADS", "1")
