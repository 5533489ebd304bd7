"""What NVIDIA's driver says of itself, to be run as a program: ``python -m hpcext.doctor.driver``.

Questions to a driver are asked in forks (:mod:`hpcext.launch.apart`), and a process with several
threads, as that of the checks, must not fork: its child may crash, or wait for ever.
"""

from __future__ import annotations

import json
import subprocess
import sys

from hpcext import protocol
from hpcext.doctor.checkup import run_python
from hpcext.launch.transparent import driver_api
from hpcext.launch.transparent.ways import ways

WITHIN_S = 4 * driver_api.LOOK_S


def without() -> str | None:
    """Return why the driver cannot be used, asked in a process of its own.

    Returns
    -------
    str or None
        Empty if it seems that it can; None if there is no driver.
    """
    try:
        done = run_python("-m", __name__, within_s=WITHIN_S)
    except subprocess.TimeoutExpired:
        return f"NVIDIA's driver did not answer within {WITHIN_S:.0f} s"
    try:
        found: str | None = json.loads(done.stdout)
    except ValueError:
        return f"NVIDIA's driver could not be asked: exit code {done.returncode}"
    return found


def main() -> None:
    """Print, as JSON, what :func:`without` is to return."""
    driver, _ = ways(protocol.environ())
    sys.stdout.write(json.dumps(driver.without() if driver_api.installed() else None))


if __name__ == "__main__":
    main()
