"""What trainings without a session have saved and lost by their own word, and what is told."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from hpcext.core.facts import Ended, Outcome
from hpcext.protocol import EXIT_SUSPENDED

if TYPE_CHECKING:
    from virtual.kernel import Process
    from virtual.room import Room

CLOSE_S = 0.25
"""How far an account may be from what was: what starts or ends a process takes a moment."""


class Attempt:
    """One attempt, as its training tells it.

    Attributes
    ----------
    process : Process
    began_s : float
    skew_s : float
        Of the clock, as it began.
    whole_s : float or None
        When its newest checkpoint was whole.
    writes, in_place : bool
        Whether it is writing a checkpoint, and whether under its own name.
    could_not : bool
        Whether it could not write the last one, or not know that it has.
    """

    def __init__(self, process: Process, began_s: float, skew_s: float) -> None:
        self.process, self.began_s, self.skew_s = process, began_s, skew_s
        self.whole_s: float | None = None
        self.writes = self.in_place = self.could_not = False


class Losses:
    """The accounts of one room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._asked: dict[Process, float] = {}
        room.kernel.looks_at_signals.append(self._signalled)

    def __bool__(self) -> bool:
        return bool(self._attempts)

    def _now(self) -> float:
        return self._room.kernel.now

    def _of(self, process: Process) -> Attempt:
        environ = process.environ
        return self._attempts[environ["HPCEXT_JOB_ID"], int(environ["HPCEXT_ATTEMPT"])]

    def _signalled(self, sender: Process, process: Process, signum: int) -> None:
        if sender.name != "supervisor" or process.name != "training":
            return
        job = process.environ["HPCEXT_JOB_ID"]
        saves = self._room.specs[int(job) - 1].checkpoint
        if saves is None or saves.signal != signal.Signals(signum).name:
            return
        # SIGTERM also tells it to end.
        if process in self._asked and signum != signal.SIGTERM:
            self._room.checks.wrong(f"job {job}: {process!r} is asked to save more than once")
        self._asked.setdefault(process, self._now())

    # What a training says.

    def began(self, process: Process, launch: Any) -> None:
        """Note the begin of an attempt."""
        job, number = launch["job"], launch["attempt"]
        self._numbers[job, launch["op"]] = number
        self._attempts[job, number] = Attempt(process, process.began_s, process.machine.skew_s)

    def writes(self, process: Process, *, in_place: bool) -> None:
        """Note that it begins to write a checkpoint."""
        found = self._of(process)
        found.writes, found.in_place = True, in_place

    def written(self, process: Process, *, whole: bool) -> None:
        """Note that it has written one, or could not."""
        found = self._of(process)
        found.writes, found.could_not = False, not whole
        if whole:
            found.whole_s = self._now()

    # What hpcext says of it.

    def supervised(self, job: str, number: int, code: int) -> None:
        """Check an attempt that counts as suspended: it has saved, and no process is left."""
        found = self._attempts.get((job, number))
        if code != EXIT_SUSPENDED or found is None:
            return
        saves = self._room.specs[int(job) - 1].checkpoint
        assert saves is not None
        what = f"job {job} attempt {number} counts as suspended"
        if found.writes and found.in_place and saves.file:
            self._room.checks.wrong(f"{what}, and was ended while it wrote a checkpoint")
        asked_s = self._asked.get(found.process)
        says = saves.exits or not (saves.exits == () or saves.plain)
        late = found.whole_s is None or (asked_s is not None and found.whole_s < asked_s)
        # What is ended as it writes may have written all of it.
        if says and late and not found.writes:
            self._room.checks.wrong(f"{what}, and has not saved since it was asked")

    def over(self, entries: Any, records: Any) -> None:
        """Check what was told of each attempt's loss; called at the end."""
        told_s: dict[str, float] = {}
        for entry in entries:
            for fact in entry.facts:
                if isinstance(fact, Ended) and fact.lost_s is not None:
                    self._told(fact)
                    if fact.outcome is not Outcome.COMPLETED:
                        told_s[fact.job] = told_s.get(fact.job, 0.0) + fact.lost_s
        for job, seconds in told_s.items():
            if records[job].lost_s < seconds - CLOSE_S:
                self._room.checks.wrong(
                    f"job {job} lost {seconds:.1f} s, of which {records[job].lost_s:.1f} s count"
                )

    def _told(self, fact: Ended) -> None:
        found = self._attempts.get((fact.job, self._numbers.get((fact.job, fact.op), 0)))
        if found is None or found.process.ended_s is None or fact.outcome is Outcome.COMPLETED:
            return
        told_s, ended_s = fact.lost_s or 0.0, found.process.ended_s
        ran_s = ended_s - found.began_s
        true_s = ran_s if found.whole_s is None else ended_s - found.whole_s
        what = f"job {fact.job} op {fact.op} lost {true_s:.2f} s, and {told_s:.2f} s are told"
        # A file may be dated by the clock of its server.
        close_s = CLOSE_S + abs(found.skew_s)
        set_meanwhile = found.skew_s != found.process.machine.skew_s
        if told_s > ran_s + CLOSE_S:
            self._room.checks.wrong(f"{what}; it ran for {ran_s:.2f} s")
        # The age of a checkpoint is unknown where the clock was set. One that dies as it writes may
        # have written all of it, or not; so may one whose disk failed at the very end.
        elif set_meanwhile or found.writes or found.could_not:
            return
        elif told_s < true_s - close_s:
            self._room.checks.wrong(what)
        elif fact.lost_exact and told_s > true_s + close_s:
            self._room.checks.wrong(f"{what}, as if that were known")


def attempt_of(directory: str) -> tuple[str, int]:
    """Return the job and the number of an attempt, by its directory."""
    job, attempt = directory.split("/")[-2:]
    return job, int(attempt.rpartition("-")[2])
