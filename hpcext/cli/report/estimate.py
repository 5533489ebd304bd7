"""An estimate of what sharing saved, for the account of GPU time, by simulating recorded pilots.

It is made only on request, because it takes seconds for each pilot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcext.cli.output import Output
from hpcext.cli.report.saved import KEYS, OF_JOBS, SAVED, TIMES, UNKNOWN_WHY
from hpcext.cli.trace.pilot import replayed
from hpcext.core.errors import HpcextError, InputError
from hpcext.core.values import State
from hpcext.jobspec import JobSpec
from hpcext.manager.submissions import Submissions
from hpcext.manager.views.accounting import HOUR_S, PilotAccount
from hpcext.sim.pilots import BASELINE
from hpcext.sim.pilots.saved import Alone, busy_s, seen, simulated
from hpcext.text import listed

SLACK = 0.01
"""The largest share of its time that a pilot may have been without nodes or a manager."""


def add_saved(document: Mapping[str, Any], parts: Sequence[PilotAccount], out: Output) -> None:
    """Add the estimate to an account: for each pilot, for its jobs, and for the user.

    An unknown estimate is None, with the reason beside it. The user's estimate is the sum of the
    known ones.

    Parameters
    ----------
    document : Mapping
        The account that :func:`hpcext.manager.views.accounting.account` made of these parts; the
        estimate is added to it.
    parts : sequence of PilotAccount
    out : Output
        Shows the progress.
    """
    with out.progress(len(parts)) as tell:
        for part, pilot in zip(parts, document["pilots"], strict=True):
            try:
                _estimate(part, pilot)
            except HpcextError as error:
                _unknown(pilot, str(error))
            tell(pilot["id"])
    (user,) = document["users"]
    known = [pilot for pilot in document["pilots"] if pilot[UNKNOWN_WHY] is None]
    user |= {"estimated_pilots": len(known), "estimated_against": BASELINE}
    sums = ("held_gpu_h", *OF_JOBS, *SAVED, *TIMES)
    total = {key: round(sum(pilot[key] for pilot in known), 6) for key in sums}
    user["estimated_of_held_gpu_h"] = total.pop("held_gpu_h")
    if known:
        user |= {**total, UNKNOWN_WHY: None}
    else:
        _unknown(user, "it is unknown for every pilot")


def _unknown(row: dict[str, Any], why: str) -> None:
    row |= {**dict.fromkeys(KEYS), UNKNOWN_WHY: why}
    for job in row.get("jobs", ()):
        job.update(dict.fromkeys(OF_JOBS))


def _estimate(part: PilotAccount, row: dict[str, Any]) -> None:
    _check(part, row)
    now = part.now
    recording = replayed(now.directory)[1].recording(now.policy)
    if recording is None:
        raise InputError("no job of it has completed")
    # The nodes of a pilot are counted from its first jobs on.
    begin_s = min(job.submitted_s for job in now.world.jobs.values())
    whole_s = len(recording.nodes) * (now.now_s - begin_s)
    if abs(whole_s - now.node_time.held_s) > SLACK * whole_s:
        raise InputError("it lacked nodes or a manager for some of the time")
    submitted = Submissions(now.directory / "submissions")
    known = {
        job.id: seen(job, now.world.records[job.id], _profiled(submitted.spec(job.id)))
        for job in now.world.jobs.values()
        if job.state is State.COMPLETED
    }
    found = simulated(recording, known)
    for job in row["jobs"]:
        job.update(_alone(found.alone.get(job["id"])))
    costs = [round(sum(job[key] for job in row["jobs"]), 6) for key in OF_JOBS]
    saved = [round(cost - row["held_gpu_h"], 6) for cost in costs]
    was_s = busy_s((job.submitted_s, job.ended_s) for job in known.values())
    times = (round(was_s, 3), round(found.busy_s, 3))
    row |= zip(KEYS, (*costs, *saved, *times, None), strict=True)


def _profiled(spec: JobSpec) -> Iterable[int]:
    """Return the numbers of GPUs on which a job's speed was measured, not just stated."""
    return spec.scaling if spec.profile else ()


def _alone(job: Alone | None) -> dict[str, float]:
    """Return a job's part of the figures; one that never held a GPU (None) costs nothing."""
    gpu_s = (job.lasted_s * job.node_gpus, job.lasted_s * job.gpus) if job else (0.0, 0.0)
    return dict(zip(OF_JOBS, (round(each / HOUR_S, 6) for each in gpu_s), strict=True))


def _check(part: PilotAccount, row: Mapping[str, Any]) -> None:
    """Refuse a pilot whose recording is not enough for an estimate.

    Raises
    ------
    InputError
        It says what is missing.
    """
    if part.now.alive:
        raise InputError("it still runs")
    if part.now.pilot.harvest is not None:
        raise InputError("it is a harvester, whose nodes come and go")
    if part.before is not None:
        raise InputError("it began before that date, and can only be simulated as a whole")
    jobs = row["jobs"]
    left = [job["name"] for job in jobs if job["held_gpu_h"] and job["state"] != State.COMPLETED]
    if left:
        raise InputError(f"{listed(left)} did not complete: it is unknown how much was left to do")
