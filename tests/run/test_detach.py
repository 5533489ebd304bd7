"""A manager in the background, whoever looks on, and commands that are not told which pilot."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from site_of_test import Site, wait_for


def test_a_pilot_goes_on_in_the_background_and_is_followed(site: Site) -> None:
    site.write_jobs(
        site.counter("a", gated=True), {"name": "b", "command": ["false"], "retries": 0}
    )
    begun = site.run("run", "jobs.toml", "--gpus=2", "--dir", str(site.pilot), "--detach")
    assert begun.code == 0, begun
    # Whoever looks as soon as the command has returned finds the jobs.
    found = site.document("status", str(site.pilot))
    assert [job["name"] for job in found["jobs"]] == ["a", "b"]
    manager = json.loads((site.pilot / "manager.json").read_text())["pid"]
    assert f"(pid {manager})" in begun.out
    # Of no terminal and no session of ours: a hang-up does not reach it.
    assert os.getsid(manager) == manager
    assert psutil.Process(manager).terminal() is None
    one = site.start("attach", str(site.pilot))
    assert one.stdout is not None
    wait_for(lambda: "b: " in one.stdout.readline(), "what happened")
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=500)
    assert one.returncode == 130
    assert "goes on" in err
    assert psutil.pid_exists(manager)
    two = site.start("attach", str(site.pilot))
    site.open("a")
    out, err = two.communicate(timeout=500)
    assert two.returncode == 1, (out, err)
    assert "a: completed" in out
    assert "b: exit code 1" in out
    assert (site.pilot / "manager.log").stat().st_mode & 0o077 == 0
    assert "b: exit code 1" in (site.pilot / "manager.log").read_text()
    # Nobody manages it any more, and nothing is left to do.
    assert site.document("attach", str(site.pilot))["jobs"][0]["state"] == "completed"
    site.check_account({"a": 40})


def test_a_pilot_that_stays_waits_for_jobs_until_it_is_drained(site: Site) -> None:
    words = ("--gpus=1", "--stay", "--detach")
    refused = site.run("run", *words)
    assert (refused.code, "--stay --name NAME" in refused.err) == (2, True)
    for more in (("--dry-run", "--name=queue", "--gpus=1"), ("--resume=x",)):
        refused = site.run("run", "--stay", *more)
        assert (refused.code, "--stay cannot be given" in refused.err) == (2, True), refused
    assert site.run("run", *words, "--name=queue").code == 0
    for number in (1, 2):
        done = site.run("submit", "queue", "--wait", "--name", f"j{number}", "--", "true")
        assert (done.code, "1 job completed" in done.out) == (0, True), done
    drained = site.run("drain", "queue", "--wait")
    assert (drained.code, "all jobs have ended" in drained.out) == (0, True)


def test_what_is_wrong_at_the_start_is_said_in_the_foreground(site: Site) -> None:
    site.write_jobs({"name": "a", "command": ["true"]})
    assert site.run("run", "none.toml", "--detach").code == 2
    refused = site.run("run", "jobs.toml", "--gpus=1", "--detach", "--dry-run")
    assert (refused.code, "--detach" in refused.err) == (2, True)
    assert site.run("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot)).code == 0
    with (site.pilot / "journal.jsonl").open("a") as journal:
        journal.write("damaged\n")
    refused = site.run("run", "--resume", str(site.pilot), "--detach")
    assert refused.code == 3
    assert "is damaged" in refused.err
    assert "manager.log" in refused.err


def test_attached_to_what_was_interrupted(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True))
    manager = site.start("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("a"), "a step")
    manager.terminate()
    manager.wait(60)
    looked = site.run("attach", str(site.pilot))
    assert looked.code == 3
    assert "hpcext run --resume" in looked.err


def test_the_same_file_again_beside_an_unfinished_pilot_of_it(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True), {"name": "b", "command": ["true"]})
    manager = site.start("run", "jobs.toml", "--gpus=2", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("a"), "a step")
    asked = site.run("run", "jobs.toml", "--gpus=1", "--dry-run")
    assert (asked.code, "of the same file is already running" in asked.err) == (0, True)
    assert "hpcext attach jobs-" in asked.err
    manager.terminate()
    manager.wait(60)
    site.open("a")
    again = site.run("run", "jobs.toml", "--gpus=1")
    assert again.code == 0
    assert "of the same file ended with 1 job left" in again.err
    assert "hpcext run --resume jobs-" in again.err
    # The one that was begun last is done.
    assert "same file" not in site.run("run", "jobs.toml", "--gpus=1", "--dry-run").err


def test_verbs_that_look_take_the_newest_pilot_and_say_so(site: Site) -> None:
    for name in ("old", "cnn"):
        text = f'[[job]]\nname = "cnn"\ncommand = "echo {name}"\n'
        text += '[[job]]\nname = "other"\ncommand = "printf \\"1\\\\n2\\\\n3\\""\n'
        (site.path / f"{name}.toml").write_text(text)
    none = site.run("status")
    assert (none.code, "there is no pilot yet" in none.err) == (3, True)
    assert site.run("run", "old.toml", "--gpus=2").code == 0
    assert site.run("run", "cnn.toml", "--gpus=2").code == 0
    shown = site.run("status")
    assert shown.code == 0
    assert "pilot cnn-" in shown.err
    assert "the newest" in shown.err
    # A single word: a job of the newest, or else a pilot.
    assert site.run("logs", "cnn").out.endswith("cnn\n")
    assert site.run("logs", "old", "cnn").out.endswith("old\n")
    assert site.run("why", "other").out == "other is completed\n"
    assert site.run("why", "old").out == "cnn is completed\nother is completed\n"
    assert len(site.run("status", "other").out.splitlines()) == 2
    # No job of this name is in the newest, and no pilot has it.
    unknown = site.run("why", "othre")
    assert (unknown.code, "the newest pilot has no such job" in unknown.err) == (3, True)
    several = site.run("logs", "old")
    assert (several.code, "(valid: cnn, other)" in several.err) == (2, True)
    # The newest is another one now, which has a job that is called like an older pilot.
    assert site.run("run", "old.toml", "--gpus=2").code == 0
    either = site.run("logs", "cnn")
    assert either.code == 2
    assert "is both a job of the newest pilot" in either.err
    # Options in any place.
    for words in (["-n", "2", "other"], ["other", "-n", "2"]):
        assert site.run("logs", "old", *words).out == "2\n3"
    assert site.run("logs", "-n1", "old", "-q", "other").out == "3"
    assert site.run("-q", "logs", "other", "-n", "0").out == ""
    assert site.run("logs", "other", "-n", "-1").code == 2
    assert site.run("status", "-q").err == ""


def test_verbs_that_change_take_the_only_pilot_that_runs(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True, gpus=1))
    nobody = site.run("attach", "nosuch")
    assert "there is none yet; hpcext run JOBS.toml starts one" in nobody.err
    assert "such job" not in nobody.err
    assert "such job" not in site.run("status", "nosuch").err
    nobody = site.run("cancel", "a")
    assert (nobody.code, "no pilot is running" in nobody.err) == (3, True)
    first = site.start("run", "jobs.toml", "--gpus=1", "--name", "first")
    wait_for(lambda: site.steps("a"), "a step")
    wrong = site.run("cancel", "first")
    assert wrong.code == 2
    assert "is a pilot" in wrong.err
    second = site.start("run", "jobs.toml", "--gpus=1", "--name", "second")
    wait_for(lambda: "second" in site.run("pilot", "list").out, "the other pilot")
    wait_for(lambda: site.run("status", "second").code == 0, "its journal")
    both = site.run("cancel", "a")
    assert both.code == 2
    assert "2 pilots are running" in both.err
    assert "first-" in both.err
    assert "second-" in both.err
    assert site.run("cancel", "second", "a").code == 0
    assert second.wait(60) == 1
    done = site.run("cancel", "a")
    assert done.code == 0
    assert "pilot first-" in done.err
    assert "the only one that runs" in done.err
    assert first.wait(60) == 1


def test_a_manager_says_that_its_pilot_was_deleted(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True))
    manager = site.start("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("a"), "a step")
    # A client makes a folder again that is missing.
    shutil.rmtree(site.pilot / "requests")
    assert site.run("suspend", str(site.pilot), "a", "--wait").code == 0
    shutil.rmtree(site.pilot)
    manager.send_signal(signal.SIGUSR1)
    assert manager.stderr is not None
    wait_for(lambda: "has deleted this pilot while it runs" in manager.stderr.readline(), "word")
    manager.terminate()
    manager.terminate()
    manager.wait(60)


def test_of_two_pilots_of_a_name_verbs_change_that_which_runs(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True, gpus=1))
    older = site.start("run", "jobs.toml", "--gpus=1", "--name", "twin")
    wait_for(lambda: site.steps("a"), "a step")
    newer = site.start("run", "jobs.toml", "--gpus=1", "--name", "twin")
    wait_for(lambda: site.run("pilot", "list").out.count("running") == 2, "the other pilot")
    both = site.run("cancel", "twin", "a")
    assert both.code == 2
    assert "2 pilots of the name twin are running" in both.err
    assert both.err.count("twin-") == 2
    newer.terminate()
    newer.wait(60)
    done = site.run("cancel", "twin", "a")
    assert (done.code, "the only one of its name that runs" in done.err) == (0, True)
    assert older.wait(60) == 1


# Shells.


def test_a_command_for_a_shell_that_has_none_is_warned_of_once(site: Site) -> None:
    pipe = {"command": "echo hello | tr a-z A-Z"}
    site.write_jobs({"name": "a", **pipe}, {"name": "b", **pipe, "shell": True})
    done = site.run("run", "jobs.toml", "--gpus=2", "--dir", str(site.pilot))
    assert done.code == 0
    warned = [line for line in done.err.splitlines() if "shell = true" in line]
    assert len(warned) == 1
    assert "the command of a does not run in a shell, so '|'" in warned[0]
    assert "that fails counts as completed: b;" in done.err
    assert site.run("logs", "a", "-n1").out == "hello | tr a-z A-Z\n"
    assert site.run("logs", "b", "-n1").out == "HELLO\n"


def test_jobs_that_are_handed_in_are_warned_of_too(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True))
    manager = site.start("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot))
    more = site.path / "more.toml"
    more.write_text('[[job]]\nname = "b"\ncommand = "true > x"\n')
    wait_for(lambda: site.steps("a"), "a step")
    asked = site.run("submit", str(more))
    assert asked.out == "submitted 2 (b)\n"
    assert "shell = true" in asked.err
    site.open("a")
    assert manager.wait(60) == 0


@pytest.mark.parametrize("command", ["{0} | cat", "cd / && {0}", "{0} > {1}/out; echo after"])
def test_a_training_below_a_shell_is_suspended_and_goes_on(site: Site, command: str) -> None:
    job = site.counter("a", gated=True)
    argv = " ".join(map(str, job["command"]))
    site.write_jobs({**job, "command": command.format(argv, site.path), "shell": True})
    manager = site.start("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("a"), "a step")
    site.run_until_done("suspend", str(site.pilot), "a")
    wait_for(lambda: "suspended" in site.run("status", str(site.pilot)).out, "its suspension")
    site.open("a")
    assert site.run("resume", str(site.pilot), "a").code == 0
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    steps = [step.step for step in site.steps("a")]
    assert steps == list(range(1, 41)), "nothing lost, nothing twice"
    text = Path(site.pilot / "jobs" / "1" / "log.txt").read_text()
    assert text.count("after") == ("after" in command)
