"""What is asked of a pilot from another terminal, and what comes of it: by real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from site_of_test import Finished, Site, wait_for

# A training that takes long to import: it opens its session when it is told to.
SLOW = "import os,sys,time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nos.execv({0!r}, [{0!r}, *sys.argv[2:]])"  # noqa: E501


def slow(site: Site, name: str, **more: object) -> dict[str, object]:
    """A counter that registers once :func:`wake` is called."""
    job = site.counter(name, gated=True, **more)  # type: ignore[arg-type]
    code = SLOW.format(sys.executable)
    job["command"] = [sys.executable, "-c", code, str(site.path / f"{name}.awake")]
    job["command"] += site.counter(name, gated=True)["command"][1:]
    return job


def wake(site: Site, name: str) -> None:
    (site.path / f"{name}.awake").touch()


def endless(name: str, **more: object) -> dict[str, object]:
    """A job without a session, that waits to be cancelled."""
    return {"name": name, "command": ["sleep", "1000"], **more}


def begin(site: Site, *jobs: dict[str, object], gpus: int = 4) -> subprocess.Popen[str]:
    site.write_jobs(*jobs)
    manager = site.start("run", str(site.jobs), "--gpus", str(gpus), "--name", "p")
    wait_for(lambda: states(site), "the manager")
    return manager


def states(site: Site) -> dict[str, str]:
    jobs = site.document("status", "p").get("jobs", [])
    return {job["id"]: job["state"] for job in jobs}


def runs(site: Site, job_id: str) -> None:
    wait_for(lambda: states(site).get(job_id) == "running", f"job {job_id} to run")


def finish(site: Site, manager: subprocess.Popen[str], code: int) -> tuple[str, str]:
    for job_id, state in states(site).items():
        if state not in {"completed", "cancelled", "failed"}:
            site.run("cancel", "p", job_id)
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == code, (out, err)
    return out, err


def test_a_name_is_of_one_unfinished_job(site: Site) -> None:
    """Refused, or numbered where that is wanted; one that has ended gives its name free."""
    one = {"name": "one", "command": "true"}
    manager = begin(site, one, endless("cnn"))
    runs(site, "2")
    wait_for(lambda: states(site)["1"] == "completed", "the end of one")
    site.write_jobs(one, endless("more", after=["cnn"]), endless("cnn"))
    refused = site.run("submit", "p", str(site.jobs))
    assert refused.code == 2
    assert "[[job]] 3 (cnn): name: job 2 is called cnn, and is running" in refused.err
    assert "--number" in refused.err
    assert states(site).keys() == {"1", "2"}
    said = site.run("submit", "p", str(site.jobs), "--number").out
    assert said == "submitted 3 (one), 4 (more), 5 (cnn-2)\n"
    # What comes after a job of the same file comes after that, under whatever name.
    assert "waits for cnn-2 to complete" in site.run("why", "p", "more").out
    wait_for(lambda: states(site)["3"] == "completed", "the end of the other one")
    shown = site.run("why", "p", "one")
    assert shown.out == "one is completed\n"
    assert "of 2 jobs called one, this is 3; also: 1" in shown.err
    assert site.run("cancel", "p", "one").err.count("job one (3) is already completed") == 1
    finish(site, manager, 1)


def test_of_several_jobs_of_one_name_a_verb_takes_none(site: Site) -> None:
    """As earlier releases let them be submitted: here their submission is forged."""
    manager = begin(site, endless("cnn"), endless("other"))
    wait_for(lambda: states(site).get("2") == "running", "both")
    manager.kill()
    manager.communicate()
    (directory,) = (site.path / "state/hpcext/pilots").iterdir()
    for path in (directory / "submissions/first.json", directory / "journal.jsonl"):
        path.write_text(path.read_text().replace('"other"', '"cnn"'))
    manager = site.start("run", "--resume", str(directory))
    wait_for(lambda: site.run("drain", "p").code == 0, "the next manager")
    for verb in ("suspend", "cancel", "why", "logs", "status"):
        unclear = site.run(verb, "p", "cnn")
        expected = (
            "2 unfinished jobs are called cnn (valid: 1 (running), 2 (running)); give the id of one"
        )
        assert (unclear.code, expected in unclear.err) == (2, True), unclear
    assert site.run("cancel", "p", "2", "--wait").code == 0
    # It is not in the way any more.
    assert site.run("why", "p", "cnn").out.startswith("cnn is running")
    finish(site, manager, 1)


def test_a_manager_that_was_drained_says_how_many_jobs_never_ran(site: Site) -> None:
    manager = begin(
        site, site.counter("first", gated=True), endless("second"), endless("third"), gpus=1
    )
    runs(site, "1")
    waits = site.start("drain", "p", "--wait")
    assert waits.stdout
    assert "; 2 jobs are left waiting" in waits.stdout.readline()
    site.open("first")
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 4, (out, err)
    assert "jobs are left: 2 never ran; go on with: hpcext run --resume" in err
    said, _ = waits.communicate(timeout=500)
    assert (waits.returncode, said) == (4, "jobs are left: 2 never ran\n")
    again = site.start("run", "--resume", str(site.path / "state/hpcext/pilots" / pilot(out)))
    runs(site, "2")
    finish(site, again, 1)


def pilot(out: str) -> str:
    """The id of a pilot, from what its manager prints first."""
    return out.split()[1].rstrip(":")


def test_a_drained_manager_whose_jobs_are_done_has_done_all(site: Site) -> None:
    manager = begin(site, site.counter("only", gated=True))
    site.run_until_done("drain", "p")
    site.open("only")
    manager.communicate(timeout=500)
    assert manager.returncode == 0


def test_a_job_that_is_starting_is_suspended_when_it_can_save(site: Site) -> None:
    manager = begin(site, slow(site, "late"))
    runs(site, "1")
    asks = site.start("suspend", "p", "late", "--wait")
    assert asks.stdout
    assert asks.stdout.readline() == (
        "late will be suspended as soon as it can save its state; it has no session yet\n"
    )
    assert "will be suspended as soon as" in site.run("why", "p", "late").out
    assert "is already to be suspended" in site.run("suspend", "p", "late").err
    wake(site, "late")
    said, _ = asks.communicate(timeout=500)
    assert (asks.returncode, said.startswith("late is suspended at step ")) == (0, True)
    resumed = site.run("resume", "p", "late", "--wait")
    assert (resumed.code, resumed.out) == (0, "late may run again\nlate runs on 1 GPU\n")
    site.open("late")
    manager.communicate(timeout=500)
    assert manager.returncode == 0
    site.check_account({"late": 40})


def test_a_resumption_takes_a_remembered_suspension_back(site: Site) -> None:
    manager = begin(site, slow(site, "late"))
    runs(site, "1")
    site.run_until_done("suspend", "p", "late")
    late = site.run("suspend", "p", "late", "--wait", "--timeout", "0")
    assert "is already to be suspended" in late.err
    assert site.run("resume", "p", "late").out == "late is not suspended, and goes on\n"
    assert "will be" not in site.run("why", "p", "late").out
    wake(site, "late")
    site.open("late")
    manager.communicate(timeout=500)
    assert manager.returncode == 0
    assert len({step.attempt for step in site.steps("late")}) == 1


def test_waiting_for_an_impossible_suspension_ends_with_an_error(site: Site) -> None:
    """A job without a session loses nothing: it goes on to its end."""
    gate = site.path / "gate"
    job = endless("plain")
    job["command"] = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    job["command"] = ["sh", "-c", str(job["command"])]
    manager = begin(site, job)
    runs(site, "1")
    waits = site.start("suspend", "p", "plain", "--wait")
    wait_for(lambda: "will be suspended" in site.run("why", "p", "plain").out, "the request")
    hurried = site.run("drain", "p", "--wait", "--timeout", "0")
    assert (hurried.code, "stays in force" in hurried.err) == (1, True)
    gate.touch()
    out, _ = waits.communicate(timeout=500)
    assert waits.returncode == 1
    assert out.endswith(
        "plain is completed: was to be suspended, and ended before it had a session that could "
        "save its state\n"
    )
    manager.communicate(timeout=500)
    assert manager.returncode == 0


def test_a_size_that_was_asked_for_is_said_and_taken_back(site: Site) -> None:
    sized = site.counter("cnn", steps=40, gated=True, gpus={"min": 1, "max": 3, "optimal": 2})
    manager = begin(site, sized)
    wait_for(lambda: site.steps("cnn"), "its first step")
    assert "runs on 2 GPUs, its best size" in site.run("why", "p", "cnn").out

    def ask(gpus: str) -> Finished:
        return site.run("resize", "p", "cnn", gpus, "--wait")

    assert ask("3").out.endswith("cnn runs on 3 GPUs\n")
    assert "resized from 2 to 3 GPUs, as asked" in site.run("why", "p", "cnn").out
    again = ask("3")
    assert (again.code, "already to have 3 GPUs, as requested" in again.out) == (0, True)
    # The same range, whichever limit it is that is met.
    for wrong in ("0", "4", "5"):
        refused = ask(wrong)
        assert (refused.code, "(valid: 1 to 3, or auto)" in refused.err) == (2, True), refused
    back = ask("auto")
    assert (back.code, back.out) == (
        0, "cnn may have 1 to 3 GPUs again, as its policy decides\ncnn runs on 2 GPUs\n",
    )  # fmt: skip
    assert "to 2 GPUs, its best size" in site.run("why", "p", "cnn").out
    assert "no size was requested for cnn" in ask("auto").out
    # It has that already: nothing is stopped, and it is said whose wish it is.
    (before,) = site.document("status", "p")["jobs"]
    assert "cnn has 2 GPUs, and keeps that size" in ask("2").out
    assert "runs on 2 GPUs, as asked" in site.run("why", "p", "cnn").out
    (after,) = site.document("status", "p")["jobs"]
    assert after["attempts"] == before["attempts"]
    site.open("cnn")
    manager.communicate(timeout=500)
    assert manager.returncode == 0
    site.check_account({"cnn": 40})


def test_a_size_is_valid_as_far_as_the_machine_goes(site: Site) -> None:
    wide = site.counter("wide", gated=True, gpus={"min": 1, "max": 8})
    manager = begin(site, wide, gpus=2)
    refused = site.run("resize", "p", "wide", "3")
    assert "the largest node here has 2 GPUs (valid: 1 or 2, or auto)" in refused.err
    finish(site, manager, 1)


def test_a_size_of_a_suspended_job_is_for_when_it_goes_on(site: Site) -> None:
    sized = site.counter("cnn", gated=True, gpus={"min": 1, "max": 2})
    manager = begin(site, sized)
    wait_for(lambda: site.steps("cnn"), "its first step")
    site.run_until_done("suspend", "p", "cnn", "--wait")
    said = site.run("resize", "p", "cnn", "1", "--wait")
    assert said.out.startswith("cnn gets 1 GPU when it is resumed\n")
    assert said.code == 1
    assert site.run("resume", "p", "cnn", "--wait").out.endswith("cnn runs on 1 GPU\n")
    site.open("cnn")
    manager.communicate(timeout=500)
    assert manager.returncode == 0


def test_the_end_of_what_was_submitted_is_waited_for(site: Site) -> None:
    manager = begin(site, endless("first"))
    good = {"name": "good", "command": "true"}
    site.write_jobs(good)
    done = site.run("submit", "p", str(site.jobs), "--wait")
    assert (done.code, done.out) == (0, "submitted 2 (good)\n1 job completed\n")
    site.write_jobs(good, {"name": "bad", "command": "false", "retries": 0})
    failed = site.run("submit", "p", str(site.jobs), "--wait")
    assert (failed.code, "not completed: 4 (bad)" in failed.out) == (1, True)
    finish(site, manager, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("suspend", "p", "x", "--timeout", "3"), "--timeout: can be given with --wait only"),
        (("suspend", "p", "x", "--wait", "--timeout", "nan"), "--timeout: nan (valid: 0 to"),
        (("resize", "p", "x", "many"), "'many' (valid: an integer, or auto)"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_asked(
    site: Site, words: tuple[str, ...], said: str
) -> None:
    refused = site.run(*words)
    assert (refused.code, said in refused.err) == (2, True), refused
    assert not Path(site.path / "state").exists()
