"""Commands of LSF, and parsers of what they print (IBM Spectrum LSF 10.1 command reference)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence

from hpcext.allocation import JobId
from hpcext.batch import runner
from hpcext.batch.jobs import UNKNOWN, End, Jobs, Seen, as_job
from hpcext.batch.lsf import idle as lsf_idle
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.core.errors import BatchError
from hpcext.numerals import whole
from hpcext.text import shown

log = logging.getLogger(__name__)

STATES = {
    "PEND": "pending", "PROV": "pending", "WAIT": "pending", "FWD_PEND": "pending",
    "PSUSP": "suspended", "USUSP": "suspended", "SSUSP": "suspended", "RUN": "running",
    "DONE": "completed", "EXIT": "failed",
}  # fmt: skip
"""A state of bjobs(1), "Job status" → its name in Slurm.

UNKWN and ZOMBI are unknown: the host cannot be reached, and processes there may go on.
"""

MINUTE_S = 60.0

_SUBMITTED = re.compile(r"Job <([0-9]{1,18})> is submitted")
_LIMIT = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,9})\Z")
_CLOCK = re.compile(r"([0-9]{1,9}):([0-9]{1,9})(?::([0-9]{1,9}))?")
_PAST = re.compile(r"^Job <([0-9]{1,18}(?:\[[0-9]{1,10}\])?)>,.*?\bStatus <(\w+)>", re.M)
FIELDS = ("jobid", "stat", "run_time", "runtimelimit", "time_left")
"""The fields of bjobs(1), -o, that :func:`parse_end` reads."""


def submit_command(options: Sequence[str]) -> list[str]:
    """Return the bsub(1) command that submits a script on its standard input.

    The script is not given by name, because the shell that LSF starts for a command would die of
    signals that the script waits for.
    """
    return ["bsub", *options]


def cancel_named_command(name: str) -> list[str]:
    """Return the bkill(1) command that ends all of the user's jobs of a name."""
    return ["bkill", "-J", name, "0"]


def parse_job_id(text: str) -> int:
    """Parse ``Job <8> is submitted to queue <normal>.``, which lines of esubs may precede."""
    found = _SUBMITTED.search(text)
    if found is None:
        raise BatchError(f"bsub printed {shown(text.strip())}, not a job id")
    return int(found[1])


def array_of(options: Sequence[str]) -> str | None:
    """Return the job array that options of bsub state, as written there; None if there is none.

    Examples
    --------
    >>> array_of(["-J", "a[1-4]%2"]), array_of(["-Ja[1]"]), array_of(["-J", "a", "-R", "b[1]"])
    ('a[1-4]%2', 'a[1]', None)
    """
    given = zip(options, [*options[1:], ""], strict=False)
    names = [after if word == "-J" else word[2:] for word, after in given if word[:2] == "-J"]
    return next((name for name in names if re.search(r"\[.*\]", name)), None)


def parse_time_limit(text: str) -> float | None:
    """Return the seconds of ``[hour:]minute``, as ``bsub -W`` takes it; None for another form.

    Examples
    --------
    >>> parse_time_limit("90"), parse_time_limit("2:00"), parse_time_limit("1-12")
    (5400.0, 7200.0, None)
    """
    found = _LIMIT.match(text.strip())
    return (60 * int(found[1] or 0) + int(found[2])) * MINUTE_S if found else None


def state(text: str) -> str:
    """Return the name in Slurm of a state of LSF."""
    return STATES.get(text, UNKNOWN)


def parse_end(fields: Mapping[str, str], now_s: float) -> End:
    """Return the state of a job and the end of its run limit.

    Parameters
    ----------
    fields : Mapping of str to str
        Those of :data:`FIELDS`, with names in capitals.
    now_s : float
        Epoch seconds.
    """
    said = state(fields.get("STAT", ""))
    ran_s = _seconds(fields.get("RUN_TIME", ""))
    limit_s = _limit_s(fields.get("RUNTIMELIMIT", ""))
    if limit_s is not None and ran_s is not None:
        return End(said, now_s + limit_s - ran_s)
    left_s = _left_s(fields.get("TIME_LEFT", ""))
    return End(said, None if left_s is None else now_s + left_s)


def began_s(fields: Mapping[str, str], now_s: float) -> float | None:
    """Return when a job began, in epoch seconds, from its run time; None if that is unknown.

    Parameters
    ----------
    fields : Mapping of str to str
        Fields of bjobs, with names in capitals.
    now_s : float
        Epoch seconds.
    """
    ran_s = _seconds(fields.get("RUN_TIME", ""))
    return None if ran_s is None else now_s - ran_s


def _seconds(text: str) -> float | None:
    """Parse a run time: ``16038 second(s)``, or ``04:27:18`` with -hms (LSB_HMS_TIME_FORMAT)."""
    number = whole(text.partition(" ")[0])
    return _clock_s(text) if number is None else float(number)


def _limit_s(text: str) -> float | None:
    """Parse a run limit: ``3.0`` or ``3.0/hostA`` in minutes, or ``00:03:00`` with -hms."""
    minutes = text.partition("/")[0].strip()
    if ":" in minutes:
        return _clock_s(minutes)
    try:
        return float(minutes) * MINUTE_S
    except ValueError:
        return None


def _left_s(text: str) -> float | None:
    """Parse the time left, ``hours:minutes`` and a letter, which is L for a run limit."""
    clock, _, letter = text.partition(" ")
    return None if letter.strip() not in {"", "L"} else _clock_s(clock)


def _clock_s(text: str) -> float | None:
    """Parse ``hours:minutes`` or ``hours:minutes:seconds``."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float((hours * 60 + minutes) * 60 + seconds)


def past_command(job_ids: Sequence[JobId]) -> list[str]:
    """Return the bacct(1) command that asks for jobs that have ended."""
    return ["bacct", "-l", *map(str, job_ids)]


def parse_past(text: str) -> dict[JobId, str]:
    """Parse wrapped lines, ``Job <8>, User <user>, ..., Status <DONE>, ...``, into job → state."""
    lines = re.sub(r"\n {10,}", "", text)
    found = {as_job(job_id): state(said) for job_id, said in _PAST.findall(lines)}
    return {job_id: said for job_id, said in found.items() if job_id is not None}


def _past(job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
    """Return what accounting says of jobs that mbatchd does not know."""
    try:
        text = runner.run(past_command(job_ids))
    except BatchError as error:
        # bacct also fails for jobs that are not in its file (lsb.params, ACCT_ARCHIVE_AGE).
        log.info("accounting is not available: %s", error)
        text = error.stdout
    return {job_id: Seen(said) for job_id, said in parse_past(text).items() if job_id in job_ids}


def seen_of(fields: Mapping[str, str]) -> Seen:
    """Return the state of a job from fields of bjobs, or why it is unknown."""
    if fault := fields.get("ERROR"):
        return Seen(UNKNOWN, why=f"bjobs says: {shown(fault)}")
    said = fields.get("STAT", "")
    return Seen(state(said), said, _NOT_KNOWN.get(said, ""))


_NOT_KNOWN = {
    # bjobs(1), "Job status".
    "UNKWN": "LSF cannot reach its host (UNKWN)",
    "ZOMBI": "LSF has lost contact with its host, and does not know what runs there (ZOMBI)",
}


class Commands(Jobs):
    """Queries of LSF about jobs."""

    def seen(self, job_ids: Sequence[JobId]) -> dict[JobId, Seen]:
        """Return what mbatchd says of jobs, or accounting of those that mbatchd has forgotten."""
        if not job_ids:
            return {}
        asked = lsf_jobs.ask(("jobid", "stat"), [*map(str, job_ids)])
        found = {job_id: seen_of(each) for job_id, each in asked.items()}
        missing = [job_id for job_id in job_ids if job_id not in found]
        return found | _past(missing) if missing else found

    def end(self, job_id: JobId) -> End:
        """Return the state of a job, and the latest instant of its end."""
        found = lsf_jobs.ask(FIELDS, [str(job_id)])
        if job_id not in found:
            raise BatchError(f"LSF does not know job {job_id}")
        return parse_end(found[job_id], time.time())

    def preempted(self, job_id: JobId) -> bool:
        """Return False: LSF preempts by signals, and changes a run limit only by bmod(1)."""
        return False

    def gone(self, names: Sequence[str]) -> list[str]:
        """Return those of these hosts that LSF cannot reach any more."""
        text = runner.run(lsf_idle.hosts_command(lsf_probe.known(), names))
        loads = lsf_idle.parse_hosts(text)
        return [
            name for name in names if name in loads and loads[name].status.lower() in lsf_idle.GONE
        ]
