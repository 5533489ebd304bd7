"""The local executor with real supervisors and real processes."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from stage import Stage, runs
from written import whole_lines

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.executors.local import LocalExecutor
from hpcext.executors.seats import Shared
from hpcext.jobspec import Gpus, JobSpec
from hpcext.launch import supervise, sweep

NODE = v.Node("n", 4)
NVIDIA = Path(__file__).parents[1] / "fakes" / "nvidia"
Wanted = TypeVar("Wanted")
OPEN: list[LocalExecutor] = []
"""Executors of the present test."""


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def whole() -> None:
            try:
                await asyncio.wait_for(test(**fixtures), 90)
            finally:
                while OPEN:
                    OPEN.pop().close()

        asyncio.run(whole())

    return run


class Local:
    """An executor, with the facts that it emitted."""

    def __init__(
        self, stage: Stage, *, hide_gpus: bool = False, shared: Shared | None = None
    ) -> None:
        self.stage = stage
        self.jobs = stage.path / "jobs"
        self.facts: list[f.Fact] = []
        self.specs: dict[str, JobSpec] = {}
        self._news = asyncio.Event()
        self.executor = LocalExecutor(
            directory=self.jobs,
            node=NODE,
            indices=(0, 1, 2, 3),
            spec=self.specs.__getitem__,
            emit=self._emit,
            loop=asyncio.get_running_loop(),
            hide_gpus=hide_gpus,
            shared=shared,
        )

        OPEN.append(self.executor)

    def _emit(self, fact: f.Fact) -> None:
        self.facts.append(fact)
        self._news.set()

    def job(self, job: str, *argv: str, **changes: Any) -> None:
        """Say what a job is."""
        changes = {"workdir": str(self.stage.path), "env": self.environ(job), **changes}
        self.specs[job] = JobSpec(f"job{job}", argv, Gpus(1, 4), **changes)

    def environ(self, job: str) -> dict[str, str]:
        return {"DIARY": str(self.stage.path / f"diary{job}")}

    def start(self, job: str, *words: str, gpus: int = 1, attempt: int = 1) -> None:
        """Start an attempt of ``plain.py``, or of a job that was told before."""
        if job not in self.specs:
            self.job(job, *self.stage.plain(*words))
        self.perform(v.Kind.START, job, attempt, alloc={"n": gpus})

    def perform(self, kind: v.Kind, job: str, attempt: int = 1, **more: Any) -> None:
        """Ask for an action; the op follows from job and attempt."""
        self.executor.perform(v.Action(kind, job, op(job, attempt), attempt, **more))

    async def heard(self, kind: type[Wanted], job: str, attempt: int = 1) -> Wanted:
        """Wait for a fact about an attempt; looks at reports meanwhile, as managers do."""
        while True:
            for fact in self.facts:
                if isinstance(fact, kind) and (fact.job, fact.op) == (job, op(job, attempt)):  # type: ignore[attr-defined]
                    return fact
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), 0.05)
            except asyncio.TimeoutError:
                self.executor.look()

    async def registered(self, job: str, attempt: int = 1) -> int:
        """Wait until a job polls for suspensions; its pid."""
        await self.heard(f.Registered, job, attempt)
        return int(self.said("ready", job)[-1][0])

    def said(self, word: str, job: str) -> list[list[str]]:
        path = self.stage.path / f"diary{job}"
        lines = whole_lines(path)
        return [line.split()[1:] for line in lines if line.split()[0] == word]

    def directory(self, job: str, attempt: int = 1) -> Path:
        return self.jobs / job / f"attempt-{attempt:04d}"

    def supervisor(self, job: str) -> int:
        """Pid of the supervisor."""
        pid = json.loads((self.directory(job) / "supervisor.json").read_text())["pid"]
        assert isinstance(pid, int)
        return pid

    def kinds(self, job: str) -> list[type]:
        """What happened to a job, in order, progress left out."""
        mine = [fact for fact in self.facts if getattr(fact, "job", "") == job]
        return [type(fact) for fact in mine if not isinstance(fact, f.Progressed)]


def op(job: str, attempt: int) -> int:
    return int(job) * 100 + attempt


WHOLE = [f.Started, f.Registered, f.Ended]


@in_loop
async def test_a_job_runs_to_its_end(stage: Stage) -> None:
    local = Local(stage)
    local.start("1", "short", gpus=2)
    started = await local.heard(f.Started, "1")
    assert started.gpus == ("n:0", "n:1")
    ended = await local.heard(f.Ended, "1")
    assert ended == f.Ended("1", 101, f.Outcome.COMPLETED, 0)
    assert local.kinds("1") == WHOLE
    # The last report is heard though nobody looked.
    progressed = [fact for fact in local.facts if isinstance(fact, f.Progressed)][-1]
    assert progressed.step == 1
    [[_, attempt, visible]] = local.said("ready", "1")
    assert (attempt, visible) == ("1", "0,1")


@in_loop
async def test_placeholders_gpus_and_log(stage: Stage) -> None:
    local = Local(stage)
    words = "{gpus} {nodes} {name} {checkpoint_dir} $CUDA_DEVICE_ORDER $X"
    local.job("1", "bash", "-c", f"echo {words}", env={"X": "y"})
    local.start("1", gpus=3)
    await local.heard(f.Ended, "1")
    heading, line = (local.jobs / "1" / "log.txt").read_text().splitlines()
    assert heading.startswith("--- attempt 1, 3 GPUs, ")
    assert line == f"3 1 job1 {local.jobs}/1/checkpoint PCI_BUS_ID y"


@in_loop
async def test_a_suspension_and_the_next_attempt(stage: Stage) -> None:
    local = Local(stage)
    local.start("1", "block")
    await local.registered("1")
    local.perform(v.Kind.SUSPEND, "1")
    ended = await local.heard(f.Ended, "1")
    assert ended.outcome is f.Outcome.SUSPENDED
    assert ended.suspend_s is not None
    assert list(ended.suspend_s) == ["agree_s", "write_s", "acknowledge_s", "teardown_s"]
    assert ended.suspend_s["write_s"] == pytest.approx(0.002, abs=1e-5)
    assert ended.suspend_s["acknowledge_s"] == pytest.approx(0.001, abs=1e-5)
    local.start("1", attempt=2)
    await local.registered("1", 2)
    local.perform(v.Kind.KILL, "1", 2)
    await local.heard(f.Ended, "1", 2)
    assert [line[1] for line in local.said("ready", "1")] == ["1", "2"]


@in_loop
async def test_an_action_follows_its_start_at_once(stage: Stage) -> None:
    """Before the supervisor is ready: it is started with the signals held."""
    local = Local(stage)
    local.start("1", "block")
    local.perform(v.Kind.SUSPEND, "1")
    local.start("2", "deaf")
    local.perform(v.Kind.KILL, "2")
    assert (await local.heard(f.Ended, "1")).outcome is f.Outcome.SUSPENDED
    ended = await local.heard(f.Ended, "2")
    assert (ended.outcome, ended.exit_code) == (f.Outcome.FAILED, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("argv", "workdir", "code"),
    [
        (["false"], "/", 1),
        (["bash", "-c", "kill -SEGV $$"], "/", -signal.SIGSEGV),
        (["no-such-command"], "/", 127),
        (["true"], "/no/such", 126),
    ],
)
def test_a_jobs_own_fault(stage: Stage, argv: list[str], workdir: str, code: int) -> None:
    async def scenario() -> None:
        local = Local(stage)
        local.job("1", *argv, workdir=workdir)
        local.start("1")
        ended = await local.heard(f.Ended, "1")
        assert (ended.outcome, ended.exit_code) == (f.Outcome.FAILED, code)

    asyncio.run(scenario())


# GPUs.


@in_loop
async def test_gpus_are_the_lowest_that_are_free_and_free_only_at_the_end(stage: Stage) -> None:
    local = Local(stage)
    for job, gpus in (("1", 1), ("2", 2), ("3", 1)):
        local.start(job, "deaf", gpus=gpus)
    gpus = [(await local.heard(f.Started, job)).gpus for job in "123"]
    assert gpus == [("n:0",), ("n:1", "n:2"), ("n:3",)]
    await local.registered("2")
    local.start("4", "deaf")
    refused = await local.heard(f.Ended, "4")
    assert refused.outcome is f.Outcome.LOST
    assert refused.why == "could not be started: only 0 GPUs are free"
    assert not local.directory("4").exists()
    local.perform(v.Kind.KILL, "2")
    await local.heard(f.Ended, "2")
    local.start("5", "deaf", gpus=2)
    assert (await local.heard(f.Started, "5")).gpus == ("n:1", "n:2")
    for job in "135":
        local.perform(v.Kind.KILL, job)
    for job in "135":
        await local.heard(f.Ended, job)


@in_loop
async def test_logical_slots_hide_the_gpus_that_the_machine_has(stage: Stage) -> None:
    local = Local(stage, hide_gpus=True)
    local.start("1", "short", gpus=2)
    assert (await local.heard(f.Started, "1")).gpus == ("n:0", "n:1")
    await local.heard(f.Ended, "1")
    assert [line[2] for line in local.said("ready", "1")] == ["-1"]


# Killing.


@in_loop
async def test_a_job_that_ignores_suspension_is_killed_and_has_failed(stage: Stage) -> None:
    """Though it answers SIGTERM by exit code 0, its work is not done."""
    local = Local(stage)
    local.start("1", "deaf", "tidy")
    await local.registered("1")
    local.perform(v.Kind.SUSPEND, "1")
    local.perform(v.Kind.KILL, "1")
    ended = await local.heard(f.Ended, "1")
    assert (ended.outcome, ended.exit_code) == (f.Outcome.FAILED, 0)
    assert ended.why


@in_loop
async def test_force_leaves_nothing_of_an_attempt(stage: Stage) -> None:
    """Not even a daemon in its own session that cleared its environment and ignores SIGTERM."""
    local = Local(stage)
    command = " ".join(stage.plain("deaf", "stubborn", "daemon"))
    local.job("1", "bash", "-c", f"setsid {command} & setsid {command}; true")
    local.start("1")
    await local.registered("1")
    await _until(lambda: len(local.said("daemon", "1")) == len(local.said("ready", "1")) == 2)
    pids = [int(line[0]) for word in ("daemon", "ready") for line in local.said(word, "1")]
    assert all(runs(pid) for pid in pids)
    local.perform(v.Kind.KILL, "1", force=True)
    ended = await local.heard(f.Ended, "1")
    assert (ended.outcome, ended.why) == (f.Outcome.LOST, "it was killed")
    assert not any(runs(pid) for pid in pids)


@in_loop
async def test_force_takes_a_job_off_a_shared_gpu_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor can do nothing any more; the job beside it goes on."""
    monkeypatch.setenv("PATH", f"{NVIDIA}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPUS", "5")
    monkeypatch.syspath_prepend(str(NVIDIA))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    local = Local(stage, shared=Shared(4, 2))
    for job in ("1", "2"):
        python, *plain = stage.plain("deaf", "stubborn")
        environ = {**local.environ(job), "CLIENT_LOG": os.devnull}
        local.job(job, python, str(NVIDIA / "client.py"), *plain, env=environ)
        local.perform(v.Kind.START, job, alloc={"n/mps": 1})
        started = await local.heard(f.Started, job)
        assert started.gpus == (f"n/mps:4{' ab'[int(job)]}",)
        await local.registered(job)
    victim, neighbour = (local.said("ready", job)[0][0] for job in ("1", "2"))
    log = stage.path / "mps-4" / "log" / "mps.log"
    os.kill(local.supervisor("1"), signal.SIGSTOP)
    local.perform(v.Kind.KILL, "1", force=True)
    assert (await local.heard(f.Ended, "1")).why == "it was killed"
    account = log.read_text().splitlines()
    assert account[-2:] == [f"terminate_client {victim}", f"left {victim}"]
    assert runs(int(neighbour))
    local.perform(v.Kind.KILL, "2", force=True)
    await local.heard(f.Ended, "2")
    account = log.read_text().splitlines()
    assert account[-3:] == [
        f"terminate_client {neighbour}", f"left {neighbour}", "quit with 0 clients",
    ]  # fmt: skip


@in_loop
async def test_a_killed_supervisor_is_swept_up_after(stage: Stage) -> None:
    local = Local(stage)
    command = " ".join(stage.plain("deaf", "stubborn"))
    local.job("1", "bash", "-c", f"setsid {command} & setsid {command}; true")
    local.start("1", gpus=4)
    await local.registered("1")
    await _until(lambda: len(local.said("ready", "1")) == 2)
    os.kill(local.supervisor("1"), signal.SIGKILL)
    ended = await local.heard(f.Ended, "1")
    assert ended == f.Ended("1", 101, f.Outcome.LOST, why="its supervisor was killed")
    assert not any(runs(int(pid)) for pid, *_ in local.said("ready", "1"))
    local.start("2", "short", gpus=4)
    assert (await local.heard(f.Ended, "2")).outcome is f.Outcome.COMPLETED


@in_loop
async def test_actions_on_what_has_ended_do_nothing(stage: Stage) -> None:
    local = Local(stage)
    local.start("1", "short")
    await local.heard(f.Ended, "1")
    for kind, more in ((v.Kind.SUSPEND, {}), (v.Kind.KILL, {}), (v.Kind.KILL, {"force": True})):
        local.perform(kind, "1", **more)
        local.perform(kind, "9", **more)
    local.start("2", "short")
    await local.heard(f.Ended, "2")
    assert local.kinds("1") == WHOLE
    assert local.kinds("9") == []


# Adoption: what a manager's successor finds.


def leave(stage: Stage, *words: str, gpus: int = 2) -> Local:
    """A manager that starts a job in an event loop of its own, and is gone."""

    async def scenario() -> Local:
        local = Local(stage)
        local.start("1", *words, gpus=gpus)
        if "short" in words:
            await local.heard(f.Started, "1")
        else:
            await local.registered("1")
        local.executor.close()
        return local

    return asyncio.run(scenario())


def test_a_running_attempt_is_adopted(stage: Stage) -> None:
    first = leave(stage, "block")

    async def scenario() -> None:
        local = Local(stage)
        # A new one comes first: it must not get the GPUs that the old one holds.
        local.start("2", "deaf", gpus=2)
        local.start("1", "block", gpus=2)
        assert (await local.heard(f.Started, "1")).gpus == ("n:0", "n:1")
        assert (await local.heard(f.Started, "2")).gpus == ("n:2", "n:3")
        pid = await local.registered("1")
        assert pid == int(first.said("ready", "1")[0][0])
        local.start("1", gpus=2)
        local.perform(v.Kind.SUSPEND, "1")
        local.perform(v.Kind.KILL, "2")
        assert (await local.heard(f.Ended, "1")).outcome is f.Outcome.SUSPENDED
        await local.heard(f.Ended, "2")
        assert local.kinds("1") == [f.Started, f.Registered, f.Started, f.Ended]

    asyncio.run(scenario())
    assert len(first.said("ready", "1")) == 1, "it ran once"


def test_the_end_of_an_attempt_without_a_manager_is_found(stage: Stage) -> None:
    first = leave(stage, "short")
    stage.wait_for((first.directory("1") / "exit.json").exists, "the end")

    async def scenario() -> None:
        local = Local(stage)
        local.start("1", "short", gpus=2)
        assert await local.heard(f.Ended, "1") == f.Ended("1", 101, f.Outcome.COMPLETED, 0)
        assert local.kinds("1") == WHOLE

    asyncio.run(scenario())
    assert len(first.said("ready", "1")) == 1


def test_an_attempt_whose_supervisor_died_meanwhile_is_swept(stage: Stage) -> None:
    first = leave(stage, "deaf", "stubborn")
    pid = int(first.said("ready", "1")[0][0])
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(3600)"],
        env=psutil.Process(pid).environ(),
        start_new_session=True,
    )
    stage.wait_for(lambda: psutil.Process(orphan.pid).environ().get("HPCEXT_OP"), "its exec")
    os.kill(first.supervisor("1"), signal.SIGKILL)

    async def scenario() -> None:
        local = Local(stage)
        local.start("1", "deaf", gpus=2)
        ended = await local.heard(f.Ended, "1")
        assert (ended.outcome, ended.why) == (f.Outcome.LOST, "its supervisor was killed")
        assert not runs(pid)
        assert not runs(orphan.pid)

    asyncio.run(scenario())
    assert orphan.wait() == -signal.SIGKILL


def test_a_restart_of_the_machine_is_no_failure_of_the_attempt(stage: Stage) -> None:
    """Though a process has the pid and start time that the old supervisor had."""
    first = leave(stage, "deaf")
    os.kill(first.supervisor("1"), signal.SIGKILL)
    stage.wait_for(lambda: not stage.processes(), "the end of everything")
    path = first.directory("1") / "supervisor.json"
    other = subprocess.Popen(["sleep", "3600"])
    try:
        start = int(Path(f"/proc/{other.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
        document = {**json.loads(path.read_text()), "pid": other.pid, "start": start}
        path.write_text(json.dumps({**document, "boot_id": "another boot"}))

        async def scenario() -> None:
            local = Local(stage)
            local.start("1", "deaf", gpus=2)
            ended = await local.heard(f.Ended, "1")
            assert (ended.outcome, ended.why) == (f.Outcome.EVICTED, "the machine was restarted")

        asyncio.run(scenario())
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_manager_killed_before_its_supervisor_began_has_a_successor(stage: Stage) -> None:
    first = leave(stage, "short")
    stage.wait_for((first.directory("1") / "exit.json").exists, "the end")
    stage.wait_for(lambda: not stage.processes(), "the supervisor's end")
    for name in ("supervisor.json", "exit.json", "report.json"):
        (first.directory("1") / name).unlink()

    async def scenario() -> None:
        local = Local(stage)
        local.start("1", "short", gpus=2)
        assert (await local.heard(f.Ended, "1")).outcome is f.Outcome.COMPLETED
        assert (await local.heard(f.Started, "1")).gpus == ("n:0", "n:1")

    asyncio.run(scenario())
    assert len(first.said("ready", "1")) == 2


def test_a_supervisor_that_is_late_does_not_begin_what_was_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed manager may have started one; that of its successor died of a full disk, say."""
    died = stage.path / "died.py"
    died.write_text("raise SystemExit(71)\n")
    # No thread can be had, and then the disk is full.
    full: list[object] = [OSError(errno.ENOSPC, "full"), RuntimeError("can't start new thread")]
    bar = sweep.bar

    def barred(own: Path) -> bool:
        if full:
            raise full.pop()  # type: ignore[misc]
        return bar(own)

    async def scenario() -> Local:
        local = Local(stage)
        local.start("1", "short", gpus=2)
        ended = await local.heard(f.Ended, "1")
        assert (ended.outcome, ended.never_ran) == (f.Outcome.EVICTED, True)
        return local

    with monkeypatch.context() as patch:
        patch.setattr(supervise, "__file__", str(died))
        patch.setattr(sweep, "bar", barred)
        local = asyncio.run(scenario())
    assert full == []
    argv = [sys.executable, "-I", "-S", supervise.__file__, str(local.directory("1"))]
    subprocess.run(argv, check=False, stderr=subprocess.DEVNULL, timeout=500)
    assert local.said("ready", "1") == []


@in_loop
async def test_two_executors_at_once_run_an_attempt_once(stage: Stage) -> None:
    """A manager killed between spawn and record, and its successor, in the same instant."""
    locals_ = [Local(stage) for _ in range(3)]
    for local in locals_:
        local.start("1", "wait", "short", gpus=1)
    for local in locals_:
        assert (await local.heard(f.Started, "1")).gpus == ("n:0",)
    await _until(lambda: len(list(stage.path.glob("jobs/1/attempt-0001/supervisor.json"))) == 1)
    (stage.path / "diary1.go").touch()
    for local in locals_:
        assert (await local.heard(f.Ended, "1")).outcome is f.Outcome.COMPLETED
    assert len(locals_[0].said("importing", "1")) == 1


# What the machine refuses.


@in_loop
async def test_an_attempt_that_cannot_be_written_down_is_lost_and_not_the_jobs_fault(
    stage: Stage,
) -> None:
    local = Local(stage)
    local.jobs.write_text("no directory")
    local.start("1", "short")
    ended = await local.heard(f.Ended, "1")
    assert ended == f.Ended("1", 101, f.Outcome.LOST, why="could not be started: Not a directory")
    assert local.kinds("1") == [f.Ended]
    local.jobs.unlink()
    local.start("1", "short", attempt=2)
    assert (await local.heard(f.Ended, "1", 2)).outcome is f.Outcome.COMPLETED


@in_loop
async def test_on_a_full_disk_an_attempt_is_lost_and_says_why(stage: Stage) -> None:
    local = Local(stage)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        local.start("1", "short")
        ended = await local.heard(f.Ended, "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ended == f.Ended("1", 101, f.Outcome.LOST, why="could not be started: File too large")
    local.start("1", "short", attempt=2)
    assert (await local.heard(f.Ended, "1", 2)).outcome is f.Outcome.COMPLETED


@in_loop
async def test_a_supervisor_that_cannot_begin_says_why(stage: Stage) -> None:
    local = Local(stage)
    (local.jobs / "1" / "log.txt").mkdir(parents=True)
    local.start("1", "short")
    ended = await local.heard(f.Ended, "1")
    assert ended.outcome is f.Outcome.LOST
    assert ended.why.startswith("nothing was run: IsADirectoryError: ")
    assert not local.said("importing", "1")


FORKS_FAIL = """
import os, sys
from pathlib import Path
sys.path[:0] = [{package!r}]
from hpcext.launch import command, supervise

def fork(child):
    if left := int(Path({left!r}).read_text()):
        Path({left!r}).write_text(str(left - 1))
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return forked(child)

forked, command.fork = command.fork, fork
os._exit(supervise.main())
"""


@in_loop
async def test_where_no_process_can_be_made_it_is_not_the_jobs_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = stage.path / "left"
    left.write_text("1")
    program = stage.path / "supervise.py"
    package = str(Path(supervise.__file__).parents[2])
    program.write_text(FORKS_FAIL.format(package=package, left=str(left)))
    monkeypatch.setattr(supervise, "__file__", str(program))
    local = Local(stage)
    local.start("1", "short")
    ended = await local.heard(f.Ended, "1")
    assert (ended.outcome, ended.never_ran) == (f.Outcome.EVICTED, True)
    assert ended.why.startswith("could not be started: BlockingIOError")
    local.start("1", "short", attempt=2)
    assert (await local.heard(f.Ended, "1", 2)).outcome is f.Outcome.COMPLETED


@in_loop
async def test_a_sweep_that_fails_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the job and its GPUs would be held for ever."""
    local = Local(stage)
    local.start("1", "block")
    pid = await local.registered("1")
    fails, to_thread = [RuntimeError("can't start new thread")], asyncio.to_thread

    async def failing(*arguments: Any) -> Any:
        if fails:
            raise fails.pop()
        return await to_thread(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", failing)
    os.kill(local.supervisor("1"), signal.SIGKILL)
    assert (await local.heard(f.Ended, "1")).outcome is f.Outcome.LOST
    assert not fails
    assert not runs(pid)


@in_loop
async def test_without_free_descriptors_nothing_is_taken_for_dead(stage: Stage) -> None:
    local = Local(stage)
    local.start("1", "wait", "short")
    await local.heard(f.Started, "1")
    await _until(lambda: bool(local.said("importing", "1")))
    supervisor = local.supervisor("1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # What is open stays open; nothing can be opened.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        os.mkdir(stage.path / "diary1.go")
        peek = os.WEXITED | os.WNOWAIT | os.WNOHANG
        await _until(lambda: os.waitid(os.P_PID, supervisor, peek) is not None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(isinstance(fact, f.Ended) for fact in local.facts)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await local.heard(f.Ended, "1") == f.Ended("1", 101, f.Outcome.COMPLETED, 0)


# Closing.


@in_loop
async def test_close_stops_watching_and_lets_run(stage: Stage) -> None:
    local = Local(stage)
    local.start("1", "deaf")
    pid = await local.registered("1")
    before = len(os.listdir("/proc/self/fd"))
    local.perform(v.Kind.KILL, "1")
    local.executor.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1, "the pidfd is closed"
    # What was asked before and not carried out is asked again by the next manager.
    await asyncio.sleep(0)
    assert runs(pid)
    successor = Local(stage)
    successor.start("1", "deaf")
    successor.perform(v.Kind.KILL, "1")
    await successor.heard(f.Ended, "1")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
