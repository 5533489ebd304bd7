"""A room whose trainings have several ranks on one node, of which there are more or fewer later."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from virtual import calls, faults, loading, room, training
from virtual.group import Broken, Group, Meeting

from hpcext import protocol
from hpcext.jobspec import Gpus, JobSpec
from hpcext.launch import ranks as launcher
from hpcext.rendezvous import REPAIRS, Rendezvous
from hpcext.rendezvous import Group as Next
from hpcext.training import resizing
from hpcext.training.membership import Membership, Overtaken
from hpcext.training.ranks import Ranks
from hpcext.training.resizing import Sent

if TYPE_CHECKING:
    from virtual.kernel import Machine, Process

tempfile: Any = loading.module("tempfile")
LAUNCH = (room.PYTHON, "-I", "-S", launcher.__file__)
"""What ``hpcext launch`` runs, before the number of ranks and the command of one."""
REPLACES = 0.6
"""How many trainings go on without ranks that die, and get new ones."""
SURE = 4
"""After so many steps of a group all of its ranks have said that they do so."""

LOOK_S = 0.05
"""Seconds between two looks whether a group that is being formed comes to nothing."""
ANOTHER, SOON_S = 0.6, 1.0
"""How often another process is killed after one, and how many seconds later, in the mean."""
REFUSES = 0.1
"""How many trainings cannot change in place, which they find out when they are to."""
SHRINKS_S = 5.0
"""Seconds, and three steps, in which a training gives GPUs up."""
SLOW = 0.2
"""How many ranks take long to leave their group."""
WEIGHTS = {**faults.WEIGHTS, "kill_ranks": 2, "stop_ranks": 1, "resize": 14}
SEVERAL, MOST_GPUS = 0.8, 3
"""How many trainings have ranks, and how many GPUs these can use."""


class Member(Membership):
    """The membership of a rank, which meets the others in memory."""

    def __init__(self, place: Rendezvous, where: room.Room, process: Process, job: Any) -> None:
        environ = process.environ
        super().__init__(place, rank=int(environ["RANK"]), size=int(environ["WORLD_SIZE"]))
        self._room, self._process, self._job = where, process, job

    def connect(self, group: Next) -> Ranks:
        """Connect with the other members of a group; this waits for them."""
        meeting = self._room.meetings[(*self._job, group.number)]
        meeting.there.add(self.rank)
        while group.of is not None and len(meeting.there) < group.size:
            if self.repair() is not None:
                raise Overtaken(f"group {group.number} comes to nothing")
            calls.sleep(LOOK_S)
        return Group(meeting, self.rank, group.size, self._process)

    def leave(self) -> None:
        """Leave the present group, which may take a while."""
        chance = self._room.kernel.chance
        if chance.random() < SLOW:
            calls.sleep(chance.uniform(0.2, 3.0))


class InPlace(resizing.InPlace):
    """The change of their number, of which nothing but the communication is made for the room."""

    def __init__(self, member: Member, refuses: Callable[[], bool]) -> None:
        super().__init__()
        self._member, self._refuses = member, refuses

    @property
    def member(self) -> Member:
        """The membership of this process."""
        return self._member

    def why_not(self, group: Next | None = None) -> str:
        """Return why the number of ranks cannot change in place; empty if it can."""
        return "it cannot" if self._refuses() else ""

    def dissolve(self, group: Next) -> None:
        """Take nothing apart."""

    def send(self, facts: Mapping[str, Any], group: Next) -> None:
        """Send the state from rank 0 to new ranks."""
        self.coordinator.ranks.broadcast(json.dumps(facts).encode())

    def receive(self, group: Next) -> Sent:
        """Receive, on a new rank, what rank 0 sends."""
        return Sent(json.loads(self.coordinator.ranks.broadcast(b"")), None)

    def broke(self, error: RuntimeError | None = None) -> bool:
        """Return whether a rank has died, so that the others are to go on without it."""
        self._member.cut()
        return True

    def part(self) -> None:
        """Leave the present group, which has broken."""
        self._member.leave()

    def level(self, facts: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the last step that one of the ranks has made."""
        return {"step": -self.coordinator.ranks.smallest(-int(facts()["step"]))}


class Training(training.Training):
    """One rank."""

    _room: Any
    _made = 0
    _announced = False

    def _join(self, launch: Any) -> Ranks:
        attempt, environ = self._attempt, self._process.environ
        place = Rendezvous.from_environ(environ)
        assert place is not None
        job = (attempt.job_id, attempt.attempt)
        member = Member(place, self._room, self._process, job)
        begun = bool(place.joins)
        refuses = self._room.kernel.chance.random() < REFUSES
        # As a session that finds out with its first validation.
        self._resizing = InPlace(member, lambda: refuses and self._coordinator.step > 1)
        self._resizing.attach(self._coordinator, None)  # type: ignore[arg-type]
        if place.joins % REPAIRS:
            # In place of one that has died: whose GPU it has only the launcher knows.
            launch["holds"] = self._has() or launch["gpus"]
        else:
            held = self._asked()["gpus"] if begun else launch["gpus"]
            launch["holds"] = [held[member.rank]]
        self._room.checks.takes(*job, self._process, launch)
        if member.rank == 0 and not begun:
            self._room.sure.pop(attempt.job_id, None)
        if member.rank == 0 and not refuses:
            self._room.sizes[job] = member.group.size
        return member.ranks()

    def _asked(self) -> Any:
        path = self._attempt.report_dir / protocol.RESCALE_FILE
        return json.loads(path.read_bytes())

    def _has(self) -> Any:
        path = self._attempt.report_dir / protocol.RESCALED_FILE
        return json.loads(path.read_bytes())["gpus"] if path.exists() else []

    def _begin(self, ranks: Ranks) -> int:
        facts = self._resizing.join(self._coordinator.regroup)
        return super()._begin(ranks) if facts is None else int(facts["step"])

    def _boundary(self) -> None:
        ranks, agreed = self._coordinator.ranks, None
        try:
            self._meet(ranks)
            agreed = self._coordinator.agree(self._resizing.next_group())
            self._act(agreed)
        except (Broken, Overtaken):
            assert isinstance(self._resizing, InPlace)
            announced = self._announced or self._resizing.member.mending
            if (agreed is not None and agreed.suspend) or not announced:
                raise
            self._resizing.broke()
            self._outlive()
        now = self._coordinator.ranks
        if now is not ranks:
            self._made = 0
        if now is not ranks and now.rank == 0:
            job = self._attempt.job_id
            self._room.sure.pop(job, None)
            self._room.kernel.tell(f"job {job} had {ranks.size} ranks, and has {now.size}")
            self._room.sizes[job, self._attempt.attempt] = now.size

    def _meet(self, ranks: Ranks) -> None:
        step = self._coordinator.step
        if ranks.smallest(step) != step:
            self._room.checks.wrong(f"{self._process!r} is at step {step}, and others are not")
        self._made += 1
        if self._made > SURE and ranks.rank == 0 and isinstance(ranks, Group) and self._announced:
            there = {each.machine for each in ranks.members()}
            here = self._process.machine
            self._room.sure[self._attempt.job_id] = here, there - {here}
        assert isinstance(self._resizing, InPlace)
        member = self._resizing.member
        if self._made > 1 and ranks.size > 1 and member.replaces and not self._announced:
            # A session does so once it has seen a step; on a full disk it tries again.
            with contextlib.suppress(OSError):
                if ranks.rank == 0:
                    member.mends()
                self._announced = True

    def _outlive(self) -> None:
        """Go on without ranks that have died, from the last step that any rank has made."""
        coordinator, before = self._coordinator, self._coordinator.ranks.size
        found = self._resizing.mend(coordinator.regroup, lambda: {"step": coordinator.step})
        assert found is not None
        if found["step"] > coordinator.step:
            self._did(int(found["step"]))
        job, lost = self._attempt.job_id, before - coordinator.ranks.size
        if coordinator.ranks.rank == 0:
            self._room.kernel.tell(f"job {job} goes on without {lost} ranks that were lost")
        self._room.mended[job] += 1


class Faults(faults.Faults):
    """What befalls them: more requests, and what may become of a launcher."""

    def draw(self, chance: random.Random) -> list[faults.Fault]:
        """Draw what is to happen."""
        plan = faults.draw(chance, WEIGHTS, self.until_s)
        # After all that was drawn, which is as it was before any rank was replaced.
        if chance.random() < REPLACES:
            for _ in range(chance.randint(2, 6)):
                at_s, bits = chance.uniform(1.0, self.until_s), chance.getrandbits(32)
                plan.append(faults.Fault(at_s, "kill_rank", bits))
                while chance.random() < ANOTHER:
                    at_s, bits = at_s + chance.expovariate(1 / SOON_S), chance.getrandbits(32)
                    plan.append(faults.Fault(at_s, "kill_rank", bits))
        return sorted(plan)

    def resize(self) -> None:
        """Ask for another number of GPUs."""
        job, size = self._chance.randint(1, self._room.jobs), self._chance.randint(1, MOST_GPUS)
        self._send("resize", {"job": str(job), "gpus": size})

    def kill_rank(self) -> None:
        """Kill a rank without which others may go on."""
        found = [
            each for each in self._room.processes()
            if each.name == "training" and not each.dead
            and each.environ.get("HPCEXT_REPLACES") == "1" and each.environ["RANK"] != "0"
        ]  # fmt: skip
        if found:
            process = self._chance.choice(found)
            self._tell(f"{process!r} is killed")
            self._harm(process)
            process.signal(signal.SIGKILL)

    def kill_ranks(self) -> None:
        """Kill a launcher of ranks."""
        if process := self._some("launcher"):
            self._tell(f"{process!r} is killed")
            self._harm(process)
            process.signal(9)

    def stop_ranks(self) -> None:
        """Stop a launcher of ranks for a while."""
        if process := self._some("launcher"):
            seconds = self._stop(process)
            self.stopped_until = max(self.stopped_until, self._kernel.now + seconds)
            self._room.checks.stopped(process, seconds)


class Launches(room.Room):
    """A room of whose trainings ``hpcext launch`` starts some.

    Attributes
    ----------
    meetings : dict
        Job, attempt and number of a group → where its ranks meet.
    sizes : dict
        Job and attempt → ranks, of those that can change in place.
    mended : Counter
        Job → how often a rank has gone on without others.
    sure : dict
        Job → the node of its first rank, and those of the others, if it goes on without these.
    """

    def __init__(self, seed: int) -> None:
        self.meetings: dict[tuple[str, int, int], Meeting] = defaultdict(Meeting)
        # It remembers both, from one play to the next.
        tempfile.tempdir, tempfile._name_sequence = "/tmp", None
        self.sizes: dict[tuple[str, int], int] = {}
        self.mended: Counter[str] = Counter()
        self.sure: dict[str, tuple[Machine, set[Machine]]] = {}
        super().__init__(seed)

    def _program(self, argv: Sequence[str]) -> Callable[[Process], int | None] | None:
        if len(argv) > len(LAUNCH) and argv[3] == launcher.__file__:
            return self._launcher
        return super()._program(argv)

    def _launcher(self, process: Process) -> int:
        process.name = "launcher"
        self.begin(0.02, 0.1, 1.0)
        number, said, losses = process.argv[4].partition("+")
        replace = int(losses) if said else None
        environ = protocol.environ()
        return launcher.launch(process.argv[5:], int(number), environ, replace=replace)

    def _train(self, process: Process) -> int:
        if process.environ.get("HPCEXT_LAUNCHER"):
            return training.train(self, process, Training)
        return super()._train(process)


class RanksRoom(Launches):
    """A room with a local pilot whose trainings ``hpcext launch`` starts."""

    steps_of, gpus_of = (4, 14), (2, 4)

    def _faults(self) -> faults.Faults:
        return Faults(self)

    def did(self, job: str, attempt: int, step: int, process: Process) -> None:
        """Note a step, and check that a training which is to have fewer ranks gives them up."""
        super().did(job, attempt, step, process)
        at, words = self.checks._promised.get(("resize", job), (0.0, {}))
        size = self.sizes.get((job, attempt), 0)
        excused = self.faults.disk_failed or job in self.checks.deaf
        if not words or size <= words["gpus"] or excused:
            return
        since_s = max(at, self.checks._began_at[job], self.faults.disturbed_at)
        if self.kernel.now > since_s + SHRINKS_S + 3 * self.step_s:
            asked = f"was to have {words['gpus']} at {at:.1f} s"
            self.checks.wrong(f"job {job} still has {size} ranks, {asked}")

    def _of_kinds(self, specs: list[JobSpec]) -> list[JobSpec]:
        """Have most of the trainings be of several ranks."""
        chance = self.kinds()
        found = [
            _of_ranks(spec) if trains(spec) and chance.random() < SEVERAL else spec
            for spec in specs
        ]
        # After all that was drawn, which is as it was before any was replaced.
        replaced = random.Random(f"replaced {self.seed}")
        return [
            _replacing(spec, replaced.randint(1, 9)) if replaced.random() < REPLACES else spec
            for spec in found
        ]


def trains(spec: JobSpec) -> bool:
    """Return whether a job is a training that can succeed."""
    return spec.command[0] == "train" and spec.command[1] != "fails"


def _replacing(spec: JobSpec, ranks: int) -> JobSpec:
    """Have a training of ranks go on without some that die."""
    if spec.command[: len(LAUNCH)] != LAUNCH:
        return spec
    command = (*LAUNCH, f"0+{ranks}", *spec.command[len(LAUNCH) + 1 :])
    return msgspec.structs.replace(spec, command=command)


def _of_ranks(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(
        spec, command=(*LAUNCH, "0+0", *spec.command), gpus=Gpus(1, MOST_GPUS),
        scaling={1: 1.0, 2: 1.6, MOST_GPUS: 2.0},
    )  # fmt: skip
