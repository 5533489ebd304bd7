"""What a pilot costs on Slurm, beside the same by hand, on the private cluster of the tests.

``python benchmarks/slurm.py [STEPS] [JOBS] [SECONDS]``, as root:

- from the decision to start an attempt to its command, and to the first line of a training that has
  imported PyTorch, beside a bare ``srun`` in a like allocation;
- short jobs through one pilot on 24 GPUs, beside as many ``sbatch``;
- calls of the pilot's user to slurmctld (``sdiag``), idle and busy.
"""

from __future__ import annotations

import compileall
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from slurm_cluster import Cluster, cluster

import hpcext

LIMIT_S = 1800.0
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


def calls(one: Cluster) -> int:
    """Remote procedure calls of the ordinary user so far; sdiag(1)."""
    text = one.run("sdiag").stdout
    by_user = text.partition("statistics by user")[2]
    found = re.search(rf"^\s*{one.user}\s*\(\s*\d+\)\s*count:(\d+)", by_user, re.M)
    return int(found[1]) if found else 0


def wait(one: Cluster, job: str) -> None:
    """Wait for the end of a job, which must be a good one."""
    one.wait_for(lambda: one.job(job)["JobState"] in OVER, "the job", LIMIT_S)
    if one.job(job)["JobState"] != "COMPLETED":
        raise SystemExit(f"job {job}: {one.job(job)['JobState']}")


def pilot(one: Cluster, name: str, count: int, command: str, *options: str) -> Path:
    """Submit as many jobs of one GPU; the pilot's directory."""
    file = one.home / f"{name}.toml"
    jobs = (f"[[job]]\nname = 'j{n}'\ncommand = {command!r}\n" for n in range(count))
    file.write_text("\n".join(jobs))
    said = one.as_user(
        "hpcext", "pilot", "submit", str(file), "--dir", str(one.home / name), *options
    )
    if said.returncode:
        raise SystemExit(said.stderr)
    return one.home / name


def job_of(said: Path) -> str:
    """The Slurm job of a pilot."""
    return re.findall(r'"job_id": (\d+)', (said / "slurm.json").read_text())[0]


def latency(one: Cluster, what: str, command: str, steps: int) -> None:
    """Seconds from the start of an attempt to what its command prints first, one at a time."""
    here = pilot(one, what, steps, command, "--gpus-per-node", "1")
    wait(one, job_of(here))
    ours = []
    for number in range(1, steps + 1):
        attempt = here / "jobs" / str(number)
        began = (attempt / "attempt-0001" / "launch.json").stat().st_mtime
        ours.append(float((attempt / "log.txt").read_text().split("\n")[1]) - began)
    script = one.home / "bare.sh"
    script.write_text(
        "#!/bin/bash\n"
        f"for n in $(seq {steps}); do echo $(date +%s.%N)"
        f" $(srun --exact -n1 -c1 --gres=gpu:1 --mem=50 {command}); done\n"
    )
    options = ("--parsable", "--gres=gpu:1", "--mem=100", "-o", str(one.home / "bare"))
    wait(one, one.as_user("sbatch", *options, str(script)).stdout.strip())
    lines = (line.split() for line in (one.home / "bare").read_text().splitlines())
    bare = [float(end) - float(begin) for begin, end in lines]
    a, b = statistics.median(ours), statistics.median(bare)
    print(f"to {what}, {steps} each: pilot {a:.3f} s, bare srun {b:.3f} s, ratio {a / b:.2f}")


def throughput(one: Cluster, jobs: int) -> None:
    """Jobs that do nothing: all through one pilot, and each by sbatch."""
    before, begin = calls(one), time.monotonic()
    here = pilot(one, "many", jobs, "true", "--nodes", "4", "--gpus-per-node", "6")
    wait(one, job_of(here))
    ours, ours_calls = time.monotonic() - begin, calls(one) - before
    before, begin = calls(one), time.monotonic()
    for _ in range(jobs):
        one.as_user("sbatch", "--gres=gpu:1", "--mem=50", "-o", "/dev/null", "--wrap", "true")
    one.wait_for(lambda: not one.run("squeue", "-h").stdout, "an empty queue", LIMIT_S)
    theirs, theirs_calls = time.monotonic() - begin, calls(one) - before
    print(
        f"{jobs} short jobs: pilot {ours:.1f} s, sbatch {theirs:.1f} s, ratio {ours / theirs:.2f}; "
        f"calls to slurmctld: {ours_calls / jobs:.1f} and {theirs_calls / jobs:.1f} a job"
    )


def idle(one: Cluster, seconds: float) -> None:
    """Calls of a pilot whose one job only trains."""
    here = pilot(one, "idle", 1, f"sleep {seconds + 60:.0f}", "--gpus-per-node", "1")
    one.wait_for((here / "jobs" / "1" / "attempt-0001" / "supervisor.json").exists, "the job")
    time.sleep(5)
    before = calls(one)
    time.sleep(seconds)
    made = calls(one) - before
    print(f"idle for {seconds:.0f} s: {60 * made / seconds:.1f} calls a minute")
    one.as_user("scancel", job_of(here))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] + [20, 500, 120][len(sys.argv) - 1 :]
    # As an installation does: its user cannot write there.
    compileall.compile_dir(Path(hpcext.__file__).parent, quiet=1)
    with cluster() as private:
        latency(private, "command", "date +%s.%N", numbers[0])
        train = f'{private.python} -c "import time, torch; print(time.time())"'
        latency(private, "training", train, numbers[0])
        throughput(private, numbers[1])
        idle(private, numbers[2])
