"""How much processor time commands need to begin: ``python benchmarks/start.py [TIMES]``.

Each of them runs so often (10 times if not said) with an empty state directory; beside it stands an
interpreter that does nothing, and one that imports NumPy, which a command that decides nothing need
not do. The last column is a ratio to the first of them.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HPCEXT = (sys.executable, "-m", "hpcext")

CASES: dict[str, Sequence[str]] = {
    "python, nothing": (sys.executable, "-c", "pass"),
    "python, import numpy": (sys.executable, "-c", "import numpy"),
    "hpcext --version": (*HPCEXT, "--version"),
    "hpcext status": (*HPCEXT, "status"),
    "hpcext why": (*HPCEXT, "why"),
    "hpcext report": (*HPCEXT, "report"),
    "hpcext nodes": (*HPCEXT, "nodes"),
    "hpcext run of one job, true": (*HPCEXT, "run", "jobs.toml", "--gpus=1"),
    "hpcext simulate --help": (*HPCEXT, "simulate", "--help"),
}


def cpu_s() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(words: Sequence[str], place: str, times: int) -> float:
    """Return the mean of a command's processor time, in seconds; the first run is not counted."""
    environ = {**os.environ, "XDG_STATE_HOME": f"{place}/state"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def run() -> None:
        subprocess.run(words, cwd=place, env=environ, capture_output=True, check=False)

    run()
    began_s = cpu_s()
    for _ in range(times):
        run()
    return (cpu_s() - began_s) / times


def main() -> None:
    """Print a table."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| | ms | times an interpreter |")
    print("|---|---|---|")
    nothing_s = 0.0
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "jobs.toml").write_text('[[job]]\nname = "one"\ncommand = "true"\n')
        for name, words in CASES.items():
            took_s = measure(words, place, times)
            nothing_s = nothing_s or took_s
            print(f"| {name} | {took_s * 1e3:,.0f} | {took_s / nothing_s:.1f} |")


if __name__ == "__main__":
    main()
