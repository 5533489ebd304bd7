"""Two users on one LSF, by real accounts of this machine: each sees the other's jobs, no more."""

from __future__ import annotations

import collections
import contextlib
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import copied_python
import lsf_site
import lsf_tools
import pytest
from accounts import STRANGER, VICTIM, Account, home_of
from lsf_site import Host, Queue
from site_of_test import Site, wait_for

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")

TRAINERS = ("one", "two", "three")


class User(Site):
    """A user with a directory of his own, who harvests."""

    def __init__(self, account: Account, path: Path, lsf: lsf_site.Site, python: Path) -> None:
        environ = {
            "HOME": str(path),
            "HPCEXT_BATCH": "lsf",
            "HPCEXT_HARVEST_PARTITION": "killable",
            "HPCEXT_REPORT_INTERVAL_S": "0.2",
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": str(python.parents[1] / "lib"),
            "LSF_ENVDIR": str(lsf.directory),
            "PATH": f"{lsf.directory}:{python.parent}:/usr/bin:/bin",
            "PYTHONPATH": f"{lsf_tools.ROOT}:{sysconfig.get_path('purelib')}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        super().__init__(path, python=str(python), environ=environ)
        self.account, self.lsf = account, lsf
        self.name = str(account.uid)

    def start(
        self, *words: str, python: tuple[str, ...] = ("-m", "hpcext")
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.python, *python, *words],
            env=self.environ,
            user=self.account.uid,
            group=self.account.groups[0],
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            stdout=open(self.path / "said.txt", "a"),  # noqa: SIM115 - read when it failed
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.path,
        )
        self.started.append(process)
        return process

    def does(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as this user."""
        return subprocess.run(
            words,
            env=self.environ,
            user=self.account.uid,
            group=self.account.groups[0],
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.path,
            timeout=500,
            check=False,
        )

    def harvest(self) -> None:
        """Harvest for trainers that go on until they are told to end."""
        one = {"gpus": 2, "nodes": {"min": 1, "max": 1}}
        self.write_jobs(*(self.counter(name, gated=True, **one) for name in TRAINERS))
        os.chown(self.jobs, self.account.uid, self.account.groups[0])
        self.start(
            "harvest", "start", str(self.jobs), "--partition", "killable", "--interval", "1",
            "--idle", "10", "--dir", str(self.pilot),
        )  # fmt: skip

    def ticket(self, name: str, host: str) -> int:
        """A ticket that runs on a host; its job."""
        counter = self.counter(name, gated=True)
        log = counter["env"]["COUNTER_LOG"]
        script = self.path / f"{name}.sh"
        script.write_text(f"#!/bin/sh\nCOUNTER_LOG={log} exec {' '.join(counter['command'])}\n")
        script.chmod(0o755)
        text = f"exec {self.python} -m hpcext trainer 1:1 {script}"
        said = self.does("bsub", "-J", name, "-m", host, "-o", f"{name}.out", text)
        assert said.returncode == 0, said
        return int(said.stdout.split("<")[1].split(">")[0])

    def why(self, trainer: str) -> str:
        """Why a trainer of this user's tickets waits."""
        trainers = str(self.path / "state" / "hpcext" / "trainers")
        return self.does(self.python, "-m", "hpcext", "why", trainers, trainer).stdout

    def said(self) -> str:
        path = self.path / "said.txt"
        return path.read_text() if path.exists() else ""


class Two:
    """Two users of one LSF, of three hosts of two GPUs."""

    def __init__(self, first: User, second: User) -> None:
        self.first, self.second = first, second
        self.lsf = first.lsf

    def leases(self) -> dict[str, int]:
        running = [job for job in self.lsf.jobs() if job.queue == "killable" and job.state == "RUN"]
        return dict(collections.Counter(job.user for job in running))

    def wait_for(self, first: int, second: int) -> None:
        wanted = {self.first.name: first, self.second.name: second}
        wanted = {name: count for name, count in wanted.items() if count}
        try:
            wait_for(lambda: self.leases() == wanted, f"{wanted}")
        except AssertionError as error:
            said = self.first.said() + self.second.said()
            raise AssertionError(f"{error}: {self.leases()}\n{said}") from None


@pytest.fixture
def two() -> Iterator[Two]:
    """In a directory that all accounts may enter, as pytest's own are none."""
    with tempfile.TemporaryDirectory(prefix="hpcext-lsf-") as name:
        top = Path(name)
        top.chmod(0o755)
        python = copied_python.copy(top)
        killable = Queue(priority=10, policies="BACKFILL", run_limit=240)
        lsf = lsf_tools.make_site(
            top / "lsf",
            (),
            python=str(python),
            hosts=tuple(Host(each, 4, 2) for each in ("h1", "h2", "h3")),
            queues={"normal": Queue(priority=40), "killable": killable},
            terminate_interval_s=1.0,
        )
        lsf.for_all()
        users = [
            User(each, home_of(each, top / str(each.uid), 0o700), lsf, python)
            for each in (VICTIM, STRANGER)
        ]
        yield Two(*users)
        for user in users:
            for process in user.started:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        lsf_tools.end_all([lsf.directory])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_users_share_hosts_and_take_turns_with_the_remainder(two: Two) -> None:
    """Three hosts for two: who had less in the last minutes has two of them next."""
    two.first.harvest()
    two.wait_for(3, 0)
    two.second.harvest()
    two.wait_for(2, 1)
    two.wait_for(1, 2)
    (taken, *_) = [job for job in two.lsf.jobs() if job.user == two.second.name]
    refused = two.first.does("bkill", str(taken.id))
    assert (refused.returncode, "permission denied" in refused.stderr) == (255, True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tickets_of_two_users_that_occupy_all_hosts_say_so(two: Two) -> None:
    """Each runs on a host that leases would need whole; when one is free, that is leased."""
    jobs = [two.first.ticket("a", "h1"), two.first.ticket("b", "h2"), two.second.ticket("c", "h3")]
    said = "no node of killable is idle (0 of 3); a ticket also keeps its host from being idle"
    wait_for(lambda: said in two.first.why(f"a-{jobs[0]}"), said)
    wait_for(lambda: said in two.second.why(f"c-{jobs[2]}"), said)
    assert two.leases() == {}
    assert two.second.does("bkill", str(jobs[0])).returncode == 255
    assert two.first.does("bkill", str(jobs[0]), str(jobs[1])).returncode == 0
    wait_for(lambda: two.second.steps("c"), "the trainer that is left")
    two.second.open("c")
    wait_for(lambda: two.lsf.job(jobs[2]).over(), "the end of its ticket")
    assert two.lsf.job(jobs[2]).state == "DONE", two.second.said()
