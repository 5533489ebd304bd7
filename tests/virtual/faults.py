"""What befalls a room: drawn from its seed, at instants that nobody has chosen."""

from __future__ import annotations

import errno
import functools
import math
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from virtual import calls

from hpcext.core.errors import HpcextError, InputError
from hpcext.manager import spool

if TYPE_CHECKING:
    from virtual.kernel import Process
    from virtual.room import Room

BEGIN_S, UNTIL_S = 0.0, 10.0
"""Faults come in this time, in seconds; by its end all of them are over."""

RESUMED_S = 2.0
"""The most seconds before somebody starts another manager."""

VERBS = ("suspend", "resume", "resize", "cancel")


WEIGHTS = {
    "kill_manager": 4, "kill_supervisor": 2, "kill_training": 2, "end_manager": 2,
    "stop_manager": 1, "stop_training": 1, "fill_disk": 2, "crash": 2, "jump": 1, "ask": 5,
    "signal_training": 1, "second_manager": 1, "reuse_pids": 1,
    "kill_launcher": 2, "starve": 2,
}  # fmt: skip
MOST, MOST_EVENTS = 6, 90


class Fault(NamedTuple):
    """One of them: when it comes, and the seed of all that is drawn when it does.

    It comes at an instant, or upon an event: right after a fork, a signal, a renaming, an end.
    """

    at: float
    what: str
    seed: int
    event: int = 0


def draw(
    chance: random.Random,
    weights: Mapping[str, int] = WEIGHTS,
    until_s: float = UNTIL_S,
    most_events: int = MOST_EVENTS,
) -> list[Fault]:
    """Draw what is to happen in a room."""
    names = chance.choices(list(weights), list(weights.values()), k=chance.randint(0, MOST))
    return sorted(
        Fault(
            chance.uniform(BEGIN_S, until_s),
            name,
            chance.getrandbits(32),
            chance.randint(1, most_events) if chance.random() < 0.6 else 0,
        )
        for name in names
    )


def job_of(process: Process) -> str:
    """Return whose training or supervisor a process is."""
    job = process.environ.get("HPCEXT_JOB_ID")
    if job is None:
        directory = next(word for word in process.argv if "/attempt-" in word)
        job = directory.split("/")[-2]
    return job


class Faults:
    """The faults of one room.

    Attributes
    ----------
    until_s : float
        When all of them are over.
    harm : Counter
        How often it was done to a job what may count as its own failure.
    disk_failed, crashed : bool
    cancelled : set of str
        Jobs that their user may have cancelled.
    resumed : Counter
        How often a user asked for a job to be resumed, which lets one that has failed run again.
    disturbed_at, stopped_until : float
        When the last fault came that is no request, and when the last training goes on that was
        stopped.
    """

    until_s = UNTIL_S

    def __init__(self, room: Room) -> None:
        self._room, self._kernel = room, room.kernel
        self._chance = random.Random(0)
        self.harm: Counter[str] = Counter()
        self.disk_failed = False
        self.crashed = False
        self.cancelled: set[str] = set()
        self.resumed: Counter[str] = Counter()
        self.disturbed_at = self.stopped_until = -math.inf
        self._launcher = 0.0

    def draw(self, chance: random.Random) -> list[Fault]:
        """Draw what is to happen."""
        return draw(chance)

    def befall(self, plan: Sequence[Fault]) -> None:
        """Have these faults come, and everything be well after the last one may have."""
        for fault in plan:
            if fault.event:
                self._kernel.upon[fault.event] = functools.partial(self._do, fault)
            else:
                self._kernel.at(fault.at, functools.partial(self._do, fault))
        self._kernel.at(self.until_s, self.mend)

    def _do(self, fault: Fault) -> None:
        if self._kernel.now >= self.until_s:
            return
        self._chance = random.Random(fault.seed)
        if fault.what not in {"ask", "jump"}:
            self.disturbed_at = self._kernel.now
        getattr(self, fault.what)()

    def _some(self, name: str) -> Process | None:
        found = [
            each for each in self._room.processes()
            if each.name == name and not each.dead
            # Not what a manager has just forked, which is to be a supervisor.
            and (name != "manager" or each in self._room.managers)
        ]  # fmt: skip
        return self._chance.choice(found) if found else None

    def _tell(self, line: str) -> None:
        self._kernel.tell(f"** {line}")

    def _harm(self, process: Process) -> None:
        job = job_of(process)
        self.harm[job] += 1
        self._room.checks.harmed(job)

    # Processes.

    def second_manager(self) -> None:
        """Start one more manager."""
        self._tell("somebody starts a second manager")
        self._room.manage()

    def kill_manager(self) -> None:
        """Kill the manager where it stands."""
        if manager := self._some("manager"):
            self._tell("the manager is killed")
            manager.signal(signal.SIGKILL)

    def kill_launcher(self) -> None:
        """Kill the manager that starts the next supervisor, before that has begun."""
        self._launcher = self._chance.uniform(0.3, 2.0)

    def launched(self) -> None:
        """Note, as a supervisor, that it was started."""
        pause_s, self._launcher = self._launcher, 0.0
        if pause_s:
            self.disturbed_at = self._kernel.now
            self.kill_manager()
            self._kernel.at(self._kernel.now + 0.1, self._room.managed)
            calls.sleep(pause_s)

    def kill_supervisor(self) -> None:
        """Kill a supervisor."""
        if supervisor := self._some("supervisor"):
            self._tell(f"{supervisor!r} is killed")
            self._harm(supervisor)
            supervisor.signal(signal.SIGKILL)

    def kill_training(self) -> None:
        """Kill a training, as for want of memory."""
        if process := self._some("training"):
            self._tell(f"{process!r} is killed")
            self._harm(process)
            process.signal(signal.SIGKILL)

    def end_manager(self) -> None:
        """Have the manager suspend everything and end, once or twice."""
        if manager := self._some("manager"):
            self._tell("the manager is told to end")
            signum = self._chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
            manager.signal(signum)
            if self._chance.random() < 0.3:
                self._kernel.at(
                    self._kernel.now + self._chance.uniform(0, 2), lambda: manager.signal(signum)
                )

    def stop_manager(self) -> None:
        """Stop the manager for a while."""
        if manager := self._some("manager"):
            self.disturbed_at = self._kernel.now + self._stop(manager)

    def stop_training(self) -> None:
        """Stop a training for a while."""
        if process := self._some("training"):
            seconds = self._stop(process)
            self.stopped_until = max(self.stopped_until, self._kernel.now + seconds)
            self._room.checks.stopped(process, seconds)

    def _stop(self, process: Process) -> float:
        seconds = self._chance.uniform(0.1, 5)
        self._tell(f"{process!r} is stopped for {seconds:.1f} s")
        process.signal(signal.SIGSTOP)
        self._kernel.at(self._kernel.now + seconds, lambda: process.signal(signal.SIGCONT))
        return seconds

    def signal_training(self) -> None:
        """Send a training what its user, or a terminal, may send it."""
        if process := self._some("training"):
            signum = self._chance.choice([signal.SIGTSTP, signal.SIGUSR1, signal.SIGTERM])
            saves = self._room.specs[int(job_of(process)) - 1].checkpoint
            if saves is not None and saves.signal == signum.name:
                return  # it would save and leave, as if its work were done
            self._tell(f"{process!r} gets {signum.name} from its user")
            if signum == signal.SIGTERM:
                self._harm(process)
            process.signal(signum)

    # The machine.

    def fill_disk(self) -> None:
        """Have the disk fail for a while."""
        disk = self._room.disk
        disk.fault = self._chance.choice([errno.ENOSPC, errno.ENOSPC, errno.EROFS, errno.EIO])
        seconds = self._chance.uniform(0.1, 8)
        self.disk_failed = True
        disk.left = self._chance.choice([0, 0, self._chance.randint(1, 3000)])
        self._tell(f"the disk says {errno.errorcode[disk.fault]} for {seconds:.1f} s")
        self._kernel.at(self._kernel.now + seconds, lambda: setattr(disk, "fault", 0))

    def starve(self) -> None:
        """Fill the disk, and have everything suspended meanwhile."""
        self.fill_disk()
        self._kernel.at(self._kernel.now + self._chance.uniform(0, 1), self.end_manager)

    def crash(self) -> None:
        """Have the machine lose its power."""
        self.crashed = True
        self._room.checks.crashed()
        self._room.machine.crash()

    def jump(self) -> None:
        """Set the clock."""
        skew = self._chance.choice([-3600.0, -5.0, 5.0, 3600.0])
        self._tell(f"the clock is set by {skew:+g} s")
        self._room.machine.skew_s += skew

    def reuse_pids(self) -> None:
        """Have somebody's processes get the pids of ours as soon as they are free."""
        self._tell("pids are used again at once for a while")
        self._room.kernel.upon_end = self._reuse
        self._kernel.at(self._kernel.now + 5, lambda: setattr(self._kernel, "upon_end", None))

    def _reuse(self, process: Process) -> None:
        if process.name in {"manager", "supervisor", "training"}:
            pid = process.pid
            self._kernel.at(self._kernel.now + 0.03, lambda: self._room.bystand(pid))

    # The user.

    def ask(self) -> None:
        """Ask the manager for something, in another process."""
        verb, job = self._chance.choice(VERBS), str(self._chance.randint(1, self._room.jobs))
        words: dict[str, Any] = {"job": job}
        if verb == "resize":
            words["gpus"] = self._chance.randint(1, 3)
        if verb == "cancel" and self._chance.random() < 0.7:
            return
        if verb == "cancel":
            self.cancelled.add(job)
        self._send(verb, words)

    def excused(self) -> bool:
        """Return whether it is no wonder that a manager does not answer."""
        return self.disk_failed

    def resume(self, job: str, unheard: Callable[[], None]) -> None:
        """Ask for a job that its user has suspended; call something if no manager answers."""
        self._send("resume", {"job": job}, unheard)

    def _send(
        self, verb: str, words: dict[str, Any], unheard: Callable[[], None] = lambda: None
    ) -> None:
        if verb == "resume":
            self.resumed[words["job"]] += 1
        from virtual.checks import HOME, PILOT
        from virtual.room import PYTHON, Path

        def program(process: Process) -> int:
            process.name = "user"
            if verb in {"resume", "resize"}:
                self._room.checks.withdrawn(verb, words["job"])
            # Of two at once it is not known which is the later one.
            asking = self._room.checks.asking
            wishes = -1 if asking[words["job"]] else self._room.checks.wishes[words["job"]]
            asking[words["job"]] += 1
            since_s = self._kernel.now
            try:
                said = spool.ask(Path(PILOT), verb, **words)
            except (HpcextError, OSError) as error:
                self._tell(f"{verb} {words}: {error}")
                if not isinstance(error, InputError):
                    unheard()
                if not self.excused():
                    self._room.checks.waited(since_s, f"{verb} {words}")
                if "did not answer" in str(error) and not self.excused():
                    self._room.checks.wrong(f"{verb} {words}: {error}")
                return 1
            finally:
                asking[words["job"]] -= 1
            self._tell(f"{verb} {words}: {said.get('text', said)}")
            if not self.excused():
                self._room.checks.waited(since_s, f"{verb} {words}")
            self._room.checks.promised(verb, words, wishes)
            return 0

        self._kernel.spawn(
            self._room.machine,
            [PYTHON, "hpcext", verb],
            {"HOME": HOME, "PATH": "/usr/bin"},
            program,
        )

    def mend(self) -> None:
        """Let everything be well from here on."""
        self._tell("all is well from here on")
        self._room.disk.fault = 0
        for process in self._room.processes():
            process.signal(signal.SIGCONT)
