"""What ``--hpcext-suspendable`` costs before a script begins, beside the script alone.

On the private Slurm of the tests, as root: ``python benchmarks/suspendable.py [RUNS]``. One batch
job starts a script that writes down the instant of its begin, in turn by hpcext-batch, as the
plugin does, and by itself. Beside that, since seconds depend on what else the machine does: the
processor time of all that the script waits for, and of a Python that does nothing.
"""

from __future__ import annotations

import compileall
import itertools
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from plugin import Plugin
from slurm_cluster import cluster

import hpcext
from hpcext.launch import supervise

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
    TIMEFORMAT="nothing %U %S"
    {{ time {python} -c pass; }} 2>>{cpu}
    TIMEFORMAT="before %U %S"
    prepare="{command} suspendable --prepare {command} --lead 60"
    {{ time becomes=$($prepare -- {script} 2>&1); }} 2>>{cpu}
    first=$(dirname "$becomes")/jobs/1/attempt-0001
    {{ time {python} -I -S {supervise} "$first"; }} 2>>{cpu}
    sleep 1
done
"""


def main(runs: int) -> None:
    """Print the medians, and what the one costs more."""
    compileall.compile_dir(str(Path(hpcext.__file__).parent), quiet=1)
    with cluster() as one:
        plugin = Plugin(one)
        plugin.install()
        names = ("times", "cpu", "slurm_script", "job.sh")
        out, cpu, script, job = (one.home / name for name in names)
        script.write_text(INNER.format(out=out))
        script.chmod(0o755)
        program, command = plugin.directory / "hpcext-batch", one.root / "bin" / "hpcext"
        job.write_text(
            OUTER.format(
                out=out,
                cpu=cpu,
                script=script,
                batch=program,
                command=command,
                runs=runs,
                python=one.python,
                supervise=supervise.__file__,
            )
        )
        said = one.as_user("sbatch", "--parsable", "--cpus-per-task=2", str(job))
        number = said.stdout.strip()
        over = {"COMPLETED", "FAILED", "CANCELLED"}
        one.wait_for(lambda: one.job(number)["JobState"] in over, "the job", LIMIT_S)
        if one.job(number)["JobState"] != "COMPLETED":
            raise SystemExit(f"job {number}: {one.job(number)['JobState']}")
        lines, used = out.read_text().splitlines(), cpu.read_text().splitlines()
    found: dict[str, list[float]] = {"plain": [], "suspendable": []}
    for said_before, ran in itertools.pairwise(lines):
        how, _, at = said_before.partition(" ")
        if at:
            found[how].append(float(ran) - float(at))
    print(f"{runs} runs of each, in turn")
    middle = {how: statistics.median(taken) for how, taken in found.items()}
    for how, taken in found.items():
        slow = statistics.quantiles(taken, n=20)[-1]
        print(f"{how:11} median {middle[how]:.3f} s, 95 % {slow:.3f} s")
    print(f"cost        median {middle['suspendable'] - middle['plain']:.3f} s (goal: 0.2)")
    spent = [sum(map(float, line.split()[1:])) for line in used]
    nothing, prepare, supervisor = (statistics.median(spent[n::3]) for n in range(3))
    print(
        f"processor   {prepare + supervisor:.3f} s: {prepare:.3f} until there is a pilot, "
        f"{supervisor:.3f} of the supervisor; a Python that does nothing {nothing:.3f} s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
