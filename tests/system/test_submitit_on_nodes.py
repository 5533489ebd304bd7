"""A function that submitit submits runs on each of several nodes of a real Slurm."""

from __future__ import annotations

from pathlib import Path

from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import submit

SCRIPT = """
import os, sys, time
import submitit

class Count(submitit.helpers.Checkpointable):
    def __init__(self):
        self.begun = []

    def __call__(self, place):
        environment = submitit.JobEnvironment()
        self.begun.append(environment.global_rank)
        open(f"{place}/{environment.global_rank}-{len(self.begun)}", "w").close()
        while not os.path.exists(f"{place}/enough"):
            time.sleep(0.05)
        print("rank", environment.global_rank, flush=True)
        return self.begun, environment.num_tasks, os.environ["SLURM_NODEID"]

executor = submitit.AutoExecutor(folder="log", cluster="hpcext", hpcext_pilot=sys.argv[1])
executor.update_parameters(name="both", nodes=2)
job = executor.submit(Count(), os.getcwd())
print(*job.results(), sep="\\n", flush=True)
print(job.stdout())
"""


def test_suspended_and_resumed_on_two_nodes(slurm: Cluster, place: Site) -> None:
    """Each rank goes on with what rank 0 has saved."""
    place.write_jobs(place.counter("beside", gated=True))
    submit(place)
    wait_for(lambda: place.steps("beside"), "the pilot")
    script = place.path / "both.py"
    script.write_text(SCRIPT)
    asking = place.start(str(place.pilot), python=(str(script),))
    begun(place.path, 1)
    suspended = place.run("suspend", str(place.pilot), "both", "--wait")
    assert suspended.code == 0, suspended
    assert place.run("resume", str(place.pilot), "both").code == 0
    begun(place.path, 2)
    (place.path / "enough").touch()
    out, err = asking.communicate(timeout=600)
    lines = out.splitlines()
    assert lines[:2] == ["([0, 0], 2, '0')", "([0, 1], 2, '1')"], (out, err)
    assert {"rank 0", "rank 1"} <= set(lines)
    place.open("beside")


def begun(path: Path, times: int) -> None:
    for rank in (0, 1):
        wait_for((path / f"{rank}-{times}").exists, f"beginning {times} of rank {rank}")
