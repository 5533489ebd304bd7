"""Jobs of LSF, in a form that the engine supports: JSON, or tables of ``bjobs -w`` and ``-l``.

bjobs(1) has -o and -json since 10.1 Fix Pack 2. Another engine of LSF's line may support few fields
of them, and shows that only when it refuses one. A refused field is not asked for again
(:mod:`hpcext.batch.lsf.probe`).
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcext.allocation import JobId
from hpcext.batch import runner
from hpcext.batch.lsf import engine as lsf_engine
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import JobsForm, LsfEngine
from hpcext.core.errors import BatchError
from hpcext.documents import decoded
from hpcext.numerals import whole
from hpcext.text import listed, shown

log = logging.getLogger(__name__)

# "Job <7> is not found", "No unfinished job found", "No job found", "Job <name> is not found".
_NONE = re.compile(r"\bis not found\b|\bNo (\w+ )*job found\b|No matching job", re.I)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EVENT = re.compile(
    rf"^[A-Z][a-z]{{2}} ({'|'.join(_MONTHS)}) +([0-9]{{1,2}}) "
    r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?: ([0-9]{4}))?: *(.*)$",
    re.M,
)
_BLOCK = re.compile(r"^Job <([0-9]{1,18}(?:\[[0-9]{1,10}\])?)>,", re.M)
_NAMED = re.compile(r"\bJob <([0-9]{1,18}\[[0-9]{1,10}\])>")
_STARTED = re.compile(
    r"(?:\[[0-9]+\] *)?(?:The batch job command is )?(?:started|dispatched)\b", re.I
)
_HOST = re.compile(r"<([^<>]+)>")
_DAY_S = 86_400.0
_INDEX = "jobindex"


def jobs_command(form: JobsForm, fields: Sequence[str], which: Sequence[str]) -> list[str]:
    """Return the bjobs(1) command that asks for jobs.

    Parameters
    ----------
    form : {"json", "wide", "long"}
    fields : sequence of str
        Names of fields as bjobs(1), -o, takes them.
    which : sequence of str
        Job ids, or options that choose some.
    """
    options = {"json": ["-o", " ".join(fields), "-json"], "wide": ["-w"], "long": ["-l"]}
    return ["bjobs", *options[form], *which]


def ask(
    fields: Iterable[str], which: Sequence[str], *, ended: bool = True
) -> dict[JobId, dict[str, str]]:
    """Return the fields of jobs; unknown jobs are left out.

    Each element of a job array is a job of its own.

    Parameters
    ----------
    fields : iterable of str
        Names of fields as bjobs(1), -o, takes them.
    which : sequence of str
        Job ids, or options that choose some.
    ended : bool
        Whether to include ended jobs that LSF still knows.

    Returns
    -------
    dict of int or str to dict of str to str
        Job → name of a field in capitals → value. If LSF reports an error about a job, its only
        field is ERROR.

    Raises
    ------
    BatchError
        There is no answer; that there is no such job would be an answer.
    """
    engine, wanted = lsf_probe.known(), tuple(fields)
    while True:
        fields = _with_index(engine, wanted, which)
        form = engine.jobs_form(fields)
        try:
            text = runner.run(jobs_command(form, fields, [*(["-a"] if ended else []), *which]))
        except BatchError as error:
            refused = lsf_engine.parse_refusal(error.stderr, fields) if form == "json" else set()
            if refused:
                log.info(
                    "bjobs -o of this LSF does not have the fields %s", listed(sorted(refused))
                )
                engine = lsf_probe.learn(engine, refused)
                continue
            if not _is_answer(error, form):
                raise
            text = error.stdout
        found = _PARSERS[form](text, time.time()) if text.strip() else {}
        missing = _missing_fields(fields, found) if form == "json" else frozenset()
        if not missing:
            return found
        engine = lsf_probe.learn(engine, missing)


def _with_index(
    engine: LsfEngine, fields: tuple[str, ...], which: Sequence[str]
) -> tuple[str, ...]:
    """Add the field of the index, which distinguishes elements of a job array.

    It is added if elements are asked for, or if it costs nothing. ``bjobs -w`` would show an index
    only as part of a name, and names of other jobs may look the same.
    """
    elements = any(word.endswith("]") for word in which)
    free = not engine.lacks("bjobs", "-o", "-json") and _INDEX not in engine.refused
    return (*fields, _INDEX) if elements or free else fields


def _missing_fields(
    fields: Sequence[str], found: Mapping[JobId, Mapping[str, str]]
) -> frozenset[str]:
    """Return fields that no record has: an engine may ignore those that it does not know."""
    complete = [record for record in found.values() if "ERROR" not in record]
    there = {name.lower() for record in complete for name in record}
    return frozenset(fields) - there if complete else frozenset()


def _is_answer(error: BatchError, form: JobsForm) -> bool:
    """Return whether a failed bjobs has printed which jobs there are, if any.

    Some releases fail for a job that they have forgotten, but print the others; an engine of LSF's
    line fails if there are no jobs, but prints a document without records.
    """
    if error.exit_code is None:
        return False
    if form == "json" and "{" in error.stdout:
        return True
    said = [line for line in error.stderr.splitlines() if line.strip()]
    return bool(said) and all(_NONE.search(line) for line in said)


def parse_jobs(text: str) -> dict[JobId, dict[str, str]]:
    """Parse the document of ``-json``.

    All values are strings; a missing one is empty, or ``-`` with another engine. The JOBID of an
    element is that of its array, or ``ID[INDEX]`` with LSB_BJOBS_DISPLAY_ENH (lsf.conf).
    """
    try:
        found: dict[JobId, dict[str, str]] = {}
        for record in _records(text):
            fields = {str(name): _value(value) for name, value in record.items()}
            if not _NONE.search(fields.get("ERROR", "")):
                found[_job_of(fields)] = fields
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BatchError(f"bjobs printed {shown(text.strip())}, not a list of jobs") from None
    return found


def _job_of(fields: Mapping[str, str]) -> JobId:
    """Return the id of the job of a record."""
    said, index = fields["JOBID"], fields.get("JOBINDEX", "")
    if named := _NAMED.search(fields.get("ERROR", "")):
        return named[1]
    # The index of a job that is no element is 0, or a dash.
    if whole(said) is not None and (element := whole(index)):
        said = f"{said}[{element}]"
    return _job(said)


def _job(text: str) -> JobId:
    """Parse ``ID`` or ``ID[INDEX]``."""
    number, bracket, _ = text.partition("[")
    return text if int(number) and bracket else int(number)


def _records(text: str) -> Any:
    """Return the records of a document, which other lines may precede while mbatchd is busy."""
    return decoded(text[text.index("{") :])["RECORDS"]


def _value(value: Any) -> str:
    text = str(value).strip()
    return "" if text == "-" else text


def parse_wide(text: str) -> dict[JobId, dict[str, str]]:
    """Parse JOBID and STAT in a table of ``bjobs -w``; later columns have any width."""
    if not re.search(r"^JOBID\s+USER\s+STAT\b", text, re.M):
        raise BatchError(f"bjobs printed {shown(text.strip())}, not a list of jobs")
    found: dict[JobId, dict[str, str]] = {}
    # ``splitlines`` would split at other characters, too, which the name of a job may hold.
    for line in text.split("\n"):
        words = line.split()
        job_id = whole(words[0]) if words else None
        if job_id is not None and len(words) > 2 and re.fullmatch(r"[A-Z_]+", words[2]):
            found[job_id] = {"JOBID": words[0], "STAT": words[2]}
    return found


def parse_long(text: str, now_s: float) -> dict[JobId, dict[str, str]]:
    """Parse the blocks of ``bjobs -l``, one for each job, into the fields that ``-o`` would show.

    Parameters
    ----------
    text : str
        Long lines may be wrapped; their continuations begin with 21 blanks.
    now_s : float
        The present instant, in epoch seconds, because times in the text have no year.
    """
    found: dict[JobId, dict[str, str]] = {}
    text = re.sub(r"\n {21}", "", text)
    begins = list(_BLOCK.finditer(text))
    if not begins:
        raise BatchError(f"bjobs printed {shown(text.strip())}, not a list of jobs")
    ends = [each.start() for each in begins[1:]]
    for begin, end in zip(begins, [*ends, len(text)], strict=True):
        block = text[begin.start() : end]
        if status := re.search(r"\bStatus <([A-Z_]+)>", block):
            fields = {"JOBID": begin[1], "STAT": status[1], **_block_fields(block, now_s)}
            found[_job(begin[1])] = fields
    return found


def _block_fields(block: str, now_s: float) -> dict[str, str]:
    events = list(_EVENT.finditer(block))
    head = block[: events[0].start()] if events else block
    fields = {
        "JOB_NAME": _bracketed(head, "Job Name"),
        "USER": _bracketed(head, "User"),
        "JOB_DESCRIPTION": _bracketed(head, "Job Description"),
        "OUTPUT_FILE": _bracketed(events[0][7] if events else "", "Output File"),
        "PEND_REASON": _section(block, "PENDING REASONS:"),
        "RUNTIMELIMIT": run_limit_minutes(block),
        "EXEC_HOST": "",
        "RUN_TIME": "",
    }
    for event in events:
        if _STARTED.match(event[7]):
            # "Started 2 Task(s) on Host(s) <2*a>, Allocated 2 Slot(s) on Host(s) <2*a>"
            fields["EXEC_HOST"] = ":".join(_HOST.findall(event[7].partition(",")[0]))
            fields["RUN_TIME"] = f"{max(0.0, now_s - _instant(event, now_s)):.0f} second(s)"
    return fields


def _bracketed(text: str, name: str) -> str:
    found = re.search(rf"\b{name} <([^<>]*)>", text)
    return found[1] if found else ""


def _section(block: str, name: str) -> str:
    lines = block.partition(name)[2].partition("\n\n")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip())


def run_limit_minutes(text: str) -> str:
    """Return the minutes of RUNLIMIT, whose value is below its name, beside other limits."""
    for above, below in itertools.pairwise(text.splitlines()):
        at = above.find("RUNLIMIT")
        values = list(re.finditer(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*min\b", below))
        if at >= 0 and values:
            return min(values, key=lambda value: abs(value.start() - at))[1]
    return ""


def _instant(event: re.Match[str], now_s: float) -> float:
    """Return the instant of an event, which LSF prints in local time, perhaps without a year."""
    month, numbers = _MONTHS.index(event[1]) + 1, [int(event[at]) for at in range(2, 6)]
    year = int(event[6]) if event[6] else time.localtime(now_s).tm_year

    def at(year: int) -> float:
        return time.mktime((year, month, *numbers, 0, 0, -1))  # type: ignore[arg-type]

    try:
        return at(year) if event[6] or at(year) <= now_s + _DAY_S else at(year - 1)
    except (ValueError, OverflowError):
        return now_s


_PARSERS = {
    "json": lambda text, _: parse_jobs(text),
    "wide": lambda text, _: parse_wide(text),
    "long": parse_long,
}
