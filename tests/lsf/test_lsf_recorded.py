"""The contract engine is held to recordings of an engine of LSF's line: who hears which signal."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

import lsf_signals
import psutil
import pytest
from lsf_site import Queue, Site
from lsf_tools import MakeSite, command
from site_of_test import wait_for

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "volclava-2.2" / "signals.txt"
PROGRAM = HERE / "signal_log.py"
ROLES = {"script", "child", "session"}
LINE = re.compile(r" *[\d.]+ (\w+) +(.+)")
QUEUES = {
    "normal": Queue(rerunnable=True),
    "tstp": Queue(job_controls={"SUSPEND": "SIGTSTP"}),
}


@dataclasses.dataclass
class Log:
    """What was written down of the first run of a job."""

    heard: dict[str, list[str]]
    still: set[str]
    """Processes that did not run for a while."""

    ids: dict[str, dict[str, int]]


def read(text: str) -> Log:
    log = Log(defaultdict(list), set(), {})
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        assert found, line
        name, what = found.groups()
        if what.startswith("pid"):
            if len(log.ids) == len(ROLES):
                break  # the next run
            words = what.split()
            log.ids[name] = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        elif what.startswith("stood still"):
            log.still.add(name)
        else:
            log.heard[name].append(what.split()[0])
    for heard in log.heard.values():
        # Sent at once: a process that has both tells them in any order.
        for at, pair in enumerate(itertools.pairwise(heard)):
            if pair == ("SIGINT", "SIGCONT"):
                heard[at : at + 2] = ["SIGCONT", "SIGINT"]
    return log


def recorded(scenario: str) -> Log:
    text = RECORDED.read_text()
    found = re.search(rf"^## {scenario}\n(.*?)(?:^$|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, scenario
    return read(found[1])


class Job:
    """A job that logs what it hears."""

    def __init__(self, site: Site, queue: str, *options: str) -> None:
        self.site = site
        self.log = site.directory / "heard.log"
        words = ("-q", queue, *options, f"exec {sys.executable} {PROGRAM} heard")
        said = command(site, "bsub", *words)
        assert said.returncode == 0, said
        self.id = int(said.stdout.split(b"<")[1].split(b">")[0])
        wait_for(lambda: self.read().ids.keys() == ROLES, "its three processes")

    def read(self) -> Log:
        # Whole lines alone.
        text = self.log.read_text() if self.log.exists() else ""
        return read(text[: text.rfind("\n") + 1])

    def tell(self, *words: str) -> None:
        said = command(self.site, *words, str(self.id))
        assert said.returncode == 0, said

    def known(self) -> None:
        """Wait until its host has looked at its processes."""
        due = self.site.job(self.id).started_at + self.site.pim_s
        wait_for(lambda: time.time() >= due, "that its host knows its processes")

    def hears(self, expected: Log) -> Log:
        """Wait until its processes have heard as much as these, and say what they have."""

        def enough() -> bool:
            heard = self.read().heard
            return all(len(heard[name]) >= len(each) for name, each in expected.heard.items())

        try:
            wait_for(enough, f"{dict(expected.heard)}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the log:\n{self.log.read_text()}") from None
        return self.read()


TELLS = {
    "early-bkill": ("bkill",),
    "early-usr2": ("bkill", "-s", "USR2"),
    "late-bkill": ("bkill",),
    "late-brequeue": ("brequeue",),
    "late-bmig": ("bmig",),
    "late-tstp": ("bstop",),
    "late-bstop": ("bstop",),
    "late-usr2": ("bkill", "-s", "USR2"),
    "wlimit": (),
}
RESUMED = {"late-tstp", "late-bstop"}


@pytest.mark.cases(5)
@pytest.mark.parametrize("scenario", TELLS)
def test_signals_reach_the_recorded_processes(make_site: MakeSite, scenario: str) -> None:
    early = scenario.startswith("early")
    site = make_site(
        queues=QUEUES,
        pim_s=3600.0 if early else 0.2,
        terminate_interval_s=8.0,
        minute_s=6.0,
    )
    expected = recorded(scenario)
    limit = ("-W", "1") if scenario == "wlimit" else ()
    job = Job(site, "tstp" if scenario == "late-tstp" else "normal", *limit)
    if not early:
        job.known()
    if TELLS[scenario]:
        job.tell(*TELLS[scenario])
    if scenario in RESUMED:
        wait_for(lambda: site.job(job.id).state == "USUSP", "the state")
        stand_still(job, expected)
        job.tell("bresume")
    heard = job.hears(expected)
    assert heard.heard == expected.heard
    if scenario == "late-bstop":
        wait_for(lambda: job.read().still == expected.still, "that all say how long")
    same_family(heard, expected)


def stand_still(job: Job, expected: Log) -> None:
    """Where they did it, all stand still, and long enough that they say so."""
    ids = job.read().ids
    for name in expected.still:
        process = psutil.Process(ids[name]["pid"])
        wait_for(lambda process=process: process.status() == psutil.STATUS_STOPPED, name)
    if expected.still:
        time.sleep(3.0)


def same_family(*logs: Log) -> None:
    """The job's program and its child are of one group, which is no session; the other is one."""
    for log in logs:
        script, child, session = (log.ids[name] for name in ("script", "child", "session"))
        assert script["pgid"] == child["pgid"] not in (script["pid"], script["sid"])
        assert script["sid"] == child["sid"]
        assert session["pgid"] == session["sid"] == session["pid"]


def test_the_shell_of_a_job_outlives_all_but_stops_at_a_terminals_signal(
    make_site: MakeSite,
) -> None:
    """The tree is res, the shell of the job's file, for a script with #! its shell, and ours."""
    site = make_site(queues={"tstp": Queue(job_controls={"SUSPEND": "SIGTSTP"})}, pim_s=0.0)
    text = "#!/bin/bash\ntrap 'exit 3' TSTP\ntouch begun\nsleep 600 & wait\n"
    said = command(site, "bsub", stdin=text.encode())
    assert said.returncode == 0
    wait_for((site.directory / "begun").exists, "that it begins")
    leader = psutil.Process(site.job(1).group)
    (shell,) = leader.children()
    (script,) = shell.children()
    assert script.cmdline()[0] == "/bin/bash"
    for signum in lsf_signals.HEARD:
        shell.send_signal(signum)
    assert command(site, "bstop", "1").returncode == 0
    wait_for(lambda: not script.is_running() or script.status() == "zombie", "ours to leave")
    wait_for(lambda: shell.status() == psutil.STATUS_STOPPED, "that its shell stands still")
    assert not site.job(1).over()
    assert command(site, "bresume", "1").returncode == 0
    wait_for(lambda: site.job(1).over(), "its end")
    assert site.job(1).exit_code == 3


def test_an_exit_value_wins_over_a_hold_that_was_asked_before(make_site: MakeSite) -> None:
    site = make_site(queues={"q": Queue(requeue_exit_values=(85,))}, exit_shown_s=1.0)
    text = "trap 'exit 85' INT; touch begun.$$; test -e once && exit 0; touch once; sleep 60 & wait"
    assert command(site, "bsub", text).returncode == 0
    wait_for((site.directory / "once").exists, "that it begins")
    assert command(site, "brequeue", "-H", "1").returncode == 0
    wait_for(lambda: site.job(1).state == "EXIT", "that it is shown as ended")
    assert not site.job(1).over()
    wait_for(lambda: site.job(1).over(), "its end")
    assert (site.job(1).runs, site.job(1).state) == (2, "DONE")


def test_a_job_of_several_slots_is_killed_at_once_or_step_by_step(make_site: MakeSite) -> None:
    for quirks, value in (((), 4), (("parallel_killed_at_once",), 137)):
        site = make_site(*quirks, name=f"lsf{value}")
        text = "trap 'exit 4' INT; touch begun; while :; do sleep 0.02; done"
        assert command(site, "bsub", "-n", "2", text).returncode == 0
        wait_for((site.directory / "begun").exists, "that it begins")
        assert command(site, "bkill", "1").returncode == 0
        wait_for(lambda site=site: site.job(1).over(), "its end")
        assert site.job(1).exit_code == value


def test_the_output_is_there_at_the_end(make_site: MakeSite) -> None:
    for direct in (False, True):
        site = make_site(name=f"lsf{direct}", stdout_direct=direct)
        text = "echo said; touch begun; while ! test -e go; do sleep 0.02; done"
        assert command(site, "bsub", "-o", "out", text).returncode == 0
        wait_for((site.directory / "begun").exists, "that it begins")
        assert (site.directory / "out").exists() == direct
        (site.directory / "go").touch()
        wait_for(lambda site=site: site.job(1).over(), "its end")
        assert (site.directory / "out").read_text() == "said\n"
