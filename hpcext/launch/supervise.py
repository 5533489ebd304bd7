"""The program under which every attempt runs, on every node and under every batch system.

Run as ``python -I -S .../hpcext/launch/supervise.py DIRECTORY [INDEX]``, where DIRECTORY is that of
the attempt, and INDEX that of this node, if Slurm does not set it. :mod:`hpcext.launch.supervision`
does the work; this module has only what must come first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> int:
    """Block every signal, find our own package, and supervise."""
    # Before the imports, which take tens of milliseconds: a suspension that comes meanwhile
    # would stop this process, and news would kill it. Blocked, they wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if len(sys.argv) not in {2, 3} or not all(index.isdecimal() for index in sys.argv[2:]):
        sys.stderr.write("usage: supervise.py DIRECTORY [INDEX]\n")
        return 64
    # With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from hpcext.launch.supervision import supervise  # noqa: PLC0415

    return supervise(sys.argv[1], *map(int, sys.argv[2:]))


if __name__ == "__main__":
    status = main()
    with contextlib.suppress(OSError):
        # Its log may be on a full disk, and the status tells more.
        sys.stderr.flush()
    # The manager waits for the end of this process, and a normal exit takes another 5 ms.
    os._exit(status)
