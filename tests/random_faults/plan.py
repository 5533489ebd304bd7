"""What happens in a draw: jobs and faults, drawn from its seed alone."""

from __future__ import annotations

import dataclasses
import random

GPUS = 6
STEPS_OF_EPOCH = 4
TORCH = {9: "elastic", 29: "workers"}
"""Seeds modulo 40 whose draws have a PyTorch job: each costs many seconds of processor time."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One job of a draw.

    Attributes
    ----------
    name : str
    kind : {"count", "ranks", "arrays", "elastic", "workers"}
        Its script, see the folder ``jobs``.
    epochs : int
        Of four steps each.
    step_s : float
    save_every : int
        Steps.
    gpus : tuple of int
        Least, most, best.
    timeout_s : float
        ``suspend_timeout_s``.
    staging : bool
    after : str
        A job that must complete first; empty: none.
    """

    name: str
    kind: str
    epochs: int
    step_s: float
    save_every: int
    gpus: tuple[int, int, int]
    timeout_s: float
    staging: bool = False
    after: str = ""

    @property
    def steps(self) -> int:
        return STEPS_OF_EPOCH * self.epochs

    def __str__(self) -> str:
        low, high, best = self.gpus
        more = f", after {self.after}" if self.after else ""
        return (
            f"{self.name}: {self.kind}, {self.steps} steps of {self.step_s:g} s, saved every "
            f"{self.save_every}{' beside the training' if self.staging else ''}, {low} to {high} "
            f"GPUs (best {best}), suspend timeout {self.timeout_s:g} s{more}"
        )


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that is done to a draw.

    Attributes
    ----------
    kind : str
        A method of :class:`hands.Hands`.
    lines, delay_s : int, float
        It comes when the jobs have written so many lines more in their accounts, and then so much
        later.
    job : str
    depth : int
        Whom of the job: 0 its supervisor, 1 the command, 2 a rank of it, 3 a worker of a rank;
        where nothing is so deep, the deepest.
    pick : float
        Which of those, from 0 to 1.
    hold_s : float
        How long it lasts.
    number : int
        GPUs to have, bytes to leave, which byte to flip, seconds that a clock jumps.
    again : bool
        Once more, in the midst of what the first one causes.
    """

    kind: str
    lines: int
    delay_s: float
    job: str = ""
    depth: int = 0
    pick: float = 0.0
    hold_s: float = 0.0
    number: int = 0
    again: bool = False

    def __str__(self) -> str:
        when = f"{self.lines} lines" if self.lines else "at once"
        parts = [f"{when} + {self.delay_s:.3f} s: {self.kind}"]
        if self.job:
            parts.append(self.job)
        if self.kind in {"kill", "stall"}:
            who = ("supervisor", "command", "rank", "worker")[self.depth]
            parts.append(f"{who} (pick {self.pick:.2f})")
        if self.number:
            parts.append(str(self.number))
        if self.hold_s:
            parts.append(f"for {self.hold_s:.2f} s")
        if self.again:
            parts.append("and again")
        return " ".join(parts)


@dataclasses.dataclass(frozen=True)
class Plan:
    """All of a draw."""

    seed: int
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...]
    small_disk: bool

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {GPUS} GPUs{', small disk' if self.small_disk else ''}"]
        lines += [f"  {job}" for job in self.jobs]
        lines += [f"  {number}. {fault}" for number, fault in enumerate(self.faults, start=1)]
        return "\n".join(lines)


def draw(seed: int) -> Plan:
    """The plan of a seed; always the same."""
    rng = random.Random(f"draw {seed}")
    torch = TORCH.get(seed % 40)
    small_disk = torch is None and rng.random() < 0.25
    jobs = [_torch_job(rng, torch)] if torch else []
    jobs += [
        _job(rng, number) for number in range(rng.randint(1, 2) if torch else rng.randint(2, 4))
    ]
    last, first = jobs[-1], jobs[0]
    cancelled = rng.choice([job.name for job in jobs]) if rng.random() < 0.15 else ""
    if len(jobs) > 2 and first.name != cancelled and rng.random() < 0.3:
        jobs[-1] = dataclasses.replace(last, after=first.name)
    count = rng.randint(2, 3) if torch else rng.randint(3, 8)
    faults = [_fault(rng, jobs, small_disk=small_disk) for _ in range(count)]
    if rng.random() < 0.9:
        # Else it comes when nothing runs yet.
        faults[0] = dataclasses.replace(faults[0], lines=max(1, faults[0].lines))
    if cancelled:
        faults.insert(rng.randint(0, count), _at(rng, "cancel", job=cancelled))
    return Plan(seed, tuple(jobs), tuple(faults), small_disk)


def _gpus(rng: random.Random) -> tuple[int, int, int]:
    low = rng.choice([1, 1, 1, 2])
    high = rng.randint(low, 4) if rng.random() < 0.3 else rng.randint(3, 4)
    return low, high, rng.randint(low, high)


def _job(rng: random.Random, number: int) -> Job:
    kind = rng.choice(["count", "ranks", "ranks", "ranks", "arrays", "arrays"])
    return Job(
        name=f"{kind}{number}",
        kind=kind,
        epochs=rng.randint(10, 24),
        step_s=round(rng.uniform(0.02, 0.06), 3),
        save_every=rng.choice([3, 5, 8]),
        gpus=(1, 4, rng.randint(1, 4)) if kind == "ranks" else _gpus(rng),
        timeout_s=round(rng.uniform(1.5, 5.0), 1),
        staging=kind == "arrays" and rng.random() < 0.5,
    )


def _torch_job(rng: random.Random, kind: str) -> Job:
    return Job(
        name=kind,
        kind=kind,
        epochs=rng.randint(20, 30),
        step_s=0.05,
        save_every=rng.choice([3, 8]),
        gpus=(1, 3, 2) if kind == "elastic" else (2, 2, 2),
        timeout_s=20.0,
        staging=True,
    )


def _at(rng: random.Random, kind: str, **facts: object) -> Fault:
    """A fault at a random instant; two of five at once after the one before."""
    lines = 0 if rng.random() < 0.4 else rng.randint(1, 60)
    delay_s = rng.choice([0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5)])
    return Fault(kind, lines, round(delay_s, 3), **facts)  # type: ignore[arg-type]


_KINDS = {
    "kill": 6,
    "kill-manager": 4,
    "ask-and-kill-manager": 2,
    "stop-manager": 2,
    "stall": 3,
    "stall-manager": 1,
    "suspend": 4,
    "resize": 10,
    "jump": 2,
    "small-files": 1,
}


def _fault(rng: random.Random, jobs: list[Job], *, small_disk: bool) -> Fault:
    with_checkpoints = [job for job in jobs if job.kind not in {"count", "ranks"}]
    kinds = {**_KINDS, "fill": 8 * small_disk, "damage": 3 * bool(with_checkpoints)}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    job = rng.choice(jobs)
    short_s = round(rng.uniform(0.05, 1.0), 2)
    facts: dict[str, object] = {"job": job.name, "hold_s": short_s}
    if kind in {"kill", "stall"}:
        facts.update(depth=rng.choice([0, 1, 2, 2, 2, 3, 3]), pick=round(rng.random(), 2))
    if kind == "kill":
        del facts["hold_s"]
    elif kind == "stall":
        # Half of them until after the suspension that is asked meanwhile is overdue.
        long_s = round(job.timeout_s + rng.uniform(0.2, 1.5), 2)
        long = rng.random() < 0.5 and job.kind not in TORCH.values()
        facts.update(hold_s=long_s if long else short_s, again=rng.random() < 0.5)
    elif kind in {"kill-manager", "stop-manager", "stall-manager"}:
        facts = {"hold_s": short_s, "again": rng.random() < 0.4}
    elif kind in {"resize", "ask-and-kill-manager"}:
        low, high, best = job.gpus
        others = [size for size in range(low, high + 1) if size != best] or [best]
        # Again: back to the best size, while the first change is under way or just done.
        facts.update(number=rng.choice(others), again=rng.random() < 0.5)
    elif kind == "damage":
        job = rng.choice(with_checkpoints)
        facts = {"job": job.name, "number": rng.randint(1, 1 << 30), "again": rng.random() < 0.5}
    elif kind == "jump":
        facts = {"number": rng.choice([-86400, -60, -2, 2, 60, 86400])}
    elif kind == "fill":
        number = rng.choice([0, 0, 0, 5000, 100_000])
        facts = {"number": number, "hold_s": round(3 * short_s, 2)}
    return _at(rng, kind, **facts)
