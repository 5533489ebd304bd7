"""A live pilot with a training that adapts is recorded, and simulated as it was."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
from site_of_test import Site

from hpcext.cli import main as cli
from hpcext.scaling.throughput import Throughput
from hpcext.sim.pilots.recording import CompletedJob, read_recording

TRAIN = Path(__file__).parents[2] / "benchmarks" / "pollux_live_train.py"
PASS_S, SAMPLE_S, WORK = 0.02, 0.001, 2000
POLICY = "pollux:interval_s=1,delay_s=1"


@pytest.mark.slow
def test_a_pilot_is_simulated_as_it_was(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = [sys.executable, "-m", "hpcext", "launch", sys.executable, str(TRAIN)]
    options = ["--noise", "40", "--work", str(WORK), "--pace", str(PASS_S), str(SAMPLE_S)]
    adapts = {"name": "adapts", "command": launch + options, "gpus": {"min": 1, "max": 2}}
    adapts["work"] = {"samples": WORK}
    site.write_jobs(adapts, site.counter("counts", steps=100, step_s=0.02))
    words = ("run", str(site.jobs), "--gpus", "2", "--policy", POLICY, "--dir", str(site.pilot))
    jobs = site.document(*words)["jobs"]
    assert [job["state"] for job in jobs] == ["completed", "completed"], jobs
    live_s = statistics.fmean(job["ended_s"] - job["submitted_s"] for job in jobs)

    path = site.path / "live.json"
    done = site.run("trace", "pilot", str(site.pilot), "-o", str(path))
    assert done.out.startswith(f"{path}: 2 jobs, of which 1 adapt, on 1x2, in "), done
    recording = read_recording(path)
    assert recording.policy == POLICY
    by_name = {job.name: job for job in recording.jobs}
    check_adapting(by_name["adapts"])
    assert by_name["counts"].work == 100
    assert by_name["counts"].speed[1] <= 1 / 0.02

    monkeypatch.chdir(site.path)
    assert cli.main(["simulate", str(path), "--policy", POLICY, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["policies"]
    simulated_s = row["figures"]["jct_mean_s"]["mean"]
    # Generous: what a busy machine does at times is in the mean costs, and not where it was.
    assert 0.5 < simulated_s / live_s < 2, (simulated_s, live_s)
    assert cli.main(["trace", "pilot", str(site.pilot), "-o", "live.csv"]) == 2
    assert "valid: a name that ends in .json" in capsys.readouterr().err


def check_adapting(job: CompletedJob) -> None:
    """What was measured of the training is what it was told to be."""
    assert job.adapting is not None
    assert not job.speed
    # The last step may teach more than was asked for; its batch had 1,024 samples at most.
    assert WORK <= job.work < WORK + 1024
    assert job.stated.work == WORK
    assert job.costs.resume_s > 0
    said = job.adapting.goodput
    assert said.initial_batch == 32
    assert said.throughput is not None
    # A pass sleeps so long at least; what the machine adds is measured too.
    batch = max(32, said.batch or 0)
    assert Throughput(*said.throughput).gradient_s(batch) > 0.7 * (PASS_S + SAMPLE_S * batch)
    assert 0 < job.adapting.known_from < WORK
    assert all(noise > 0 for _, noise in job.adapting.noise)


def test_a_pilot_without_an_end_says_so(site: Site) -> None:
    site.write_jobs({"name": "fails", "command": "false", "retries": 0})
    site.run("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    done = site.run("trace", "pilot", str(site.pilot), "-o", str(site.path / "live.json"))
    assert done.code == 2
    assert "no job of it has completed; wait until one has" in done.err
