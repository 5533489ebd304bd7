"""A model of Slurm: its controller, and a daemon on each node that runs what it is told to.

It is held to a real one (tests/system/test_slurm_model.py), and follows what was found there. The
priority of a job is the tier of its partition (:mod:`virtual.batch`). Preemption begins with the
grace of the victim's partition: its steps get SIGTERM, its batch script hears nothing; at the end
of the grace the job goes back into the queue. What ends a job (a limit, a preemption,
scancel, scontrol requeue, the end of its script) has the daemons send SIGTERM to all of it, and
SIGKILL after KillWait. A requeued job waits for the credential of its last run to expire.

Not modelled: accounts, priorities other than age, memory limits, arrays, reservations, prologs,
several tasks on a node.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from virtual import batch, calls
from virtual.batch import Place, Share, below
from virtual.kernel import Kernel, Process

if TYPE_CHECKING:
    from virtual.nodes import Node

FINAL = {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}


class Site(NamedTuple):
    """How a Slurm is set up; slurm.conf(5).

    Attributes
    ----------
    release : (int, int)
        A job that exits in the grace of its preemption is requeued from 24.05 on.
    cycle_s : float
        Seconds between two looks at the queue.
    periodic_s : float
        Seconds between two looks at time limits; PERIODIC_TIMEOUT.
    lost_s : float
        Seconds after which a node that does not answer is down; SlurmdTimeout.
    requeue_s : float
        Seconds that a requeued job waits; cred_expire.
    keep_s : float
        Seconds for which a job that has ended is known; MinJobAge.
    """

    release: tuple[int, int] = (22, 5)
    cycle_s: float = 2.0
    periodic_s: float = 30.0
    kill_wait_s: float = 30.0
    lost_s: float = 60.0
    requeue_s: float = 120.0
    keep_s: float = 300.0
    send_user_signal: bool = False


class Partition(NamedTuple):
    """A partition of all nodes."""

    name: str
    tier: int
    grace_s: float = 0.0
    preempted: bool = True
    max_s: float = 86_400.0


@dataclasses.dataclass(frozen=True)
class Order(batch.Order):
    """What a job asks for; sbatch(1).

    Attributes
    ----------
    notice : (int, bool, float) or None
        Signal, whether it is for the batch script alone, seconds before the end.
    """

    no_kill: bool = False
    notice: tuple[int, bool, float] | None = None
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(eq=False)
class Step:
    """A step of a job; the batch script is one.

    Attributes
    ----------
    daemons : dict
        Node → the slurmstepd there, as long as something of the step is.
    codes : dict
        Node → how the task there ended.
    left : list of str
        Nodes of which the controller has not heard that the step is over there.
    lost : set of str
        Nodes that have gone from below it.
    """

    job: Job
    id: str
    name: str
    shares: dict[str, Share]
    daemons: dict[str, Process] = dataclasses.field(default_factory=dict)
    codes: dict[str, int] = dataclasses.field(default_factory=dict)
    left: list[str] = dataclasses.field(default_factory=list)
    lost: set[str] = dataclasses.field(default_factory=set)

    @property
    def whole(self) -> str:
        """``JOB.STEP``."""
        return f"{self.job.id}.{self.id}"


@dataclasses.dataclass(eq=False)
class Job(batch.Job):
    """A job."""

    order: Order
    state: str = "PENDING"
    eligible: float = 0.0
    completing: bool = False
    requeued: bool = False
    why: str = "None"
    restarts: int = 0
    noticed: bool = False
    steps: list[Step] = dataclasses.field(default_factory=list)
    stops: list[str] = dataclasses.field(default_factory=list)
    count: int = 0
    was_on: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The state that squeue says."""
        return "COMPLETING" if self.completing else self.state

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.state == "PENDING" and not self.completing

    @property
    def holds(self) -> bool:
        """Whether nodes are its own."""
        return self.state == "RUNNING" or self.completing

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in FINAL and not self.completing

    @property
    def runs(self) -> bool:
        """Whether it runs, and nothing ends it."""
        return self.state == "RUNNING"

    @property
    def leaving(self) -> bool:
        """Whether its nodes are about to be free."""
        return self.completing

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return self.state == "COMPLETED" and self.code == 0


class Slurm(batch.Controller):
    """A Slurm.

    Parameters
    ----------
    kernel : Kernel
    nodes : sequence of Node
    partitions : sequence of Partition
        The first one is the default.
    site : Site
    shell : callable
        Makes the program that runs the script of a job.
    """

    title, program = "slurm", "slurmctld"

    def __init__(
        self,
        kernel: Kernel,
        nodes: Sequence[Node],
        partitions: Sequence[Partition],
        site: Site,
        shell: Callable[[str, Sequence[str]], Callable[[Process], int | None]],
        *,
        cpus: int = 8,
        gpus: int = 2,
        memory_mb: int = 8000,
    ) -> None:
        super().__init__(kernel, nodes, site, cpus=cpus, gpus=gpus, memory_mb=memory_mb)
        self.site = site
        self.partitions = {each.name: each for each in partitions}
        self._shell = shell
        self._after(site.periodic_s, self._periodic)

    # Orders of users, which the commands pass on.

    def cancel(self, job: Job) -> None:
        """End a job; scancel(1)."""
        if job.state == "PENDING" and not job.completing:
            self._tell(job, "is cancelled")
            job.state, job.ended = "CANCELLED", self.now
        elif job.completing and job.requeued:
            # It does not come back.
            job.state, job.requeued = "CANCELLED", False
            self._tell(job, "is cancelled")
        elif job.state == "RUNNING":
            self._tell(job, "is cancelled")
            self._end(job, "CANCELLED")

    def requeue(self, job: Job) -> None:
        """Put a job back into the queue, whatever it has become; scontrol(1)."""
        if job.state == "RUNNING":
            self._tell(job, "is requeued")
            self._end(job, "PENDING", requeued=True)
        elif job.completing:
            job.requeued = True
        elif job.state in FINAL:
            self._back(job)

    def begin_now(self, job: Job) -> None:
        """Let a job begin as soon as there are nodes; it has no effect before its last run ends."""
        if job.state == "PENDING" and not job.completing:
            job.eligible = self.now
            self._soon(self._schedule)

    def signal(self, job: Job, signum: int, *, batch: bool = False) -> None:
        """Send a signal to the steps of a job, or to its script alone."""
        for step in list(job.steps):
            if batch and step.id == "batch":
                self._to_nodes(step, lambda node, step=step: self._to_script(step, node, signum))
            elif not batch and step.id != "batch":
                self.signal_step(step, signum)

    def signal_step(self, step: Step, signum: int) -> None:
        """Send a signal to all processes of a step."""
        self._to_nodes(step, lambda node: self.signal_there(step, node, signum))

    def _to_nodes(self, step: Step, what: Callable[[str], None]) -> None:
        for name in list(step.shares):
            self._soon(lambda name=name: what(name))

    # Scheduling.

    def _job_of(self, number: int, order: Order) -> Job:
        return Job(number, order, self.now, eligible=self.now)

    def _priority(self, job: Job) -> int:
        return self.partitions[job.order.partition].tier

    def _may_begin(self, job: Job) -> bool:
        if job.eligible > self.now:
            job.why = "BeginTime"
            return False
        return True

    def _preempt_for(self, job: Job) -> None:
        """Have jobs of lower tiers leave, if that gives this one its nodes."""
        tier = self.partitions[job.order.partition].tier
        lower = [
            each for each in self._holders()
            if each.state == "RUNNING" and self.partitions[each.order.partition].preempted
            and self.partitions[each.order.partition].tier < tier
        ]  # fmt: skip
        for victim in self._victims(job, lower):
            self._preempt(victim)

    def _preempt(self, job: Job) -> None:
        if job.state != "RUNNING":
            return
        grace_s = self.partitions[job.order.partition].grace_s
        if job.preempted is None:
            job.preempted = self.now
            if grace_s:
                job.ends = min(job.ends or math.inf, self.now + grace_s)
                self._tell(job, f"is preempted, with {grace_s:g} s of grace")
                self.signal(job, signal.SIGCONT)
                if self.site.send_user_signal and job.order.notice and not job.noticed:
                    self._notice(job)
                else:
                    self.signal(job, signal.SIGTERM)
                return
        elif self.now < job.preempted + grace_s:
            return
        self._tell(job, "is preempted")
        if job.order.requeue:
            self._end(job, "PENDING", requeued=True)
        else:
            self._end(job, "PREEMPTED")

    def _periodic(self) -> None:
        """Look at time limits, from time to time."""
        self._after(self.site.periodic_s, self._periodic)
        if not self.up:
            return
        for job in list(self.jobs.values()):
            if job.state != "RUNNING" or job.ends is None:
                continue
            notice = job.order.notice
            soon_s = self.now + self.site.periodic_s
            if notice and not job.noticed and soon_s + notice[2] >= job.ends:
                self._notice(job)
            if self.now >= job.ends and job.preempted is None:
                self._tell(job, "is at its time limit")
                self.signal(job, signal.SIGTERM)
                self._end(job, "TIMEOUT")

    def _notice(self, job: Job) -> None:
        assert job.order.notice is not None
        signum, batch, _ = job.order.notice
        job.noticed = True
        self._tell(job, f"gets its notice, {signal.Signals(signum).name}")
        self.signal(job, signum, batch=batch)

    # Nodes.

    def _lose(self, place: Place) -> None:
        place.down = True
        self.kernel.tell(f"slurm: {place.name} is down")
        for job in list(self.jobs.values()):
            if not job.holds or place.name not in job.shares:
                continue
            steps = [step for step in job.steps if place.name in step.shares]
            if not job.completing:
                self._lose_share(job, place)
            for step in steps:
                self._lose_part(step, place, ends=job.completing)
            if job.completing:
                self._stopped(job, place.name)
        self.kernel.touched()

    def _lose_part(self, step: Step, place: Place, *, ends: bool) -> None:
        """End a step of which a node is lost: it does not go on with the others.

        Its srun is told, which does not take that for a failure of a task in 22.05, but in 24.11
        and 26.05, where it is the status with which it ends.
        """
        step.lost.add(place.name)
        code = int(self.site.release >= (24, 11))

        def told() -> None:
            step.codes[place.name] = code
            self.kernel.touched()

        self._after(0.2, told)
        if not ends:
            # Of the job's other nodes it is ended; and of this one, if its daemon is there.
            for name in step.shares:
                self._soon(lambda name=name: self.signal_there(step, name, signal.SIGKILL))
        self._step_over(step, place.name)

    def _lose_share(self, job: Job, place: Place) -> None:
        if job.order.no_kill and len(job.shares) > 1:
            self._tell(job, f"loses {place.name}")
            del job.shares[place.name]
            if place.name == job.was_on[0]:
                # Its script was there: the job fails, and is not requeued (JobLaunchFailure).
                self._end(job, "FAILED")
            return
        self._tell(job, f"ends with {place.name}")
        if job.order.requeue:
            self._end(job, "PENDING", requeued=True)
        else:
            self._end(job, "NODE_FAIL")

    # The life of a job.

    def _start(self, job: Job, names: Sequence[str]) -> None:
        self._give(job, names)
        job.was_on = tuple(job.shares)
        job.state, job.why, job.planned = "RUNNING", "None", None
        job.began, job.ends, job.ended = self.now, self.now + job.order.limit_s, None
        job.preempted, job.noticed, job.count = None, False, 0
        self._tell(job, f"begins on {','.join(names)}")
        step = Step(job, "batch", "batch", {names[0]: job.shares[names[0]]}, left=[names[0]])
        job.steps = [step]
        run = job.restarts
        self._soon(lambda: self._begin_script(step, names[0], run))

    def _begin_script(self, step: Step, name: str, run: int) -> None:
        job = step.job
        if job.state != "RUNNING" or job.restarts != run or step not in job.steps:
            return
        order = job.order
        if order.program is not None:
            program: Callable[[Process], int | None] = order.program
        else:
            program = self._shell(order.script, ["slurm_script", *order.arguments])

        def script(process: Process) -> int | None:
            process.name = process.name or "script"
            process.uid = order.uid
            if order.output:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                try:
                    fd = calls.open(order.output.replace("%j", str(job.id)), flags, 0o644)
                except OSError:
                    return 1  # "Could not open stdout file"
                calls.dup2(fd, 1)
                calls.dup2(fd, 2)
                calls.close(fd)
            return program(process)

        environ = {**dict(order.environ), **self.environ_of(job, name)}
        self.launch(step, name, ["/bin/sh", "slurm_script"], environ, script)

    def environ_of(self, job: Job, name: str) -> dict[str, str]:
        """Return the variables that tell a process of a job where it is; sbatch(1)."""
        share = job.shares[name]
        found = {
            "SLURM_JOB_ID": str(job.id),
            "SLURM_JOB_NAME": job.order.name,
            "SLURM_JOB_NODELIST": compressed(job.was_on),
            "SLURM_NNODES": str(len(job.was_on)),
            "SLURM_JOB_CPUS_PER_NODE": ",".join(str(job.order.cpus) for _ in job.was_on),
            "SLURM_CPUS_ON_NODE": str(share.cpus),
            "SLURMD_NODENAME": name,
            "SLURM_NODEID": "0",
            "SLURM_MEM_PER_NODE": str(share.memory_mb),
        }
        if share.gpus:
            found["SLURM_JOB_GPUS"] = ",".join(map(str, share.gpus))
        if job.restarts:
            found["SLURM_RESTART_COUNT"] = str(job.restarts)
        return found

    def launch(
        self,
        step: Step,
        name: str,
        argv: Sequence[str],
        environ: dict[str, str],
        program: Callable[[Process], int | None],
        *,
        prepare: Callable[[Process], None] = lambda _: None,
    ) -> None:
        """Have the daemon of a node begin a step there: a slurmstepd, and the task below it."""
        place = self.places[name]
        if not place.node.up:
            return

        def daemon(process: Process) -> int:
            process.name, process.uid = "slurmstepd", 0
            for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                process.handlers[int(signum)] = signal.SIG_IGN
            process.subreaper = True
            self.kernel.wait(lambda: task.dead)
            if name not in step.lost:
                aborted = step.lost and self.site.release >= (24, 11)
                step.codes[name] = 1 if aborted else task.code or 0
            self.kernel.touched()
            while left := below(process):
                for each in left:
                    each.signal(signal.SIGKILL)
                self.kernel.wait(lambda left=left: all(each.dead for each in left))
            del step.daemons[name]
            self._report(lambda: self._step_over(step, name))
            return 0

        stepd = self.kernel.spawn(place.node, ["slurmstepd", step.whole], {}, daemon)
        stepd.uid, stepd.subreaper, stepd.name = 0, True, "slurmstepd"
        task = self.kernel.spawn(place.node, argv, environ, program, parent=stepd)
        task.group = task.session = task.pid
        task.uid = step.job.order.uid
        prepare(task)
        step.daemons[name] = stepd

    def not_launched(self, step: Step, name: str) -> None:
        """Hear from an srun that a node refused its task: nothing of the step is there.

        step_launch.c, _fail_step_tasks.
        """
        self._report(lambda: self._step_over(step, name))

    def _step_over(self, step: Step, name: str) -> None:
        """Hear that nothing of a step is left on a node."""
        if name in step.left:
            step.left.remove(name)
        if step.left or step not in step.job.steps:
            return
        step.job.steps.remove(step)
        job = step.job
        if step.id == "batch" and job.state == "RUNNING" and not step.lost:
            code = step.codes.get(next(iter(step.shares)), 0)
            job.code = code
            again = job.preempted is not None and self.site.release >= (24, 5)
            self._tell(job, f"has ended by itself: {code}")
            if again and job.order.requeue:
                self._end(job, "PENDING", requeued=True)
            else:
                self._end(job, "FAILED" if code else "COMPLETED")
        self.kernel.touched()

    def _end(self, job: Job, state: str, *, requeued: bool = False) -> None:
        """Have the daemons end all that is left of a job."""
        job.state, job.completing, job.requeued = state, True, requeued
        job.ended = self.now
        job.stops = list(job.shares)
        steps = list(job.steps)
        for name in list(job.shares):
            self._soon(lambda name=name: self._terminate(job, name, steps))

    def _terminate(self, job: Job, name: str, all_steps: list[Step]) -> None:
        """End what a job has on a node: SIGTERM, and after KillWait SIGKILL."""
        place = self.places[name]
        if not place.node.up:
            return
        boot_id = place.node.boot_id
        for signum in (signal.SIGCONT, signal.SIGTERM):
            for step in all_steps:
                self.signal_there(step, name, signum)
        killed = self.kernel.now + self.site.kill_wait_s

        def look() -> None:
            if place.node.boot_id != boot_id or not place.node.up:
                return
            steps = [step for step in all_steps if name in step.daemons]
            if not any(not step.daemons[name].dead for step in steps):
                self._report(lambda: self._stopped(job, name))
                return
            if self.kernel.now >= killed:
                for step in steps:
                    self.signal_there(step, name, signal.SIGKILL)
            self._after(1.0, look)

        self._after(0.1, look)

    def _stopped(self, job: Job, name: str) -> None:
        """Hear that a node has ended all of a job."""
        if name not in job.stops or not job.completing:
            return
        job.stops.remove(name)
        if job.stops:
            return
        job.completing, job.shares, job.steps = False, {}, []
        if job.requeued:
            self._back(job)
        else:
            job.ended = self.now
            self._tell(job, f"is {job.state}")
        self._soon(self._schedule)
        self.kernel.touched()

    def _back(self, job: Job) -> None:
        job.state, job.requeued, job.why = "PENDING", False, "BeginTime"
        job.restarts += 1
        job.submitted, job.eligible = self.now, self.now + self.site.requeue_s + 1
        job.began = job.ends = job.ended = None
        self._tell(job, "is in the queue again")

    # What a daemon does on its node.

    def signal_there(self, step: Step, name: str, signum: int) -> None:
        """Send a signal to all processes of a step on a node.

        Of a batch step, which has steps' sruns among its processes, it is the process group of the
        script, unless they are killed.
        """
        stepd = step.daemons.get(name)
        if stepd is None or stepd.dead or not self.places[name].node.up:
            return
        self.kernel.tell(f"slurm: {signal.Signals(signum).name} to {step.whole} on {name}")
        found = below(stepd)
        if step.id == "batch" and signum != signal.SIGKILL:
            group = stepd.children[0].pid if stepd.children else 0
            found = [process for process in found if process.group == group]
        for process in found:
            process.signal(signum)

    def _to_script(self, step: Step, name: str, signum: int) -> None:
        stepd = step.daemons.get(name)
        if stepd is not None and not stepd.dead and stepd.children:
            self.kernel.tell(f"slurm: {signal.Signals(signum).name} to the script of {step.job.id}")
            stepd.children[0].signal(signum)

    # Steps, which srun asks for.

    def step_of(
        self, job: Job, name: str, nodes: Sequence[str], cpus: int, gpus: int | None
    ) -> Any:
        """Make a step; return it, None while its nodes are busy, or why there is none.

        One that does not say how many GPUs it needs has all.
        """
        if job.state != "RUNNING" or job.completing:
            return "Job/step already completing or completed"
        if any(each not in job.shares for each in nodes):
            return "Requested node configuration is not available"
        shares = {}
        for each in nodes:
            mine = [step.shares[each] for step in job.steps if each in step.shares]
            # The batch step and others without GPUs share CPUs with all (--overlap).
            taken = {gpu for share in mine if share is not job.shares[each] for gpu in share.gpus}
            busy = sum(share.cpus for share in mine if share is not job.shares[each])
            free = [gpu for gpu in job.shares[each].gpus if gpu not in taken]
            wanted = len(job.shares[each].gpus) if gpus is None else gpus
            if len(free) < wanted or job.shares[each].cpus - busy < cpus:
                return None
            shares[each] = Share(cpus, 0, tuple(free[:wanted]))
        step = Step(job, str(job.count), name, shares, left=list(nodes))
        job.count += 1
        job.steps.append(step)
        return step


def compressed(names: Sequence[str]) -> str:
    """Return a list of nodes as Slurm writes it.

    Examples
    --------
    >>> compressed(["n1", "n2", "n4"]), compressed(["n3"])
    ('n[1-2,4]', 'n3')
    """
    if len(names) < 2:
        return "".join(names)
    stem = names[0].rstrip("0123456789")
    numbers = sorted(int(name.removeprefix(stem)) for name in names)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{stem}[{','.join(said)}]"


def expanded(text: str) -> list[str]:
    """Return the names in a list of nodes.

    Examples
    --------
    >>> expanded("n[1-2,4],m7")
    ['n1', 'n2', 'n4', 'm7']
    """
    found = []
    for stem, ranges, alone in re.findall(r"([^,\[]+)\[([^\]]+)\]|([^,\[]+)", text):
        if alone:
            found.append(alone)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            found += [f"{stem}{number}" for number in range(int(first), int(last or first) + 1)]
    return found
