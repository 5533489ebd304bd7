"""Contract engine of LSF, written from the vendor's documentation: its commands, by their names."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import lsf_arrays
import lsf_checkpoint
import lsf_controls
import lsf_hosts
import lsf_launch
import lsf_run
import lsf_submit
import lsf_tables
from lsf_site import Job, Key, RefusedError, Site, me

REFUSED = 255
FIELDS: dict[str, Callable[[Job], object]] = {
    "jobindex": lambda job: job.index,
    "stat": lambda job: job.state,
    "queue": lambda job: job.queue,
    "job_name": lambda job: job.name,
    "user": lambda job: job.user,
    "exit_code": lambda job: job.exit_code if job.exit_code is not None else "",
    "job_description": lambda job: job.description,
    "pend_reason": lambda job: (
        "Job's requirements are not satisfied" if job.state == "PEND" else ""
    ),
    "exec_host": lambda job: ":".join(f"{slots}*{host}" for host, slots in job.hosts.items()),
}
"""What bjobs -o can say here, and ids and times (:func:`_times`)."""


def bsub(site: Site, argv: Sequence[str]) -> int:
    stdin = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    jobs, said = lsf_submit.submit(site, argv, stdin=stdin, environ=os.environ, cwd=Path.cwd())
    sys.stderr.write(said)
    print(f"Job <{jobs[0].id}> is submitted to queue <{jobs[0].queue}>.", flush=True)
    for job in jobs:
        _begin(site, job)
    if "-K" not in argv:
        return 0
    while not all(site.job(job.key).over() for job in jobs):
        time.sleep(lsf_run.POLL_S)
    return max(site.job(job.key).exit_code or 0 for job in jobs)


def _begin(site: Site, job: Job) -> None:
    if os.fork() == 0:
        os.setsid()
        # A job does not inherit what the shell of its user ignores, nor what that blocks.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        lsf_run.run(site, job.key)
        os._exit(0)


def bchkpnt(site: Site, argv: Sequence[str]) -> int:
    """LSF does not wait for it, and says nothing of its end; this engine does."""
    *options, word = argv
    if set(options) - {"-k"} or not word.isdecimal():
        raise RefusedError(f"{' '.join(argv)}: not played by this engine")
    print(f"Job <{word}> is being checkpointed")
    return lsf_checkpoint.checkpoint(site, int(word), kill="-k" in options)


def brestart(site: Site, argv: Sequence[str]) -> int:
    if len(argv) != 2 or not argv[1].isdecimal():
        raise RefusedError(f"{' '.join(argv)}: not played by this engine")
    job = lsf_checkpoint.restart(site, argv[0], int(argv[1]))
    print(f"Job <{job.id}> is submitted to queue <{job.queue}>.", flush=True)
    _begin(site, job)
    return 0


def bjobs(site: Site, argv: Sequence[str]) -> int:
    argv = list(argv)
    fields = argv[argv.index("-o") + 1].split() if "-o" in argv else ()
    if site.quirks.lean and (refused := lsf_tables.refused_field(fields)) and site.jobs():
        print(refused, file=sys.stderr)
        return lsf_tables.NO_FIELD
    users = _taken(argv, "-u") or me()
    if "-A" in argv:
        return lsf_arrays.summary(site, [word for word in argv if word not in {"-A", "-a", "-w"}])
    tables = {"-l", "-w"} & set(argv)
    return _tables(site, argv, users) if tables else _bjobs(site, argv, users)


def _bjobs(site: Site, argv: Sequence[str], users: str) -> int:
    words = list(argv)
    # Those that have ended are always shown.
    named, queue = _taken(words, "-J"), _taken(words, "-q")
    words = [word for word in words if word != "-a"]
    fields, delimiter, as_json, header = ["jobid", "stat", "queue", "job_name"], " ", False, True
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-json":
            as_json = True
        elif option == "-noheader":
            header = False
        elif option == "-o":
            said = words.pop(0)
            found = re.search(r"delimiter='(.)'", said)
            delimiter = found[1] if found else " "
            fields = [word for word in said.split() if not word.startswith("delimiter=")]
        else:
            raise RefusedError(f"{option}: not played by this engine")
    more = ("jobid", "run_time", "runtimelimit", "time_left")
    unknown = [name for name in fields if name not in FIELDS and name not in more]
    if unknown:
        raise RefusedError(f"-o: {unknown[0]}: not played by this engine")
    rows = [
        row
        for word in words or _named(site, named, queue, users)
        for row in _rows(site, word, fields, as_json)
    ]
    none = REFUSED if site.quirks.none_fails and not rows else 0
    if as_json:
        print(json.dumps({"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows}))
    elif none:
        raise RefusedError("No unfinished job found")
    else:
        lines = [row.values() for row in rows]
        heading = [map(str.upper, fields)] if header else []
        sys.stdout.writelines(f"{delimiter.join(line)}\n" for line in [*heading, *lines])
    return none


def _rows(site: Site, word: str, fields: Sequence[str], as_json: bool) -> list[dict[str, str]]:
    """What is said of a job, or of each element of an array."""
    try:
        jobs = lsf_arrays.chosen(site, word)
    except RefusedError as error:
        if not as_json or site.quirks.forgotten_fails:
            raise
        # Its number alone, as an engine of LSF's line has it.
        return [{"JOBID": word.partition("[")[0], "ERROR": str(error)}]
    empty, rows = "-" if site.quirks.empty_is_dash else "", []
    for job in jobs:
        said = {**_times(site, job), **{name: str(read(job)) for name, read in FIELDS.items()}}
        rows.append({name.upper(): said[name] or empty for name in fields})
    return rows


def _taken(words: list[str], option: str) -> str:
    """The value of an option, which is taken out; empty if it is not there."""
    if option not in words:
        return ""
    at = words.index(option)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def _tables(site: Site, argv: Sequence[str], users: str) -> int:
    words = list(argv)
    named, queue = _taken(words, "-J"), _taken(words, "-q")
    ids = [word for word in words if word[0] != "-"] or _named(site, named, queue, users)
    jobs, unknown = lsf_tables.chosen(site, ids)
    unknown += [] if jobs or unknown else ["No job found"]
    for line in unknown:
        print(line, file=sys.stderr)
    if jobs:
        lines = lsf_tables.long(site, jobs) if "-l" in words else lsf_tables.wide(site, jobs)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    return REFUSED if unknown else 0


def _named(site: Site, name: str, queue: str, users: str) -> list[str]:
    """Jobs of a name in a queue; all of them, if these are empty. All elements have the name of
    their array; bjobs(1), -J."""
    found = [
        str(job.key)
        for job in site.jobs()
        if name in {"", job.name, lsf_arrays.plain(job)}
        and queue in {"", job.queue}
        and users in {"all", job.user}
    ]
    if name and not found and not site.quirks.none_fails:
        raise RefusedError(f"Job <{name}> is not found")
    return found


def _times(site: Site, job: Job) -> dict[str, str]:
    """Run time and limit of a job; a minute of -W is as long as the site says, and said so."""
    ran_s = time.time() - job.started_at if job.state == "RUN" else 0.0
    limit_s = job.run_limit * site.minute_s
    left_s = max(0.0, limit_s - ran_s)
    if site.quirks.times_in_hms:
        ran, limit = _clock(ran_s), _clock(limit_s)
    else:
        ran, limit = f"{ran_s:.0f} second(s)", f"{limit_s / 60:.3f}"
    left = f"{_clock(left_s).rpartition(':')[0]} L"
    return {
        "jobid": site.shown(job),
        "run_time": ran,
        "runtimelimit": limit if job.run_limit else "",
        "time_left": left if job.run_limit and job.state == "RUN" else "",
    }


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def bkill(site: Site, argv: Sequence[str]) -> int:
    if argv[:1] == ["-s"]:
        for job in lsf_arrays.chosen(site, argv[2]):
            lsf_run.send(site, job.key, argv[1])
        print(f"Job <{argv[2]}> is being signaled")
        return 0
    if argv[:1] == ["-J"] and argv[2:] == ["0"]:
        argv = [key for key in _named(site, argv[1], "", me()) if not site.job(key).over()]
        if not argv:
            raise RefusedError("No matching job found")
    return _each(site, argv, lsf_run.kill, "is being terminated")


def bstop(site: Site, argv: Sequence[str]) -> int:
    def stop(site: Site, job_id: Key) -> None:
        lsf_controls.suspend(site, job_id, "USUSP", lsf_controls.SUSP_USER_STOP)

    return _each(site, argv, stop, "is being stopped")


def bresume(site: Site, argv: Sequence[str]) -> int:
    return _each(site, argv, lsf_controls.resume, "is being resumed")


def brequeue(site: Site, argv: Sequence[str]) -> int:
    def again(site: Site, job_id: Key) -> None:
        lsf_controls.requeue(site, job_id, hold="-H" in argv)

    words = [word for word in argv if word != "-H"]
    return _each(site, words, again, "is being requeued")


def bmig(site: Site, argv: Sequence[str]) -> int:
    return _each(site, argv, lsf_controls.migrate, "is being migrated")


def _each(site: Site, argv: Sequence[str], change: Callable[[Site, Key], None], said: str) -> int:
    """Do it to each job, and to all elements of an array that is named whole; it is the caller's
    own, or he is root."""
    for word in argv:
        jobs = lsf_arrays.chosen(site, word)
        if me() not in {"root", jobs[0].user}:
            raise RefusedError(f"Job <{word}>: User permission denied")
        refused = []
        for job in jobs:
            try:
                change(site, job.key)
            except RefusedError as error:
                refused.append(error)
        if len(refused) == len(jobs):
            raise refused[0]
        print(f"Job <{word}> {said}")
    return 0


CONTROLS = (bkill, bstop, bresume, brequeue, bmig, bchkpnt, brestart)
LAUNCHERS = (lsf_launch.blaunch, lsf_launch.jsrun, lsf_launch.lsrun)
COMMANDS = {each.__name__: each for each in (bsub, bjobs, *CONTROLS, *LAUNCHERS)}
COMMANDS |= lsf_hosts.COMMANDS


def main() -> int:
    try:
        site = Site.load(Path(os.environ["LSF_ENVDIR"]))
        name, argv = Path(sys.argv[0]).name, sys.argv[1:]
        lsf_hosts.check_options(site, name, argv)
        return COMMANDS[name](site, argv)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return REFUSED
