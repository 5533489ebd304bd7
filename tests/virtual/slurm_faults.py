"""What befalls a room with a Slurm, beside what may befall one with any batch system."""

from __future__ import annotations

import signal
from typing import ClassVar

from virtual import batch_faults


class SlurmFaults(batch_faults.BatchFaults):
    """The faults of one room."""

    weights: ClassVar = {
        **batch_faults.WEIGHTS, "kill_srun": 2, "kill_script": 1, "cancel_allocation": 1,
        "requeue_allocation": 1, "kill_step": 1, "shorten": 1,
    }  # fmt: skip

    def kill_srun(self) -> None:
        """Kill the srun of a step."""
        if process := self._some("srun"):
            self._tell(f"{process!r} is killed")
            self._harm_all()
            process.signal(self._chance.choice([signal.SIGKILL, signal.SIGTERM]))

    def kill_step(self) -> None:
        """Have the user cancel a step."""
        steps = [step for job in self._room._ours() for step in job.steps if step.id != "batch"]
        if steps:
            step = self._chance.choice(steps)
            self._tell(f"the user cancels step {step.whole}")
            self._harm_all()
            self._room.controller.signal_step(step, signal.SIGKILL)
