"""Whether a draw lost anything, by the jobs' own account."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plan import Job, Plan
from written import whole_lines

SAMPLES = 48
NOT_SAVED = 74
"""Exit code of a training that was to suspend and could not save."""

Line = dict[str, Any]

_NAME = re.compile(r"step-(\d+)\.attempt-(\d+)(?:\.(\d+))?$")


class LostError(AssertionError):
    """Something that must hold does not."""


@dataclasses.dataclass
class Facts:
    """What was done to a draw, as far as it bears on the judgement.

    Attributes
    ----------
    damaged : dict
        Job → names of checkpoints that were damaged, and when.
    cancelled : dict
        Job → when its cancellation was acknowledged. It may have been complete by then.
    full : bool
        Some checkpoints could not be written, because a disk was full.
    states : dict
        Job → what became of it.
    hits : dict
        Job → when something was done that ends an attempt, in seconds since the epoch.
    """

    damaged: dict[str, dict[str, float]] = dataclasses.field(
        default_factory=lambda: defaultdict(dict)
    )
    cancelled: dict[str, float] = dataclasses.field(default_factory=dict)
    full: bool = False
    states: dict[str, str] = dataclasses.field(default_factory=dict)
    hits: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))


def judge(plan: Plan, accounts: Path, facts: Facts) -> None:
    """Raise LostError if anything was lost, done twice, or shared."""
    all_lines = {job.name: read(accounts / f"{job.name}.account") for job in plan.jobs}
    for job in plan.jobs:
        try:
            Account(job, all_lines[job.name], facts).check()
        except LostError as error:
            raise LostError(f"{job.name}: {error}") from None
    check_gpus(plan, all_lines)


def judge_exits(jobs: Path, ids: dict[str, str], facts: Facts) -> None:
    """Raise LostError if an attempt failed to which nothing was done."""
    for name, job in ids.items():
        for path in sorted((jobs / job).glob("attempt-*/exit.json")):
            ended = json.loads(path.read_bytes())
            # Told to end: it did not answer a suspension in time, as on a slow machine.
            if ended["exit_code"] in {0, NOT_SAVED} or ended["kill_asked_at"] is not None:
                continue
            begin, end = ended["started_at"], ended["main_ended_at"]
            if not any(begin <= hit <= end for hit in facts.hits[name]):
                code = ended["exit_code"]
                raise LostError(f"{name}: {path.parent.name} ended by itself with exit code {code}")


def read(path: Path) -> list[Line]:
    """All lines of an account, as they were written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in whole_lines(path)]


def _key(name: str) -> tuple[int, int, int]:
    """Of two checkpoints the newer one has the larger key: attempt, step, serial."""
    match = _NAME.match(name)
    if match is None:
        return 0, 0, 0
    step, attempt, serial = (int(part or 0) for part in match.groups())
    return attempt, step, serial


def _newest(names: Iterable[str]) -> str:
    return max(names, key=_key, default="")


class Account:
    """That of one job, read attempt by attempt.

    Attributes
    ----------
    kept : dict
        Step → its lines, one for each rank; without those that were done in vain.
    done : int
        The last step of the attempt before.
    safe : int
        The newest step that a job without checkpoints of ours said to be safe.
    suspended : int or None
        Where the attempt before acknowledged a suspension.
    newest : str
        The newest checkpoint that was ever seen.
    """

    def __init__(self, job: Job, lines: list[Line], facts: Facts) -> None:
        self.job = job
        self.lines = lines
        self.facts = facts
        self.damaged = facts.damaged.get(job.name, {})
        self.attempts: dict[int, list[Line]] = defaultdict(list)
        for line in lines:
            self.attempts[line["attempt"]].append(line)
        self.kept: dict[int, list[Line]] = {}
        self.done = self.safe = 0
        self.suspended: int | None = None
        self.newest = ""

    def check(self) -> None:
        """Raise LostError if something is wrong."""
        self._check_order()
        self._check_cancelled()
        for number, lines in sorted(self.attempts.items()):
            resumed = self._resumed(number, lines)
            if resumed is not None:
                self._check_resumed(f"attempt {number} began after step {resumed}", resumed, lines)
                self.kept = {at: those for at, those in self.kept.items() if at <= resumed}
            self._follow(number, lines)
        self._check_samples()
        self._check_end()

    def _check_order(self) -> None:
        """No two attempts at the same time, and none of them twice at once."""
        latest = 0
        for line in sorted(self.lines, key=lambda line: line["t"]):
            if line["attempt"] < latest:
                raise LostError(f"attempt {line['attempt']} went on beside attempt {latest}")
            latest = line["attempt"]
        for number, lines in self.attempts.items():
            began = {(line["rank"], line["pid"]) for line in _first(lines)}
            if max(Counter(rank for rank, _ in began).values(), default=0) > 1:
                raise LostError(f"attempt {number} ran twice: {sorted(began)}")

    def _check_cancelled(self) -> None:
        after = self.facts.cancelled.get(self.job.name, float("inf"))
        begun = (line for line in self.lines if line["event"] == "begin")
        late = {line["attempt"] for line in begun if line["t"] > after}
        # One may have been on its way.
        if len(late) > 1:
            raise LostError(f"was cancelled, and then began attempts {sorted(late)}")

    def _resumed(self, number: int, lines: list[Line]) -> int | None:
        """After which step an attempt went on; None if it did not come so far."""
        steps = {line["step"] for line in _first(lines)}
        if len(steps) > 1:
            raise LostError(f"attempt {number}: ranks began after steps {sorted(steps)}")
        return steps.pop() if steps else None

    def _check_resumed(self, what: str, step: int, lines: list[Line]) -> None:
        """It goes on from the newest checkpoint that is whole, and no other one is gone."""
        damaged = [name for name, t in self.damaged.items() if t < lines[0]["t"]]
        found = _newest(set(lines[0]["found"]).difference(damaged))
        if found and step != _key(found)[1]:
            raise LostError(f"{what}, not from {found}")
        if step > self.done:
            raise LostError(f"{what}, of {self.done} that were done")
        if any(not self.newest or _key(self.newest) <= _key(name) for name in damaged):
            if not found:
                raise LostError(f"{what}: the checkpoint before a damaged one is gone")
            # The one before is all that it can have.
            return
        if self.newest and (not found or _key(found) < _key(self.newest)):
            raise LostError(f"{what}: {self.newest} is gone, the newest is {found}")
        if step < self.safe:
            raise LostError(f"{what}; {self.safe} was safe")
        if self.suspended is not None and step != self.suspended:
            raise LostError(f"{what}; it was suspended at {self.suspended}")
        if not self.facts.full and step < self._due():
            every = self.job.save_every
            raise LostError(f"{what}; {self.done} was done, and every {every} are saved")

    def _due(self) -> int:
        """The checkpoint that must be there when so many steps were done."""
        every = self.job.save_every
        # Killed between its account of a step and the checkpoint there: one earlier. And one
        # that is written beside the training is there when the next one begins.
        due = (self.done - 1) // every * every
        return max(0, due - every if self.job.staging else due)

    def _follow(self, number: int, lines: list[Line]) -> None:
        """Take in what an attempt did; steps must follow each other on each rank."""
        last: dict[int, int] = {}
        self.suspended = None
        for line in lines:
            event, pid = line["event"], line["pid"]
            if event == "step":
                step = line["step"]
                if step != last.get(pid, step - 1) + 1:
                    raise LostError(f"attempt {number}: step {step} came after {last[pid]}")
                last[pid] = step
                self.kept.setdefault(step, []).append(line)
            elif event == "saved":
                self.safe = max(self.safe, line["step"])
            elif event == "suspended":
                self.suspended = line["step"]
            elif event in {"begin", "there"}:
                self.newest = _newest([*filter(None, [self.newest]), *line["found"]])
        self.done = max(last.values(), default=self.done)

    def _check_samples(self) -> None:
        """No sample of an epoch was trained twice, by what counts."""
        for epoch, rows in self._by_epoch().items():
            twice = sorted(row for row, times in rows.items() if times > 1)
            if twice:
                raise LostError(f"epoch {epoch}: samples {twice} were trained twice")

    def _check_end(self) -> None:
        """All steps, each by every rank, with the state that they lead to."""
        state = self.facts.states.get(self.job.name)
        if state == "cancelled" and self.job.name in self.facts.cancelled:
            return
        if state != "completed":
            raise LostError(f"is {state}")
        ends = [line for line in self.lines if line["event"] == "end" and line["rank"] == 0]
        if not ends:
            raise LostError("never said that it was done")
        if "found" in ends[-1] and _key(_newest(ends[-1]["found"]))[1] != self.job.steps:
            raise LostError(f"is completed, and the last that it kept is {ends[-1]['found']}")
        missing = sorted(set(range(1, self.job.steps + 1)).symmetric_difference(self.kept))
        if missing:
            raise LostError(f"steps {missing[:10]} of {self.job.steps} were lost")
        for epoch, rows in self._by_epoch().items():
            if sorted(rows) != list(range(SAMPLES)):
                raise LostError(f"epoch {epoch}: only {len(rows)} of {SAMPLES} samples")
        total = 0
        for step, lines in sorted(self.kept.items()):
            size = lines[0]["size"]
            ranks = sorted(line["rank"] for line in lines)
            if ranks != list(range(size)):
                raise LostError(f"step {step} was trained by ranks {ranks} of {size}")
            total += sum(row for line in lines for row in line["rows"])
            if any(abs(line["sum"] - total) > 1e-6 for line in lines):
                raise LostError(f"step {step}: the state is {lines[0]['sum']}, not {total}")

    def _by_epoch(self) -> dict[int, Counter[int]]:
        epochs: dict[int, Counter[int]] = defaultdict(Counter)
        for lines in self.kept.values():
            for line in lines:
                epochs[line["epoch"]].update(line["rows"])
        return epochs


def _first(lines: list[Line]) -> list[Line]:
    """What the ranks say that an attempt began with."""
    return [line for line in lines if line["event"] == "resumed" and not line.get("joins")]


@dataclasses.dataclass(frozen=True)
class Hold:
    """A process that had GPUs."""

    begin: float
    end: float
    gpus: frozenset[str]
    job: str
    attempt: int
    kind: str


def check_gpus(plan: Plan, accounts: dict[str, list[Line]]) -> None:
    """No GPU was used by two processes at once that do not share it by right."""
    holds = []
    for job in plan.jobs:
        by_pid: dict[tuple[int, int], list[Line]] = defaultdict(list)
        for line in accounts[job.name]:
            by_pid[line["attempt"], line["pid"]].append(line)
        for (attempt, _), lines in by_pid.items():
            gpus = frozenset(lines[0]["gpus"])
            holds.append(Hold(lines[0]["t"], lines[-1]["t"], gpus, job.name, attempt, job.kind))
    holds.sort(key=lambda hold: hold.begin)
    for index, one in enumerate(holds):
        for other in holds[index + 1 :]:
            if other.begin >= one.end:
                break
            together = (one.job, one.attempt) == (other.job, other.attempt)
            # The ranks of torchrun see all GPUs of their job.
            if one.gpus & other.gpus and not (together and one.kind == "workers"):
                raise LostError(f"{one} and {other} share a GPU")
