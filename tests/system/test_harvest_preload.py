"""Trainers on a lease of a real Slurm are forked from a process that has imported their modules."""

from __future__ import annotations

import pytest
from site_of_test import Site
from slurm_cluster import Cluster
from test_harvest import ended, harvest, jobs_of, nothing_left

MODULE = """
import os
PID = os.getpid()
"""

WAITS = """
import time
from pathlib import Path

def ready(path):
    # It has replaced its padding.
    try:
        words = path.read_bytes().split(b"\\0")
    except OSError:
        return False
    return b"counted_on_lease" in words and not any(word.startswith(b"....") for word in words)

while not any(map(ready, Path("/proc").glob("[0-9]*/cmdline"))):
    time.sleep(0.1)
"""

SAYS = """
import os, counted_on_lease
print("forked" if counted_on_lease.PID != os.getpid() else "executed", flush=True)
"""

FAILS = """
import os, time
from pathlib import Path
while not Path(os.environ["HPCEXT_REPORT_DIR"], "preload.json").exists():
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_they_are_forked_or_it_is_said_why_not(slurm: Cluster, place: Site) -> None:
    (place.path / "counted_on_lease.py").write_text(MODULE)
    programs = {"first": SAYS + WAITS, "second": SAYS, "absent": FAILS}
    jobs = []
    for name, text in programs.items():
        script = place.path / f"{name}.py"
        script.write_text(text)
        jobs.append(
            {
                "name": name,
                "command": [place.python, str(script)],
                "env": {"PYTHONPATH": str(place.path)},
                "nodes": {"min": 1, "max": 1},
                "gpus": 6,
                "preload": ["not_there" if name == "absent" else "counted_on_lease"],
                **({"after": ["first"]} if name == "second" else {}),
            }
        )
    place.write_jobs(*jobs)
    out = ended(harvest(place, "--max-nodes", "1"))
    assert {each["state"] for each in jobs_of(place).values()} == {"completed"}, out
    logs = {
        name: place.run("logs", str(place.pilot), name).out.split() for name in ("first", "second")
    }
    assert (logs["first"][-1], logs["second"][-1]) == ("executed", "forked"), logs
    why = "not_there: ModuleNotFoundError: No module named 'not_there'"
    assert f"absent: warning: preload has no effect: {why}" in " ".join(out.split())
    nothing_left(slurm, place)
