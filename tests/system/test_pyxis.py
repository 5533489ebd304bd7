"""A job of a pilot whose step begins in a container, by what stands for pyxis on a real Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from only_training import preempted_it_goes_on, suspended_and_resumed
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_pilot import submit
from test_suspendable import Batch

FAKES = REPOSITORY / "tests" / "fakes" / "containers"


@pytest.mark.slow
def test_preempted_a_job_in_a_container_of_pyxis_goes_on(slurm: Cluster, place: Site) -> None:
    """Its user suspends and resumes it before; its GPU is the one of its step."""
    image = place.path / "image"
    for name in ("etc", "proc", "sys", "dev", "tmp", "var/tmp", "usr"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    file = place.path / "image.sqsh"
    libraries = Path(pytest.__file__).parents[1]
    file.write_text("\n".join(map(str, (image, "/usr", slurm.root, REPOSITORY, libraries))))
    subprocess.run(["chown", "-R", f"{slurm.user}:", str(image), str(file)], check=True)
    real = shutil.which("srun", path=place.environ["PATH"])
    assert real
    place.environ |= {"PATH": f"{FAKES}{os.pathsep}{place.environ['PATH']}", "REAL_SRUN": real}
    place.environ["COUNTER_GPUS"] = "SLURM_STEP_GPUS"
    inside = {"image": "image.sqsh", "runtime": "pyxis"}
    place.write_jobs(place.counter("only", gated=True, gpus=1, container=inside))
    batch = Batch(slurm, place)
    batch.id = submit(place, "--partition=harvest", "--nodelist=n1", nodes=1, words=("--requeue",))
    wait_for(lambda: batch.counted()[-1:] == [39], "all steps but the last")
    assert len(place.steps("only")[-1].gpus) == 1
    suspended_and_resumed(place)
    preempted_it_goes_on(slurm, place, batch)
