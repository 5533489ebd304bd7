"""What a supervisor finds out of a GPU after a failure, as JSON: ``looked.py INDEX SINCE``.

SINCE is the instant, by the monotonic clock, from which on faults in the kernel's log count.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from hpcext.launch import gpu_faults


def has_nvml() -> bool:
    """Return whether the driver's library is found without a package."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


began_s = time.perf_counter()
found = gpu_faults.look(sys.argv[1], float(sys.argv[2]))
seconds = time.perf_counter() - began_s
print(json.dumps({**found._asdict(), "seconds": seconds, "nvml": has_nvml()}))
