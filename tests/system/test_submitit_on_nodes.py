"""Functions that submitit submits run on nodes of a real Slurm, several or idle ones."""

from __future__ import annotations

import subprocess

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_harvest import ended, nothing_left
from test_native_on_leases import give_way
from test_pilot import over, submit

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
        return self.begun, environment.num_tasks, os.environ.get("SLURM_NODEID")

executor = submitit.AutoExecutor(folder="log", cluster="hpcext", hpcext_pilot=sys.argv[1])
executor.update_parameters(name="count", nodes=int(sys.argv[2]))
job = executor.submit(Count(), os.getcwd())
print(*job.results(), sep="\\n", flush=True)
print(job.stdout())
"""


def submit_function(place: Site, nodes: int) -> subprocess.Popen[str]:
    """Have the user's script submit the function; it waits for the results."""
    script = place.path / "count.py"
    script.write_text(SCRIPT)
    asking = place.start(str(place.pilot), str(nodes), python=(str(script),))
    begun(place, 1, nodes)
    return asking


def begun(place: Site, times: int, nodes: int) -> None:
    for rank in range(nodes):
        path = place.path / f"{rank}-{times}"
        wait_for(path.exists, f"beginning {times} of rank {rank}")


def results(place: Site, asking: subprocess.Popen[str]) -> list[str]:
    """Let the function return; what the script says."""
    (place.path / "enough").touch()
    out, err = asking.communicate(timeout=600)
    assert asking.returncode == 0, (out, err)
    return out.splitlines()


def test_suspended_and_resumed_on_two_nodes(slurm: Cluster, place: Site) -> None:
    """Each rank goes on with what rank 0 has saved."""
    place.write_jobs(place.counter("beside", gated=True))
    job = submit(place)
    wait_for(lambda: place.steps("beside"), "the pilot")
    asking = submit_function(place, 2)
    suspended = place.run("suspend", str(place.pilot), "count", "--wait")
    assert suspended.code == 0, suspended
    assert place.run("resume", str(place.pilot), "count").code == 0
    begun(place, 2, 2)
    lines = results(place, asking)
    assert lines[:2] == ["([0, 0], 2, '0')", "([0, 1], 2, '1')"]
    assert {"rank 0", "rank 1"} <= set(lines)
    place.open("beside")
    assert {each["state"] for each in over(slurm, place, job).values()} == {"completed"}


@pytest.mark.slow
def test_it_gives_way_on_an_idle_node_and_goes_on(slurm: Cluster, place: Site) -> None:
    """A main job has all nodes meanwhile."""
    words = ("--partition", "harvest", "--interval", "1.5", "--idle", "20", "--stay")
    process = place.start("harvest", "start", *words, "--name", "pool", "--dir", str(place.pilot))
    wait_for((place.pilot / "manager.json").exists, "the harvester")
    asking = submit_function(place, 1)
    give_way(slurm, place, "count")
    begun(place, 2, 1)
    assert results(place, asking)[0] == "([0, 0], 1, None)"
    assert place.run("drain", str(place.pilot)).code == 0
    ended(process)
    nothing_left(slurm, place)
