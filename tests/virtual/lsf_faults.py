"""What befalls a room with an LSF, beside what may befall one with any batch system."""

from __future__ import annotations

import signal
from typing import ClassVar

from virtual import batch_faults


class LsfFaults(batch_faults.BatchFaults):
    """The faults of one room."""

    weights: ClassVar = {
        **batch_faults.WEIGHTS, "kill_blaunch": 2, "kill_script": 1, "cancel_allocation": 1,
        "requeue_allocation": 1, "hold_allocation": 1, "stop_allocation": 3, "warn_allocation": 1,
        "shorten": 1,
    }  # fmt: skip

    def kill_blaunch(self) -> None:
        """Kill the launcher of an attempt on a host."""
        if process := self._some("blaunch"):
            self._tell(f"{process!r} is killed")
            self._harm_all()
            process.signal(self._chance.choice([signal.SIGKILL, signal.SIGTERM]))

    def kill_script(self) -> None:
        """Kill the batch script of the pilot, and with it all of its job."""
        if process := self._some("script"):
            self._tell(f"{process!r} is killed")
            self._harm_all()
            process.signal(signal.SIGKILL)

    def hold_allocation(self) -> None:
        """Have the user requeue the job so that it waits, and let it begin later."""
        if job := self._running():
            self._tell("the user requeues the allocation, to be held")
            self._room.controller.again(job, hold=True)
            self._resume_later(job)

    def stop_allocation(self) -> None:
        """Have the user stop the job, and let it go on later."""
        if job := self._running():
            self._tell("the user stops the allocation")
            self._room.controller.stop(job)
            self._resume_later(job)

    def _resume_later(self, job: object) -> None:
        seconds = self._chance.choice([self._chance.uniform(0.1, 5), self._chance.uniform(20, 60)])
        self._kernel.at(self._kernel.now + seconds, lambda: self._resume(job))

    def _resume(self, job: object) -> None:
        controller = self._room.controller
        # It waits for its end first, if it has to.
        if job in controller.jobs.values() and not job.over:  # type: ignore[attr-defined]
            if job.state in {"PSUSP", "USUSP"}:  # type: ignore[attr-defined]
                controller.go_on(job)
            elif job.requeue == "hold":  # type: ignore[attr-defined]
                self._kernel.at(self._kernel.now + 5, lambda: self._resume(job))

    def warn_allocation(self) -> None:
        """Have the warning come that a user may have asked for."""
        if job := self._running():
            self._tell("the allocation is warned")
            self._room.controller.signal(job, signal.SIGUSR2)

    def mend(self) -> None:
        """Let everything be well from here on."""
        super().mend()
        for job in self._room._ours():
            self._resume(job)
