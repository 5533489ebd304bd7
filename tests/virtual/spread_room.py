"""Rooms in which trainings on leases have ranks on several nodes, which come, go, and are lost."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from typing import Any, ClassVar

import msgspec
from virtual import faults, slurm_room
from virtual.kernel import Machine
from virtual.nodes import Node
from virtual.ranks import LAUNCH, Launches, trains
from virtual.room import PILOT
from virtual.slurm_faults import SlurmFaults

from hpcext import policies, protocol
from hpcext.jobspec import Gpus, JobSpec, Nodes

CALM = 0.3
"""In how many rooms in which nodes are lost nothing else happens, so that nothing excuses a loss of
steps."""

SILENT = 0.4
"""How many of the nodes that are lost fall silent."""
ALONE = 0.3
"""How many of these losses are of one rank instead, whose node stays."""
AWAY_S = 120.0
"""How long they are away at least: longer than ranks wait to hear which are gone."""
ENDS_S = (32.0, 42.0, 52.0)
"""Seconds after that at which a change of ranks that has been asked for excuses a loss of steps."""

SPREAD = 0.8
"""How many trainings have ranks on as many nodes as there are for them."""
GAIN = 0.9
"""What each further node is worth to them."""


class Faults(SlurmFaults):
    """What befalls them: above all, nodes are lost without notice."""

    until_s = 60.0
    weights: ClassVar = {
        **SlurmFaults.weights, "lose_node": 10, "kill_agent": 6, "kill_training": 4,
    }  # fmt: skip

    def __init__(self, room: Any) -> None:
        super().__init__(room)
        self._silent: dict[Node, float] = {}

    def draw(self, chance: random.Random) -> list[faults.Fault]:
        """Draw what is to happen."""
        losses = [
            faults.Fault(chance.uniform(8.0, 45.0), "kill_agent", chance.getrandbits(32))
            for _ in range(chance.randint(0, 2))
        ]
        # After all that was drawn, which is as it was before any node fell silent.
        quiet = random.Random(f"silent {self._room.seed}")
        losses = [
            each._replace(what="silence") if quiet.random() < SILENT else each for each in losses
        ]
        alone = random.Random(f"alone {self._room.seed}")
        losses = [
            each._replace(what="kill_rank") if alone.random() < ALONE else each for each in losses
        ]
        rest = super().draw(chance)
        return sorted(losses if losses and chance.random() < CALM else [*rest, *losses])

    def _is_calm(self) -> bool:
        """Return whether nothing else happens."""
        calm = {"kill_agent", "silence", "kill_rank"}
        return all(fault.what in calm for fault in self._room.plan)

    def _harm_all(self, but: Collection[str] = ()) -> None:
        checks = self._room.checks
        kept = set(but) - checks._harmed
        super()._harm_all()
        checks._harmed -= kept
        # Ranks on several nodes begin one after the other: what was harmed may be about to begin.
        for job in {str(at) for at in range(1, self._room.jobs + 1)} - set(but):
            checks.harmed(job, soon=True)

    def cancel_allocation(self) -> None:
        """Have the user cancel a lease, whose srun then ends what runs there at once."""
        self._harm_all()
        super().cancel_allocation()

    def requeue_allocation(self) -> None:
        """Have the user requeue one, with the same effect."""
        self._harm_all()
        super().requeue_allocation()

    def kill_agent(self) -> None:
        """Kill the agent of a lease, with all on its node."""
        if process := self._some("agent"):
            self._tell(f"{process!r} is killed, with all on its node")
            sure = self._room.outlives(process.machine) if self._is_calm() else set()
            self._harm_all(sure)
            for each in list(process.machine.processes.values()):
                if each.name in {"agent", "supervisor", "launcher", "training", "daemon", "stray"}:
                    each.signal(9)

    def kill_rank(self) -> None:
        """Kill a rank on another node than the first one of its training."""
        found = [
            each for each in self._room.processes()
            if each.name == "training" and not each.dead
            and each.environ.get("HPCEXT_REPLACES") == "1"
            and each.environ.get("HPCEXT_NODE_INDEX", "0") != "0"
        ]  # fmt: skip
        if found:
            process = self._chance.choice(found)
            self._tell(f"{process!r} is killed, alone")
            self._harm_all(self._room.outlives(process.machine) if self._is_calm() else set())
            process.signal(9)

    def silence(self) -> None:
        """Have the node of a lease lose its power: nothing on it answers, and nothing says so."""
        if not (agent := self._some("agent")):
            return
        node = agent.machine
        self._tell(f"{node.name} falls silent")
        sure = self._room.outlives(node) if self._is_calm() else set()
        self._harm_all(sure)
        node.lose_power()

        def excuse() -> None:
            for job in sorted(sure):
                if self._room.changes(job):
                    self._room.checks.harmed(job)

        for after_s in ENDS_S:
            self._kernel.at(self._kernel.now + after_s, excuse)
        self._silent[node] = self._kernel.now

    def _power(self, node: Node) -> None:
        """Have a node come back; one that has fallen silent, later."""
        if node in self._silent:
            back_s = self._silent.pop(node) + AWAY_S
            self._kernel.at(max(self._kernel.now, back_s), lambda: None if node.up else node.boot())
        else:
            super()._power(node)


# It is asked in the manager's process: a room has no other for it.
policies.POLICIES["equal_share"] = policies.POLICIES["equal_share"]._replace(quick=True)


class HarvestRoom(Launches, slurm_room.HarvestRoom):
    """One seed: a harvester of nodes of a Slurm, whose trainings change them in place."""

    counts: ClassVar = (2, 4)
    steps_of: ClassVar = (40, 100)
    policy: ClassVar = "equal_share"
    kind_of_faults: ClassVar = Faults
    lost_s = 300.0  # as by default; a harvester is to find out itself
    ends_s: ClassVar = 120.0 + AWAY_S

    def outlives(self, lost: Machine) -> set[str]:
        """Return the jobs that must lose no step if this node is lost."""
        found = set()
        for job, (first, others) in list(self.sure.items()):
            if lost in others or lost is first:
                del self.sure[job]
            if lost is not first and not self.changes(job):
                found.add(job)
        return found

    def changes(self, job: str) -> bool:
        """Return whether the ranks of a job are to change: then all end with one that is lost."""
        there: Any = self.disk.find(f"{PILOT}/jobs/{job}")
        last = max(name for name in there.entries if name.startswith("attempt-"))
        attempt = there.entries[last].entries
        asked, answered = (
            json.loads(bytes(attempt[name].data))["resize"] if name in attempt else 0
            for name in (protocol.RESCALE_FILE, protocol.RESCALED_FILE)
        )
        return bool(asked != answered)

    def _specs(self, steps: int) -> list[JobSpec]:
        chance = random.Random(f"spread {self.seed}")
        return [
            self._spread(spec) if trains(spec) and chance.random() < SPREAD else spec
            for spec in super()._specs(steps)
        ]

    def _spread(self, spec: JobSpec) -> JobSpec:
        gpus = self.gpus
        nodes = range(1, self.count + 1)
        return msgspec.structs.replace(
            spec, command=(*LAUNCH, "0", *spec.command), gpus=Gpus(gpus, gpus),
            nodes=Nodes(1, self.count), scaling={gpus * at: at**GAIN for at in nodes},
        )  # fmt: skip
