"""A model of LSF: mbatchd, and on each host an sbatchd that runs what it is told to, and a RES.

It agrees with the contract engine in tests/fakes/lsf (test_lsf_model.py), and with it with what was
recorded of an engine of LSF's line (docs/lsf.md). A job is a RES in a process group of its own,
below it the shell of the job's file, and below that what was submitted. What LSF sends a job goes
to its leader's process group, and once its host has looked at its processes, to each group among
them. bkill, brequeue and what follows the run limit send SIGINT, SIGTERM and SIGKILL, one after the
other; the end of the run limit begins with SIGUSR2. What waits in a queue of higher priority
suspends jobs, which gives it their slots at once, and their GPUs when they have left. A job goes
back into the queue by its exit value, by brequeue, and if it is rerunnable when its first host is
lost.

Not modelled: arrays, dependencies, checkpoints, limits of users, memory, and what a job prints.
"""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from virtual import batch, calls, shell
from virtual.batch import Place, Share, below
from virtual.kernel import Kernel, Process

if TYPE_CHECKING:
    from virtual.nodes import Node

ENDED = {"DONE", "EXIT"}
STOPPED = {"USUSP", "SSUSP"}
UNREACHED = {"UNKWN", "ZOMBI"}
HEARD = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Signals that what is above a job's own program outlives; LSB_JOB_SCRIPT_TRAP_SIGNALS."""

USER_STOP, PREEMPTED = 0x2, 0x10
"""Bits of LSB_SUSP_REASONS; lsb_suspreason(3)."""

SPOOL = "/tmp/lsbatch"
KILLED = 128 + signal.SIGKILL
UNREACHED_S = 10.0
"""Seconds for which a job whose host is lost is UNKWN, and then as long ZOMBI."""


class Site(NamedTuple):
    """How an LSF is set up; lsf.conf(5), lsb.params(5).

    Attributes
    ----------
    cycle_s : float
        Seconds between two looks at the queue; MBD_SLEEP_TIME.
    periodic_s : float
        Seconds between two looks at run limits; SBD_SLEEP_TIME.
    lost_s : float
        Seconds after which a host that does not answer is unavailable.
    keep_s : float
        Seconds for which a job that has ended is known; CLEAN_PERIOD.
    terminate_s : float
        Seconds between the signals that end a job; JOB_TERMINATE_INTERVAL.
    limit_kill_s : float
        Seconds from SIGUSR2 at the end of the run limit to the first of these.
    pim_s : float
        Seconds after which a host knows all processes of a job.
    exit_shown_s : float
        Seconds for which a job that is requeued is shown as EXIT.
    strays_s : float
        The most seconds for which processes on other hosts outlive a lost first host;
        LSF_RES_ALIVE_TIMEOUT.
    most_requeues : int
        By an exit value; MAX_JOB_REQUEUE.
    at_once : bool
        Whether jobs of several slots get SIGKILL alone; LSB_USE_SEQUENTIAL_SIGNAL=N.
    far : bool
        Whether what blaunch has started on other hosts hears signals for the job.
    host_file : bool
        Whether a job has LSB_DJOB_HOSTFILE.
    none_fails : bool
        Whether bjobs fails if it finds no job.
    """

    cycle_s: float = 2.0
    periodic_s: float = 10.0
    lost_s: float = 30.0
    keep_s: float = 120.0
    terminate_s: float = 10.0
    limit_kill_s: float = 10.0
    pim_s: float = 30.0
    exit_shown_s: float = 3.0
    strays_s: float = 10.0
    most_requeues: int = 20
    at_once: bool = False
    far: bool = True
    host_file: bool = True
    none_fails: bool = False


class Queue(NamedTuple):
    """A queue of all hosts; lsb.queues(5).

    Attributes
    ----------
    controls : Mapping of str to str
        SUSPEND or RESUME → a signal, or what a shell runs; JOB_CONTROLS.
    terminates : bool
        Whether a preemption ends its jobs; TERMINATE_WHEN.
    values : tuple of int
        REQUEUE_EXIT_VALUES.
    """

    name: str
    priority: int
    preemptive: bool = False
    controls: Mapping[str, str] = {}
    terminates: bool = False
    rerunnable: bool = False
    values: tuple[int, ...] = ()
    policies: str = ""
    limit_s: float = math.inf


@dataclasses.dataclass(frozen=True)
class Order(batch.Order):
    """What a job asks for; bsub(1).

    Attributes
    ----------
    cpus : int
        Slots on each host.
    values : tuple of int
        Exit values that put it back into the queue; ``-Q``.
    """

    limit_s: float = math.inf
    values: tuple[int, ...] = ()


@dataclasses.dataclass(eq=False)
class Task:
    """What blaunch has started on a host of a job."""

    host: str
    process: Process


@dataclasses.dataclass(eq=False)
class Job(batch.Job):
    """A job.

    Attributes
    ----------
    run : int
        How often it has begun.
    leader : Process or None
        Its RES on the first host, once that has begun.
    killed : bool
        Whether somebody has ended it for good.
    requeue : str
        ``run`` or ``hold``: brequeue ends it, and it is PEND or PSUSP then.
    requeuing : bool
        It is shown as EXIT, and will be PEND or PSUSP.
    ending : bool
        Whether its host ends it.
    acting : bool
        Whether a control of it is under way, such as that which stops it.
    stopped : float or None
        When it was stopped, if it is.
    stood_s : float
        For how long it was stopped before.
    """

    order: Order
    state: str = "PEND"
    run: int = 0
    leader: Process | None = None
    began_at: float = 0.0
    tasks: list[Task] = dataclasses.field(default_factory=list)
    killed: bool = False
    requeue: str = ""
    requeuing: bool = False
    ending: bool = False
    acting: bool = False
    stopped: float | None = None
    stood_s: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether it is in the queue, and may begin."""
        return self.state == "PEND"

    @property
    def holds(self) -> bool:
        """Whether hosts are its own."""
        return bool(self.shares)

    @property
    def runs(self) -> bool:
        """Whether it runs, and nothing ends it."""
        return self.state == "RUN" and not self.leaves

    @property
    def leaves(self) -> bool:
        """Whether it was told to end."""
        return self.killed or bool(self.requeue)

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ENDED and not self.requeuing

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return self.state == "DONE"

    @property
    def slots(self) -> int:
        """Its slots on all hosts."""
        return self.order.nodes * self.order.cpus

    def used(self, name: str) -> Share:
        """Return what others cannot have of a host: what is preempted gives up its slots alone.

        "Requirements for resource preemption": it has its GPUs until it leaves.
        """
        share = self.shares[name]
        return Share(0, 0, share.gpus) if self.state == "SSUSP" else share


class Lsf(batch.Controller):
    """An LSF.

    Parameters
    ----------
    kernel : Kernel
    nodes : sequence of Node
    queues : sequence of Queue
        The first one is the default.
    site : Site
    cpus : int
        Slots of each host.
    gpus : int
        GPUs of each host.

    Attributes
    ----------
    left : list of callable
        Called with processes that a job has left behind, before they are killed.
    hearing : list of callable
        Called with processes that are sent a signal.
    unreached : list of callable
        Called with a blaunch that cannot reach its host.
    """

    title, program = "lsf", "mbatchd"

    def __init__(
        self,
        kernel: Kernel,
        nodes: Sequence[Node],
        queues: Sequence[Queue],
        site: Site,
        *,
        cpus: int = 8,
        gpus: int = 2,
    ) -> None:
        super().__init__(kernel, nodes, site, cpus=cpus, gpus=gpus, memory_mb=8000)
        self.site = site
        self.queues = {each.name: each for each in queues}
        self.left: list[Callable[[Sequence[Process]], None]] = []
        self.hearing: list[Callable[[Sequence[Process]], None]] = []
        self.unreached: list[Callable[[Process], None]] = []
        self._wanted: set[Job] = set()
        self._after(site.periodic_s, self._periodic)

    def _queue(self, job: Job) -> Queue:
        return self.queues[job.order.partition]

    # Orders of users, which the commands pass on.

    def _job_of(self, number: int, order: Order) -> Job:
        return Job(number, order, self.now)

    def cancel(self, job: Job) -> None:
        """End a job for good; bkill(1)."""
        self._tell(job, "is killed")
        job.killed = True
        if job.state in {"PEND", "PSUSP"} and not job.requeuing:
            job.state, job.ended = "EXIT", self.now
        elif job.state in UNREACHED:
            self._give_up(job)
        elif not job.requeuing:
            self._order_end(job)

    def again(self, job: Job, *, hold: bool = False) -> None:
        """End a job and put it back into the queue; brequeue(1)."""
        self._tell(job, f"is requeued{', to be held' * hold}")
        job.requeue = "hold" if hold else "run"
        self._order_end(job)

    def requeue(self, job: Job) -> None:
        """Put a job back into the queue."""
        self.again(job)

    def stop(self, job: Job) -> None:
        """Stop a job until it is resumed; bstop(1)."""
        if job.state == "PEND":
            job.state = "PSUSP"
        else:
            self._tell(job, "is stopped by its user")
            self._suspend(job, "USUSP", USER_STOP)

    def go_on(self, job: Job) -> None:
        """Let a job go on that was stopped; bresume(1)."""
        if job.state == "PSUSP":
            job.state = "PEND"
            self._soon(self._schedule)
        else:
            self._tell(job, "is resumed")
            self._continue(job)

    def signal(self, job: Job, signum: int) -> None:
        """Send a signal to a job; ``bkill -s``."""
        run = job.run
        self._soon(lambda: self._deliver(job, run, signum))

    # Scheduling.

    def _priority(self, job: Job) -> int:
        return self._queue(job).priority

    def _needs(self, job: Job) -> int:
        # The hosts of -m are those that it may have.
        return job.order.nodes

    def _schedule(self) -> None:
        self._wanted = set()
        super()._schedule()
        if self.up:
            self._resume_preempted()

    def _preempt_for(self, job: Job) -> None:
        if not self._queue(job).preemptive:
            return
        lower = [
            each for each in self._holders()
            if self._priority(each) < self._priority(job) and each.state in {"RUN", "SSUSP"}
        ]  # fmt: skip
        for victim in self._victims(job, lower):
            self._wanted.add(victim)
            self._preempt(victim)

    def _preempt(self, job: Job) -> None:
        if job.state != "RUN" or job.leaves or job.leader is None or job.acting:
            return
        job.preempted = self.now
        self._tell(job, "is preempted")
        if self._queue(job).terminates:
            job.killed = True
            self._order_end(job)
        else:
            self._suspend(job, "SSUSP", PREEMPTED)

    def _resume_preempted(self) -> None:
        """Have those go on for whose slots nobody waits any more."""
        for job in sorted(self.jobs.values(), key=lambda job: (-self._priority(job), job.id)):
            if job.state != "SSUSP" or job in self._wanted or job.leaves:
                continue
            others = [each for each in self._holders() if each is not job]
            places = [self.places[name] for name in job.shares]
            if all(self._fits(job, place, others) for place in places):
                self._tell(job, "has room again")
                self._continue(job)

    def _suspend(self, job: Job, state: str, reasons: int) -> None:
        """Do what JOB_CONTROLS says, and then show the state; one that has ended keeps its own."""
        run = job.run
        # A terminal's signal, which can be caught, for what is parallel.
        default = "SIGTSTP" if job.slots > 1 else "SIGSTOP"
        said = self._queue(job).controls.get("SUSPEND", default)

        def done() -> None:
            if job.run != run:
                return
            job.acting = False
            if job.state == "RUN" and not job.leaves and job.shares:
                job.state, job.stopped = state, self.now
                self._tell(job, f"is {state}")
                self._soon(self._schedule)
            self.kernel.touched()

        job.acting = True
        self._act(job, run, said, reasons, done)

    def _continue(self, job: Job) -> None:
        job.state = "RUN"
        stood_s = self.now - (job.stopped or self.now)
        job.stood_s, job.stopped = job.stood_s + stood_s, None
        job.ends = (job.ends or math.inf) + stood_s
        said = self._queue(job).controls.get("RESUME", "SIGCONT")
        self._act(job, job.run, said, 0, lambda: None)

    def _act(self, job: Job, run: int, said: str, reasons: int, done: Callable[[], None]) -> None:
        """Have the first host send a signal, or run a command as the user of the job."""

        def act() -> None:
            if said in signal.Signals.__members__:
                self._deliver(job, run, signal.Signals[said])
                self._report(done)
                return
            if job.leader is None or job.run != run or job.leader.dead:
                self._report(done)
                return
            known = self._known(job)
            environ = {
                **job.leader.environ, "LSB_SUSP_REASONS": str(reasons),
                "LSB_JOBPIDS": " ".join(str(each.pid) for each in known),
                "LSB_JOBPGIDS": " ".join(dict.fromkeys(str(each.group) for each in known)),
            }  # fmt: skip

            def control(process: Process) -> int:
                process.name = "control"
                process.exits.append(lambda: self._report(done))
                return shell.Shell(["sh"]).run(said)

            self.kernel.spawn(job.leader.machine, ["sh", "-c", said], environ, control)

        self._soon(act)

    def _periodic(self) -> None:
        """Look at run limits, as each host does by itself."""
        self._after(self.site.periodic_s, self._periodic)
        for job in list(self.jobs.values()):
            if job.state != "RUN" or job.ends is None or self.now < job.ends or job.ending:
                continue
            job.ending = job.killed = True
            self._tell(job, "is at its run limit")
            run = job.run
            self._deliver(job, run, signal.SIGUSR2)
            self._after(self.site.limit_kill_s, lambda job=job, run=run: self._end_by(job, run))

    # Hosts.

    def _lose(self, place: Place) -> None:
        """Note that a host is lost: jobs that began there begin again, if they may."""
        place.down = True
        self.kernel.tell(f"lsf: {place.name} is unavailable")
        for job in list(self.jobs.values()):
            if not job.shares or job.state in ENDED:
                continue
            if next(iter(job.shares)) == place.name and job.state not in UNREACHED:
                job.state = "UNKWN"
                self._tell(job, "cannot be reached")
                self._after(UNREACHED_S, lambda job=job, run=job.run: self._zombi(job, run))
                self._leave_strays(job)
        self.kernel.touched()

    def _zombi(self, job: Job, run: int) -> None:
        if job.run != run or job.state != "UNKWN":
            return
        job.state = "ZOMBI"
        self._after(UNREACHED_S, lambda: self._known_lost(job, run))

    def _known_lost(self, job: Job, run: int) -> None:
        if job.run == run and job.state == "ZOMBI":
            self._give_up(job)

    def _give_up(self, job: Job) -> None:
        """Have a job whose host is lost begin again, or end."""
        again = (job.order.requeue or bool(job.requeue)) and not job.killed
        self._over(job, "PSUSP" if job.requeue == "hold" else "PEND", KILLED, again=again)

    def _leave_strays(self, job: Job) -> None:
        """Have what a job has on other hosts end a while after its first one is lost."""
        names, run = list(job.shares)[1:], job.run

        def sweep() -> None:
            for name in names:
                for each in self._marked(job, run, name):
                    each.signal(signal.SIGKILL)

        lost_s = self.places[next(iter(job.shares))].silent_s
        since_s = self.kernel.now if lost_s is None else lost_s
        due = max(self.kernel.now, since_s + self.kernel.chance.uniform(0, self.site.strays_s))
        self.kernel.at(due, sweep)

    # The life of a job.

    def _start(self, job: Job, names: Sequence[str]) -> None:
        self._give(job, names)
        job.state, job.why, job.planned = "RUN", "", None
        job.run += 1
        job.began, job.ends, job.ended = self.now, self.now + job.order.limit_s, None
        job.leader, job.tasks, job.preempted, job.ending = None, [], None, False
        job.stopped, job.stood_s, job.requeue, job.acting = None, 0.0, "", False
        self._tell(job, f"begins on {','.join(names)}")
        run = job.run
        self._soon(lambda: self._begin(job, run))

    def _begin(self, job: Job, run: int) -> None:
        """Have the first host run a job."""
        if job.run != run or job.state != "RUN" or not job.shares:
            return
        name = next(iter(job.shares))
        node = self.places[name].node
        if not node.up:
            return
        if job.leaves:
            self._report(lambda: self._hear_end(job, run, 130))
            return
        environ = {**dict(job.order.environ), **self.environ_of(job)}
        file = self._spool(node, job)

        def sbatchd(process: Process) -> int:
            self.kernel.wait(lambda: leader.dead)
            value = leader.code or 0
            while left := self._left(job, run, leader):
                for look in self.left:
                    look(left)
                for each in left:
                    each.signal(signal.SIGKILL)
                self.kernel.wait(lambda left=left: all(each.dead for each in left))
            self._report(lambda: self._hear_end(job, run, value if value >= 0 else 128 - value))
            return 0

        daemon = self._daemon(node, "sbatchd", sbatchd)
        leader = self.kernel.spawn(
            node, ["res", str(job.id)], environ, lambda _: self._res(job, file), parent=daemon
        )
        leader.group, leader.session, leader.uid = leader.pid, daemon.pid, job.order.uid
        leader.name = "res"
        for signum in HEARD:
            leader.handlers[int(signum)] = lambda *_: None
        job.leader, job.began_at = leader, self.kernel.now

    def _daemon(self, node: Node, name: str, program: Callable[[Process], int]) -> Process:
        daemon = self.kernel.spawn(node, [name], {}, program)
        daemon.name, daemon.uid = name, 0
        daemon.group = daemon.session = daemon.pid
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            daemon.handlers[int(signum)] = signal.SIG_IGN
        return daemon

    @staticmethod
    def _res(job: Job, file: str) -> int:
        """Run the shell of a job's file; its exit value, as LSF has it."""

        def child() -> None:
            process = calls.me()
            for signum in HEARD:
                process.handlers.pop(int(signum), None)
            if job.order.program is not None:
                process.name = "other"
                calls._exit(job.order.program(process) or 0)
            calls.kernel().execute(["sh", file], process.environ)

        _, status = calls.waitpid(calls.kernel().fork(child), 0)
        return 128 + (status & 0x7F) if status & 0x7F else status >> 8

    def _spool(self, node: Node, job: Job) -> str:
        """Write the file of a job and its script; return the path of the former."""
        own = node.disk.own  # type: ignore[attr-defined]
        file = f"{SPOOL}/{self._stem(job)}"
        own_shell = job.order.script.startswith("#!")
        command = f"sh {file}.shell" if own_shell else job.order.script
        # What the shell of a job does about signals is LSB_TRAPSIGS; it does not pass them on.
        lines = f"trap : TERM USR1 USR2 INT HUP\n{command}\n"
        for path, text in ((file, lines), (f"{file}.shell", job.order.script)):
            try:
                inode = own.find(path)
            except FileNotFoundError:
                inode = own.make(path, 0o700, job.order.uid)
            inode.data[:] = text.encode()
        return file

    @staticmethod
    def _stem(job: Job) -> str:
        return f"{int(job.submitted)}.{job.id}"

    def environ_of(self, job: Job) -> dict[str, str]:
        """Return the variables that LSF sets for a job on its first host."""
        first = next(iter(job.shares))
        hosts = [name for name, share in job.shares.items() for _ in range(share.cpus)]
        found = {
            "LSB_JOBID": str(job.id),
            "LSB_JOBINDEX": "0",
            "LSB_JOBNAME": job.order.name,
            "LSB_QUEUE": job.order.partition,
            "LSB_JOBFILENAME": f"{SPOOL}/{self._stem(job)}",
            "LSB_OUTPUTFILE": job.order.output,
            "LSB_HOSTS": " ".join(hosts),
            "LSB_MCPU_HOSTS": "".join(f"{name} {each.cpus} " for name, each in job.shares.items()),
        }
        if self.site.host_file:
            path = f"{SPOOL}/{self._stem(job)}.hosts"
            own = self.places[first].node.disk.own  # type: ignore[attr-defined]
            try:
                inode = own.find(path)
            except FileNotFoundError:
                inode = own.make(path, 0o644, 0)
            inode.data[:] = "".join(f"{host}\n" for host in hosts).encode()
            found |= {"LSB_DJOB_HOSTFILE": path, "LSB_DJOB_NUMPROC": str(job.slots)}
        if values := job.order.values or self._queue(job).values:
            found["LSB_EXIT_REQUEUE"] = " ".join(map(str, values))
        if gpus := job.shares[first].gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        return found

    def _marked(self, job: Job, run: int, name: str) -> list[Process]:
        """Return what this run of a job has on a host, as far as LSF tracks it."""
        if job.run != run:
            return []
        return [
            each for each in self.places[name].node.processes.values()
            if not each.dead and each.environ.get("LSB_JOBID") == str(job.id)
        ]  # fmt: skip

    def _left(self, job: Job, run: int, leader: Process) -> list[Process]:
        """Return what a job whose leader has ended has left behind on any of its hosts."""
        found = [each for name in job.shares for each in self._marked(job, run, name)]
        here = leader.machine.processes.values()
        group = [each for each in here if each.group == leader.pid and not each.dead]
        return list(dict.fromkeys([*found, *group]))

    def _hear_end(self, job: Job, run: int, value: int) -> None:
        """Hear from its host that a job has ended."""
        if job.run != run or not job.shares or job.state in ENDED:
            return
        by_value = value in (job.order.values or self._queue(job).values)
        by_value = by_value and job.run <= self.site.most_requeues
        again = (by_value or bool(job.requeue)) and not job.killed
        # The exit value wins over a brequeue that was asked before.
        waits = "PSUSP" if job.requeue == "hold" and not by_value else "PEND"
        self._over(job, waits, value, again=again)

    def _over(self, job: Job, waits: str, value: int, *, again: bool) -> None:
        run = job.run
        job.shares, job.code = {}, value
        job.state = "EXIT" if value or again or job.killed else "DONE"
        job.ended, job.requeuing = self.now, again
        self._tell(job, f"is {job.state}: {value}")
        self._soon(self._schedule)
        self.kernel.touched()

        def back() -> None:
            if job.run != run or not job.requeuing:
                return
            job.requeuing, job.requeue = False, ""
            if not job.killed:
                job.state = waits
                job.began = job.ends = job.ended = None
                self._tell(job, f"is in the queue again: {waits}")
                self._soon(self._schedule)
            self.kernel.touched()

        if again:
            self._after(self.site.exit_shown_s, back)

    def _order_end(self, job: Job) -> None:
        """Have its host end a job, step by step, unless that has begun."""
        if job.ending:
            return
        job.ending = True
        run = job.run
        self._soon(lambda: self._end_by(job, run))

    def _end_by(self, job: Job, run: int) -> None:
        steps: list[tuple[signal.Signals, ...]] = [
            (signal.SIGCONT, signal.SIGINT), (signal.SIGTERM,), (signal.SIGKILL,)
        ]  # fmt: skip
        if self.site.at_once and job.slots > 1:
            steps = steps[-1:]

        def step() -> None:
            leader = job.leader
            if job.run != run or leader is None or leader.dead or not steps:
                return
            for signum in steps.pop(0):
                self._deliver(job, run, signum)
            self._after(self.site.terminate_s, step)

        step()

    # What a host does.

    def _known(self, job: Job) -> list[Process]:
        """Return the processes of a job that its first host knows."""
        leader = job.leader
        if leader is None:
            return []
        here = leader.machine.processes.values()
        found = [each for each in here if each.group == leader.pid and not each.dead]
        if self.kernel.now >= job.began_at + self.site.pim_s:
            found += [more for each in [leader, *found] for more in below(each)]
        return list(dict.fromkeys(found))

    def _deliver(self, job: Job, run: int, signum: int) -> None:
        """Send a signal to each process group of a job that its hosts know."""
        leader = job.leader
        if leader is None or leader.dead or job.run != run:
            return
        self.kernel.tell(f"lsf: {signal.Signals(signum).name} to job {job.id}")
        groups = {each.group for each in self._known(job)}
        hearers = [
            each for each in leader.machine.processes.values()
            if each.group in groups and each.name not in {"sbatchd", "init"}
        ]  # fmt: skip
        if self.site.far and self.kernel.now >= job.began_at + self.site.pim_s:
            for task in job.tasks:
                hearers += [task.process, *below(task.process)]
        hearers = list(dict.fromkeys(hearers))
        for look in self.hearing:
            look(hearers)
        for each in hearers:
            each.signal(signum)

    def launch(
        self,
        job: Job,
        name: str,
        argv: Sequence[str],
        environ: dict[str, str],
        *,
        program: Callable[[Process], int | None],
        prepare: Callable[[Process], None],
    ) -> Task | None:
        """Have the RES of a host start a task of a job, in a session of its own; None if it cannot.

        When its launcher dies it goes on, which no documentation rules out.
        """
        place = self.places[name]
        node = place.node
        # The RES of a host that has booted is there with its sbatchd.
        there = node.up and node.boot_id == place.boot_id and not place.down
        if not there or name not in job.shares or job.leader is None or job.leader.dead:
            return None
        daemon = self._daemon(node, "res", lambda _: self.kernel.wait(lambda: task.dead) and 0)
        task = self.kernel.spawn(node, argv, environ, program, parent=daemon)
        task.group = task.session = task.pid
        task.uid = job.order.uid
        prepare(task)
        found = Task(name, task)
        job.tasks.append(found)
        return found

    def ran_s(self, job: Job) -> float:
        """Return for how long a job has run, without the time for which it was suspended."""
        if job.began is None:
            return 0.0
        until = job.stopped if job.stopped is not None else self.now
        return max(0.0, until - job.began - job.stood_s)


def spool_of(node: Node) -> None:
    """Make the place where LSF puts files of jobs on a host."""
    node.disk.own.make_directory(SPOOL, 0o755, 0)  # type: ignore[attr-defined]
