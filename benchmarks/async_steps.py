"""Measure steps of Slurm that do nothing: srun as ever, and `srun --async` of 26.05 with swait.

The latter is run by the job's step manager, and no srun waits for it. Run it where that release is:
``tests/system/in-release 26.05 python benchmarks/async_steps.py [STEPS]``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "system")]

from slurm_cluster import cluster  # noqa: E402  (its place is said above)

AT_ONCE = 12
MORE = "SlurmctldParameters=enable_stepmgr\nPrologFlags=Contain\n"
SCRIPT = """#!/bin/bash
cd {home}
step="srun -n1 --exact --mem=10 -o /dev/null"
ran() {{ awk -v a="$1" -v b="$2" -v c="$3" -v what="$4" -v steps={steps} 'BEGIN {{
    printf "%-40s %6.1f ms a step", what, (c - a) * 1000 / steps
    printf ", accepted after %.1f ms\\n", (b - a) * 1000 / steps
}}'; }}
now() {{ date +%s.%N; }}
a=$(now); for i in $(seq {steps}); do $step true; done; b=$(now)
ran $a $b $b "srun, one after the other"
a=$(now); seq {steps} | xargs -P {at_once} -I@ $step true; b=$(now)
ran $a $b $b "srun, {at_once} at once"
a=$(now); for i in $(seq {steps}); do $step --async -Q true; done; b=$(now); swait; c=$(now)
ran $a $b $c "srun --async, one after the other"
a=$(now); seq {steps} | xargs -P {at_once} -I@ $step --async -Q true; b=$(now); swait; c=$(now)
ran $a $b $c "srun --async, {at_once} at once"
"""


def main(steps: str = "60") -> None:
    """Print the time of a step in each of four ways."""
    with cluster(MORE) as slurm:
        script = slurm.home / "job.sh"
        script.write_text(SCRIPT.format(home=slurm.home, steps=steps, at_once=AT_ONCE))
        words = ("--stepmgr", "-n", str(AT_ONCE), "--mem=2000", "--time=30")
        output = slurm.home / "out"
        said = slurm.as_user("sbatch", *words, f"--output={output}", str(script)).stdout
        found = re.search(r"\d+", said)
        assert found, said
        going = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
        slurm.wait_for(lambda: slurm.job(int(found[0]))["JobState"] not in going, "its end", 1800)
        print(output.read_text(), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
