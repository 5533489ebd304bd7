"""Requeued jobs, which Slurm makes wait for a while."""

from __future__ import annotations

SLACK_S = 2.0
"""Tolerance in seconds of Slurm's delay, which is about a second longer than a credential lasts."""

_COLUMNS = ("JobArrayID", "Reason", "RestartCnt", "SubmitTime", "EligibleTime")


def waiting_command() -> list[str]:
    """Ask for our pending jobs; squeue(1), with :func:`~hpcext.batch.slurm.epoch_times`."""
    words = ["squeue", "--noheader", "--me", "--states=PENDING"]
    return [*words, "--Format=" + ",".join(f"{name}:40|" for name in _COLUMNS)]


def parse_waiting(text: str, cred_expire_s: int) -> tuple[str, ...]:
    """Return the ids of jobs that only wait for the credential of their last run to expire.

    Slurm sets the submission of a requeued job to the present, and adds that time to it. A later
    begin is one that somebody has asked for.
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
    """Let a job begin as soon as there are nodes, as its owner may; scontrol(1), StartTime.

    This has no effect while the last run of the job is not over (COMPLETING).
    """
    return ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]
