"""The model of LSF in tests/virtual is held to the contract engine: jobs see the same on both.

A job of three processes writes down which signals each of them hears. Each scenario is played here
and in the virtual room; what each of them heard in each of its runs, in order, and how the job
ended must be alike. The contract engine is itself held to recordings (test_lsf_recorded).
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import lsf_controls
import lsf_hosts
import lsf_site
import pytest
from lsf_tools import MakeSite, command
from site_of_test import wait_for

sys.path.insert(0, str(Path(__file__).parents[1]))

from virtual import calls, lsf, lsf_commands, nodes, shell
from virtual.kernel import Kernel, Process

from hpcext.batch.lsf.idle import parse_hosts
from hpcext.batch.lsf.queues import parse_queues

PROGRAM = Path(__file__).with_name("signal_log.py")
LINE = re.compile(r" *[\d.]+ (\w+) +(\w+)")
ROLES = ("script", "child", "session")
SLOTS = 4
NEVER_S = 3600.0
INTERVAL_S, SHOWN_S = 1.5, 0.5

HEARD = (1, 2, 3, 10, 12, 13, 14, 15, 18, 20, 21, 22, 24)
"""What signal_log.py writes down."""

Runs = dict[str, list[list[str]]]


class Setting(NamedTuple):
    """How an LSF is set up for a scenario.

    Attributes
    ----------
    suspend : str
        JOB_CONTROLS of the queue ``low``.
    early : bool
        Whether hosts do not know the processes of a job yet.
    at_once : bool
        Whether jobs of several slots are killed at once.
    minute_s : float
        A minute of ``-W``, which no test of real processes can wait for.
    """

    suspend: str = ""
    early: bool = False
    at_once: bool = False
    minute_s: float = 4.0


class System(Protocol):
    """An LSF, modelled or played."""

    log: str
    """The command that writes down what it hears."""

    def run(self, *argv: str) -> str:
        """Run a command as the user; what it prints, of one that must not fail."""

    def refused(self, *argv: str) -> str:
        """What one says that must fail."""

    def record(self) -> str:
        """What was written down."""

    def state(self, job: str) -> str:
        """The state of a job."""

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait."""

    def known(self, job: str) -> None:
        """Wait until its host knows the processes of a job."""

    def lose(self, job: str) -> None:
        """Have its first host lose its power."""

    def resume(self) -> None:
        """Have jobs go on that were preempted and have room again."""


class Played:
    """The contract engine."""

    def __init__(self, make: MakeSite, setting: Setting) -> None:
        controls = {"SUSPEND": setting.suspend} if setting.suspend else {}
        self.site = make(
            *(["parallel_killed_at_once"] if setting.at_once else []),
            hosts=(lsf_site.Host("n1", SLOTS, 2), lsf_site.Host("n2", SLOTS, 2)),
            queues={
                "low": lsf_site.Queue(priority=10, job_controls=controls, max_job_requeue=2),
                "high": lsf_site.Queue(priority=40, preemptive=True, max_job_requeue=2),
            },
            pim_s=NEVER_S if setting.early else 0.3,
            terminate_interval_s=INTERVAL_S,
            minute_s=setting.minute_s,
            exit_shown_s=SHOWN_S,
            host_lost_s=0.5,
        )
        self.log = f"exec {sys.executable} {PROGRAM} heard"

    def _said(self, *argv: str) -> Any:
        paths = f"{self.site.directory}:/usr/bin:/bin"
        return command(self.site, *argv, PATH=paths)

    def run(self, *argv: str) -> str:
        said = self._said(*argv)
        assert said.returncode == 0, said
        return str(said.stdout.decode())

    def refused(self, *argv: str) -> str:
        said = self._said(*argv)
        assert said.returncode == 255, said
        return str(said.stderr.decode())

    def record(self) -> str:
        path = self.site.directory / "heard.log"
        text = path.read_text() if path.exists() else ""
        return text[: text.rfind("\n") + 1]

    def state(self, job: str) -> str:
        found = self.site.job(int(job))
        return "" if found.requeuing else found.state

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_for(condition, what)

    def known(self, job: str) -> None:
        found = self.site.job(int(job))
        due = found.started_at + self.site.pim_s
        wait_for(lambda: time.time() >= due, "that its host knows its processes")

    def lose(self, job: str) -> None:
        lsf_controls.lose_host(self.site, int(job))

    def resume(self) -> None:
        lsf_controls.resume_preempted(self.site)


class Model:
    """The model of it, set up alike."""

    log = "exec log"

    def __init__(self, setting: Setting) -> None:
        self._kernel = Kernel(1, self._program)
        calls.use(self._kernel)
        workers = nodes.cluster(self._kernel, ["n1", "n2"])
        for node in workers:
            lsf.spool_of(node)
        self._home = workers[0].disk.home._server  # type: ignore[attr-defined]
        self._home.find("/home").mode |= 0o777
        self._workers = workers
        controls = {"SUSPEND": setting.suspend} if setting.suspend else {}
        self._pim_s = NEVER_S if setting.early else 2.0
        self.lsf = lsf.Lsf(
            self._kernel, workers,
            [lsf.Queue("low", 10, controls=controls), lsf.Queue("high", 40, preemptive=True)],
            lsf.Site(
                cycle_s=0.5, periodic_s=1.0, lost_s=5.0, terminate_s=INTERVAL_S,
                limit_kill_s=INTERVAL_S, pim_s=self._pim_s, exit_shown_s=SHOWN_S,
                most_requeues=2, at_once=setting.at_once,
            ),
            cpus=SLOTS, gpus=2,
        )  # fmt: skip
        self._commands = lsf_commands.Commands(self.lsf)

    def _program(self, argv: Any) -> Callable[[Process], int | None] | None:
        if argv[0] == "log":
            return _log
        return shell.PROGRAMS.get(argv[0]) or self._commands.program(argv)

    def _said(self, *argv: str) -> tuple[int, str, str]:
        def program(process: Process) -> int | None:
            for fd, path in ((1, "/tmp/out"), (2, "/tmp/err")):
                calls.dup2(calls.open(path, 0o1101, 0o600), fd)
            process.cwd = "/home"
            found = self._program(argv)
            assert found is not None
            return found(process)

        node = self._workers[1]
        process = self._kernel.spawn(node, argv, {}, program)
        self._kernel.run(lambda: process.dead, self._kernel.now + 100)
        out, err = (bytes(node.disk.find(path).data) for path in ("/tmp/out", "/tmp/err"))
        return process.code or 0, out.decode(), err.decode()

    def run(self, *argv: str) -> str:
        code, out, err = self._said(*argv)
        assert code == 0, err
        return out

    def refused(self, *argv: str) -> str:
        code, _, err = self._said(*argv)
        assert code == 255
        return err

    def record(self) -> str:
        try:
            return bytes(self._home.find("/home/heard.log").data).decode()
        except FileNotFoundError:
            return ""

    def state(self, job: str) -> str:
        found = self.lsf.jobs[int(job)]
        return "" if found.requeuing else found.state

    def until(self, condition: Callable[[], object], what: str) -> None:
        self._kernel.run(lambda: bool(condition()), self._kernel.now + 300)
        assert not self._kernel.errors, (what, self._kernel.errors)

    def known(self, job: str) -> None:
        due = self._kernel.now + self._pim_s + 0.1
        self._kernel.at(due, lambda: None)
        self._kernel.run(lambda: self._kernel.now >= due, due + 1)

    def lose(self, job: str) -> None:
        name = next(iter(self.lsf.jobs[int(job)].shares))
        next(each for each in self._workers if each.name == name).lose_power()

    def resume(self) -> None:
        """It does so by itself."""


def _log(process: Process) -> int:
    """Do what signal_log.py does."""
    kernel = calls.kernel()

    def say(name: str, what: str) -> None:
        fd = calls.open("/home/heard.log", 0o2101, 0o644)
        calls.write(fd, f"{kernel.now:7.1f} {name:8} {what}\n".encode())
        calls.close(fd)

    def role(name: str) -> None:
        for signum in HEARD:
            calls.sigaction(signum, lambda number, _: say(name, signal.Signals(number).name))
        say(name, f"pid {calls.getpid()}")
        calls.sleep(NEVER_S)

    def session() -> None:
        calls.setsid()
        role("session")

    kernel.fork(lambda: role("child"))
    kernel.fork(session)
    role("script")
    return 0


# What was heard.


def heard(text: str) -> Runs:
    """What each process heard in each run, in order; what comes at one instant in one order."""
    found: Runs = {name: [] for name in ROLES}
    for name, what in LINE.findall(text):
        if what == "pid":
            found[name].append([])
        elif what.startswith("SIG"):
            found[name][-1].append(what)
    for runs in found.values():
        for run in runs:
            for at in range(len(run) - 1):
                if run[at : at + 2] == ["SIGINT", "SIGCONT"]:
                    run[at : at + 2] = ["SIGCONT", "SIGINT"]
    return found


def submit(system: System, *words: str) -> str:
    return re.findall(r"<(\d+)>", system.run("bsub", *words))[0]


def begun(system: System, runs: int = 1) -> None:
    def all_begun() -> bool:
        return all(len(each) == runs for each in heard(system.record()).values())

    system.until(all_begun, f"run {runs}")


def logger(system: System, *options: str, known: bool = True) -> str:
    """Submit a job that writes down what it hears, and wait until it does, and is known."""
    job = submit(system, "-q", "low", *options, system.log)
    begun(system)
    if known:
        system.known(job)
    return job


def again(system: System, job: str) -> None:
    begun(system, 2)
    system.known(job)


def over(system: System, job: str) -> str:
    system.until(lambda: system.state(job) in {"DONE", "EXIT"}, "the end")
    return job


def until(system: System, job: str, state: str) -> None:
    system.until(lambda: system.state(job) == state, state)


# Scenarios.


def killed(system: System) -> str:
    job = logger(system)
    system.run("bkill", job)
    return over(system, job)


def killed_early(system: System) -> str:
    """Its own session hears nothing."""
    job = logger(system, known=False)
    system.run("bkill", job)
    return over(system, job)


def killed_parallel(system: System) -> str:
    job = logger(system, "-n", "2")
    system.run("bkill", job)
    return over(system, job)


def killed_pending(system: System) -> str:
    first = logger(system, "-n", "4", "-R", "span[hosts=1]", "-m", "n1")
    waits = submit(system, "-q", "low", "-n", "4", "-m", "n1", "sleep 1")
    until(system, waits, "PEND")
    system.run("bkill", waits)
    assert over(system, waits)
    system.run("bkill", first)
    return over(system, first)


def requeued(system: System) -> str:
    job = logger(system)
    system.run("brequeue", job)
    again(system, job)
    system.run("bkill", job)
    return over(system, job)


def held(system: System) -> str:
    """It waits until it is resumed."""
    job = logger(system)
    system.run("brequeue", "-H", job)
    until(system, job, "PSUSP")
    system.run("bresume", job)
    again(system, job)
    system.run("bkill", job)
    return over(system, job)


def stopped(system: System) -> str:
    job = logger(system)
    system.run("bstop", job)
    until(system, job, "USUSP")
    system.run("bresume", job)
    system.until(lambda: heard(system.record())["session"][0], "SIGCONT")
    system.run("bkill", job)
    return over(system, job)


def stopped_parallel(system: System) -> str:
    """A signal that can be caught."""
    job = logger(system, "-n", "2")
    system.run("bstop", job)
    until(system, job, "USUSP")
    system.run("bresume", job)
    until(system, job, "RUN")
    system.until(lambda: len(heard(system.record())["session"][0]) == 2, "SIGCONT")
    system.run("bkill", job)
    return over(system, job)


def killed_while_stopped(system: System) -> str:
    job = logger(system)
    system.run("bstop", job)
    until(system, job, "USUSP")
    system.run("bkill", job)
    return over(system, job)


def at_its_limit(system: System) -> str:
    return over(system, logger(system, "-W", "1", known=False))


def signalled(system: System) -> str:
    job = logger(system)
    system.run("bkill", "-s", "USR2", job)
    system.until(lambda: all(each[0] for each in heard(system.record()).values()), "USR2")
    system.run("bkill", job)
    return over(system, job)


def preempted(system: System) -> str:
    """It is stopped while another job has its slots, and goes on."""
    job = logger(system, "-n", "4", "-R", "span[hosts=1]", "-m", "n1")
    main = submit(system, "-q", "high", "-n", "4", "-m", "n1", "sleep 1")
    until(system, job, "SSUSP")
    over(system, main)
    system.resume()
    until(system, job, "RUN")
    system.until(lambda: len(heard(system.record())["session"][0]) == 2, "SIGCONT")
    system.run("bkill", job)
    return over(system, job)


def preempted_by_requeue(system: System) -> str:
    """It is ended, and begins again when there is room."""
    job = logger(system, "-n", "4", "-R", "span[hosts=1]", "-m", "n1")
    main = submit(system, "-q", "high", "-n", "4", "-m", "n1", "sleep 1")
    over(system, main)
    again(system, job)
    system.run("bkill", job)
    return over(system, job)


def requeued_by_its_value(system: System) -> str:
    """As often as the site permits; then it has ended."""
    return over(system, submit(system, "-q", "low", "-Q", "85", "sleep 0.2; exit 85"))


def ended_otherwise(system: System) -> str:
    return over(system, submit(system, "-q", "low", "-Q", "85", "exit 86"))


def lost(system: System) -> str:
    """It begins again when that is known, as it may."""
    job = logger(system, "-r")
    system.lose(job)
    again(system, job)
    system.run("bkill", job)
    return over(system, job)


def lost_for_good(system: System) -> str:
    job = logger(system)
    system.lose(job)
    return over(system, job)


def launched(system: System) -> str:
    """blaunch ends as what it has started."""
    text = "blaunch n2 sh -c 'exit 5'; exit $?"
    return over(system, submit(system, "-q", "low", "-n", "8", "-R", "span[ptile=4]", text))


SCENARIOS: tuple[tuple[Callable[[System], str], Setting], ...] = (
    (killed_early, Setting(early=True)),
    (killed_parallel, Setting(at_once=True)),
    (stopped_parallel, Setting()),
    (preempted, Setting("SIGTSTP")),
    (preempted_by_requeue, Setting("brequeue $LSB_JOBID")),
    (requeued_by_its_value, Setting()),
    (ended_otherwise, Setting()),
    (lost, Setting()),
    (launched, Setting()),
)
SLOW: tuple[tuple[Callable[[System], str], Setting], ...] = (
    (killed, Setting()),
    (killed_parallel, Setting()),
    (killed_pending, Setting()),
    (requeued, Setting()),
    (held, Setting()),
    (stopped, Setting()),
    (stopped, Setting("SIGTSTP")),
    (killed_while_stopped, Setting()),
    (at_its_limit, Setting()),
    (signalled, Setting()),
    (preempted, Setting()),
    (lost_for_good, Setting()),
)


@pytest.fixture
def leave() -> Iterator[None]:
    yield
    calls.use(None)


class Seen(NamedTuple):
    """What a job heard, and what became of it."""

    heard: Runs
    state: str
    value: str


def seen(system: System, job: str) -> Seen:
    said = json.loads(system.run("bjobs", "-o", "jobid stat exit_code", "-json", "-a", job))
    (record,) = said["RECORDS"]
    return Seen(heard(system.record()), record["STAT"], record["EXIT_CODE"])


@pytest.mark.cases(5)
@pytest.mark.parametrize(
    ("scenario", "setting"),
    [*SCENARIOS, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_jobs_see_the_same(
    make_site: MakeSite, leave: None, scenario: Callable[[System], str], setting: Setting
) -> None:
    model = Model(setting)
    expected = seen(model, scenario(model))
    calls.use(None)
    played = Played(make_site, setting)
    job = scenario(played)
    assert seen(played, job) == expected


# What commands say.


def test_commands_say_the_same(make_site: MakeSite, leave: None) -> None:
    setting = Setting("SIGTSTP", minute_s=60.0)
    said = []
    for system in (Model(setting), Played(make_site, setting)):
        job = submit(
            system, "-q", "low", "-J", "one", "-n", "8", "-R", "span[ptile=4]", "-W", "2:30/n1",
            "-gpu", "num=1/host:mode=shared", "-Jd", "17 n1", "sleep 600",
        )  # fmt: skip
        until(system, job, "RUN")
        other = submit(system, "-q", "low", "-J", "two", "sleep 1")
        until(system, other, "PEND")
        fields = "jobid stat queue job_name job_description exec_host runtimelimit pend_reason"
        rows = json.loads(system.run("bjobs", "-o", fields, "-json", "-u", "all"))["RECORDS"]
        hosts = [
            parse_hosts(system.run("bhosts", *words))
            for words in (
                ("-w",),
                ("-o", "host_name status max njobs run ssusp ususp rsv", "-json"),
            )
        ]
        queues = [
            queue._replace(preemption="", controls=dict(queue.controls))
            for queue in parse_queues(system.run("bqueues", "-l"))
        ]
        unknown = json.loads(system.run("bjobs", "-o", "jobid stat", "-json", "99"))["RECORDS"]
        system.run("bkill", other)
        over(system, other)
        refusals = [system.refused(*each) for each in (
            ("bkill", other), ("bkill", "99"), ("bresume", job), ("brequeue", other),
            ("bsub", "-q", "none", "sleep 1"), ("bkill", "-J", "nobody", "0"),
        )]  # fmt: skip
        system.run("bkill", job)
        over(system, job)
        said.append((rows, hosts, queues, unknown, refusals))
    assert said[0] == said[1]


def test_the_model_has_the_options_of_the_engine() -> None:
    """And no others: what production asks for by their help is played by both."""
    for name, options in lsf_commands.OPTIONS.items():
        everything = lsf_hosts.BSUB if name == "bsub" else lsf_hosts.OPTIONS[name]
        assert options <= everything
