"""A pilot on a node where attempts fail, and on one that its user takes out of use."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import again, begun, over, submit

NVML = Path(__file__).parents[1] / "fakes" / "nvidia" / "nvml.c"
FAILS_ON_N2 = 'test "$SLURMD_NODENAME" != n2 || exit 3; sleep 0.2'


def test_a_node_where_attempts_fail_takes_no_more_jobs(slurm: Cluster, place: Site) -> None:
    jobs = [
        {
            "name": f"j{number}",
            "command": ["sh", "-c", FAILS_ON_N2],
            "gpus": {"min": 6, "max": 6},
            "retries": 9,
        }
        for number in range(6)
    ]
    place.write_jobs(*jobs)
    job = submit(place, "--nodelist=n1,n2")
    ended = over(slurm, place, job)
    assert {each["state"] for each in ended.values()} == {"completed"}
    rows = {row["node"]: row for row in place.document("nodes", str(place.pilot))["nodes"]}
    assert rows["n1"]["set_aside"] is None
    assert "failed there" in rows["n2"]["set_aside"]
    told = place.run("status", str(place.pilot)).out
    assert "node n2 is set aside: " in told
    assert "node n2 is set aside: " in (place.pilot / f"slurm-{job}.out").read_text()


@pytest.mark.slow
def test_a_node_with_a_broken_gpu_is_set_aside_at_the_first_failure(
    slurm: Cluster, place: Site
) -> None:
    """Whose jobs may not fail once; by a stand-in of NVIDIA's library, for want of a GPU."""
    library = slurm.root / "nvml" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    words = ("-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(library), str(NVML))
    subprocess.run(["cc", *words], check=True)
    place.environ |= {
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML": "is lost",
        "FAKE_NVML_ON": "n2",
    }
    command = ["sh", "-c", FAILS_ON_N2]
    job = {"command": command, "gpus": {"min": 6, "max": 6}, "retries": 0}
    place.write_jobs(*({"name": f"j{number}", **job} for number in range(4)))
    ended = over(slurm, place, submit(place, "--nodelist=n1,n2"))
    assert {each["state"] for each in ended.values()} == {"completed"}
    assert sum(each["attempts"] for each in ended.values()) == 5
    rows = {row["node"]: row for row in place.document("nodes", str(place.pilot))["nodes"]}
    assert rows["n1"]["set_aside"] is None
    assert re.fullmatch(
        r"an attempt of j\d failed there, and GPU 1 is lost", rows["n2"]["set_aside"]
    )


def test_what_runs_on_a_node_that_is_set_aside_goes_on_elsewhere(
    slurm: Cluster, place: Site
) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6}))
    job = submit(place, "--nodelist=n1,n2")
    begun(place, "only")

    def where() -> list[str]:
        rows = place.document("nodes", str(place.pilot))["nodes"]
        return [row["node"] for row in rows if row["jobs"] == ["only"]]

    wait_for(lambda: len(where()) == 1, "the node of the job")
    (first,) = where()
    (second,) = {"n1", "n2"} - {first}
    asked = place.run("nodes", str(place.pilot), "--set-aside", first, "--why", "a fan")
    assert asked.out == f"{first} is set aside; 1 job there is suspended and goes on elsewhere\n"
    again(place, "1", 2)
    wait_for(lambda: where() == [second], "the other node")
    refused = place.run("nodes", str(place.pilot), "--set-aside", second)
    assert refused.code == 2
    assert f"{second} is the only node that can be used" in refused.err
    assert (
        place.run("nodes", str(place.pilot), "--readmit", first).out == f"{first} is used again\n"
    )
    assert place.run("nodes", str(place.pilot), "--readmit", first).code == 2
    place.open("only")
    ended = over(slurm, place, job)
    assert ended["only"]["state"] == "completed"
    assert ended["only"]["lost_steps"] == 0
