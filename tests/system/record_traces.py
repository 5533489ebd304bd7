"""Record what sacct and sinfo print for ``hpcext trace``, for the tests in ``tests/sim``.

``python tests/system/record_traces.py`` starts a cluster and writes ``tests/sim/recorded``.
"""

from __future__ import annotations

import time
from pathlib import Path

from slurm_cluster import REPOSITORY, Cluster, cluster

from hpcext.sim.traces.slurm import SACCT

LOOKS, LOOK_S = 12, 2.0


def look(one: Cluster) -> str:
    """One time round of the loop that the manual shows."""
    words = ("sinfo", "--noheader", "--Node", "--format=%N %T")
    return f"time={int(time.time())}\n{one.run(*words).stdout}"


def record(one: Cluster, where: Path) -> None:
    """A job that ends, one that fails, one that is cancelled, one that waits; n4 is drained."""
    where.mkdir(parents=True, exist_ok=True)
    one.run("scontrol", "update", "nodename=n4", "state=drain", "reason=test")
    looks = [look(one)]
    sleep = ("sbatch", "--exclusive", "--output=/dev/null", "--time=5")
    one.run(*sleep, "--nodes=2", "--wrap=sleep 8")
    one.run(*sleep, "--nodes=1", "--wrap=sleep 4; exit 3")
    one.run(*sleep, "--nodes=3", "--dependency=afterany:1", "--wrap=sleep 3")
    one.run(*sleep, "--nodes=1", "--wrap=sleep 600")
    one.run(*sleep, "--nodes=1", "--begin=now+1days", "--wrap=true")
    one.run(*sleep, "--nodes=1", "--begin=now+1days", "--wrap=true")
    one.run("scancel", "6")
    for _ in range(LOOKS):
        time.sleep(LOOK_S)
        looks.append(look(one))
    one.run("scancel", "4")
    one.wait_for(lambda: one.job(4)["JobState"] == "CANCELLED", "job 4's end")
    time.sleep(5)  # until accounting has it
    looks.append(look(one))
    words = SACCT.replace("2026-01-01", "now-1days").split()
    text = one.run(*words[1:], SLURM_TIME_FORMAT="%s").stdout
    (where / "sacct.txt").write_text(text)
    (where / "sacct-local-times.txt").write_text(one.run(*words[1:]).stdout)
    (where / "sinfo-looks.txt").write_text("".join(looks))


if __name__ == "__main__":
    with cluster() as started:
        name = "slurm-{}.{:02}".format(*started.release)
        record(started, REPOSITORY / "tests" / "sim" / "recorded" / name)
