"""Requeued jobs, which Slurm makes wait for a while."""

from __future__ import annotations

from hpcext.numerals import whole

SLACK_S = 2.0
"""Slurm has such a job wait for a second longer than it says, or so."""

SETTLED_S = 10.0
"""So long after it was requeued a job is left alone.

The daemon of its last node takes no credential that is not younger, in whole seconds, than the end
of that run. So Slurm fails a job that begins there at once ("Job credential revoked"), and clocks
may differ by some seconds, too.
"""

_COLUMNS = ("JobArrayID", "Reason", "RestartCnt", "SubmitTime", "EligibleTime")


def waiting_command() -> list[str]:
    """Ask for our pending jobs; squeue(1), with :func:`~hpcext.batch.slurm.epoch_times`."""
    words = ["squeue", "--noheader", "--me", "--states=PENDING"]
    return [*words, "--Format=" + ",".join(f"{name}:40|" for name in _COLUMNS)]


def parse_waiting(text: str, delay_s: int, now_s: float) -> tuple[str, ...]:
    """Find the jobs that wait since they were requeued, for nothing else, and may begin.

    Slurm counts the submission of a job that is requeued anew, and adds its delay to it. A later
    begin is one that somebody has asked for.

    Parameters
    ----------
    text : str
    delay_s : int
        As :func:`hpcext.batch.slurm.site.requeue_delay_s` has it.
    now_s : float
        Epoch.
    """
    found = []
    for line in text.splitlines():
        job_id, why, restarts, submitted, eligible = [
            *(word.strip() for word in line.split("|")), *5 * [""],
        ][:5]  # fmt: skip
        begins_s, since_s = whole(eligible), whole(submitted)
        if why != "BeginTime" or not whole(restarts) or begins_s is None or since_s is None:
            continue
        if now_s - since_s < SETTLED_S:
            continue
        if abs(begins_s - since_s - delay_s - 1) <= SLACK_S:
            found.append(job_id)
    return tuple(found)


def begin_command(job_id: str) -> list[str]:
    """Let a job begin as soon as there are nodes, as its owner may; scontrol(1), StartTime.

    This has no effect while the last run of the job is not over (COMPLETING).
    """
    return ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]
