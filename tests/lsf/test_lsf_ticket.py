"""bsub -a "hpcext(trainer=1:2)": a job of LSF that stands for a trainer on idle hosts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lsf_controls
import lsf_run
import lsf_site
import pytest
from lsf_site import LEAN, Host, Job, Queue
from lsf_tools import ROOT, MakeSite, command, put_in_place
from site_of_test import COUNTER, Site, wait_for
from test_starter import hostile
from written import whole_lines

from hpcext.backends.lsf import ticket as lsf_ticket
from hpcext.backends.own_job import Ending
from hpcext.batch import lsf
from hpcext.batch.jobs import End
from hpcext.batch.lsf.inside import LsfJob
from hpcext.core.errors import BatchError

FRONT = Host("front", 100)
HOSTS = (FRONT, Host("h1", 4, 1), Host("h2", 4, 1))
WAYS_BACK = [
    pytest.param((), id="brequeue"),
    pytest.param((85,), id="exit value", marks=pytest.mark.slow),
]
TRAINER = ("-a", "hpcext(trainer=1:1)")


class Tickets(Site):
    """Tickets in the default queue of an engine, whose starter is ours; leases are in another."""

    def __init__(self, path: Path, lsf: lsf_site.Site) -> None:
        keys = ("SLURM", "HPCEXT_", "LSB_")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(keys)}
        self.of_jobs = {
            "HPCEXT_BATCH": "lsf",
            "HPCEXT_HARVEST_PARTITION": "killable",
            "HPCEXT_REPORT_INTERVAL_S": "0.2",
            "PATH": f"{lsf.directory}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(path / "config"),
            "XDG_STATE_HOME": str(path / "state"),
        }
        super().__init__(
            path, environ={**environ, **self.of_jobs, "LSF_ENVDIR": str(lsf.directory)}
        )
        self.lsf = lsf
        self.harvester = path / "state" / "hpcext" / "trainers"

    def quick(self) -> None:
        """Make their harvester look for hosts more often than it would."""
        words = (
            "--partition", "killable", "--stay", "--name", "trainers",
            "--dir", str(self.harvester), "--interval", "1", "--idle", "8",
        )  # fmt: skip
        process = self.start("harvest", "start", *words)
        self.run_until_done("drain", str(self.harvester))
        out, err = process.communicate(timeout=500)
        assert process.returncode == 0, (out, err)

    def script(self, name: str, *lines: str) -> Path:
        path = self.path / f"{name}.sh"
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return path

    def count(self, name: str) -> Path:
        """Counts to 39, and to 40 when its gate is open."""
        words = self.counter(name, gated=True)["command"]
        assert words[1] == str(COUNTER)
        log = self.path / f"{name}.steps"
        return self.script(name, f"COUNTER_LOG={log} exec {shlex.join(words)}")

    def bsub(self, *words: str | bytes, stdin: bytes = b"", **variables: str) -> int:
        said = command(self.lsf, "bsub", *words, stdin=stdin, **{**self.of_jobs, **variables})
        assert said.returncode == 0, said
        return int(said.stdout.split(b"<")[1].split(b">")[0])

    def submit(self, script: Path, *options: str) -> int:
        """A ticket of a script; its output is that of its name."""
        where = ("-o", str(self.path / f"{script.stem}.out"))
        return self.bsub(*TRAINER, "-J", script.stem, *where, *options, str(script))

    def told(self, *words: str) -> None:
        """Run a command of LSF."""
        said = command(self.lsf, *words, **self.of_jobs)
        assert said.returncode == 0, said

    def job(self, job: int) -> Job:
        return self.lsf.job(job)

    def wait_is(self, job: int, *states: str) -> None:
        try:
            wait_for(lambda: self.job(job).state in states, f"job {job}: {states}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.job(job)}\n{self.said()}") from None

    def wait_begun(self, *names: str) -> None:
        def there() -> bool:
            return all((steps := self.steps(name)) and steps[-1].step == 39 for name in names)

        try:
            wait_for(there, f"{names} to come to their gates")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def said(self) -> str:
        log = self.harvester / "manager.log"
        return self.lsf.printed() + (log.read_text(errors="replace") if log.exists() else "")

    def output(self, name: str) -> str:
        path = self.path / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def counted(self, name: str) -> list[int]:
        return [step.step for step in self.steps(name)]

    def trainers(self) -> dict[str, dict[str, Any]]:
        found = self.document("status", str(self.harvester))["jobs"]
        return {job["name"]: job for job in found}

    def state(self, trainer: str) -> str:
        return str(self.trainers()[trainer]["state"])

    def manager(self) -> int:
        """The job that is the manager; 0 while there is none."""
        try:
            return int(json.loads((self.harvester / "manager.json").read_text())["batch_job"])
        except (OSError, ValueError, TypeError):
            return 0

    def leases(self) -> list[Job]:
        return [job for job in self.lsf.jobs() if job.queue == "killable" and not job.over()]

    def clear(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self.kill_left_behind()


MakeTickets = Any


@pytest.fixture
def make_tickets(make_site: MakeSite, tmp_path: Path) -> Iterator[MakeTickets]:
    """A site whose queues have our starter; settings of it, and of the queue of tickets."""
    made: list[Tickets] = []

    def tickets(*quirks: str, queue: dict[str, Any] | None = None, **settings: Any) -> Tickets:
        starter = f"command . {put_in_place(tmp_path / 'lsf')}; %USRCMD"
        killable = Queue(starter, priority=10, hosts="h1 h2", run_limit=240)
        queues = {
            "normal": Queue(**{"job_starter": starter, "priority": 40, **(queue or {})}),
            "killable": killable,
        }
        site = make_site(
            *quirks,
            **{"hosts": HOSTS, "queues": queues, "terminate_interval_s": 20.0, **settings},
        )
        made.append(Tickets(tmp_path, site))
        return made[-1]

    yield tickets
    for each in made:
        each.clear()


@pytest.fixture
def tickets(make_tickets: MakeTickets) -> Tickets:
    found: Tickets = make_tickets()
    return found


def controlled(tmp_path: Path) -> dict[str, Any]:
    control = tmp_path / "lsf" / "serverdir" / "hpcext-job-control"
    said = {"SUSPEND": f"{control} suspend", "RESUME": f"{control} resume"}
    return {"job_controls": said}


@pytest.mark.parametrize(
    "quirks",
    [pytest.param((), id=""), pytest.param(LEAN, id="lean", marks=pytest.mark.slow)],
)
def test_a_ticket_ends_as_its_trainer_does(
    make_tickets: MakeTickets, quirks: tuple[str, ...]
) -> None:
    """By the defaults of everything, on any of the hosts that have GPUs."""
    # That engine knows of no GPUs: leases are counted in slots.
    tickets = make_tickets(*quirks)
    tickets.of_jobs |= {"HPCEXT_HARVEST_GPUS": "1"} if quirks else {}
    text = 'echo "$MINE $(pwd) on $HPCEXT_NUM_NODES, ${LSB_JOBNAME:-nothing}"; exit 7'
    out = str(tickets.path / "mine.out")
    job = tickets.bsub("-a", "hpcext(trainer=1:2)", "-J", "mine", "-o", out, text, MINE="yes")
    tickets.wait_is(job, "EXIT", "DONE")
    assert tickets.job(job).exit_code == 7, tickets.said()
    assert f"\nyes {tickets.lsf.directory} on " in tickets.output("mine")
    (name,) = tickets.trainers()
    assert name == f"mine-{job}"
    # Its leases are no tickets, though whoever manages is one; nothing is kept for it.
    assert {each.queue for each in tickets.lsf.jobs()[1:]} == {"killable"}
    left = {path.suffix for path in (tickets.harvester / "tickets").iterdir()}
    assert left == set()
    assert list((tickets.path / "state" / "hpcext" / "tickets").iterdir()) == []


def test_the_copy_of_its_script_runs_in_the_image_of_its_option(tickets: Tickets) -> None:
    """By what stands for Apptainer; only the image has a certain file."""
    image = tickets.path / "image"
    for name in ("etc", "proc", "sys", "dev", "tmp", "usr"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    (image / "etc" / "of-the-image").touch()
    (tickets.path / "train.sif").write_text(f"{image}\n/usr\n")
    tickets.of_jobs["PATH"] = f"{ROOT / 'tests/fakes/containers'}:{tickets.of_jobs['PATH']}"
    script = tickets.script("mine", "test -e /etc/of-the-image || exit 1", 'echo "in $0"', "exit 7")
    train = [sys.executable, "-m", "hpcext", "trainer", "--container"]
    ended = []
    for name in ("train.sif", "other.sif"):
        words = [*train, str(tickets.path / name), "1:1", str(script)]
        out = str(tickets.path / f"{name}.out")
        job = tickets.bsub("-J", "mine", "-o", out, f"exec {shlex.join(words)}")
        tickets.wait_is(job, "EXIT", "DONE")
        ended.append(tickets.job(job).exit_code)
    assert ended == [7, 2], tickets.said()
    assert f"in {tickets.harvester}/tickets/" in tickets.output("train.sif")
    assert "--container: there is no image" in tickets.output("other.sif")


@pytest.mark.slow
def test_when_the_ticket_that_manages_is_killed_another_one_does(tickets: Tickets) -> None:
    """Its trainer is cancelled, and that of the other one trains on."""
    tickets.quick()
    first = tickets.submit(tickets.count("one"))
    tickets.wait_begun("one")
    second = tickets.submit(tickets.count("two"))
    tickets.wait_begun("two")
    assert tickets.manager() == first
    tickets.told("bkill", str(first))
    tickets.wait_is(first, "EXIT")
    wait_for(lambda: tickets.manager() == second, "the other one as manager")
    wait_for(lambda: tickets.state(f"one-{first}") == "cancelled", "the end of its trainer")
    tickets.open("two")
    tickets.wait_is(second, "DONE")
    trainer = tickets.trainers()[f"two-{second}"]
    assert (trainer["attempts"], trainer["suspends"]) == (1, 0)
    assert tickets.counted("two") == list(range(1, 41))


@pytest.mark.slow
def test_the_only_ticket_that_is_killed_frees_its_hosts(tickets: Tickets) -> None:
    """What it has done is kept until LSF says that it has ended, which the next ticket hears."""
    tickets.quick()
    first = tickets.submit(tickets.count("one"))
    tickets.wait_begun("one")
    tickets.told("bkill", str(first))
    tickets.wait_is(first, "EXIT")
    assert tickets.job(first).runs == 1
    wait_for(lambda: not tickets.left_behind(), "the end of the training")
    wait_for(lambda: not tickets.leases(), "the end of its lease")
    second = tickets.submit(tickets.count("two"))
    tickets.wait_begun("two")
    wait_for(lambda: tickets.state(f"one-{first}") == "cancelled", "that it is cancelled")
    tickets.open("two")
    tickets.wait_is(second, "DONE")


@pytest.mark.slow
def test_a_ticket_that_is_requeued_finds_its_trainer(tickets: Tickets) -> None:
    """Nothing is done twice, and nothing is shown twice."""
    tickets.quick()
    job = tickets.submit(tickets.count("one"))
    tickets.wait_begun("one")
    tickets.told("brequeue", str(job))
    wait_for(lambda: tickets.job(job).runs == 2, "its second run")
    tickets.open("one")
    tickets.wait_is(job, "DONE")
    assert list(tickets.trainers()) == [f"one-{job}"]
    assert tickets.counted("one") == list(range(1, 41))
    assert tickets.output("one").count("--- attempt 1") == 1


@pytest.mark.slow
def test_a_job_that_cannot_be_suspended_starts_over(tickets: Tickets) -> None:
    """A script without a session: no process of it is left, and nothing of it could be kept."""
    tickets.quick()
    gate = tickets.path / "gate"
    text = f"echo $$ >>{tickets.path}/pids; while ! test -e {gate}; do sleep 0.1; done; exit 3"
    job = tickets.submit(tickets.script("plain", text))
    pids = tickets.path / "pids"
    wait_for(pids.exists, "the training")
    tickets.told("brequeue", str(job))
    wait_for(lambda: len(whole_lines(pids)) == 2, "that it begins anew")
    first, second = (Path("/proc", pid) for pid in whole_lines(pids))
    assert not first.exists()
    assert second.exists()
    gate.touch()
    tickets.wait_is(job, "EXIT")
    assert tickets.job(job).exit_code == 3


@pytest.mark.slow
def test_its_host_is_lost(tickets: Tickets) -> None:
    """The esub has made the ticket rerunnable; another one manages meanwhile, or nobody."""
    tickets.quick()
    job = tickets.submit(tickets.count("one"))
    tickets.wait_begun("one")
    assert tickets.job(job).rerunnable
    lsf_controls.lose_host(tickets.lsf, job)
    wait_for(lambda: tickets.job(job).runs == 2, "its second run")
    tickets.open("one")
    tickets.wait_is(job, "DONE")
    assert tickets.trainers()[f"one-{job}"]["attempts"] == 1
    assert tickets.counted("one") == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.parametrize("values", WAYS_BACK)
def test_the_run_limit_does_not_end_it(make_tickets: MakeTickets, values: tuple[int, ...]) -> None:
    tickets = make_tickets(queue={"requeue_exit_values": values}, minute_s=40.0)
    tickets.quick()
    job = tickets.submit(tickets.count("one"), "-W", "2")
    tickets.wait_begun("one")
    wait_for(lambda: tickets.job(job).runs >= 2, "its second run")
    tickets.open("one")
    tickets.wait_is(job, "DONE")
    assert tickets.trainers()[f"one-{job}"]["attempts"] == 1
    assert tickets.output("one").count("--- attempt 1") == 1


@pytest.mark.slow
@pytest.mark.parametrize("values", WAYS_BACK)
def test_stopped_it_lets_others_manage(
    make_tickets: MakeTickets, tmp_path: Path, values: tuple[int, ...]
) -> None:
    """It waits until it is resumed; its trainer goes on."""
    tickets = make_tickets(queue={**controlled(tmp_path), "requeue_exit_values": values})
    tickets.quick()
    first = tickets.submit(tickets.count("one"))
    tickets.wait_begun("one")
    second = tickets.submit(tickets.count("two"))
    tickets.wait_begun("two")
    tickets.told("bstop", str(first))
    tickets.wait_is(first, "PSUSP")
    wait_for(lambda: tickets.manager() == second, "the other one as manager")
    tickets.open("one")
    wait_for(lambda: tickets.state(f"one-{first}") == "completed", "its trainer")
    tickets.told("bresume", str(first))
    tickets.wait_is(first, "DONE")
    tickets.open("two")
    tickets.wait_is(second, "DONE")
    assert tickets.trainers()[f"one-{first}"]["attempts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("pim_s", [0.0, 1e9])
def test_stopped_without_job_controls_it_lets_others_manage_too(
    make_tickets: MakeTickets, pim_s: float
) -> None:
    """Also once LSF knows all processes of its job, and stops them all."""
    tickets = make_tickets(pim_s=pim_s)
    tickets.quick()
    first = tickets.submit(tickets.count("one"))
    tickets.wait_begun("one")
    second = tickets.submit(tickets.count("two"))
    tickets.wait_begun("two")
    tickets.told("bstop", str(first))
    tickets.wait_is(first, "USUSP")
    wait_for(lambda: tickets.manager() == second, "the other one as manager")
    tickets.open("two")
    tickets.wait_is(second, "DONE")
    tickets.open("one")
    tickets.told("bresume", str(first))
    tickets.wait_is(first, "DONE")
    assert tickets.trainers()[f"one-{first}"]["attempts"] == 1


def test_what_is_requeued_has_not_ended_for_good(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LSF shows it as EXIT for some seconds."""
    queues = {"normal": Queue(requeue_exit_values=(85,))}
    site = make_site(queues=queues, exit_shown_s=4.0)
    monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
    monkeypatch.setenv("PATH", str(site.directory), prepend=os.pathsep)
    monkeypatch.setattr(lsf_ticket, "REQUEUED_S", 1.0)
    monkeypatch.setenv("LSB_JOBID", "99")
    here = LsfJob.from_environ()
    assert here is not None
    ticket = lsf_ticket.LsfTicket(here)
    text = "test -e once && sleep 600; touch once; exit 85"
    assert command(site, "bsub", text).returncode == 0
    wait_for(lambda: site.job(1).state == "EXIT", "that it is shown as ended")
    assert ticket.given_up([1]) == set()
    wait_for(lambda: site.job(1).runs == 2, "its second run")
    assert ticket.given_up([1]) == set()
    lsf_run.kill(site, 1)
    wait_for(lambda: site.job(1).over(), "its end")
    assert ticket.given_up([1]) == set()
    wait_for(lambda: ticket.given_up([1]) == {1}, "that it is given up")


def test_what_lsf_does_not_requeue_is_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark must be gone by then: hpcext-job-control would wait, and let LSF end the job."""

    def refuses(argv: Sequence[str]) -> str:
        assert argv == ["brequeue", "99"]
        raise BatchError("mbatchd is busy")

    monkeypatch.setattr("hpcext.backends.lsf.requeue.runner.run", refuses)
    monkeypatch.setattr(lsf.Commands, "end", lambda self, job: End("running", None))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LSB_JOBID", "99")
    here = LsfJob.from_environ()
    assert here is not None
    ticket = lsf_ticket.LsfTicket(here)
    ticket.begin(tmp_path / "hpcext")
    for _ in range(2):
        with pytest.raises(BatchError, match="mbatchd is busy"):
            ticket.go_back()
        assert not list(tmp_path.rglob("again"))
        assert ticket.ending() is Ending.OPEN


@pytest.mark.parametrize(
    "way", ["script, sourced", pytest.param("text, sourced", marks=pytest.mark.slow)]
)
def test_hostile_command_lines_arrive_byte_for_byte(make_tickets: MakeTickets, way: str) -> None:
    """All texts in one ticket, since its lease takes a while to begin."""
    tickets = make_tickets(*(["starter_gets_text"] if way.startswith("text") else []))
    tickets.quick()
    draw = random.Random(f"hpcext {way}")
    texts = [each for each in (hostile(draw) for _ in range(40)) if len(each[0]) < 3 << 10]
    assert len(texts) > 30
    script = b"\n".join(b"(" + text + b"\n)" for text, _ in texts)
    if way.startswith("script"):
        job = tickets.bsub(*TRAINER, "-o", "out", stdin=b"#!/bin/bash\n" + script)
    else:
        job = tickets.bsub(*TRAINER, "-o", "out", script)
    tickets.wait_is(job, "DONE")
    heading, _, said = (tickets.lsf.directory / "out").read_bytes().partition(b"\n")
    assert heading.startswith(b"--- attempt 1,")
    assert said == b"".join(says for _, says in texts)
    assert not list(tickets.path.rglob("run"))


@pytest.mark.slow
def test_a_starter_that_is_given_the_script(make_tickets: MakeTickets, tmp_path: Path) -> None:
    """And the variable, which engines without arguments of -a leave."""
    starter = str(tmp_path / "lsf" / "serverdir" / "hpcext-starter")
    tickets = make_tickets("no_esub_arguments", queue={"job_starter": starter})
    tickets.quick()
    words = ("-a", "hpcext", "-o", "out")
    bash = tickets.bsub(*words, stdin=b'#!/bin/bash\necho "a  ${BASH:+b}"\n', HPCEXT_TRAINER="1:1")
    text = tickets.bsub(*words, 'echo "c  d"; exit 4', HPCEXT_TRAINER="1:1")
    tickets.wait_is(bash, "DONE")
    tickets.wait_is(text, "EXIT")
    assert tickets.job(text).exit_code == 4
    said = (tickets.lsf.directory / "out").read_text().splitlines()
    assert {"a  b", "c  d"} <= set(said)


@pytest.mark.slow
def test_in_a_script_without_a_starter(make_tickets: MakeTickets) -> None:
    tickets = make_tickets(queue={"job_starter": ""})
    tickets.quick()
    script = tickets.script("plain", 'printf "%s|" "$@"', "echo", "exit 3")
    text = f"exec {sys.executable} -m hpcext trainer 1:1 {script} 'a b' -- '$HOME' '{{gpu}}'"
    job = tickets.bsub("-o", "out", text)
    tickets.wait_is(job, "EXIT")
    assert tickets.job(job).exit_code == 3
    assert "\na b|--|$HOME|{gpu}|\n" in (tickets.lsf.directory / "out").read_text()


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("asked", "variables", "said"),
    [
        ("trainer=1:2", {"HPCEXT_HARVEST_PARTITION": ""}, "harvest_partition: no partition"),
        ("trainer=1:2", {"HPCEXT_HARVEST_PARTITION": "nowhere"}, "nowhere"),
        ("trainer=1:2,gpus=7", {}, "needs at least 7 GPUs"),
    ],
)
def test_impossible_requests_are_refused(
    tickets: Tickets, asked: str, variables: dict[str, str], said: str
) -> None:
    job = tickets.bsub("-a", f"hpcext({asked})", "-o", "out", "true", **variables)
    tickets.wait_is(job, "EXIT")
    (line,) = (tickets.lsf.directory / "out").read_text().splitlines()
    assert line.startswith("hpcext: ")
    assert said in line
    assert tickets.job(job).exit_code != 0
