"""What must hold in a room, judged by what trainings say and by the kernel, step by step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hpcext.core.values import State
from hpcext.manager import journal as journals

if TYPE_CHECKING:
    from virtual.kernel import Process
    from virtual.room import Room

OURS = {"manager", "supervisor", "training", "user", ""}


class Violation(Exception):
    """Something that must never be."""


class Checks:
    """The checks of one room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.violations: list[str] = []
        self._gpus: dict[str, list[tuple[Process, str, int]]] = defaultdict(list)
        self._last: dict[str, int] = {}
        self._saved: dict[str, int] = defaultdict(int)
        self._running: dict[str, Process] = {}
        self._harmed: set[str] = set()
        room.kernel.looks_at_signals.append(self.signalled)

    def wrong(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(f"{self._room.kernel.now:.4f}: {what}")
        self._room.kernel.tell(f"!! {what}")

    # As it happens.

    def begun(self, job: str, attempt: int, step: int, process: Process, launch: Any) -> None:
        """Check an attempt that has restored what it goes on from."""
        other = self._running.get(job)
        if other is not None and other is not process and not other.dead:
            self.wrong(f"job {job}: attempt {attempt} runs beside an earlier one, {other!r}")
        self._running[job] = process
        self.takes(job, attempt, process, launch)
        if step < self._saved[job]:
            self.wrong(
                f"job {job} attempt {attempt} begins after step {step}, "
                f"and step {self._saved[job]} was saved"
            )
        if step < self._last.get(job, 0) and job not in self._harmed:
            self.wrong(
                f"job {job} attempt {attempt} begins after step {step}, did {self._last[job]}, "
                "and nothing was done to it"
            )
        self._harmed.discard(job)
        self._last[job] = step

    def takes(self, job: str, attempt: int, process: Process, launch: Any) -> None:
        """Check that the GPUs of a process belong to nobody else."""
        for gpu in launch["gpus"]:
            holders = [each for each in self._gpus[gpu] if not each[0].dead]
            for holder, other_job, other_attempt in holders:
                if (other_job, other_attempt) != (job, attempt):
                    self.wrong(f"{gpu} belongs to jobs {other_job} and {job} at once: {holder!r}")
            self._gpus[gpu] = [*holders, (process, job, attempt)]

    def holds(self, process: Process, launch: Any) -> None:
        """Note a process that holds the GPUs of a training, too."""
        for gpu in launch["gpus"]:
            self._gpus[gpu].append((process, launch["job"], launch["attempt"]))

    def did(self, job: str, attempt: int, step: int, process: Process) -> None:
        """Check a step."""
        if self._running.get(job) is not process:
            self.wrong(f"job {job} attempt {attempt} does step {step} beside a later attempt")
        if step != self._last[job] + 1:
            self.wrong(f"job {job} does step {step} after step {self._last[job]}")
        self._last[job] = step

    def harmed(self, job: str) -> None:
        """Note that steps of a job since its last checkpoint may be lost."""
        self._harmed.add(job)

    def crashed(self) -> None:
        """Note that the machine lost what was in memory."""
        self._harmed.update(self._last)

    def unusable(self, job: str, why: str) -> None:
        """Check that it is no wonder if a training finds no checkpoint that it can use."""
        if not self._room.faults.disk_failed:
            self.wrong(f"job {job}: {why}")

    def saved(self, job: str, step: int) -> None:
        """Note a checkpoint that was committed."""
        self._saved[job] = max(self._saved[job], step)

    def signalled(self, sender: Process, process: Process, signum: int) -> None:
        """Check that nobody else's process is signalled."""
        if process.name == "bystander":
            self.wrong(f"{sender!r} sends signal {signum} to {process!r}, which is not ours")

    # At the end.

    def over(self, path: str, steps: int) -> None:
        """Check the journal against what happened; called as a process of the user's."""
        from virtual.room import Path

        past = journals.read(Path(path))
        world = past.replay().world
        for job in world.jobs.values():
            if not job.state.final:
                self.wrong(f"job {job.id} is {job.state.value} at the end")
            if job.state is State.COMPLETED and self._last.get(job.id) != steps:
                self.wrong(f"job {job.id} is completed after step {self._last.get(job.id)}")
            faults = self._room.faults
            if job.state is State.FAILED and not (
                faults.harm[job.id] > job.retries or faults.disk_failed
            ):
                self.wrong(f"job {job.id} failed, and was harmed {faults.harm[job.id]} times")
            if job.state is State.CANCELLED and job.id not in faults.cancelled:
                self.wrong(f"job {job.id} is cancelled, and nobody asked for it")
        for process in self._room.processes():
            if process.name in {"supervisor", "training", "daemon", "manager"} and not process.dead:
                self.wrong(f"{process!r} is left")
