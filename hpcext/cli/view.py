"""Jobs as text for a person: rows of tables, sentences, and the summary of a run."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Sequence

from hpcext.cli.output import Output
from hpcext.core import silence
from hpcext.core.engine import Engine
from hpcext.core.history.node_time import NodeTime, Use
from hpcext.core.reasons import reason
from hpcext.core.saving import (
    counted_lost,
    counted_lost_s,
    has_lost,
    loss_sentence,
    lost,
    lost_exactly,
    orphans,
    said,
)
from hpcext.core.values import Job, Record, State, total
from hpcext.core.world import World
from hpcext.executors.seats import machine_of
from hpcext.manager.views.report import (
    busy_fraction,
    chief,
    display_state,
    makespan,
    outlook_of,
    worth_of,
)
from hpcext.numerals import whole
from hpcext.policies.common import BEHIND
from hpcext.render.words import duration
from hpcext.text import are, counted, listed

COLUMNS = ("id", "job", "state", "role", "GPUs", "progress", "metric", "left", "goodput")
MOST_HOSTS = 2
"""The largest number of a job's hosts whose GPUs are named in a table."""

NOTICEABLE_S = 1.0
"""The shortest time without a manager that is told."""

MOST_TOLD = 20
"""The largest number of failed jobs that have a line each."""

MOST_SUMMED = 100
"""The largest number of jobs that have a line each in the summary of a run."""

MOST_BEFORE = 3
"""The largest number of jobs that are named of those that a job waits behind."""

SUMMARY = ("id", "job", "state", "time", "suspends", "lost steps", "metric")


def gpu_names(gpus: Sequence[str], *, named: bool = True) -> str:
    """Shorten names of GPUs: ``HOST:0, HOST:1, HOST:2`` to ``HOST:0-2``; keep the first two hosts.

    Parameters
    ----------
    gpus : sequence of str
    named : bool
        Whether to name a single host.

    Examples
    --------
    >>> gpu_names(["n1:0", "n1:1", "n1:3", "n2:0"]), gpu_names(["n1:0", "n1:1"], named=False)
    ('n1:0,1,3 n2:0', '0,1')
    """
    hosts: dict[str, list[str]] = {}
    for gpu in gpus:
        host, _, index = gpu.rpartition(":")
        hosts.setdefault(host, []).append(index)
    if len(hosts) == 1 and not named:
        return _runs(next(iter(hosts.values())))
    told = [f"{host}:{_runs(each)}" for host, each in list(hosts.items())[:MOST_HOSTS]]
    more = len(hosts) - len(told)
    return " ".join([*told, *([f"and {counted(more, 'more node', 'more nodes')}"] if more else [])])


def _runs(indices: Sequence[str]) -> str:
    """Return ``0, 1, 2, 5`` as ``0-2,5``; words other than numbers stay as they are."""
    runs: list[list[str]] = []
    for index in indices:
        last = whole(runs[-1][-1]) if runs else None
        if last is not None and whole(index) == last + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(run) for run in runs)


def several_hosts(world: World) -> bool:
    """Return whether GPUs with the same index may be on several hosts."""
    return world.shrunk or len({machine_of(node) for node in world.nodes}) > 1


def progress(job: Job) -> str:
    """Return the share of the work that is done, and the step; or what is known of these."""
    estimate = job.estimate
    if job.state is State.COMPLETED:
        return f"step {job.step}" if job.step else "done"
    if estimate.work:
        return f"{min(1.0, estimate.done / estimate.work):.0%} (step {job.step})"
    return f"step {job.step}" if job.step else ""


def metric(job: Job, record: Record) -> str:
    """Return the metrics that matter most (:func:`hpcext.manager.views.report.chief`)."""
    found = chief(record.metrics, job.trial)
    return ", ".join(f"{name} {value:.4g}" for name, value in found)


def left(job: Job) -> str:
    """Return the time left at the recent speed; empty if it is unknown."""
    if job.state is not State.RUNNING:
        return ""
    seconds = job.estimate.left_s(total(job.held))
    return "" if seconds is None else duration(seconds)


def goodput(job: Job) -> str:
    """Return the goodput of a job in short; empty if the job does not report it."""
    found = worth_of(job)
    if found is None:
        return ""
    return f"{found.goodput:.4g}/s, batch {found.batch} ({found.statistical_efficiency:.0%})"


def goodput_sentence(job: Job) -> str:
    """Return a sentence on the goodput of a job; empty if the job does not report it."""
    found = worth_of(job)
    if found is None:
        return ""
    said = job.estimate.goodput
    first = said.initial_batch if said else found.batch
    return (
        f"goodput {found.goodput:.4g} samples/s: batches of {found.batch}, a sample in them is "
        f"worth {found.statistical_efficiency:.0%} of one in batches of {first}; "
        f"one more GPU promises {found.gain:+.0%}"
    )


def why(job: Job, record: Record, instead: str = "") -> list[str]:
    """Return sentences: why a job waits or runs as it does, its last loss, goodput and warnings.

    Parameters
    ----------
    job : Job
    record : Record
    instead : str
        Why the job waits, if that is not what the policy says.
    """
    why = instead or reason(job)
    because = f": {why}" if why else ""
    loss = loss_sentence(record.loss) if record.loss and not job.state.final else ""
    sentences = (f"{job.name} is {display_state(job)}{because}", loss, goodput_sentence(job))
    return [*filter(None, sentences), *orphans(record), *map(warning, record.notes)]


def undecided(world: World, *, alive: bool = True) -> str:
    """Return a sentence if the policy's decision is awaited or not followed; empty otherwise.

    Parameters
    ----------
    world : World
    alive : bool
        Whether there is a manager to wait for it.
    """
    keep = "until then jobs keep what they have"
    told = f"the policy is not followed: it {world.undecided}" if world.undecided else ""
    if world.open_question is not None and alive:
        told = "; ".join(filter(None, (told, "the policy is being asked for a decision")))
    elif told:
        told = f"{told}; it is asked again at the next event, or after a minute"
    return f"{told}; {keep}" if told and len(world.queue) else ""


def before(world: World, job: Job) -> str:
    """Return which jobs precede one that waits behind others in the queue; empty if it does not.

    Parameters
    ----------
    world : World
    job : Job
        The waiting job.
    """
    if not job.why.startswith(BEHIND):
        return ""
    queue = itertools.takewhile(lambda each: each.id != job.id, world.unfinished())
    first = [each.name for each in queue if each.ready and each.goal is None]
    return f"before it: {listed(first, MOST_BEFORE)}" if first else ""


def warning(note: str) -> str:
    """Return a warning of a training as a line about its job."""
    return f"warning: {note}"


def unsaved(jobs: Iterable[Job]) -> list[str]:
    """Return a line for each job that cannot save."""
    return [f"{job.name} {told}" for job in jobs if (told := said(job))]


def outlook_sentence(engine: Engine) -> str:
    """Return a sentence on the utility of the nodes; empty if no job reports its goodput."""
    found = outlook_of(engine.world)
    if found is None:
        return ""
    return (
        f"utility {found.utility:.0%}: each GPU delivers this share of the goodput of one alone; "
        f"one more node promises {found.gain:+.0%}"
    )


def rows(engine: Engine) -> list[tuple[str, ...]]:
    """Return the rows of the table of jobs, with :data:`COLUMNS`."""
    several = several_hosts(engine.world)
    found = engine.world.jobs.values()
    return [row(job, engine.world.records[job.id], named=several) for job in found]


def row(job: Job, record: Record, *, named: bool) -> tuple[str, ...]:
    """Return one row of the table of jobs.

    Parameters
    ----------
    job : Job
    record : Record
    named : bool
        Whether to name the hosts of GPUs.
    """
    return (
        job.id,
        job.name,
        display_state(job)
        + (", hangs" if silence.said(job) else "")
        + (", cannot save" if said(job) else ""),
        job.role.value if job.role and job.state.active else "",
        gpu_names(job.gpus, named=named),
        progress(job),
        metric(job, record),
        left(job),
        goodput(job),
    )


def summary(out: Output, engine: Engine, now_s: float, node_time: NodeTime) -> None:
    """Print the outcome of a run: each job, or of many jobs those with lost steps, and totals.

    Parameters
    ----------
    out : Output
    engine : Engine
    now_s : float
        Seconds since the pilot began.
    node_time : NodeTime
        What the time of its nodes went into.
    """
    world = engine.world
    told = list(world.jobs.values())
    if len(told) > MOST_SUMMED:
        told = [job for job in told if has_lost(world.records[job.id])][-MOST_TOLD:]
    table = []
    for job in told:
        record = world.records[job.id]
        took = sum((part.end_s or now_s) - part.start_s for part in record.segments)
        shown = (display_state(job), duration(took), str(record.suspends), lost(record))
        table.append((job.id, job.name, *shown, metric(job, record)))
    if table or not world.jobs:
        out.table(SUMMARY, table)
    if len(world.jobs) > MOST_SUMMED:
        out.line(totals(world))
    span_s = makespan(world, now_s)
    busy, away = busy_fraction(world, span_s), ""
    if node_time.away_s >= NOTICEABLE_S and node_time.held_s > 0:
        # Nobody knows who held what in that time.
        busy = 1.0 - node_time.spent.get(Use.WAITING, 0.0) / node_time.held_s
        away = f", {duration(node_time.away_s)} of it without a manager"
    of_what = "of the other time" if away else "of the time"
    out.line(f"{duration(span_s)} in all{away}; GPUs were held {busy:.0%} {of_what}")
    print_failures(out, world.jobs.values())


def totals(world: World) -> str:
    """Return the outcome of many jobs in numbers, as one line."""
    states = collections.Counter(display_state(job) for job in world.jobs.values())
    parts = [f"{counted(len(world.jobs), 'job')}: "]
    parts.append(", ".join(f"{number} {state}" for state, number in states.items()))
    records = world.records.values()
    if suspends := sum(record.suspends for record in records):
        parts.append(f"; {counted(suspends, 'suspension')}")
    if steps := sum(record.lost_steps for record in records):
        exact = all(map(lost_exactly, records))
        parts.append(f"; lost steps: {counted_lost(steps, exact=exact)}")
    if seconds := sum(record.lost_s for record in records):
        exact = all(record.lost_s_exact >= record.lost_s for record in records)
        parts.append(f"; lost work: {counted_lost_s(seconds, exact=exact)}")
    return "".join(parts)


def print_failures(out: Output, jobs: Iterable[Job]) -> None:
    """Print why jobs failed; of many, only the last ones."""
    ended = [job for job in jobs if job.state in {State.FAILED, State.CANCELLED}]
    if len(ended) > MOST_TOLD:
        out.line(f"{len(ended)} jobs failed or were cancelled; the last ones:")
    for job in ended[-MOST_TOLD:]:
        out.line(f"{job.name}: {job.why}")


def ending(engine: Engine) -> str:
    """Return what a manager that was told to end still waits for; empty if nothing."""
    left = [job for job in engine.world.jobs.values() if job.state.active]
    if not left:
        return ""
    most_s = max(job.suspend_timeout_s for job in left)
    jobs = f"{counted(len(left), 'job')} {are(len(left))}"
    limit = f"in {duration(most_s)} at most; a second signal ends it at once"
    lose = [
        f"{job.name} has no session: if it has none until then it is killed, and begins anew"
        for job in left
        if not (job.run.registered or job.saved_step)
    ]
    return "\n".join([f"ends when {jobs} suspended, {limit}", *lose, *unsaved(left)])
