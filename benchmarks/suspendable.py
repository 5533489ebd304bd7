"""What ``--hpcext-suspendable`` costs before a script begins, beside the script alone.

On the private Slurm of the tests, as root: ``python benchmarks/suspendable.py [RUNS]``. One batch
job starts a script that writes down the instant of its begin, in turn by hpcext-batch, as the
plugin does, and by itself.
"""

from __future__ import annotations

import compileall
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from plugin import Plugin
from slurm_cluster import cluster

import hpcext

RUNS = 20
LIMIT_S = 1800.0

INNER = """#!/bin/bash
echo "$EPOCHREALTIME" >>{out}
"""

OUTER = """#!/bin/bash
export HPCEXT_LEAD_S=60
for run in $(seq {runs}); do
    echo "plain $EPOCHREALTIME" >>{out}
    {script}
    echo "suspendable $EPOCHREALTIME" >>{out}
    HPCEXT_COMMAND={command} HPCEXT_SCRIPT={script} {batch}
    sleep 1  # pilots are called after the second
done
"""


def main(runs: int) -> None:
    """Print the medians, and what the one costs more."""
    compileall.compile_dir(str(Path(hpcext.__file__).parent), quiet=1)
    with cluster() as one:
        plugin = Plugin(one)
        plugin.install()
        out, script, job = (one.home / name for name in ("times", "slurm_script", "job.sh"))
        script.write_text(INNER.format(out=out))
        script.chmod(0o755)
        program, command = plugin.directory / "hpcext-batch", one.root / "bin" / "hpcext"
        job.write_text(
            OUTER.format(out=out, script=script, batch=program, command=command, runs=runs)
        )
        said = one.as_user("sbatch", "--parsable", "--cpus-per-task=2", str(job))
        number = said.stdout.strip()
        over = {"COMPLETED", "FAILED", "CANCELLED"}
        one.wait_for(lambda: one.job(number)["JobState"] in over, "the job", LIMIT_S)
        if one.job(number)["JobState"] != "COMPLETED":
            raise SystemExit(f"job {number}: {one.job(number)['JobState']}")
        lines = out.read_text().splitlines()
    found: dict[str, list[float]] = {"plain": [], "suspendable": []}
    for begun, ran in zip(lines[::2], lines[1::2], strict=True):
        how, at = begun.split()
        found[how].append(float(ran) - float(at))
    print(f"{runs} runs of each, in turn")
    middle = {how: statistics.median(taken) for how, taken in found.items()}
    for how, taken in found.items():
        slow = statistics.quantiles(taken, n=20)[-1]
        print(f"{how:11} median {middle[how]:.3f} s, 95 % {slow:.3f} s")
    print(f"cost        median {middle['suspendable'] - middle['plain']:.3f} s (goal: 0.2)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
