"""A clock that jumps: ``time.time`` is off by the seconds that a file says.

Python imports this before anything else where this folder is in ``PYTHONPATH``. The clock of the
machine is everybody's, so it is not touched.
"""

from __future__ import annotations

import os
import time

_path = os.environ["DRAW_CLOCK"]
_time = time.time


def _off_s() -> float:
    try:
        with open(_path, encoding="ascii") as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


def _now() -> float:
    return _time() + _off_s()


time.time = _now
time.time_ns = lambda: int(_now() * 1e9)
