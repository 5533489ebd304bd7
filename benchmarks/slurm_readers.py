"""What a question to Slurm costs, by its commands and by a slurmrestd of the user's own.

``python benchmarks/slurm_readers.py [QUESTIONS]``, as root, on the private cluster of the tests. A
question is the one that a manager asks most: until when its job runs. Both ask in turns.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from slurm_cluster import cluster

ASK = """
import statistics, sys, time
from hpcext.batch.slurm.commands import Commands
from hpcext.batch.slurm.reads import by_slurmrestd
job, questions = map(int, sys.argv[1:])
readers = {"commands": Commands(), "slurmrestd": by_slurmrestd()}
took = {name: [] for name in readers}
assert len({reader.end(job) for reader in readers.values()}) == 1
for _ in range(questions):
    for name, reader in readers.items():
        began = time.perf_counter()
        reader.end(job)
        took[name].append(1e3 * (time.perf_counter() - began))
middle = {name: statistics.median(each) for name, each in took.items()}
for name, each in took.items():
    print(f"{name}: {middle[name]:.2f} ms, 95 % within {sorted(each)[len(each) * 95 // 100]:.2f}")
print(f"slurmrestd takes {middle['slurmrestd'] / middle['commands']:.2f} of the time of commands")
"""


def main() -> None:
    """Ask, and print."""
    questions = sys.argv[1] if len(sys.argv) > 1 else "300"
    with cluster() as one:
        said = one.as_user("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600").stdout
        one.wait_for(lambda: one.job(said.strip())["JobState"] == "RUNNING", "the job")
        ended = one.as_user(str(one.python), "-c", ASK, said.strip(), questions)
        sys.stdout.write(ended.stdout + ended.stderr)


if __name__ == "__main__":
    main()
