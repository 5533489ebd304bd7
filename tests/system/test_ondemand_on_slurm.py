"""A session of the app for Open OnDemand as a job of a real Slurm, which submits a pilot."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from written import whole_lines

ROOT = Path(__file__).parents[2]
PROXY = "127.0.0.2"

# The order of the basic batch script of Open OnDemand, on a node of this machine.
SESSION = """#!/bin/bash
cd "$1" || exit 9
clean_up() { [[ -z $SCRIPT_PID ]] || kill "$SCRIPT_PID" 2>/dev/null; exit "${1:-0}"; }
host=127.0.0.1
source before.sh
./script.sh &
SCRIPT_PID=$!
source after.sh
umask 077
printf '%s\\n' "$token" "$port" >connection.yml
wait $SCRIPT_PID || clean_up 1
"""


def rendered(out: Path, **form: Any) -> dict[str, Any]:
    """What Open OnDemand would make of the app."""
    asked = {
        "app": str(ROOT / "site_configs" / "ondemand" / "hpcext"),
        "form": {"nodes": "1", "gpus": "6", "hours": "1", "policy": "marble", **form},
        "out": str(out),
        "administrator": True,
    }
    words = ["ruby", str(ROOT / "tests" / "sites" / "ondemand.rb")]
    done = subprocess.run(
        words, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_session_submits_a_pilot_and_shows_it(slurm: Cluster, place: Site) -> None:
    """The trainings do not end with the session."""
    out = place.path / "session"
    out.mkdir()
    programs = place.path / "programs"
    programs.mkdir()
    (programs / "hpcext").write_text(f'#!/bin/sh\nexec {place.python} -m hpcext "$@"\n')
    (programs / "hpcext").chmod(0o755)
    place.write_jobs(place.counter("only", gated=True, gpus=1))
    # Spaces and quotes are the way of users.
    jobs = place.path / "my 'jobs'.toml"
    place.jobs.rename(jobs)
    made = rendered(
        out,
        jobs=str(jobs),
        queue="harvest",
        proxies=PROXY,
        setup=f"export PATH={shlex.quote(str(programs))}:$PATH",
    )
    (place.path / "session.sh").write_text(SESSION)
    for path in (out, programs, jobs, place.path / "session.sh"):
        subprocess.run(["chown", "-R", f"{slurm.user}:", str(path)], check=True)
    submitted = slurm.as_user(
        "sbatch",
        "--parsable",
        "--partition=harvest",
        f"--output={out}/output.log",
        *made["submit"]["script"]["native"],
        str(place.path / "session.sh"),
        str(out),
        **place.environ,
    )
    session = submitted.stdout.strip()
    log = out / "output.log"
    wait_for(lambda: len(whole_lines(out / "connection.yml")) == 2, "the session")
    token, port = whole_lines(out / "connection.yml")

    def shown() -> dict[str, Any]:
        proxy = http.client.HTTPConnection(
            "127.0.0.1", int(port), timeout=100, source_address=(PROXY, 0)
        )
        try:
            proxy.request("GET", f"/{token}/data.json")
            document = json.loads(proxy.getresponse().read())
        finally:
            proxy.close()
        assert isinstance(document, dict)
        return document

    def states() -> list[str]:
        return [job["state"] for pilot in shown()["pilots"] for job in pilot["jobs"]]

    wait_for(lambda: states() == ["running"], "the training")
    found = re.search(r"job (\d+) of Slurm", log.read_text())
    assert found, log.read_text()
    assert slurm.job(found[1])["JobState"] == "RUNNING"
    slurm.run("scancel", session)
    slurm.wait_for(lambda: slurm.job(session)["JobState"] == "CANCELLED", "its end")
    place.open("only")
    slurm.wait_for(lambda: slurm.job(found[1])["JobState"] == "COMPLETED", "the trainings")
    assert [step.step for step in place.steps("only")] == list(range(1, 41))
