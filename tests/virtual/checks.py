"""What must hold in a room, judged by what trainings say and by the kernel, step by step."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from virtual.losses import Losses, attempt_of

from hpcext.core.values import Job, State
from hpcext.manager import journal as journals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from virtual.kernel import Process
    from virtual.room import Room

OURS = {"manager", "supervisor", "training", "user", ""}


HOME = "/home/user"
PILOT = f"{HOME}/pilot"
JUST_S = 0.001
"""Seconds within which a write is not on the disk yet, as it is being synchronised."""
ANSWERS_S = 2.0
"""The most seconds until a request is answered."""


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
        self._harmed_soon: set[str] = set()
        self._slow: set[tuple[str, int]] = set()  # attempts stopped for long
        self.deaf: set[str] = set()
        self.told: set[str] = set()  # jobs whose trainings a batch system told to end
        self.attempts: Counter[str] = Counter()
        self._failures: dict[str, list[float]] = defaultdict(list)
        self._failed: set[tuple[str, str]] = set()
        self.wishes: Counter[str] = Counter()
        self.asking: Counter[str] = Counter()  # requests that are not answered yet
        self._launched: dict[str, float] = {}
        self._decided: dict[tuple[str, int], float] = {}  # when each attempt was first launched
        self._beside: set[tuple[str, int]] = set()  # attempts that began while others had GPUs
        self._launches: dict[str, set[str]] = defaultdict(set)
        self._began_at: dict[str, float] = {}
        self._promised: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
        room.kernel.looks_at_signals.append(self.signalled)
        self.losses = Losses(room)

    def wrong(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(f"{self._room.kernel.now:.4f}: {what}")
        self._room.kernel.tell(f"!! {what}")

    # As it happens.

    def begun(self, job: str, attempt: int, step: int, process: Process, launch: Any) -> None:
        """Check an attempt that has restored what it goes on from."""
        slow = (job, self.attempts[job]) in self._slow
        self.attempts[job], self._began_at[job] = attempt, self._room.kernel.now
        self._obeyed(job, attempt, launch)
        spec = self._room.specs[int(job) - 1]
        if not 1 <= len(launch["gpus"]) <= spec.gpus.max * spec.nodes.max:
            self.wrong(f"job {job} attempt {attempt} has {len(launch['gpus'])} GPUs")
        report_dir = launch["environ"]["HPCEXT_REPORT_DIR"]
        self._kept(f"{report_dir}/launch.json", f"{report_dir}/supervisor.json")
        self._journal_kept(sooner=True)
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
        # What cannot be saved in time, as the disk is full or it was stopped, is lost.
        # So is what a training without a session did after it had saved, or may lose at any time.
        loses = spec.checkpoint is not None and spec.checkpoint.exits is None
        excused = loses or slow or self._room.faults.disk_failed or job in self._harmed | self.deaf
        if step < self._last.get(job, 0) and not excused:
            self.wrong(
                f"job {job} attempt {attempt} begins after step {step}, did {self._last[job]}, "
                "and nothing was done to it"
            )
        self._harmed.discard(job)
        if job in self._harmed_soon:
            self._harmed_soon.discard(job)
            self._harmed.add(job)
        self._last[job] = step

    def takes(self, job: str, attempt: int, process: Process, launch: Any) -> None:
        """Check that the GPUs of a process belong to nobody else."""
        for gpu in launch.get("holds", launch["gpus"]):
            holders = [each for each in self._gpus[gpu] if not each[0].dead]
            for holder, other_job, other_attempt in holders:
                if (other_job, other_attempt) != (job, attempt):
                    self.wrong(f"{gpu} belongs to jobs {other_job} and {job} at once: {holder!r}")
            self._gpus[gpu] = [*holders, (process, job, attempt)]

    def _due(self, job: str, attempt: int, gpus: int, asked: int) -> bool:
        """Return whether an attempt may have so many GPUs, asked for another number.

        It gets that as soon as they are free, and begins with fewer while others have some.
        """
        return gpus == asked or (gpus < asked and (job, attempt) in self._beside)

    def _others_hold(self, job: str) -> bool:
        """Return whether other jobs have GPUs."""
        others = (each for holders in self._gpus.values() for each in holders if each[1] != job)
        return any(not holder.dead for holder, *_ in others)

    def holds(self, process: Process, launch: Any) -> None:
        """Note a process that holds the GPUs of a training, too."""
        for gpu in launch.get("holds", launch["gpus"]):
            self._gpus[gpu].append((process, launch["job"], launch["attempt"]))

    def did(self, job: str, attempt: int, step: int, process: Process) -> None:
        """Check a step."""
        if self._running.get(job) is not process:
            self.wrong(f"job {job} attempt {attempt} does step {step} beside a later attempt")
        held = self._promised.get(("suspend", job))
        faults = self._room.faults
        calm = not faults.disk_failed and job not in self.deaf
        if held and calm and faults.disturbed_at < held[0]:
            # One that goes on again has dropped what would stop it (SIGTSTP), and is told again.
            since_s = max(held[0], self._began_at[job] + 0.5, faults.stopped_until)
            saves = self._room.specs[int(job) - 1].checkpoint
            obeys_s = self._room.obeys_s + ((saves and saves.after_s) or 0.0)
            if self._room.kernel.now > since_s + obeys_s + 2 * self._room.step_s:
                self.wrong(f"job {job} still trains, suspended by its user at {held[0]:.1f} s")
        if step != self._last[job] + 1:
            self.wrong(f"job {job} does step {step} after step {self._last[job]}")
        self._last[job] = step

    def harmed(self, job: str, *, soon: bool = False) -> None:
        """Note that steps of a job since its last checkpoint may be lost.

        Parameters
        ----------
        job : str
        soon : bool
            Whether they are those of an attempt that is about to begin.
        """
        (self._harmed_soon if soon else self._harmed).add(job)

    def stopped(self, process: Process, seconds: float) -> None:
        """Note that a training is stopped, perhaps for longer than it may take to save itself."""
        job, attempt = (process.environ[f"HPCEXT_{name}"] for name in ("JOB_ID", "ATTEMPT"))
        needs_s = seconds + self._room.obeys_s + 2 * self._room.step_s
        if needs_s > self._room.specs[int(job) - 1].suspend_timeout_s:
            self._slow.add((job, int(attempt)))

    def crashed(self) -> None:
        """Note that the machine lost what was in memory."""
        self._harmed.update(self._last)

    def unusable(self, job: str, why: str) -> None:
        """Check that it is no wonder if a training finds no checkpoint that it can use."""
        if not self._room.faults.disk_failed:
            self.wrong(f"job {job}: {why}")

    def saved(self, job: str, step: int, path: str) -> None:
        """Note a checkpoint that was committed."""
        names = self._room.disk.find(path).entries
        self._kept(path, *(f"{path}/{name}" for name in names))
        self.keeps(job, step)

    def keeps(self, job: str, step: int) -> None:
        """Note that a step is on the disk."""
        self._saved[job] = max(self._saved[job], step)

    def signalled(self, sender: Process, process: Process, signum: int) -> None:
        """Check that nobody else's process is signalled."""
        if process.name == "bystander":
            self.wrong(f"{sender!r} sends signal {signum} to {process!r}, which is not ours")

    def launched(self, directory: str) -> None:
        """Note that a manager has an attempt started."""
        attempt = directory.rpartition("/")[2]
        job, number = attempt_of(directory)
        self._launched[job] = self._room.kernel.now
        self._decided.setdefault((job, number), self._room.kernel.now)
        self._launches[job].add(attempt)
        if self._others_hold(job):
            self._beside.add((job, number))
        if self._room.faults.disk_failed:
            journal = self._room.disk.find(f"{PILOT}/journal.jsonl")
            # What follows the last newline was never written to its end.
            lines = bytes(journal.durable).rpartition(b"\n")[0].splitlines()
            entries = tuple(map(journals._entry.decode, lines[1:]))
            header = journals._header(json.loads(lines[0]))
            known = journals.Past(header, entries, 0, 0).replay().world.jobs.get(job)
            if known is None or known.attempt < number:
                self.wrong(f"job {job} {attempt} begins, and its start is not written down")

    def failing(self, environ: Mapping[str, str]) -> None:
        """Note that a training fails by itself, and check that it was not tried too soon."""
        job, attempt, op = (environ[f"HPCEXT_{name}"] for name in ("JOB_ID", "ATTEMPT", "OP"))
        if (job, attempt) in self._failed:
            return  # on another of its nodes
        self._failed.add((job, attempt))
        if self._room.lacks_a_part(op):
            self.told.add(job)
        now, before = self._room.kernel.now, self._failures[job]
        soon = before and now < before[-1] + 2.0 ** (len(before) - 1)
        if soon and not self._disturbed(job) and not self._room.faults.resumed[job]:
            self.wrong(f"job {job} is tried again {now - before[-1]:.1f} s after it failed")
        before.append(now)

    def supervised(self, directory: str, process: Process, code: int) -> None:
        """Check that the end of an attempt is written down when its supervisor ends."""
        if code not in {71, 75}:
            self._kept(f"{directory}/exit.json")
            self.ended(directory, process, code)

    def ended(self, directory: str, supervisor: Process, code: int) -> None:
        """Check that nothing of an attempt is left on a machine when its supervisor ends."""
        job, number = attempt_of(directory)
        mark = (job, str(number))
        for each in supervisor.machine.processes.values():
            marks = tuple(each.environ.get(f"HPCEXT_{name}", "") for name in ("JOB_ID", "ATTEMPT"))
            if each.name in {"launcher", "training", "daemon"} and marks == mark and not each.dead:
                self.wrong(f"{each!r} is left by {supervisor!r}, which has ended")
        self.losses.supervised(job, number, code)

    def _disturbed(self, job: str) -> bool:
        faults = self._room.faults
        return bool(faults.harm[job] or faults.disk_failed or faults.crashed or job in self.told)

    # What must survive a crash at this moment.

    def _kept(self, *paths: str) -> None:
        disk = self._room.disk
        if not self._room.faults.disk_failed:
            for path in paths:
                if not disk.keeps(path):
                    self.wrong(f"{path} would not survive a loss of power")

    def _journal_kept(self, *, sooner: bool = False, job: str = "") -> None:
        """Check that all that is acted on is on the disk; mere progress need not be.

        Parameters
        ----------
        sooner : bool
            Whether that was decided before: what a manager writes just now is something else.
        job : str
            Of which a request alone is to be there.
        """
        disk = self._room.disk
        if self._room.faults.disk_failed:
            return
        journal = disk.find(f"{PILOT}/journal.jsonl")
        if sooner and journal.mtime > disk._now() - JUST_S:
            return
        written = bytes(journal.data)
        rest = written[len(journal.durable) :].splitlines()
        if not written.startswith(journal.durable) or any(
            fact["type"] not in ({"progressed", "started"} if job else {"progressed"})
            and job in {"", fact.get("job")}
            for line in rest
            for fact in json.loads(line)[1]
        ):
            self.wrong("what is done is not in the journal yet, or not on the disk")

    # What a user was told.

    def promised(self, verb: str, words: dict[str, Any], before: int) -> None:
        """Note that a request was answered; nothing follows if something else was wanted since."""
        # The next request, of another job, may be about to be written down.
        self._journal_kept(job=words["job"])
        if self.wishes[words["job"]] == before:
            self._promised[verb, words["job"]] = (self._room.kernel.now, words)

    def waited(self, since_s: float, what: str) -> None:
        """Check how long a user waited, if nothing was in the way."""
        faults, now = self._room.faults, self._room.kernel.now
        calm = not faults.disk_failed and faults.disturbed_at < since_s - 6
        if calm and now > since_s + ANSWERS_S:
            self.wrong(f"{what} was not answered for {now - since_s:.1f} s")

    def withdrawn(self, verb: str, job: str) -> None:
        """Note that a user wants something else."""
        self.wishes[job] += 1
        self._promised.pop(("suspend" if verb == "resume" else verb, job), None)

    def _obeyed(self, job: str, attempt: int, launch: Any) -> None:
        for verb in ("suspend", "cancel", "resize"):
            at, words = self._promised.get((verb, job), (0.0, {}))
            # What a killed manager has begun the next one begins once more, to suspend it as soon
            # as it can save itself. A cancelled one ends before it trains.
            launched_s = self._launched[job] if verb == "cancel" else self._decided[job, attempt]
            if not words or launched_s < at + self._room.hands_over_s:
                continue
            if verb != "resize":
                self.wrong(f"job {job} attempt {attempt} begins after {verb} at {at:.1f} s")
            elif not self._due(job, attempt, len(launch["gpus"]), words["gpus"]):
                self.wrong(f"job {job} gets {len(launch['gpus'])} GPUs, was to get {words['gpus']}")

    # At the end.

    def over(self, path: str, steps: int) -> None:
        """Check the journal against what happened; called as a process of the user's."""
        from virtual.room import Path

        past = journals.read(Path(path))
        world = self._room.replayed(past)
        left = self._room.left
        if left is not None and not _alike(left, world.save()):
            self.wrong("the journal does not say what its manager believed")
        if len(world.jobs) != self._room.jobs:
            self.wrong(f"there are {len(world.jobs)} jobs, not {self._room.jobs}")
        for job in world.jobs.values():
            if not job.state.final:
                self.wrong(f"job {job.id} is {job.state.value} at the end")
            if job.state is State.COMPLETED and self._last.get(job.id) != steps:
                self.wrong(f"job {job.id} is completed after step {self._last.get(job.id)}")
            faults = self._room.faults
            if self._fails(job):
                continue
            if job.state is State.FAILED and not (
                faults.harm[job.id] > job.retries or faults.disk_failed
            ):
                self.wrong(f"job {job.id} failed, and was harmed {faults.harm[job.id]} times")
            if job.state is State.CANCELLED and job.id not in faults.cancelled:
                self.wrong(f"job {job.id} is cancelled, and nobody asked for it")
        self.losses.over(past.entries, world.records)
        self._left_behind()

    def _fails(self, job: Job) -> bool:
        """Check a job that can only fail; return whether it is one."""
        command = self._room.specs[int(job.id) - 1].command
        times = {"fails": job.retries + 1, "1": 1}.get(command[1])
        if times is None:
            return False
        failures = (
            len(self._failures[job.id]) if command[1] == "fails" else len(self._launches[job.id])
        )
        if job.state is State.CANCELLED and job.id in self._room.faults.cancelled:
            return True
        if job.state is not State.FAILED:
            self.wrong(f"job {job.id} is {job.state.value}, and can only fail")
        elif not self._disturbed(job.id) and not (
            times <= failures <= times * (1 + self._room.faults.resumed[job.id])
        ):
            self.wrong(f"job {job.id} was tried {failures} times, not {times}")
        return True

    def _left_behind(self) -> None:
        for process in self._room.processes():
            names = {"supervisor", "launcher", "training", "daemon", "manager"}
            ours = process.name in names
            # A second supervisor that has yet to begin will find that it is not wanted.
            if ours and not process.dead and process not in self._room.starting:
                self.wrong(f"{process!r} is left")


def _alike(one: Any, other: Any) -> bool:
    texts = [msgspec.json.encode(each) for each in (one, other)]
    return texts[0] == texts[1] or json.loads(texts[0]) == json.loads(texts[1])
