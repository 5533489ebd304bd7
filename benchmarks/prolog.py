"""What the prolog and the epilog of Slurm cost a job: seconds, beside a program that does nothing.

Slurm runs them once per job and node, as root, before the first step and after the last. Usage, as
root: ``python benchmarks/prolog.py [RUNS]``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOOKS = Path(__file__).parents[1] / "spank_hooks"
RUNS = 200
ENVIRON = {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "1000"}


def seconds(words: list[str], check: Path, *, there: bool) -> float:
    """Duration of one run; what it was to do must be done."""
    begin = time.perf_counter()
    subprocess.run(words, env=ENVIRON, check=True)
    taken = time.perf_counter() - begin
    if check.exists() != there:
        raise SystemExit(f"{words[0]} did not do its work: run this as root")
    return taken


def main(runs: int) -> None:
    """Print medians and the slowest of every twenty."""
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "hpcext"
        job = base / "1"
        prolog = [str(HOOKS / "prolog" / "hpcext-prolog"), str(base)]
        epilog = [str(HOOKS / "epilog" / "hpcext-epilog"), str(base)]
        found: dict[str, list[float]] = {"prolog": [], "epilog": [], "/bin/true": []}
        for _ in range(runs):
            found["/bin/true"].append(seconds(["/bin/true"], job, there=False))
            found["prolog"].append(seconds(prolog, job, there=True))
            found["epilog"].append(seconds(epilog, job, there=False))
    print(f"{runs} runs of each, one after the other")
    for name, taken in found.items():
        slow = statistics.quantiles(taken, n=20)[-1]
        print(
            f"{name:10} median {1e3 * statistics.median(taken):5.1f} ms, 95 % {1e3 * slow:5.1f} ms"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
