"""``model.fit`` under a real manager, which gives it another number of GPUs."""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

import pytest
from site_of_test import WAIT_S, Site
from tf_harness import SCRIPTS
from written import whole_lines

TRAIN = Path(__file__).parent / "train_fit.py"


@pytest.mark.slow
def test_resized_by_suspending_it(site: Site) -> None:
    here, go, log = (site.path / name for name in ("here", "go", "log"))
    os.mkfifo(here)
    os.mkfifo(go)
    launch = [sys.executable, "-m", "hpcext", "launch", "--"]
    environ = {
        "SCRIPT_LOG": str(log),
        "SCRIPT_HOLD": f"14 {here} {go}",
        "PYTHONPATH": str(SCRIPTS),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    site.write_jobs(
        {
            "name": "digits",
            "command": [*launch, sys.executable, str(TRAIN), "--still"],
            "env": environ,
            "gpus": {"min": 1, "max": 2, "optimal": 1},
        }
    )
    # For reading and writing: opening does not wait for the other side.
    with open(here, "r+b", buffering=0) as reached, open(go, "r+b", buffering=0) as release:
        manager = site.start(
            "run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot), "--json"
        )
        ready, _, _ = select.select([reached], [], [], 2 * WAIT_S)
        assert ready, site.run("logs", str(site.pilot), "digits")
        site.run_until_done("resize", str(site.pilot), "digits", "2")
        release.write(b"go")
        out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err, site.run("logs", str(site.pilot), "digits"))

    (job,) = json.loads(out)["jobs"]
    assert (job["state"], job["attempts"], job["suspends"]) == ("completed", 2, 1)
    assert (job["rescales"], job["lost_steps"]) == (0, 0)
    assert [len(part["gpus"]) for part in job["segments"]] == [1, 2]
    assert sum(part["steps"] for part in job["segments"]) == 30
    # What the model itself wrote down: each sample once in each epoch, on one worker, then on two.
    said = [line.split() for line in whole_lines(log)]
    steps = [line for line in said if line[2] == "step"]
    for epoch in ("0", "1", "2"):
        rows = [int(row) for line in steps if line[4] == epoch for row in line[5].split(",")]
        assert sorted(rows) == list(range(120))
    assert {(line[0], line[1]) for line in steps} == {("1", "0"), ("2", "0"), ("2", "1")}
    accuracy = next(float(line[3]) for line in said if line[2:3] == ["accuracy"])
    assert accuracy > 0.7
    assert not site.left_behind()
