"""``hpcext run`` with real processes, from the outside; jobs keep the account."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from site_of_test import Site, wait_for

from hpcext.cli.output import Output
from hpcext.cli.verbs import BLOCK_BYTES, copy_log

SHARED = {"first": 60, "second": 120, "third": 40}


@pytest.fixture
def shared(site: Site) -> Site:
    """On six slots: a primary on 3, a secondary that is promoted to 4, and one more behind.

    The first and the second one end when they are let (:func:`let_end`).
    """
    site.write_jobs(
        site.counter("first", steps=60, gated=True, gpus={"min": 1, "max": 6, "optimal": 3}),
        site.counter("second", steps=120, gated=True, gpus={"min": 1, "max": 6, "optimal": 4}),
        site.counter("third", steps=40, gpus={"min": 1, "max": 6, "optimal": 5}),
    )
    return site


def let_end(shared: Site) -> None:
    """Let the first one end when the second has begun, and that when it has been promoted."""
    wait_for(lambda: shared.steps("second"), "a step of the second")
    shared.open("first")
    wait_for((shared.pilot / "jobs/2/attempt-0002/report.json").exists, "its promotion")
    shared.open("second")


def states(document: dict[str, Any]) -> dict[str, str]:
    return {job["name"]: job["state"] for job in document.get("jobs", [])}


def running(site: Site, name: str, pilot: str | None = None) -> bool:
    document = site.document("status", pilot or str(site.pilot), name)
    return bool(document.get("jobs") and document["jobs"][0]["state"] == "running")


def test_jobs_share_are_promoted_and_lose_nothing(shared: Site) -> None:
    """Figure 5 with real processes: 3 + 3, then 4 + 2."""
    args = ("run", str(shared.jobs), "--gpus", "6", "--dir", str(shared.pilot), "--json")
    manager = shared.start(*args)
    let_end(shared)
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, err
    document = json.loads(out)
    assert states(document) == dict.fromkeys(SHARED, "completed")
    shared.check_account(SHARED)
    first, second, third = document["jobs"]
    assert [len(part["gpus"]) for part in second["segments"]] == [3, 4]
    assert [part["role"] for part in second["segments"]] == ["secondary", "primary"]
    assert len(third["segments"][0]["gpus"]) == 2
    assert (second["suspends"], second["lost_steps"], first["suspends"]) == (1, 0, 0)
    assert sum(part["steps"] for part in second["segments"]) == 120
    assert set(second["suspend_s"][0]) == {"agree_s", "write_s", "acknowledge_s", "teardown_s"}
    assert 0 < document["gpu_busy_fraction"] <= 1
    # What the document says of GPUs is what the processes saw.
    seen = [len(step.gpus) for step in shared.steps("second")]
    assert sorted(set(seen)) == [3, 4]


KEYS = {
    "id", "name", "state", "why", "exit_code", "submitted_s", "started_s", "ended_s", "suspends",
    "notes",
    "lost_steps", "attempts", "metrics", "segments", "suspend_s", "resume_s",
    "rescales", "up_s", "down_s", "goodput", "worth",
    "lost_steps_exact", "lost_s", "lost_s_exact", "cannot_save", "hangs", "hung", "loss", "orphans",
}  # fmt: skip


def test_the_document_keeps_its_shape(site: Site) -> None:
    goodput = {
        "noise_scale": 900.0, "initial_batch": 128, "most_batch": None, "least_per_gpu": 1,
        "most_per_gpu": 64, "accumulates": True, "batch": 256,
        "throughput": [0.02, 0.001, 0.0, 0.0, 0.0, 0.0, 1.0],
    }  # fmt: skip
    only = site.counter("only", steps=10)
    only["env"]["COUNTER_GOODPUT"] = json.dumps(goodput)
    site.write_jobs(only)
    document = site.document("run", str(site.jobs), "--gpus", "2", "--name", "shape")
    assert set(document) == {
        "schema", "started_at", "makespan_s", "gpu_busy_fraction", "policy", "policy_failure",
        "outlook", "jobs",
    }  # fmt: skip
    assert document["schema"] == "hpcext.run/1"
    # Nothing runs any more.
    assert document["outlook"] is None
    assert document["policy_failure"] is None
    (job,) = document["jobs"]
    assert set(job) == KEYS
    assert set(job["segments"][0]) == {
        "change", "start_s", "end_s", "stall_s", "gpus", "role", "steps",
    }  # fmt: skip
    assert job["segments"][0]["gpus"] == [f"{os.uname().nodename.partition('.')[0]}:0"]
    assert (job["exit_code"], job["metrics"]) == (0, {"count": 10.0})
    assert job["goodput"] == goodput
    # The same is told afterwards, by name, with no manager alive.
    assert site.document("status", "shape") == document


def test_exclusive_runs_one_job_at_a_time(shared: Site) -> None:
    shared.open("first")
    shared.open("second")
    document = shared.document("run", str(shared.jobs), "--gpus", "6", "--policy", "exclusive")
    parts = [job["segments"] for job in document["jobs"]]
    assert [[len(part["gpus"]) for part in job] for job in parts] == [[6], [6], [6]]
    ends = [job[0]["end_s"] for job in parts]
    assert all(end <= job[0]["start_s"] for end, job in zip(ends, parts[1:], strict=False))
    shared.check_account(SHARED)


def test_a_failing_job_is_tried_again_then_its_dependents_are_cancelled(site: Site) -> None:
    site.write_jobs(
        {"name": "bad", "command": [sys.executable, "-c", "raise SystemExit(3)"], "retries": 1},
        site.counter("after", after=["bad"]),
        site.counter("good", steps=10),
        {"name": "typo", "command": ["no-such-command-anywhere"]},
    )
    finished = site.run("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    assert finished.code == 1, finished
    document = site.document("status", str(site.pilot))
    assert states(document) == {
        "bad": "failed", "after": "cancelled", "good": "completed", "typo": "failed",
    }  # fmt: skip
    bad, _, _, typo = document["jobs"]
    assert (bad["exit_code"], bad["attempts"]) == (3, 2)
    # A command that is not there is not tried again.
    assert (typo["exit_code"], typo["attempts"]) == (127, 1)
    assert "needs bad, which failed" in site.run("why", str(site.pilot), "after").out
    assert "no-such-command" in site.run("logs", str(site.pilot), "typo").out


def test_a_bad_file_is_one_line_and_nothing_is_started(site: Site) -> None:
    site.jobs.write_text('[[job]]\nname = "a"\ncommand = "touch ran"\ngpu = 3\n')
    finished = site.run("run", str(site.jobs), "--gpus", "6")
    assert finished.code == 2
    assert finished.err.count("\n") == 1
    for word in ("jobs.toml", "[[job]] 1 (a)", "gpu", "gpus"):
        assert word in finished.err
    assert not (site.path / "ran").exists()
    assert not (site.path / "state").exists()


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({"name": "wide", "command": "true", "gpus": {"min": 7, "max": 9}}, "at least 7 GPUs"),
        ({"name": "far", "command": "true", "nodes": {"min": 2, "max": 2}}, "at least 2 nodes"),
    ],
)
def test_a_job_that_can_never_run_here_is_refused(
    site: Site, job: dict[str, object], word: str
) -> None:
    site.write_jobs(job)
    finished = site.run("run", str(site.jobs), "--gpus", "6")
    assert (finished.code, word in finished.err) == (2, True), finished


def test_a_second_manager_is_refused_and_disturbs_nothing(site: Site) -> None:
    site.write_jobs(site.counter("only", steps=100, gated=True))
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("only"), "the first step")
    second = site.run("run", "--resume", str(site.pilot))
    assert second.code == 3
    assert f"pid {manager.pid}" in second.err
    again = site.run("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    assert (again.code, "exists" in again.err) == (2, True)
    site.open("only")
    manager.communicate()
    assert manager.returncode == 0
    site.check_account({"only": 100})


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_suspends_all_and_resume_goes_on(shared: Site, signum: int) -> None:
    args = ("run", str(shared.jobs), "--gpus", "6", "--dir", str(shared.pilot))
    manager = shared.start(*args)
    wait_for(lambda: len(shared.steps("second")) > 3, "some steps")
    manager.send_signal(signum)
    _, err = manager.communicate(timeout=500)
    assert manager.returncode == 128 + signum
    limit = "in 1 min 00 s at most; a second signal ends it at once"
    assert re.search(rf"ends when .* suspended, {limit}", err)
    assert "hpcext run --resume" in err
    assert not shared.left_behind()
    shared.open("first")
    shared.open("second")
    document = shared.document("run", "--resume", str(shared.pilot))
    assert states(document) == dict.fromkeys(SHARED, "completed")
    assert all(job["lost_steps"] == 0 for job in document["jobs"])
    shared.check_account(SHARED)


def test_verbs_from_another_terminal(site: Site) -> None:
    # However slow this machine is, they are not over before they are cancelled.
    long = {"steps": 1_000_000, "gpus": {"min": 1, "max": 3, "optimal": 2}}
    site.write_jobs(site.counter("held", **long), site.counter("gone", **long))
    manager = site.start("run", str(site.jobs), "--gpus", "4", "--name", "verbs")
    for name in ("held", "gone"):
        wait_for(lambda name=name: site.steps(name), f"the first step of {name}")
        wait_for(lambda name=name: running(site, name, "verbs"), f"{name} to run")
    site.run_until_done("suspend", "verbs", "held")
    suspended = "held is suspended: suspended by its user; hpcext resume lets it go on\n"
    wait_for(lambda: site.run("why", "verbs", "held").out == suspended, "the suspension")
    refused = site.run("suspend", "verbs", "held")
    assert (refused.code, "already suspended" in refused.err) == (2, True)
    steps = len(site.steps("held"))

    assert site.run("cancel", "verbs", "gone").out == "gone is being cancelled\n"
    wait_for(lambda: states(site.document("status", "verbs"))["gone"] == "cancelled", "the cancel")

    assert site.run("resize", "verbs", "held", "9").code == 2
    assert site.run("resize", "verbs", "held", "3").code == 0
    assert site.run("resume", "verbs", "held").code == 0
    wait_for(lambda: len(site.steps("held")) > steps, "the resumption")
    assert len(site.steps("held")[-1].gpus) == 3

    site.write_jobs(site.counter("late", steps=5, after=["held"]))
    assert "submitted 3 (late)" in site.run("submit", "verbs", str(site.jobs)).out
    assert "waits for held" in site.run("why", "verbs", "late").out
    twice = site.run("submit", "verbs", str(site.jobs), "--number")
    assert (twice.code, "submitted 4 (late-2)" in twice.out) == (0, True)

    (row,) = site.run("pilot", "list").out.splitlines()[1:]
    assert row.split()[1] == "running"

    missing = site.run("cancel", "verbs", "nobody")
    assert (missing.code, "valid: held, gone, late, late-2)" in missing.err) == (2, True)
    assert site.run("cancel", "nowhere", "held").code == 3

    assert site.run("drain", "verbs").code == 0
    assert site.run("cancel", "verbs", "held").code == 0
    out, err = manager.communicate(timeout=500)
    # Cancelling `held` cancels what needs it: nothing is left, and something was cancelled.
    assert manager.returncode == 1, (out, err)
    assert not site.left_behind()


def test_hostile_requests_do_not_disturb_a_manager(site: Site) -> None:
    site.write_jobs(site.counter("only", gated=True))
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("only"), "the first step")
    requests = site.pilot / "requests"
    (requests / "half.json").write_text('{"schema": "hpcext.requ')
    (requests / "huge.json").write_bytes(b"x" * (2 << 20))
    os.mkfifo(requests / "fifo.json")
    (requests / "link.json").symlink_to("/etc/passwd")
    (requests / "deep.json").write_text("[" * 200_000)
    for number, words in enumerate(
        [{"verb": "\x1b[2J"}, {"verb": ["x"]}, {"verb": "resize", "job": {}, "gpus": "1"},
         {"verb": "submit", "text": 7}, {"verb": "submit", "text": "[[job]]\nname='../../x'"}]
    ):  # fmt: skip
        document = {"schema": "hpcext.request/1", **words}
        (requests / f"bad{number}.json").write_text(json.dumps(document))
    manager.send_signal(signal.SIGUSR1)

    def replies() -> list[Path]:
        """Those that have their names; beside them is one that is being written."""
        return list((site.pilot / "replies").glob("*.json"))

    wait_for(lambda: len(replies()) == 10, "ten refusals")
    assert all("error" in json.loads(path.read_text()) for path in replies())
    wait_for(lambda: not list(requests.iterdir()), "that nothing is left to answer")
    site.open("only")
    manager.communicate()
    assert manager.returncode == 0
    site.check_account({"only": 40})


def test_the_plan_is_shown_and_nothing_starts(site: Site) -> None:
    stated = {"work": 100, "scaling": {"1": 1.0, "2": 1.9, "3": 2.6, "4": 3.0}}
    site.write_jobs(
        site.counter("a", gpus={"min": 1, "max": 4}, **stated),
        site.counter("b", gpus={"min": 1, "max": 4}, **stated),
        site.counter("c", after=["a"], gpus={"min": 1, "max": 4}, **stated),
    )
    plan = site.document("run", str(site.jobs), "--gpus", "6", "--dry-run")
    assert plan["schema"] == "hpcext.plan/1"
    assert [sum(job["gpus"].values()) for job in plan["jobs"]] == [4, 2, 0]
    # By hand: a takes 100/3.0 s; b 1.9/s until then, then 3.0/s; c beside it on 2, then on 4.
    a_ends = 100 / 3.0
    b_ends = a_ends + (100 - 1.9 * a_ends) / 3.0
    c_ends = b_ends + (100 - 1.9 * (b_ends - a_ends)) / 3.0
    assert plan["makespan_s"] == pytest.approx(c_ends, rel=1e-6)
    text = site.run("run", str(site.jobs), "--gpus", "6", "--dry-run")
    assert "waits for a to complete" in text.out
    assert "expected: 1 min" in text.out
    assert not (site.path / "state").exists()


def test_a_person_sees_a_table_that_moves(shared: Site) -> None:
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "hpcext", "run", str(shared.jobs), "--gpus", "6", "--dir", str(shared.pilot)],
        env=shared.environ,
        encoding="utf-8",
        dimensions=(40, 100),
        timeout=500,
        cwd=str(shared.path),
    )
    terminal.expect("pilot .*: 6 logical slots")
    terminal.expect("second +running +secondary +3-5")
    shared.open("first")
    terminal.expect("second +running +primary")
    shared.open("second")
    terminal.expect("completed")
    terminal.expect(r"in all; GPUs were held \d+% of the time")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_plain_lines_on_a_pipe(shared: Site) -> None:
    manager = shared.start("run", str(shared.jobs), "--gpus", "6", "--dir", str(shared.pilot))
    let_end(shared)
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, err
    assert "second: running on GPUs 3-5 (secondary): runs on 3 of 4 GPUs" in out
    assert "promoted from 3 to 4 GPUs" in out
    assert "\x1b" not in out


def test_where_jobs_are_run(site: Site) -> None:
    """The file's directory, its own environment, the placeholders filled in."""
    show = "import os,sys;print(os.getcwd(),os.environ['COLOUR'],sys.argv[1:],flush=True)"
    site.write_jobs(
        {
            "name": "show",
            "command": [sys.executable, "-c", show, "{gpus}", "{nodes}", "{name}", "{other}"],
            "env": {"COLOUR": "blue"},
            "gpus": 2,
        }
    )
    assert site.run("run", str(site.jobs), "--gpus", "2", "--name", "where").code == 0
    log = site.run("logs", "where", "show").out
    assert f"{Path(site.path).resolve()} blue ['2', '1', 'show', '{{other}}']" in log


def test_the_manager_outlives_the_reader_of_its_output(site: Site) -> None:
    site.write_jobs(site.counter("only", steps=60))
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    assert manager.stdout
    manager.stdout.readline()
    manager.stdout.close()
    manager.wait(timeout=500)
    assert states(site.document("status", str(site.pilot))) == {"only": "completed"}
    site.check_account({"only": 60})


def test_a_pilot_is_not_resumed_beside_jobs_of_another_machine(site: Site) -> None:
    """As after a move to another login node: the journal says that a job runs elsewhere."""
    site.write_jobs(site.counter("only", gated=True), site.counter("done", steps=5))
    manager = site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    status = ("status", str(site.pilot))
    wait_for(lambda: states(site.document(*status)).get("done") == "completed", "one of them")
    manager.kill()
    manager.communicate()
    site.open("only")
    wait_for(lambda: not site.left_behind(), "the end of the other")
    here = os.uname().nodename.partition(".")[0]
    journal = site.pilot / "journal.jsonl"
    journal.write_text(journal.read_text().replace(f'"{here}', '"elsewhere'))
    refused = site.run("run", "--resume", str(site.pilot))
    assert (refused.code, "may still run on elsewhere" in refused.err) == (3, True), refused
    document = site.document("run", "--resume", str(site.pilot), "--moved")
    assert states(document) == {"only": "completed", "done": "completed"}
    # What had completed is not run again, wherever it ran.
    assert [job["attempts"] for job in document["jobs"]] == [1, 1]


@pytest.mark.parametrize(
    "flag", [["--gpus", "3"], ["--policy", "marble"], ["--name", "x"], ["--stay"]]
)
def test_a_pilot_stays_what_it_was_begun_as(site: Site, flag: list[str]) -> None:
    refused = site.run("run", "--resume", "anything", *flag)
    assert (refused.code, flag[0] in refused.err) == (2, True), refused


NEWS = """
import os, signal, sys
from hpcext.cli import view
from hpcext.cli.main import main
from hpcext.manager import pilot
def with_news(function):
    def call(*args, **words):
        os.kill(os.getpid(), signal.SIGUSR1)
        return function(*args, **words)
    return call
pilot.Inbox, view.summary = with_news(pilot.Inbox), with_news(view.summary)
sys.exit(main(sys.argv[1:]))
"""


def test_news_before_and_after_the_loop_does_not_kill_the_manager(site: Site) -> None:
    """By default SIGUSR1 does: it came to managers that had written manager.json a moment ago."""
    site.write_jobs(site.counter("only", steps=5))
    finished = site.run("run", str(site.jobs), "--gpus", "1", python=("-c", NEWS))
    assert finished.code == 0, finished


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_jobs_go_on_when_the_output_of_their_manager_cannot_be_written(
    site: Site, log_format: str
) -> None:
    """Its disk is full; and the status is that of the jobs."""
    site.write_jobs(
        {"name": "a", "command": ["true"]},
        {"name": "b", "command": ["sh", "-c", "exit 3"], "after": "a", "retries": 0},
    )
    words = ["run", str(site.jobs), "--gpus=1", "--name=p", f"--log-format={log_format}"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hpcext", *words],
            env=site.environ, cwd=site.path, stdout=full, stderr=full, check=False,
        )  # fmt: skip
    assert states(site.document("status", "p")) == {"a": "completed", "b": "failed"}
    assert done.returncode == 1


def test_a_log_is_copied_in_pieces(tmp_path: Path) -> None:
    """It may be larger than the memory of a small batch job that shows it."""
    pieces: list[bytes] = []

    class Copies(Output):
        def copy(self, data: bytes) -> None:
            pieces.append(data)

    log = tmp_path / "log.txt"
    assert copy_log(log, 0, Copies()) == 0
    log.write_bytes(b"x" * (3 * BLOCK_BYTES))
    end = copy_log(log, 5, Copies())
    assert (end, b"".join(pieces)) == (3 * BLOCK_BYTES, b"x" * (3 * BLOCK_BYTES - 5))
    assert max(map(len, pieces)) <= BLOCK_BYTES


def test_a_log_is_followed_to_its_end(site: Site) -> None:
    talk = "import time\nfor n in range(20): print('line', n, flush=True); time.sleep(0.05)"
    site.write_jobs({"name": "talk", "command": [sys.executable, "-c", talk]})
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    wait_for((site.pilot / "jobs" / "1" / "log.txt").exists, "the log")
    followed = site.run("logs", str(site.pilot), "talk", "--follow")
    manager.communicate()
    lines = [line for line in followed.out.splitlines() if line.startswith("line")]
    assert lines == [f"line {number}" for number in range(20)]
    shown = site.run("status", str(site.pilot))
    assert "talk  completed" in shown.out
    # Nothing is left for a manager to do.
    assert "no manager" not in shown.out
