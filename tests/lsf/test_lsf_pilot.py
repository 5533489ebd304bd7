"""A pilot as a job of LSF, on the hosts of the contract engine, by blaunch and by jsrun."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lsf_controls
import lsf_run
import lsf_site
import psutil
import pytest
from lsf_tools import ROOT, MakeSite, command
from site_of_test import Site, wait_for
from written import whole_lines

from hpcext.manager import locks
from hpcext.manager.waiting import LEFT
from hpcext.process import Process

OTHER = Path(__file__).parent / "other_rank.py"
SIX = {"min": 1, "max": 6, "optimal": 6}


class OnLsf(Site):
    """A place whose commands find those of an engine."""

    def __init__(self, path: Path, lsf: lsf_site.Site, **variables: str) -> None:
        paths = f"{lsf.directory}:{os.environ['PATH']}"
        environ = {key: value for key, value in os.environ.items() if "SLURM" not in key}
        environ |= {"LSF_ENVDIR": str(lsf.directory), "PATH": paths, "HPCEXT_BATCH": "lsf"}
        super().__init__(path, environ={**environ, **variables})
        self.lsf = lsf

    def submit(self, *words: str, nodes: int = 2, time: str = "60") -> int:
        """Submit the place's jobs as a pilot; the id of the LSF job."""
        shape = ("--nodes", str(nodes), "--gpus-per-node", "6", "--time", time)
        ended = self.run(
            "pilot", "submit", str(self.jobs), *shape, "--dir", str(self.pilot), *words
        )
        assert ended.code == 0, ended
        found = re.search(r"job (\d+) of LSF", ended.out)
        assert found, ended
        return int(found[1])

    def wide(self, name: str, *, fail: bool = False) -> dict[str, Any]:
        """A counter of two nodes, which has six GPUs on each and is gated."""
        one = self.counter(name, gated=True)
        gate = self.path / "fails" if fail else self._gate(name)
        other = [self.python, str(OTHER), str(gate), str(self.path / f"{name}.others")]
        one["env"]["COUNTER"] = json.dumps([one["command"], other + (["--fail"] if fail else [])])
        choose = (
            "import json, os; both = json.loads(os.environ['COUNTER']);"
            "argv = both[min(1, int(os.environ['HPCEXT_NODE_INDEX']))];"
            "os.execv(argv[0], argv)"
        )
        return {**one, "command": [self.python, "-c", choose], "nodes": 2, "gpus": 6}

    def others(self, name: str) -> list[list[str]]:
        """What the second nodes of a wide counter have noted: attempt, node, GPUs, pid."""
        path = self.path / f"{name}.others"
        return [line.split() for line in whole_lines(path)]

    def over(self, job: int, state: str = "DONE") -> dict[str, dict[str, Any]]:
        """Wait for the end of a pilot; its jobs by name."""
        wait_for(lambda: self.lsf.job(job).over(), "the end of the pilot")
        assert self.lsf.job(job).state == state, self.lsf.printed()
        document = self.document("status", str(self.pilot))
        return {each["name"]: each for each in document["jobs"]}

    def again(self, job: str, attempt: int) -> None:
        path = self.pilot / "jobs" / job / f"attempt-{attempt:04d}" / "report.json"
        wait_for(path.exists, f"attempt {attempt}")

    def manager(self) -> int:
        return int(json.loads((self.pilot / "manager.json").read_text())["pid"])

    def from_another_host(self) -> None:
        """Have commands take the manager for one of another machine."""
        facts = json.loads((self.pilot / "manager.json").read_text())
        (self.pilot / "manager.json").write_text(json.dumps({**facts, "boot_id": "another"}))

    def at_the_gate(self, name: str, steps: int = 40) -> None:
        def there() -> bool:
            done = self.steps(name)
            return bool(done) and done[-1].step == steps - 1

        wait_for(there, f"{name} to come to its gate")

    def launchers(self) -> list[psutil.Process]:
        """Processes of blaunch or jsrun that stand for a node of an attempt."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (words := process.info["cmdline"])
            and str(self.pilot) in " ".join(words)
            and any(Path(word).name in {"blaunch", "jsrun"} for word in words)
        ]

    def never_twice(self, name: str) -> None:
        """Attempts of a counter did not overlap, and its steps are all there."""
        last: dict[int, float] = {}
        for step in self.steps(name):
            assert all(each <= step.attempt for each in last), "an attempt that went on"
            last[step.attempt] = step.time_s
        assert self.steps(name)[-1].step == 40

    def clear(self) -> None:
        for job in self.lsf.jobs():
            with contextlib.suppress(lsf_site.RefusedError):
                lsf_run.kill(self.lsf, job.id)
        wait_for(
            lambda: all(job.over() for job in self.lsf.jobs()),
            "the end of all jobs",
        )


@pytest.fixture
def place(make_site: MakeSite, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OnLsf]:
    """Two hosts of six GPUs; a parameter says the launcher, and what else is different."""
    launcher, *quirks = getattr(request, "param", ["blaunch"])
    more = {"launch_node": "batch1"} if launcher == "jsrun" else {}
    hosts = (lsf_site.Host("h1", 12, 6), lsf_site.Host("h2", 12, 6))
    lsf = make_site(*quirks, hosts=hosts, terminate_interval_s=1.0, minute_s=1.0, **more)
    one = OnLsf(tmp_path, lsf, HPCEXT_LSF_LAUNCHER=launcher)
    yield one
    one.clear()
    one.kill_left_behind()


BOTH = pytest.mark.parametrize(
    "place",
    [
        pytest.param(["blaunch"], id="blaunch"),
        pytest.param(["jsrun"], id="jsrun", marks=pytest.mark.slow),
    ],
    indirect=True,
)

LEAN = pytest.param(["blaunch", *lsf_site.LEAN], id="lean")
"""Without what a real engine was recorded without: lsrun goes to other hosts there."""

ALL = pytest.mark.parametrize(
    "place", [["blaunch"], ["jsrun"], LEAN], indirect=True, ids=lambda p: p[0]
)


@pytest.mark.cases(1)
@ALL
def test_jobs_share_two_hosts(place: OnLsf) -> None:
    """Primaries at their best size, a secondary on what is left, promoted when GPUs come free."""
    place.write_jobs(
        place.counter("left", gated=True, gpus={"min": 1, "max": 6, "optimal": 4}),
        place.counter("right", gated=True, gpus=SIX),
        place.counter("second", gated=True, gpus={"min": 1, "max": 6, "optimal": 5}),
    )
    job = place.submit(time="600")
    for name in ("left", "right", "second"):
        place.at_the_gate(name)
    held = {name: len(place.steps(name)[-1].gpus) for name in ("left", "right", "second")}
    assert held == {"left": 4, "right": 6, "second": 2}
    assert not place.steps("left")[-1].gpus & place.steps("second")[-1].gpus
    place.open("left")
    place.again("3", 2)
    place.open("right")
    place.open("second")
    jobs = place.over(job)
    assert {each["state"] for each in jobs.values()} == {"completed"}
    assert len(place.steps("second")[-1].gpus) == 5
    assert jobs["second"]["suspends"] == 1
    assert [step.step for step in place.steps("second")] == list(range(1, 41))


@pytest.mark.cases(1)
@ALL
def test_a_job_of_two_hosts_is_suspended_and_goes_on(place: OnLsf) -> None:
    place.write_jobs(place.wide("wide"))
    job = place.submit(time="600")
    place.at_the_gate("wide")
    wait_for(lambda: place.others("wide"), "the other node")
    place.run_until_done("suspend", str(place.pilot), "wide")
    attempt = place.pilot / "jobs" / "1" / "attempt-0001"
    for each in (attempt / "exit.json", attempt / "node-0001" / "exit.json"):
        wait_for(each.exists, "its end")
        assert json.loads(each.read_text())["suspended"] is True
    assert place.run("resume", str(place.pilot), "wide").code == 0
    wait_for(lambda: len(place.others("wide")) == 2, "the other node, again")
    place.open("wide")
    jobs = place.over(job)
    assert jobs["wide"]["state"] == "completed"
    assert [each[:3] for each in place.others("wide")] == [
        ["1", "1", "0,1,2,3,4,5"], ["2", "1", "0,1,2,3,4,5"],
    ]  # fmt: skip


@pytest.mark.slow
def test_on_one_host_without_a_launcher(place: OnLsf) -> None:
    """What can be asked from another host: of the manager, which looks for requests itself."""
    place.write_jobs(place.counter("only", gated=True, gpus={"min": 1, "max": 6, "optimal": 4}))
    job = place.submit(nodes=1, time="600")
    place.at_the_gate("only")
    assert not place.launchers()
    place.from_another_host()
    assert f"in job {job} of LSF" in place.run("run", "--resume", str(place.pilot)).err
    place.run_until_done("suspend", str(place.pilot), "only")
    wait_for(lambda: "suspended" in place.run("why", str(place.pilot), "only").out, "suspension")
    assert place.run("resume", str(place.pilot), "only").code == 0
    place.again("1", 2)
    place.run_until_done("resize", str(place.pilot), "only", "2")
    place.again("1", 3)
    assert "attempt 3, 2 GPUs" in place.run("logs", str(place.pilot), "only").out
    listed = place.run("pilot", "list")
    assert f"{job} " in listed.out
    assert "running" in listed.out
    # A home is seen from machines that have the commands of another batch system, too.
    (place.lsf.directory / "bjobs").rename(place.lsf.directory / "no-bjobs")
    listed = place.run("pilot", "list")
    (place.lsf.directory / "no-bjobs").rename(place.lsf.directory / "bjobs")
    assert (listed.code, "not known" in listed.out) == (0, True)
    assert "bjobs was not found" in listed.err
    assert place.run("cancel", str(place.pilot), "only").code == 0
    (only,) = place.over(job, "EXIT").values()
    assert only["state"] == "cancelled"


QUIRKS = pytest.mark.parametrize(
    "place",
    [
        pytest.param(["blaunch"], id="as documented"),
        pytest.param(
            ["blaunch", "times_in_hms", "empty_is_dash", "blaunch_hides_gpus"],
            id="as others",
            marks=pytest.mark.slow,
        ),
        pytest.param(["blaunch", *lsf_site.LEAN], id="lean", marks=pytest.mark.slow),
    ],
    indirect=True,
)


@QUIRKS
def test_before_the_run_limit_all_is_suspended_and_goes_on(place: OnLsf) -> None:
    """Requeued by its exit value as the same job, nothing lost and nothing run twice."""
    place.write_jobs(place.counter("only", gated=True, gpus=SIX))
    job = place.submit("--lead", "20", "--requeue", time="60")
    place.at_the_gate("only")
    wait_for(lambda: place.lsf.job(job).runs == 2, "the next allocation")
    place.again("1", 2)
    place.open("only")
    jobs = place.over(job)
    assert jobs["only"]["state"] == "completed"
    assert jobs["only"]["attempts"] == 2
    first = json.loads((place.pilot / "jobs" / "1" / "attempt-0001" / "exit.json").read_text())
    assert first["suspended"] is True
    assert [step.step for step in place.steps("only")] == list(range(1, 41))


@pytest.mark.slow
def test_a_warning_is_a_notice(place: OnLsf) -> None:
    """SIGUSR2, as at the run limit, or by -wa and -wt: suspended at once if the end is near."""
    place.write_jobs(place.counter("only", gated=True, gpus=SIX))
    job = place.submit("--lead", "10", time="60")
    place.at_the_gate("only")
    lsf_run.send(place.lsf, job, "USR2")
    jobs = place.over(job, "EXIT")
    assert place.lsf.job(job).exit_code == LEFT
    assert jobs["only"]["state"] != "completed"
    assert jobs["only"]["suspends"] == 1
    place.open("only")
    again = place.run("pilot", "resubmit", str(place.pilot))
    assert again.code == 0, again
    assert place.over(job + 1)["only"]["state"] == "completed"
    place.never_twice("only")


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("nodes", "pim_s"),
    [
        pytest.param(1, 3600.0, id="1-early"),
        pytest.param(1, 0.0, id="1-late", marks=pytest.mark.slow),
        pytest.param(2, 3600.0, id="2-early", marks=pytest.mark.slow),
        pytest.param(2, 0.0, id="2-late"),
    ],
)
def test_stopped_its_trainings_leave_and_resumed_they_go_on(
    place: OnLsf, nodes: int, pim_s: float
) -> None:
    """LSF stops the script and the manager, and of the trainings what it knows."""
    dataclasses.replace(place.lsf, pim_s=pim_s).save()
    names = ("one", "two")[:nodes]
    place.write_jobs(*(place.counter(name, gated=True, gpus=SIX) for name in names))
    job = place.submit(nodes=nodes, time="600")
    for name in names:
        place.at_the_gate(name)
    pids = [place.steps(name)[-1].pid for name in names]
    ended = command(place.lsf, "bstop", str(job))
    assert ended.returncode == 0, ended
    assert place.lsf.job(job).state == "USUSP"
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), "that all trainings leave")
    assert place.lsf.job(job).state == "USUSP"
    assert command(place.lsf, "bresume", str(job)).returncode == 0
    for name in names:
        wait_for(lambda name=name: place.document("status", str(place.pilot)), name)
        place.open(name)
    jobs = place.over(job)
    for name in names:
        assert (jobs[name]["state"], jobs[name]["lost_steps"]) == ("completed", 0)
        place.never_twice(name)
        assert [step.step for step in place.steps(name)] == list(range(1, 41))


@pytest.mark.slow
def test_a_notice_that_comes_early_begins_nothing_again(place: OnLsf) -> None:
    """It may have suspended the trainings, too."""
    dataclasses.replace(place.lsf, pim_s=0.0).save()
    place.write_jobs(place.counter("only", gated=True, gpus=SIX))
    job = place.submit("--lead", "10", "--requeue", time="6000")
    assert place.lsf.job(job).rerunnable
    place.at_the_gate("only")
    lsf_run.send(place.lsf, job, "USR2")
    wait_for(lambda: place.lsf.job(job).runs == 2, "the second run")
    place.open("only")
    jobs = place.over(job)
    assert (jobs["only"]["state"], jobs["only"]["attempts"]) == ("completed", 2)
    place.never_twice("only")


@pytest.mark.slow
def test_a_preemption_before_the_first_checkpoint_requeues_it(place: OnLsf) -> None:
    go, begun = place.path / "go", place.path / "begun"
    text = f"echo >>{begun}; while ! test -e {go}; do sleep 0.1; done"
    place.write_jobs({"name": "plain", "command": ["sh", "-c", text], "gpus": 1})
    job = place.submit("--lead", "10", "--requeue", time="6000")
    wait_for(begun.exists, "the training")
    lsf_run.send(place.lsf, job, "USR2")
    wait_for(lambda: place.lsf.job(job).runs == 2, "the second run")
    go.touch()
    assert place.over(job)["plain"]["state"] == "completed"


@pytest.mark.slow
def test_its_first_host_is_lost(place: OnLsf) -> None:
    """With --requeue LSF begins it again, and what was saved is not done again."""
    place.write_jobs(place.counter("only", gated=True, gpus=SIX))
    job = place.submit("--requeue", time="6000")
    place.at_the_gate("only")
    lsf_controls.lose_host(place.lsf, job)
    wait_for(lambda: place.lsf.job(job).runs == 2, "the second run")
    place.open("only")
    assert place.over(job)["only"]["state"] == "completed"
    place.never_twice("only")


@pytest.mark.parametrize(
    "pim_s",
    [pytest.param(3600.0, id="early", marks=pytest.mark.slow), pytest.param(0.0, id="late")],
)
def test_one_bkill_leaves_time_to_save(place: OnLsf, pim_s: float) -> None:
    """SIGTERM, which follows SIGINT, is no order to leave at once, whoever of the job hears it."""
    dataclasses.replace(place.lsf, pim_s=pim_s, terminate_interval_s=10.0).save()
    one = place.counter("only", gated=True, gpus=SIX)
    place.write_jobs({**one, "env": {**one["env"], "COUNTER_SAVE_S": "13"}})
    job = place.submit(time="6000")
    place.at_the_gate("only")
    lsf_run.kill(place.lsf, job)
    assert place.over(job, "EXIT")["only"]["suspends"] == 1
    (saved,) = place.pilot.glob("jobs/*/*/count.json")
    assert json.loads(saved.read_text()) == {"step": 39}


def test_the_first_life_of_its_own_job_is_waited_for(place: OnLsf, tmp_path: Path) -> None:
    """LSF begins a job again whose host it cannot reach, and where it may go on for a while."""
    program = (
        "import pathlib, sys\n"
        "from hpcext.manager.pilot import sole_manager\n"
        "with sole_manager(pathlib.Path(sys.argv[1])):\n"
        "    print('in')\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    facts = {"schema": "hpcext.manager/1", "batch": "lsf", "batch_job": 7, "boot_id": "another"}
    facts |= {"pid": 1, "start": 1, "host": "h9", "deaf": True}
    (tmp_path / "manager.json").write_text(json.dumps(facts))
    environ = {**place.environ, "LSB_HOSTS": "h1", "LSB_JOBID": "7"}
    with locks.held(tmp_path / "manager.lock"):
        of_another = subprocess.run(
            words, env={**environ, "LSB_JOBID": "8"}, capture_output=True, text=True, check=False
        )
        assert "NoManagerError" in of_another.stderr
        waiting = subprocess.Popen(
            words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        assert "was begun before" in waiting.stderr.readline()
        assert waiting.poll() is None
    out, err = waiting.communicate(timeout=500)
    assert (out, waiting.returncode) == ("in\n", 0), err


def another_life(place: OnLsf, job: int) -> dict[str, str]:
    """Have the manager of a pilot be one of another host; what a job is told that begins again."""
    facts = json.loads((place.pilot / "manager.json").read_text())
    facts |= {"boot_id": "another", "host": "h9"}
    (place.pilot / "manager.json").write_text(json.dumps(facts))
    return {**place.environ, "LSB_HOSTS": "h1", "LSB_MCPU_HOSTS": "h1 6 ", "LSB_JOBID": str(job)}


def second_life(place: OnLsf, environ: dict[str, str], most_s: float) -> subprocess.Popen[str]:
    """The manager of the job that LSF has begun again, which waits so long for the first."""
    program = (
        "import sys; from hpcext.manager import first_life;"
        f"first_life.MOST_S = {most_s};"
        "from hpcext.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, "run", "--resume", str(place.pilot)]
    return subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_commands_say_that_a_first_life_is_waited_for(place: OnLsf) -> None:
    """LSF begins a job again whose host it cannot reach, and where it may go on for a while."""
    place.write_jobs(place.counter("only", gated=True, gpus=6))
    job = place.submit(nodes=1, time="6000")
    place.at_the_gate("only")
    environ = another_life(place, job)
    of_another = second_life(place, {**environ, "LSB_JOBID": str(job + 1)}, 120.0)
    assert "a manager in job" in of_another.communicate(timeout=500)[1]
    waiting = second_life(place, environ, 120.0)
    assert waiting.stderr is not None
    assert "was begun before, on h9" in waiting.stderr.readline()
    for verb in ("status", "why"):
        said = place.run(verb, str(place.pilot)).out
        assert (
            "its job was begun before, on h9, and that run has not ended yet; it waits" in said
        ), said
        assert "it ends" in said
    assert waiting.poll() is None
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=500)
    assert not (place.pilot / "first-life.json").exists()
    place.open("only")
    place.over(job)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--requeue",)], ids=["ends", "goes back"])
def test_a_first_life_that_does_not_end_is_given_up(place: OnLsf, words: tuple[str, ...]) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus=6))
    job = place.submit(*words, nodes=1, time="6000")
    place.at_the_gate("only")
    waiting = second_life(place, another_life(place, job), 1.0)
    _, err = waiting.communicate(timeout=500)
    assert waiting.returncode == 3
    assert "did not end within 1 s" in err
    assert ("it goes back into the queue" in err) == bool(words)
    # By that its script knows with which value to exit.
    assert (place.pilot / "again.json").exists() == bool(words)
    assert not (place.pilot / "first-life.json").exists()
    (place.pilot / "again.json").unlink(missing_ok=True)
    place.open("only")
    place.over(job)


def test_killed_while_it_suspends_it_stays_killed(place: OnLsf) -> None:
    place.write_jobs(place.counter("only", gated=True, deaf=True, gpus=SIX))
    job = place.submit("--lead", "10", "--requeue", time="60")
    place.at_the_gate("only")
    lsf_run.send(place.lsf, job, "USR2")

    def suspending() -> bool:
        (only,) = place.document("status", str(place.pilot))["jobs"]
        return bool(only["state"] == "stopping")

    wait_for(suspending, "the suspension")
    lsf_run.kill(place.lsf, job)
    wait_for(lambda: place.lsf.job(job).state in lsf_run.ENDED, "the end")
    assert place.lsf.job(job).state == "EXIT"
    assert place.lsf.job(job).runs == 1
    assert not place.left_behind()


@BOTH
def test_a_killed_manager_loses_nothing(place: OnLsf) -> None:
    """The script starts another one, which takes over what goes on."""
    place.write_jobs(
        place.counter("one", gated=True, gpus=SIX), place.counter("two", gated=True, gpus=SIX)
    )
    job = place.submit(time="600")
    for name in ("one", "two"):
        place.at_the_gate(name)
    first = place.manager()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: place.manager() != first, "another manager")
    place.open("one")
    place.open("two")
    jobs = place.over(job)
    assert {each["attempts"] for each in jobs.values()} == {1}
    assert {each["state"] for each in jobs.values()} == {"completed"}


@BOTH
def test_a_launcher_that_dies_alone_leaves_nothing_behind(place: OnLsf) -> None:
    """Its supervisor goes on: nothing is started again before that has been ended there."""
    place.write_jobs(place.wide("wide"))
    job = place.submit(time="600")
    place.at_the_gate("wide")
    wait_for(lambda: place.others("wide"), "the other node")
    for process in place.launchers():
        process.kill()
    wait_for(lambda: len(place.others("wide")) == 2, "the next attempt")
    (first, second) = (int(each[3]) for each in place.others("wide"))
    assert Process.of(first) is None
    assert Process.of(second) is not None
    place.at_the_gate("wide")
    place.open("wide")
    jobs = place.over(job)
    assert jobs["wide"]["state"] == "completed"
    place.never_twice("wide")


@pytest.mark.slow
def test_what_fails_on_one_host_is_ended_on_the_others(place: OnLsf) -> None:
    wide = place.wide("wide", fail=True)
    place.write_jobs({**wide, "retries": 0})
    job = place.submit(time="600")
    place.at_the_gate("wide")
    (place.path / "fails").touch()
    jobs = place.over(job, "EXIT")
    assert jobs["wide"]["state"] == "failed"
    assert not place.left_behind()


@pytest.mark.slow
def test_a_host_that_is_down_is_given_up(place: OnLsf) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus=SIX))
    job = place.submit(time="600")
    place.at_the_gate("only")
    (only,) = place.document("status", str(place.pilot))["jobs"]
    host = only["segments"][-1]["gpus"][0].partition(":")[0]
    (place.lsf.directory / "down").write_text(host)
    for process in (*place.launchers(), *place.left_behind()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    def elsewhere() -> bool:
        (only,) = place.document("status", str(place.pilot))["jobs"]
        gpus = only["segments"][-1]["gpus"]
        return bool(gpus) and not gpus[0].startswith(host)

    wait_for(elsewhere, "an attempt on the other host")
    place.open("only")
    assert place.over(job)["only"]["state"] == "completed"
    place.never_twice("only")


def shown() -> list[list[str]]:
    """The commands of hpcext pilot that the page on LSF shows."""
    lines = (ROOT / "docs" / "lsf.md").read_text().splitlines()
    return [shlex.split(line) for line in lines if line.startswith("hpcext pilot ")]


def test_what_the_page_shows_works(place: OnLsf) -> None:
    # With minutes of 60 seconds.
    dataclasses.replace(place.lsf, minute_s=60.0).save()
    place.write_jobs(place.counter("only", gpus=SIX))
    submit, *others = shown()
    ended = place.run(*submit[1:])
    assert ended.code == 0, ended
    for words in others:
        assert "jobs-" in place.run(*words[1:]).out
    wait_for(lambda: place.lsf.job(1).state in lsf_run.ENDED, "the end of the pilot")
    assert place.lsf.job(1).state == "DONE"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_example_jobs(place: OnLsf) -> None:
    """Those of examples/jobs.toml, as they are."""
    place.jobs = ROOT / "examples" / "jobs.toml"
    job = place.submit(time="6000")
    deadline_s = time.monotonic() + 1800
    while place.lsf.job(job).state not in lsf_run.ENDED and time.monotonic() < deadline_s:
        time.sleep(1)
    assert {each["state"] for each in place.over(job).values()} == {"completed"}
