"""What a training says that its user should know is where users look."""

from __future__ import annotations

import sys

from site_of_test import Site, wait_for

SCRIPT = """
import pathlib, sys, time
import numpy as np
from hpcext.training.session import Session

session = Session(weights=np.zeros(2))
for turn in range(100_000):
    session.report(loss=1.0 / (turn + 1))
    time.sleep(0.02)
    if pathlib.Path(sys.argv[1]).exists():
        break
"""
LOST = "nothing is saved, and the job cannot be suspended"


def test_a_loop_that_never_comes_to_a_place_to_stop(site: Site) -> None:
    script, end = site.path / "train.py", site.path / "end"
    script.write_text(SCRIPT)
    job = {"name": "lost", "command": [sys.executable, str(script), str(end)]}
    site.write_jobs(job)
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    wait_for(lambda: LOST in site.run("why", str(site.pilot), "lost").out, "the warning")
    assert "lost: warning: session.report(loss=...)" in site.run("status", str(site.pilot)).out
    (shown,) = site.document("status", str(site.pilot))["jobs"]
    assert len(shown["notes"]) == 1
    assert shown["metrics"]["loss"] > 0
    asked = site.run("suspend", str(site.pilot), "lost")
    assert (asked.code, "it has no session yet" in asked.out, LOST in asked.out) == (0, True, True)
    assert site.document("status", str(site.pilot))["jobs"][0]["state"] == "running"
    end.touch()
    said, _ = manager.communicate(timeout=500)
    assert manager.returncode == 0, said
    assert said.count(LOST) == 1
    log = (site.pilot / "jobs" / "1" / "log.txt").read_text()
    assert log.count(LOST) == 1
    assert LOST in site.run("why", str(site.pilot), "lost").out, "also when it is over"
