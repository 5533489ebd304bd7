"""How a run looks to a person: a live table on a terminal, plain lines on a pipe, a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcext.cli.output import Output
from hpcext.core.engine import Engine
from hpcext.core.saving import Loss, loss_sentence, lost, said
from hpcext.core.values import Job, Record, State, total
from hpcext.manager.report import busy_fraction, display_state, makespan, outlook_of, worth_of
from hpcext.text import are, counted

COLUMNS = ("id", "job", "state", "role", "GPUs", "progress", "metric", "left", "goodput")
MOST_TOLD = 20
"""Jobs whose failures are told one by one."""

SUMMARY = ("id", "job", "state", "time", "suspends", "lost steps", "metric")


def duration(seconds: float) -> str:
    """A length of time in the largest two units that matter."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"


def indices(gpus: Sequence[str]) -> str:
    """``HOST:0, HOST:1`` as ``0,1``; of several hosts how many they are."""
    hosts = len({gpu.rpartition(":")[0] for gpu in gpus})
    if hosts > 1:
        return f"{len(gpus)} on {hosts} nodes"
    return ",".join(gpu.rpartition(":")[2] for gpu in gpus)


def progress(job: Job) -> str:
    """Work done of the work to do, or steps where that is not stated."""
    estimate = job.estimate
    if job.state is State.COMPLETED:
        return f"step {job.step}" if job.step else "done"
    if estimate.work:
        return f"{min(1.0, estimate.done / estimate.work):.0%} (step {job.step})"
    return f"step {job.step}" if job.step else ""


def metric(record: Record) -> str:
    """The metric that says most: whatever is not the loss, else the loss."""
    others = {name: value for name, value in record.metrics.items() if name != "loss"}
    shown = others or dict(record.metrics)
    return ", ".join(f"{name} {value:.4g}" for name, value in list(shown.items())[:2])


def left(job: Job) -> str:
    """Time left at the speed of late, where it can be known."""
    if job.state is not State.RUNNING:
        return ""
    seconds = job.estimate.left_s(total(job.held))
    return "" if seconds is None else duration(seconds)


def goodput(job: Job) -> str:
    """How a job that reports its goodput gets on, in short."""
    found = worth_of(job)
    if found is None:
        return ""
    return f"{found.goodput:.4g}/s, batch {found.batch} ({found.efficiency:.0%})"


def goodput_sentence(job: Job) -> str:
    """The same at length, with what one more GPU promises; empty for other jobs."""
    found = worth_of(job)
    if found is None:
        return ""
    said = job.estimate.goodput
    first = said.initial_batch if said else found.batch
    return (
        f"goodput {found.goodput:.4g} samples/s: batches of {found.batch}, a sample in them worth "
        f"{found.efficiency:.0%} of one in batches of {first}; "
        f"one more GPU promises {found.gain:+.0%}"
    )


def why(job: Job, record: Record) -> list[str]:
    """Why a job waits, or runs as it does; what it lost last; what its training says."""
    reason = f": {job.reason}" if job.reason else ""
    loss = loss_sentence(record.loss) if record.loss and not job.done else ""
    sentences = (f"{job.name} is {display_state(job)}{reason}", loss, goodput_sentence(job))
    return [*filter(None, sentences), *map(warning, record.notes)]


def warning(note: str) -> str:
    """What a training says, as a line about its job has it."""
    return f"warning: {note}"


def unsaved(jobs: Iterable[Job]) -> list[str]:
    """A line for each job that cannot save."""
    return [f"{job.name} {told}" for job in jobs if (told := said(job))]


def outlook_sentence(engine: Engine) -> str:
    """How well nodes are used, where jobs report their goodput; empty without such."""
    found = outlook_of(engine.world)
    if found is None:
        return ""
    return (
        f"utility {found.utility:.0%}: so much does a GPU of all these do, of one alone; "
        f"one more node promises {found.gain:+.0%}"
    )


def rows(engine: Engine) -> list[tuple[str, ...]]:
    """The table of jobs, in the order of :data:`COLUMNS`."""
    return [
        (
            job.id,
            job.name,
            display_state(job) + (", cannot save" if said(job) else ""),
            job.role.value if job.role and job.state.active else "",
            indices(job.gpus),
            progress(job),
            metric(engine.world.records[job.id]),
            left(job),
            goodput(job),
        )
        for job in engine.world.jobs.values()
    ]


def summary(out: Output, engine: Engine, now_s: float) -> None:
    """What came of the run."""
    world = engine.world
    table = []
    for job in world.jobs.values():
        record = world.records[job.id]
        took = sum((part.end_s or now_s) - part.start_s for part in record.segments)
        shown = (display_state(job), duration(took), str(record.suspends), lost(record))
        table.append((job.id, job.name, *shown, metric(record)))
    out.table(SUMMARY, table)
    span_s = makespan(world, now_s)
    busy = busy_fraction(world, span_s)
    out.line(f"{duration(span_s)} in all; GPUs were held {busy:.0%} of the time")
    told_of_failures(out, world.jobs.values())


def told_of_failures(out: Output, jobs: Iterable[Job]) -> None:
    """Say why jobs failed; of many, of the last ones."""
    ended = [job for job in jobs if job.state in {State.FAILED, State.CANCELLED}]
    if len(ended) > MOST_TOLD:
        out.line(f"{len(ended)} jobs failed or were cancelled; the last ones:")
    for job in ended[-MOST_TOLD:]:
        out.line(f"{job.name}: {job.why}")


def ending(engine: Engine) -> str:
    """What a manager that was told to end waits for; empty where that is nothing."""
    left = [job for job in engine.world.jobs.values() if job.state.active]
    if not left:
        return ""
    most_s = max(job.suspend_timeout_s for job in left)
    jobs = f"{counted(len(left), 'job')} {are(len(left))}"
    says = f"ends when {jobs} suspended, in {duration(most_s)} at most; told again, at once"
    return "\n".join([says, *unsaved(left)])


class Narrator:
    """Says what changed since it was last asked, an event at a time."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._told: dict[str, str] = {}
        self._losses: dict[str, Loss] = {}
        self._since_s: float | None = None
        self._noted: set[tuple[str, str]] = set()

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Tell what is new."""
        self._since_s = now_s if self._since_s is None else self._since_s
        for job in engine.world.jobs.values():
            self._tell_loss(job, engine.world.records[job.id], now_s)
            text = self._text(job)
            if self._told.get(job.id) != text:
                self._told[job.id] = text
                self._out.event(now_s, job.name, display_state(job), text)
        self.warn(engine, now_s)

    def warn(self, engine: Engine, now_s: float) -> None:
        """Tell what trainings say that their user should know, each sentence once."""
        for job in engine.world.jobs.values():
            for note in engine.world.records[job.id].notes:
                if (job.id, note) not in self._noted:
                    self._noted.add((job.id, note))
                    self._out.event(now_s, job.name, "warning", warning(note))

    def _tell_loss(self, job: Job, record: Record, now_s: float) -> None:
        """Say what the end of an attempt has cost, once."""
        loss = record.loss
        if loss is None or loss == self._losses.get(job.id) or loss.at_s < (self._since_s or 0.0):
            return
        self._losses[job.id] = loss
        self._out.event(now_s, job.name, display_state(job), loss_sentence(loss))

    @staticmethod
    def _text(job: Job) -> str:
        if job.state is State.RUNNING and job.role:
            where = indices(job.gpus)
            which = where if where.endswith("nodes") else f"GPUs {where}"
            return f"running on {which} ({job.role.value}): {job.reason}"
        if job.state in {State.STARTING, State.STOPPING}:
            return f"{job.state.value}: {said(job)}" if job.unsaved else str(job.state.value)
        return f"{display_state(job)}: {job.reason}" if job.reason else display_state(job)
