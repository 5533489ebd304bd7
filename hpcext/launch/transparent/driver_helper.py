"""The helper that has NVIDIA's driver move GPU memory; ``python -I -S driver_helper.py REQUEST``.

REQUEST is in JSON; :class:`~hpcext.launch.transparent.driver_steps.Helper` says what is in it. The
actions:

``save``
    Lock the process, move its GPU memory to host memory, prove that it has left the GPUs, and
    become CRIU, which writes the tree into images, unless the tree stays in memory.
``give-back``
    Undo that, however far it came: the process goes on, perhaps on other GPUs.
``return``
    Give the memory back to a process that CRIU has made again. Of a stopped tree only the driver's
    thread runs meanwhile, so that nothing is done twice if it fails; then all is stopped as before.

Exit status: 0 if it was done, or CRIU's; 1 if not, and the reason is in the file.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Find our own package, and do what the only argument asks for."""
    # With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
    here = os.path.abspath(__file__)
    for _ in range(4):
        here = os.path.dirname(here)
    sys.path.append(here)
    import json  # noqa: PLC0415

    from hpcext.launch.transparent.driver_steps import Helper  # noqa: PLC0415

    try:
        helper = Helper(json.loads(sys.argv[1]))
    except (IndexError, KeyError, TypeError, ValueError):
        sys.stderr.write("usage: driver_helper.py REQUEST\n")
        return 64
    return helper.do()


if __name__ == "__main__":
    os._exit(main())
