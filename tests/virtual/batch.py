"""What batch systems have in common: a controller, the nodes as it sees them, a queue, and jobs.

A scheduler looks at the queue in cycles. It gives nodes by priority and by age, has jobs of lower
priority leave, plans the start of what must wait, and begins nothing before that if it would be in
the way. A controller that is gone decides nothing; what runs goes on, and what daemons have to say
waits for it. How jobs are run and ended differs: :mod:`virtual.slurm`, :mod:`virtual.lsf`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from virtual.kernel import EPOCH, Kernel, Process

if TYPE_CHECKING:
    from virtual.nodes import Node


class Times(Protocol):
    """How long things take at a site.

    Attributes
    ----------
    cycle_s : float
        Seconds between two looks at the queue.
    lost_s : float
        Seconds after which a node that does not answer is down.
    keep_s : float
        Seconds for which a job that has ended is known.
    """

    @property
    def cycle_s(self) -> float: ...

    @property
    def lost_s(self) -> float: ...

    @property
    def keep_s(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Order:
    """What a job asks for.

    Attributes
    ----------
    partition : str
        Or its queue.
    cpus, gpus, memory_mb : int
        On each node.
    nodelist : tuple of str
        Nodes that it must have.
    requeue : bool
        Whether it begins again if its node is lost.
    program : callable, optional
        Runs instead of the script.
    """

    name: str
    partition: str
    nodes: int = 1
    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 0
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    limit_s: float = 3600.0
    requeue: bool = False
    comment: str = ""
    output: str = ""
    script: str = ""
    environ: tuple[tuple[str, str], ...] = ()
    uid: int = 1000
    program: Callable[[Process], int | None] | None = None


@dataclasses.dataclass(eq=False)
class Place:
    """A node, as the controller sees it."""

    node: Node
    cpus: int
    gpus: int
    memory_mb: int
    down: bool = False
    silent_s: float | None = None
    booting: bool = False
    boot_id: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name


@dataclasses.dataclass(eq=False)
class Share:
    """What a job or a part of it has of a node."""

    cpus: int
    memory_mb: int
    gpus: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Job:
    """A job.

    Attributes
    ----------
    shares : dict
        Node → what it has there.
    planned : (float, tuple of str) or None
        When and where it will begin, if all others use their time.
    preempted : float or None
        When it was told to leave for another job, if it was.
    """

    id: int
    order: Order
    submitted: float
    state: str
    why: str = ""
    began: float | None = None
    ends: float | None = None
    ended: float | None = None
    code: int = 0
    shares: dict[str, Share] = dataclasses.field(default_factory=dict)
    planned: tuple[float, tuple[str, ...]] | None = None
    preempted: float | None = None

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        raise NotImplementedError

    @property
    def holds(self) -> bool:
        """Whether nodes are its own."""
        raise NotImplementedError

    @property
    def runs(self) -> bool:
        """Whether it runs, and nothing ends it."""
        return False

    @property
    def leaving(self) -> bool:
        """Whether its nodes are about to be free, whoever wants them."""
        return False

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return False

    def used(self, name: str) -> Share:
        """Return what others cannot have of a node because of it."""
        return self.shares[name]


class Controller:
    """The controller of a batch system.

    Parameters
    ----------
    kernel : Kernel
    nodes : sequence of Node
    site : Times
    cpus, gpus, memory_mb : int
        Of each node.

    Attributes
    ----------
    up : bool
        Whether it answers.
    seen : list of callable
        Called with a job and what happens to it.
    past : dict
        Job → its last state, of those that it knows no more.
    """

    title, program = "", ""
    """The batch system, and the name of this program."""

    jobs: dict[int, Any]

    def __init__(
        self,
        kernel: Kernel,
        nodes: Sequence[Node],
        site: Times,
        *,
        cpus: int,
        gpus: int,
        memory_mb: int,
    ) -> None:
        self.kernel, self._times = kernel, site
        self.places = {
            each.name: Place(each, cpus, gpus, memory_mb, boot_id=each.boot_id) for each in nodes
        }
        self.jobs = {}
        self.up = True
        self.seen: list[Callable[[Any, str], None]] = []
        self.past: dict[int, str] = {}
        self._mail: list[Callable[[], None]] = []
        self._number = 0
        self._after(site.cycle_s, self._cycle)

    @property
    def now(self) -> float:
        """Return the time of the controller, epoch."""
        return EPOCH + self.kernel.now

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self.kernel.at(self.kernel.now + seconds, what)

    def _soon(self, what: Callable[[], None]) -> None:
        """Do something when a message has come over."""
        self._after(self.kernel.chance.uniform(0.005, 0.1), what)

    def _tell(self, job: Job, what: str) -> None:
        self.kernel.tell(f"{self.title}: job {job.id} ({job.order.name}) {what}")
        self.kernel.happened()
        for see in self.seen:
            see(job, what)

    # The controller itself.

    def die(self) -> None:
        """End it: nobody answers, nothing is decided; what runs goes on."""
        self.kernel.tell(f"{self.program} is gone")
        self.up = False

    def revive(self) -> None:
        """Start it again; it hears now what it has missed."""
        if self.up:
            return
        self.kernel.tell(f"{self.program} is back")
        self.up = True
        mail, self._mail = self._mail, []
        for each in mail:
            each()
        self.kernel.touched()

    def _report(self, what: Callable[[], None]) -> None:
        """Tell the controller something; daemons try again until it is there."""

        def arrive() -> None:
            if self.up:
                what()
                self.kernel.touched()
            else:
                self._mail.append(what)

        self._soon(arrive)

    # The queue.

    def submit(self, order: Any) -> Any:
        """Take a job in."""
        self._number += 1
        job = self.jobs[self._number] = self._job_of(self._number, order)
        self._tell(job, "is submitted")
        self._soon(self._schedule)
        return job

    def _job_of(self, number: int, order: Any) -> Any:
        raise NotImplementedError

    def _cycle(self) -> None:
        self._after(self._times.cycle_s, self._cycle)
        if self.up:
            self._silent()
            self._schedule()
            self._forget()

    def _forget(self) -> None:
        for job in list(self.jobs.values()):
            if job.over and self.now > (job.ended or 0.0) + self._times.keep_s:
                self.past[job.id] = job.state
                del self.jobs[job.id]

    def _schedule(self) -> None:
        if not self.up:
            return
        waiting = [job for job in self.jobs.values() if job.waits]
        waiting.sort(key=lambda job: (-self._priority(job), job.id))
        planned: list[tuple[float, tuple[str, ...]]] = []
        for job in waiting:
            job.planned = None
            if not self._may_begin(job):
                continue
            nodes = self._free_for(job, planned)
            if nodes is not None:
                self._start(job, nodes)
                continue
            job.why = "Resources" if not planned else "Priority"
            self._preempt_for(job)
            job.planned = self._plan(job)
            if job.planned is not None:
                planned.append(job.planned)

    def _priority(self, job: Any) -> int:
        raise NotImplementedError

    def _may_begin(self, job: Any) -> bool:
        return True

    def _start(self, job: Any, names: Sequence[str]) -> None:
        raise NotImplementedError

    def _preempt_for(self, job: Any) -> None:
        raise NotImplementedError

    def _fits(self, job: Job, place: Place, used: Iterable[Job]) -> bool:
        """Return whether a job has space on a node beside others."""
        order = job.order
        # Its daemon has not registered since it booted.
        boots = place.node.up and place.node.boot_id != place.boot_id
        if place.down or boots or (order.nodelist and place.name not in order.nodelist):
            return False
        others = [each for each in used if place.name in each.shares]
        if others and (order.exclusive or any(each.order.exclusive for each in others)):
            return False
        shares = [each.used(place.name) for each in others]
        return (
            place.cpus - sum(each.cpus for each in shares) >= order.cpus
            and place.memory_mb - sum(each.memory_mb for each in shares) >= order.memory_mb
            and place.gpus - sum(len(each.gpus) for each in shares) >= order.gpus
        )

    def _needs(self, job: Job) -> int:
        return max(job.order.nodes, len(job.order.nodelist))

    def _holders(self) -> list[Any]:
        return [job for job in self.jobs.values() if job.holds]

    def _free_for(
        self, job: Job, planned: Sequence[tuple[float, tuple[str, ...]]]
    ) -> list[str] | None:
        """Return nodes on which a job may begin now; None for none."""
        ends = self.now + job.order.limit_s
        kept = {name for starts, names in planned if starts < ends for name in names}
        used = self._holders()
        free = [
            place.name for place in self.places.values()
            if place.name not in kept and self._fits(job, place, used)
        ]  # fmt: skip
        return free[: self._needs(job)] if len(free) >= self._needs(job) else None

    def _plan(self, job: Job) -> tuple[float, tuple[str, ...]] | None:
        """Return when and where a job will begin, if all others use their time."""
        used = self._holders()
        for at in sorted({each.ends or math.inf for each in used} | {self.now}):
            left = [each for each in used if (each.ends or math.inf) > at]
            free = [place.name for place in self.places.values() if self._fits(job, place, left)]
            if len(free) >= self._needs(job) and at < math.inf:
                return max(at, self.now + 1), tuple(free[: self._needs(job)])
        return None

    def _victims(self, job: Job, lower: Sequence[Any]) -> list[Any]:
        """Return which of these jobs give a job its nodes when they leave; none if they cannot."""
        stay = [each for each in self._holders() if each not in lower and not each.leaving]
        free = [place.name for place in self.places.values() if self._fits(job, place, stay)]
        if not lower or len(free) < self._needs(job):
            return []
        # Those that are leaving already, then nodes with the fewest victims.
        on = {name: [each for each in lower if name in each.shares] for name in free}
        free.sort(
            key=lambda name: (-sum(each.preempted is not None for each in on[name]), len(on[name]))
        )
        found = [victim for name in free[: self._needs(job)] for victim in on[name]]
        return list(dict.fromkeys(found))

    def _give(self, job: Job, names: Sequence[str]) -> None:
        """Give nodes to a job."""
        order = job.order
        used = self._holders()
        for name in names:
            place = self.places[name]
            others = [each.shares[name] for each in used if name in each.shares]
            taken = {gpu for each in others for gpu in each.gpus}
            free = [gpu for gpu in range(place.gpus) if gpu not in taken]
            cpus = place.cpus if order.exclusive else order.cpus
            memory = place.memory_mb if order.exclusive else order.memory_mb
            job.shares[name] = Share(cpus, memory, tuple(free[: order.gpus]))

    # Nodes.

    def _silent(self) -> None:
        """Note nodes that do not answer, and those that have booted."""
        for place in self.places.values():
            node = place.node
            if node.up and node.boot_id == place.boot_id:
                continue
            if node.up and not place.booting:
                place.booting = True
                boots = self.kernel.chance.uniform(0.5, 5)
                self._after(boots, lambda place=place: self._register(place, place.node.boot_id))
            if place.silent_s is None:
                place.silent_s = self.kernel.now
            elif not place.down and self.kernel.now >= place.silent_s + self._times.lost_s:
                self._lose(place)

    def _register(self, place: Place, boot_id: str) -> None:
        """Have the daemon of a node that has booted register: nothing runs there any more."""

        def registered() -> None:
            place.booting = False
            if not place.node.up or place.node.boot_id != boot_id:
                return
            if not place.down:
                self._lose(place)
            place.down, place.silent_s, place.boot_id = False, None, boot_id
            self.kernel.tell(f"{self.title}: {place.name} is back")
            self._schedule()

        self._report(registered)

    def _lose(self, place: Place) -> None:
        raise NotImplementedError

    def set_down(self, name: str) -> None:
        """Have an administrator say that a node is down."""
        self._lose(self.places[name])

    def resume(self, name: str) -> None:
        """Have an administrator say that it is up again."""
        if self.places[name].node.up:
            self.places[name].down = False


def below(process: Process) -> list[Process]:
    """Return all processes below one that have not ended."""
    found, rest = [], list(process.children)
    while rest:
        each = rest.pop(0)
        rest += each.children
        if not each.dead:
            found.append(each)
    return found
