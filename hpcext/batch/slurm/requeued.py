"""Jobs that were put back into the queue, which Slurm has wait there for a while."""

from __future__ import annotations

SLACK_S = 2.0
"""Slurm has such a job wait for a second longer than a credential is good for, or so."""

_COLUMNS = ("JobArrayID", "Reason", "RestartCnt", "SubmitTime", "EligibleTime")


def waiting_command() -> list[str]:
    """Our pending jobs; with :func:`~hpcext.batch.slurm.epoch_times`; squeue(1)."""
    words = ["squeue", "--noheader", "--me", "--states=PENDING"]
    return [*words, "--Format=" + ",".join(f"{name}:40|" for name in _COLUMNS)]


def parse_waiting(text: str, cred_expire_s: int) -> tuple[str, ...]:
    """Ids of those jobs that wait for nothing but the credential of their last run to expire.

    Slurm counts the submission of a job that is requeued anew, and adds that to it. A later begin
    is one that somebody has asked for.
    """
    found = []
    for line in text.splitlines():
        job_id, why, restarts, submitted, eligible = [
            *(word.strip() for word in line.split("|")), *5 * [""],
        ][:5]  # fmt: skip
        if why != "BeginTime" or not all(map(str.isdigit, (restarts, submitted, eligible))):
            continue
        waits_s = int(eligible) - int(submitted)
        if int(restarts) and abs(waits_s - cred_expire_s - 1) <= SLACK_S:
            found.append(job_id)
    return tuple(found)


def begin_command(job_id: str) -> list[str]:
    """Have it begin as soon as there are nodes; its owner may; scontrol(1), StartTime.

    While the last run of the job is not over (COMPLETING), that has no effect.
    """
    return ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]
