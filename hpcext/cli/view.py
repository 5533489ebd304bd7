"""How a run looks to a person: a live table on a terminal, plain lines on a pipe, a summary."""

from __future__ import annotations

from collections.abc import Sequence

from hpcext.cli.output import Output
from hpcext.core.engine import Engine
from hpcext.core.values import Job, Record, State, total
from hpcext.manager.report import busy_fraction, display_state, makespan, outlook_of, worth_of
from hpcext.text import are, counted

COLUMNS = ("id", "job", "state", "role", "GPUs", "progress", "metric", "left", "goodput")
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


def why(job: Job) -> list[str]:
    """Why a job waits, or runs as it does; and how it gets on, if it adapts its batch."""
    reason = f": {job.why}" if job.why else ""
    sentence = goodput_sentence(job)
    return [f"{job.name} is {display_state(job)}{reason}", *([sentence] if sentence else [])]


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
            display_state(job),
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
        shown = (display_state(job), duration(took), str(record.suspends), str(record.lost_steps))
        table.append((job.id, job.name, *shown, metric(record)))
    out.table(SUMMARY, table)
    span_s = makespan(world, now_s)
    busy = busy_fraction(world, span_s)
    out.line(f"{duration(span_s)} in all; GPUs were held {busy:.0%} of the time")
    for job in world.jobs.values():
        if job.state in {State.FAILED, State.CANCELLED}:
            out.line(f"{job.name}: {job.why}")


def ending(engine: Engine) -> str:
    """What a manager that was told to end waits for; empty where that is nothing."""
    left = [job for job in engine.world.jobs.values() if job.state.active]
    if not left:
        return ""
    most_s = max(job.suspend_timeout_s for job in left)
    jobs = f"{counted(len(left), 'job')} {are(len(left))}"
    return f"ends when {jobs} suspended, in {duration(most_s)} at most; told again, at once"


class Narrator:
    """Says what changed since it was last asked, an event at a time."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._told: dict[str, str] = {}

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Tell what is new."""
        for job in engine.world.jobs.values():
            text = self._text(job)
            if self._told.get(job.id) != text:
                self._told[job.id] = text
                self._out.event(now_s, job.name, display_state(job), text)

    @staticmethod
    def _text(job: Job) -> str:
        if job.state is State.RUNNING and job.role:
            where = indices(job.gpus)
            which = where if where.endswith("nodes") else f"GPUs {where}"
            return f"running on {which} ({job.role.value}): {job.why}"
        if job.state in {State.STARTING, State.STOPPING}:
            return str(job.state.value)
        return f"{display_state(job)}: {job.why}" if job.why else display_state(job)
