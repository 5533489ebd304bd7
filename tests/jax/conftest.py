"""The tests of this folder use the harnesses of the session's and of TensorFlow's."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("training", "tensorflow"))]
