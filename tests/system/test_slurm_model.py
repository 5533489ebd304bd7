"""The model of Slurm in tests/virtual is held to the real one: jobs see the same on both.

A job of a batch script and a step writes down what it hears. Each scenario is played here and in
the virtual room; what each of the two heard, in order, and how the job ended must be alike.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from slurm_cluster import Cluster
from written import whole_lines

sys.path.insert(0, str(Path(__file__).parents[1]))

from virtual import calls, nodes, shell
from virtual.kernel import Kernel, Process
from virtual.slurm import Job, Partition, Site, Slurm
from virtual.slurm_commands import Commands

SCRIPT = """#!/bin/sh
say() { echo "batch $1" >> RECORD; }
over=
trap 'say USR1' USR1
trap 'say USR2' USR2
trap 'say TERM; over=1' TERM
say "begins ${SLURM_RESTART_COUNT-0}"
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --mem=100 --mpi=none sh STEP &
step=$!
# The process group of the script hears what it hears; what has one of its own does not.
while kill -0 "$step" 2>/dev/null && [ -z "$over" ]; do sleep 0.2 & wait $!; done
while :; do wait "$step"; code=$?; kill -0 "$step" 2>/dev/null || break; done
say "step ended $code"
while [ -z "$over" ]; do sleep 0.2 & wait $!; done
exit 3
"""

STEP = """
say() { echo "step $1" >> RECORD; }
trap 'say TERM; exit 5' TERM
trap 'say USR1' USR1
say begins
while :; do sleep 0.2 & wait $!; done
"""


SETTLE_S = 60.0


class Seen(NamedTuple):
    """What a job heard, and what became of it."""

    batch: list[str]
    step: list[str]
    state: str


class System(Protocol):
    """A Slurm, real or not."""

    def submit(self, *options: str) -> str:
        """Submit the recording job; its id."""

    def urgent(self) -> None:
        """Submit a job that preempts it."""

    def run(self, *argv: str) -> None:
        """Run a command as the user."""

    def down(self, node: str) -> None:
        """Set a node down."""

    def lines(self) -> list[str]:
        """What was recorded."""

    def state(self, job: str) -> str:
        """Its state."""

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait."""


def _filled(text: str, path: Path) -> str:
    return text.replace("RECORD", str(path / "record")).replace("STEP", str(path / "step.sh"))


class Real:
    """The real one."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self._cluster, self._path = cluster, path
        self._record = path / "record"
        for name, text in (("job.sh", SCRIPT), ("step.sh", STEP)):
            (path / name).write_text(_filled(text, path))
            (path / name).chmod(0o755)

    def submit(self, *options: str) -> str:
        words = ("sbatch", "--parsable", "--mem=200", "--output=/dev/null")
        said = self._cluster.as_user(*words, *options, str(self._path / "job.sh"))
        assert said.returncode == 0, said
        return said.stdout.strip()

    def urgent(self) -> None:
        words = ("--partition=urgent", "--nodelist=n1", "--exclusive", "--time=1")
        said = self._cluster.as_user("sbatch", *words, "--output=/dev/null", "--wrap=sleep 1")
        assert said.returncode == 0, said

    def run(self, *argv: str) -> None:
        said = self._cluster.as_user(*argv)
        assert said.returncode == 0, said

    def down(self, node: str) -> None:
        words = ("scontrol", "update", f"nodename={node}")
        self._cluster.run(*words, "state=down", "reason=test")
        # Here everybody is on one machine: it comes back at once.
        self._cluster.run(*words, "state=resume")

    def lines(self) -> list[str]:
        return whole_lines(self._record)

    def state(self, job: str) -> str:
        return self._cluster.job(job)["JobState"]

    def until(self, condition: Callable[[], object], what: str) -> None:
        self._cluster.wait_for(condition, what, 200)


class Model:
    """The model of it, set up as the test cluster is."""

    def __init__(self, release: tuple[int, int]) -> None:
        self._kernel = Kernel(1, self._program)
        calls.use(self._kernel)
        workers = nodes.cluster(self._kernel, ["n1", "n2", "n3", "n4"])
        self._home = workers[0].disk.home._server  # type: ignore[attr-defined]
        self._node = workers[0]
        for name, text in (("job.sh", SCRIPT), ("step.sh", STEP)):
            file = self._home.make(f"/home/{name}", 0o755, 1000)
            file.data += _filled(text, Path("/home")).encode()
        self._home.find("/home").mode |= 0o777
        self._slurm = Slurm(
            self._kernel, workers,
            [Partition("batch", 10), Partition("urgent", 100, preempted=False),
             Partition("harvest", 1, grace_s=10.0)],
            Site(release, kill_wait_s=5.0, requeue_s=10.0),
            shell.script, gpus=6, cpus=24, memory_mb=12_000,
        )  # fmt: skip
        self._commands = Commands(self._slurm)

    def _program(self, argv: Any) -> Callable[[Process], int | None] | None:
        if argv[0] == "sleep":
            return lambda process: calls.sleep(float(process.argv[1]))
        return shell.program if argv[0] == "sh" else self._commands.program(argv)

    def _said(self, *argv: str) -> str:
        """Run a command as the user; return what it prints."""

        def program(process: Process) -> int | None:
            calls.dup2(calls.open("/tmp/said", 0o1101, 0o600), 1)
            found = self._program(argv)
            assert found is not None
            return found(process)

        process = self._kernel.spawn(self._node, argv, {}, program)
        self._kernel.run(lambda: process.dead, self._kernel.now + 100)
        assert process.code == 0, self._kernel.story[-3:]
        return bytes(self._node.disk.find("/tmp/said").data).decode()

    def submit(self, *options: str) -> str:
        words = ("sbatch", "--parsable", "--mem=200", "--output=/dev/null")
        return self._said(*words, *options, "/home/job.sh").strip()

    def urgent(self) -> None:
        words = ("--partition=urgent", "--nodelist=n1", "--exclusive", "--time=1")
        self._said("sbatch", *words, "--output=/dev/null", "--wrap=sleep 1")

    def run(self, *argv: str) -> None:
        self._said(*argv)

    def down(self, node: str) -> None:
        self._slurm.set_down(node)
        self._slurm.resume(node)

    def lines(self) -> list[str]:
        try:
            return bytes(self._home.find("/home/record").data).decode().splitlines()
        except FileNotFoundError:
            return []

    def _job(self, job: str) -> Job:
        return self._slurm.jobs[int(job)]

    def state(self, job: str) -> str:
        return self._job(job).shown

    def until(self, condition: Callable[[], object], what: str) -> None:
        self._kernel.run(lambda: bool(condition()), self._kernel.now + 300)
        assert not self._kernel.errors, (what, self._kernel.errors)


def begun(system: System, count: int = 1) -> None:
    system.until(lambda: system.lines().count("step begins") == count, "the step")


def over(system: System, job: str) -> None:
    going = {"RUNNING", "COMPLETING", "PENDING", "CONFIGURING"}
    system.until(lambda: system.state(job) not in going, "the end")


def preempted(system: System) -> str:
    """The step hears of the grace, and the script of its end; then it begins again."""
    job = system.submit("--partition=harvest", "--nodelist=n1", "--requeue", "--time=10")
    begun(system)
    system.urgent()
    begun(system, 2)
    system.run("scancel", job)
    over(system, job)
    return job


def at_its_limit(system: System) -> str:
    """A notice for the script alone, and the end of the limit."""
    job = system.submit("--partition=batch", "--signal=B:USR2@20", "--time=1")
    over(system, job)
    return job


def cancelled(system: System) -> str:
    job = system.submit("--partition=batch")
    begun(system)
    system.run("scancel", job)
    over(system, job)
    return job


def requeued(system: System) -> str:
    job = system.submit("--partition=batch", "--requeue")
    begun(system)
    system.run("scontrol", "requeue", job)
    begun(system, 2)
    system.run("scancel", job)
    over(system, job)
    return job


def step_cancelled(system: System) -> str:
    job = system.submit("--partition=batch")
    begun(system)
    system.run("scancel", f"{job}.0")
    system.until(lambda: any("step ended" in line for line in system.lines()), "its end")
    system.run("scancel", job)
    over(system, job)
    return job


def signalled(system: System) -> str:
    """To the script alone, and to a step alone."""
    job = system.submit("--partition=batch")
    begun(system)
    system.run("scancel", "--signal=USR2", "--batch", job)
    system.until(lambda: "batch USR2" in system.lines(), "the signal")
    system.run("scancel", "--signal=USR1", f"{job}.0")
    system.until(lambda: "step USR1" in system.lines(), "the other one")
    system.run("scancel", job)
    over(system, job)
    return job


def node_down(system: System) -> str:
    job = system.submit("--partition=batch", "--nodelist=n2", "--no-requeue")
    begun(system)
    system.down("n2")
    over(system, job)
    system.until(lambda: any("step ended" in line for line in system.lines()), "the script")
    return job


def one_node_of_two_down(system: System) -> str:
    """The job goes on without it, its step does not, and its srun ends."""
    job = system.submit("--partition=batch", "--nodelist=n1,n2", "--nodes=2", "--no-kill")
    begun(system, 2)
    system.down("n2")
    system.until(lambda: any("step ended" in line for line in system.lines()), "its end")
    system.run("scancel", job)
    over(system, job)
    return job


SCENARIOS = (
    preempted,
    node_down,
    one_node_of_two_down,
    signalled,
    *(
        pytest.param(scenario, marks=pytest.mark.slow)
        for scenario in (at_its_limit, cancelled, requeued, step_cancelled)
    ),
)


def seen(system: System, job: str) -> Seen:
    lines = system.lines()
    batch, step = (
        [line.partition(" ")[2] for line in lines if line.startswith(f"{who} ")]
        for who in ("batch", "step")
    )
    return Seen(in_one_order(batch), step, system.state(job))


def in_one_order(lines: list[str]) -> list[str]:
    """Order what comes at one instant: the script and its step get SIGTERM together."""
    together = ("TERM", "step ended")
    return [
        line
        for at_once, group in itertools.groupby(lines, lambda line: line.startswith(together))
        for line in (sorted(group) if at_once else group)
    ]


@pytest.fixture
def model(slurm: Cluster) -> Iterator[Model]:
    yield Model(slurm.release)
    calls.use(None)


@pytest.mark.cases(2)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_jobs_see_the_same(slurm: Cluster, model: Model, scenario: Callable[[System], str]) -> None:
    path = slurm.home / f"model-{scenario.__name__}-{time.monotonic_ns()}"
    assert slurm.as_user("mkdir", "-m", "777", str(path)).returncode == 0
    real = Real(slurm, path)
    expected = seen(model, scenario(model))
    job = scenario(real)
    # What a busy machine kills late, or writes down late, is there in the end.
    until_s = time.monotonic() + SETTLE_S
    while seen(real, job) != expected and time.monotonic() < until_s:
        time.sleep(0.5)
    assert expected == seen(real, job)
