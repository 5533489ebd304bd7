"""The state of a run for programs: one document, schema hpcext.run/1."""

from __future__ import annotations

import collections
import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hpcext.core import silence
from hpcext.core.reasons import reason
from hpcext.core.saving import lost_exactly, said
from hpcext.core.trials import Trial
from hpcext.core.values import Job, Record, Segment, State, total
from hpcext.core.world import World

if TYPE_CHECKING:
    from hpcext.policies.autoscale import Outlook
    from hpcext.scaling.estimator import Worth

RUN = "hpcext.run/1"


def run_document(world: World, *, policy: str, began_at: float, now_s: float) -> dict[str, Any]:
    """Return the state of a run as a JSON document, with seconds since ``started_at``.

    Parameters
    ----------
    world : World
    policy : str
        The name of the policy.
    began_at : float
        The Unix time at which the clock of the engine was 0.
    now_s : float
        The clock of the engine, in seconds.
    """
    makespan_s = makespan(world, now_s)
    return {
        "schema": RUN,
        "started_at": datetime.datetime.fromtimestamp(began_at, datetime.timezone.utc).isoformat(),
        "makespan_s": _seconds(makespan_s),
        "gpu_busy_fraction": round(busy_fraction(world, makespan_s), 4),
        "policy": policy,
        # Why the policy's last answer is not followed; jobs keep what they have.
        "policy_failure": world.undecided or None,
        "outlook": found._asdict() if (found := outlook_of(world)) else None,
        "jobs": [_job(job, world.records[job.id], now_s) for job in world.jobs.values()],
    }


SHOWN_METRICS = 2
"""The number of a job's metrics that fit into a table."""

_GOOD = re.compile(
    "acc|accuracy|auc|auroc|bleu|cer|dice|error|f1|iou|map|mae|mse|perplexity|ppl|precision|psnr|"
    "recall|reward|rmse|rouge|score|ssim|top1|top5|wer|dev|eval|evaluation|test|val|valid|validation"
)
"""Words in names of metrics that show how well a training does, apart from its loss."""

_HOW = re.compile(
    "batch|cpu|epoch|flops|gnorm|gpu|grad|gradient|iter|iteration|lr|mem|memory|norm|rate|ram|"
    "runtime|samples|scale|sec|second|seconds|speed|step|steps|throughput|time|tokens|wd"
)
"""Words in names of metrics that say how a training runs, not how well."""
_WORDS = re.compile(r"[a-z]+[0-9]*")


def chief(metrics: Mapping[str, float], trial: Trial | None = None) -> list[tuple[str, float]]:
    """Return the metrics that say most of how well a training does, if not all fit.

    First comes the metric by which its sweep compares it; then the loss; what was measured on
    held-out data, and accuracies and the like; other losses; then what else it reports. Gradient
    norms, learning rates and speeds come last. Metrics of equal rank stay in the order in which
    they are reported.
    """

    def rank(name: str) -> int:
        words = _WORDS.findall(name.lower())
        if trial is not None and name == trial.metric:
            return 0
        if set(words) in ({"loss"}, {"loss", "train"}):
            return 1
        if any(map(_GOOD.fullmatch, words)):
            # An error rate is one of these, the time of an evaluation is not.
            how = [word for word in words if _HOW.fullmatch(word) and word != "rate"]
            return 5 if how else 2
        if "loss" in words:
            return 3
        return 5 if any(map(_HOW.fullmatch, words)) else 4

    return sorted(metrics.items(), key=lambda each: rank(each[0]))[:SHOWN_METRICS]


def makespan(world: World, now_s: float) -> float:
    """Return seconds from the beginning to the last end, or to now if something is unfinished."""
    if any(not job.state.final for job in world.jobs.values()):
        return now_s
    return max((job.since_s for job in world.jobs.values()), default=now_s)


def busy_fraction(world: World, until_s: float) -> float:
    """Return the share of the GPU time so far in which a job held the GPU."""
    gpus = offered_gpus(world)
    shared = {name: node.seats for name, node in world.nodes.items() if node.seats}
    segments = (segment for record in world.records.values() for segment in record.segments)
    busy_s = sum(
        len(part.gpus) / shared.get(_node(part.gpus), 1) * (_end(part, until_s) - part.start_s)
        for part in segments
    )
    return min(1.0, busy_s / (gpus * until_s)) if gpus and until_s > 0 else 0.0


def offered_gpus(world: World) -> int:
    """Return the number of GPUs that there are; one that jobs share counts once."""
    return sum(node.real_gpus for node in world.nodes.values())


def held_gpus(world: World) -> int:
    """Return the number of GPUs that jobs hold; one whose seats are taken counts once."""
    held: collections.Counter[str] = collections.Counter()
    for job in world.queue.busy():
        held.update(job.held)
    seats = {name: node.seats for name, node in world.nodes.items() if node.seats}
    return sum(-(-gpus // seats.get(name, 1)) for name, gpus in held.items())


def _node(gpus: Sequence[str]) -> str:
    return gpus[0].rpartition(":")[0] if gpus else ""


def display_state(job: Job) -> str:
    """Return the state in words for people.

    They distinguish a job that waits because it was suspended, and a trial that its sweep has
    ended.
    """
    if job.done and job.state is not State.COMPLETED:
        return "ended"
    if job.state is State.PENDING and (job.on_hold or job.attempt):
        return "suspended" if job.on_hold or not (job.failures or job.killed) else "retrying"
    return job.state.value


def _job(job: Job, record: Record, now_s: float) -> dict[str, Any]:
    segments = record.segments
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "why": reason(job),
        "notes": list(record.notes),
        "orphans": [{"node": node, "attempt": attempt} for node, attempt in record.orphans],
        "exit_code": record.exit_code,
        "submitted_s": _seconds(job.submitted_s),
        "started_s": _seconds(segments[0].start_s) if segments else None,
        "ended_s": _seconds(job.since_s) if job.state.final else None,
        "suspends": record.suspends,
        "rescales": record.rescales,
        "up_s": _known(job.estimate.up_s),
        "down_s": _known(job.estimate.down_s),
        "goodput": job.estimate.goodput and msgspec.structs.asdict(job.estimate.goodput),
        "worth": _worth(job),
        "lost_steps": record.lost_steps,
        "lost_steps_exact": lost_exactly(record),
        "lost_s": round(record.lost_s, 3),
        "lost_s_exact": record.lost_s_exact >= record.lost_s,
        "cannot_save": said(job) or None,
        "hangs": record.hangs,
        "hung": silence.said(job) or None,
        "loss": record.loss and msgspec.structs.asdict(record.loss),
        "attempts": job.attempt,
        "metrics": dict(record.metrics),
        "segments": [_segment(part, _change(segments, part)) for part in segments],
        "suspend_s": [_parts(part.suspend_s) for part in segments if part.suspend_s],
        "resume_s": [_parts(part.resume_s) for part in segments if part.resume_s],
    }


def worth_of(job: Job) -> Worth | None:
    """Return how a running job that reports its goodput gets on where it is."""
    if job.state is not State.RUNNING or not job.held:
        return None
    if job.estimate.goodput is None:
        return None
    from hpcext.scaling.estimator import worth  # noqa: PLC0415  (slow, and seldom needed)

    return worth(job.estimate, total(job.held), sum(1 for gpus in job.held.values() if gpus))


def outlook_of(world: World) -> Outlook | None:
    """Return how well used the nodes are; None if no running job reports its goodput."""
    if not any(map(worth_of, world.queue.busy())):
        return None
    from hpcext.policies.autoscale import outlook  # noqa: PLC0415  (slow, and seldom needed)

    ready = [job for job in world.unfinished() if job.ready]
    return outlook(ready, [node for node in world.nodes.values() if node.gpus and not node.seats])


def _worth(job: Job) -> dict[str, Any] | None:
    found = worth_of(job)
    return found._asdict() if found else None


def _change(segments: tuple[Segment, ...], segment: Segment) -> str:
    """Return how a segment began."""
    if segment.rescaled:
        return "rescale"
    return "start" if segment is segments[0] else "resume"


def _segment(segment: Segment, change: str) -> dict[str, Any]:
    return {
        "change": change,
        "start_s": _seconds(segment.start_s),
        "end_s": _known(segment.end_s),
        "stall_s": _known(segment.stall_s),
        "gpus": list(segment.gpus),
        "role": segment.role.value if segment.role else None,
        "steps": segment.steps,
    }


def _end(segment: Segment, now_s: float) -> float:
    return segment.end_s if segment.end_s is not None else max(now_s, segment.start_s)


def _parts(parts: Any) -> dict[str, float]:
    return {name: _seconds(value) for name, value in parts.items()}


def _known(value: float | None) -> float | None:
    return None if value is None else _seconds(value)


def _seconds(value: float) -> float:
    return round(value, 4)
