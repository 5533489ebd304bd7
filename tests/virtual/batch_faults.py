"""What befalls a room with a batch system, beside what may befall any."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from typing import Any, ClassVar

from virtual import faults, loading
from virtual.checks import PILOT

from hpcext.core.errors import InputError
from hpcext.manager import spool

UNTIL_S = 150.0

WEIGHTS = {
    "kill_manager": 4, "kill_supervisor": 2, "kill_training": 2, "end_manager": 1,
    "stop_manager": 1, "stop_training": 1, "fill_disk": 2, "jump": 1, "ask": 3,
    "second_manager": 1, "main_job": 6, "lose_node": 3, "kill_controller": 3, "slow": 2,
    "fail": 2, "late": 2,
}  # fmt: skip

ASIDES = (0, 0, 0, 1, 2)
"""How many nodes a user may set aside, or have used again."""


class BatchFaults(faults.Faults):
    """The faults of one room.

    Attributes
    ----------
    weights : Mapping of str to int
        How often each of them comes.
    """

    until_s = UNTIL_S
    weights: ClassVar[Mapping[str, int]] = WEIGHTS

    def draw(self, chance: random.Random) -> list[faults.Fault]:
        """Draw what is to happen."""
        plan = faults.draw(chance, self.weights, self.until_s, 400)
        # After all that was drawn, which is as it was before there were such requests.
        for _ in range(chance.choice(ASIDES)):
            event = chance.randint(1, 400)
            plan.append(faults.Fault(0.0, "set_aside", chance.getrandbits(32), event))
        return sorted(plan)

    def excused(self) -> bool:
        """Return True: its allocation may be over, or wait for a command."""
        return True

    # The batch system.

    def main_job(self) -> None:
        """Have somebody else submit a job that comes first."""
        self._tell("somebody submits a job that comes first")
        self._room.main_job(self._chance)

    def kill_controller(self) -> None:
        """Have the controller die, and come back."""
        controller = self._room.controller
        if not controller.up:
            return
        seconds = self._chance.choice([self._chance.uniform(0.1, 8), self._chance.uniform(8, 60)])
        self._tell(f"{controller.program} is gone for {seconds:.1f} s")
        controller.die()
        self._kernel.at(self._kernel.now + seconds, controller.revive)

    def _commands(self, what: str, value: Any, before: Any) -> None:
        seconds = self._chance.uniform(1, 40)
        self._tell(f"commands are {what} for {seconds:.1f} s")
        name = {"slow": "slow_s", "failing": "fails", "late": "late"}[what]
        setattr(self._room.commands, name, value)
        self._kernel.at(
            self._kernel.now + seconds, lambda: setattr(self._room.commands, name, before)
        )

    def slow(self) -> None:
        """Have commands take long."""
        self._commands("slow", self._chance.choice([3.0, 20.0, 90.0]), 0.1)

    def fail(self) -> None:
        """Have commands fail."""
        self._commands("failing", True, False)

    def late(self) -> None:
        """Have commands be obeyed, and not be answered."""
        self._commands("late", True, False)

    def lose_node(self) -> None:
        """Have a node lose its power, for a moment or for good long."""
        up = [each for each in self._room.workers if each.up]
        if not up:
            return
        node = self._chance.choice(up)
        for process in node.processes.values():
            if process.name in {"training", "supervisor"} and not process.dead:
                self._harm(process)
        seconds = self._chance.choice([self._chance.uniform(1, 10), self._chance.uniform(20, 90)])
        self._tell(f"{node.name} loses its power for {seconds:.1f} s")
        node.lose_power()
        self._kernel.at(self._kernel.now + seconds, lambda: None if node.up else node.boot())

    def _harm_all(self) -> None:
        living = [each for each in self._room.processes() if not each.dead]
        trainings = [each for each in living if each.name == "training"]
        for process in trainings:
            self._harm(process)
        begun = {faults.job_of(each) for each in trainings}
        begin = {
            faults.job_of(each)
            for each in living
            if any(word.endswith("/supervise.py") for word in each.argv)
        }
        for job in sorted(begin - begun):
            self.harm[job] += 1
            self._room.checks.harmed(job, soon=True)

    def kill_script(self) -> None:
        """Kill the batch script of the pilot."""
        if process := self._some("script"):
            self._tell(f"{process!r} is killed")
            if self._room.script_is_srun:
                self._harm_all()
            process.signal(signal.SIGKILL)

    def _running(self) -> Any:
        if self._room.script_is_srun:
            self._harm_all()
        running = self._room.running()
        return self._chance.choice(running) if running else None

    def cancel_allocation(self) -> None:
        """Have the user cancel the job of the pilot."""
        if job := self._running():
            self._tell("the user cancels the allocation")
            self._room.controller.cancel(job)

    def requeue_allocation(self) -> None:
        """Have the user requeue the job of the pilot."""
        if job := self._running():
            self._tell("the user requeues the allocation")
            self._room.controller.requeue(job)

    def shorten(self) -> None:
        """Have an operator shorten the time limit."""
        if job := self._running():
            seconds = self._chance.uniform(20, 60)
            self._tell(f"the limit is shortened: {seconds:.0f} s are left")
            job.ends = min(job.ends or 0.0, self._room.controller.now + seconds)

    # The rest.

    def set_aside(self) -> None:
        """Have the user set a node aside, or have it used again."""
        node = self._chance.choice(self._room.workers).name
        if self._chance.random() < 0.7 and self._room.asides.room_for(node):
            self._ask_of("set_aside", node)
        else:
            self.readmit(node)

    def readmit(self, node: str) -> None:
        """Have the user use a node again."""
        self._ask_of("readmit", node)

    def _ask_of(self, verb: str, node: str) -> None:
        asides = self._room.asides
        asides.meddled = True

        def ask() -> None:
            if verb == "readmit":
                asides.withdrawn(node)
            before = asides.withdrawals[node]
            try:
                said = spool.ask(loading.module("pathlib").Path(PILOT), verb, node=node)
            except InputError:
                asides.refused.add((verb, node))
                raise
            self._tell(f"{verb} {node}: {said.get('text', said)}")
            asides.answered(verb, node, before)

        self._room.as_user(ask)

    def jump(self) -> None:
        """Set the clock of a node."""
        node = self._chance.choice(self._room.workers)
        skew = self._chance.choice([-3600.0, -5.0, 5.0, 3600.0])
        self._tell(f"the clock of {node.name} is set by {skew:+g} s")
        node.skew_s += skew

    def mend(self) -> None:
        """Let everything be well from here on."""
        super().mend()
        self._room.asides.broken = ""
        self._room.controller.revive()
        commands = self._room.commands
        commands.slow_s, commands.fails, commands.late = 0.1, False, False
        for node in self._room.workers:
            if not node.up:
                self._power(node)

    def _power(self, node: Any) -> None:
        """Have a node come back that has lost its power."""
        node.boot()
