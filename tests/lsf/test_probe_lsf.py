"""hpcext doctor --probe on an LSF: what a lease goes through, and nothing is left of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsf_site import LEAN, Queue
from lsf_tools import MakeSite
from site_of_test import wait_for
from test_lsf_harvest import HOSTS, KILLABLE, NORMAL, Harvest

STOPS = Queue(priority=10, run_limit=240, job_controls={"SUSPEND": "SIGTSTP"})


@pytest.fixture
def make_probe(make_site: MakeSite, tmp_path: Path) -> Iterator[Any]:
    """A site with a queue of leases, whose jobs another one may preempt."""
    made: list[Harvest] = []

    def place(*quirks: str, **queues: Queue) -> Harvest:
        site = make_site(*quirks, hosts=HOSTS, queues=queues, terminate_interval_s=1.0, pim_s=0.2)
        one = Harvest(tmp_path, site)
        one.environ |= {"HPCEXT_STATE_DIR": str(tmp_path / "state")}
        made.append(one)
        return one

    yield place
    for one in made:
        one.clear()
        one.kill_left_behind()


def nothing_left(place: Harvest) -> None:
    """No job, no process, no file."""
    wait_for(lambda: all(job.over() for job in place.lsf.jobs()), "the end of all jobs")
    state = place.path / "state"
    wait_for(lambda: not list(state.glob("doctor-*")), "the end of the keeper")
    assert not list((state / "pilots").iterdir())
    wait_for(lambda: not place.left_behind(), "the end of all processes")


@pytest.mark.slow
def test_a_lease_is_preempted_and_its_work_survives(make_probe: Any) -> None:
    place = make_probe(normal=NORMAL, killable=KILLABLE)
    out, err = place.start("doctor", "--probe", "killable", "--json").communicate(timeout=400)
    document = json.loads(out)
    findings = [each for each in document["findings"] if each["name"] == "probe"]
    assert {each["verdict"] for each in findings} == {"ok"}, (findings, err)
    told = [each["says"] for each in findings]
    parts = ("lease: job", "shared files", "trains", "preempted by", "suspended", "job", "the work")
    for words, said in zip(parts, told, strict=True):
        assert said.startswith(words)
    # The queue is judged, though no setting names it.
    judged = {each["name"]: each["verdict"] for each in document["findings"]}
    assert (judged["preemption"], judged["rerunnable"]) == ("ok", "note")
    nothing_left(place)


@pytest.mark.slow
def test_where_no_queue_preempts_the_lease_is_stopped(make_probe: Any) -> None:
    """A lean engine has neither PREEMPTION nor GPUs; bstop sends what a preemption would."""
    place = make_probe(*LEAN, normal=Queue(), killable=STOPS)
    out, err = place.start("doctor", "--probe", "killable", "--json").communicate(timeout=400)
    findings = [each for each in json.loads(out)["findings"] if each["name"] == "probe"]
    assert [each["verdict"] for each in findings] == [*["ok"] * 3, "note", *["ok"] * 4], (
        findings, err,
    )  # fmt: skip
    told = [each["says"] for each in findings]
    assert "no job preempts it: according to bqueues, no queue preempts jobs of killable" in told[3]
    assert told[4].startswith("stopped by bstop, as a preemption would")
    assert told[6].startswith("given back: lease")
    assert told[7].startswith("the work survived")
    nothing_left(place)


@pytest.mark.slow
def test_nothing_is_left_of_one_that_is_killed(make_probe: Any) -> None:
    place = make_probe(normal=NORMAL, killable=KILLABLE)
    process = place.start("doctor", "--probe", "killable", "--json")
    wait_for(lambda: list(place.path.glob("state/doctor-*/pilot/jobs/*/log.txt")), "a training")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=500)
    nothing_left(place)
