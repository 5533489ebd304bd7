"""Contract engine of LSF, written from the vendor's documentation: blaunch and jsrun.

Every host is this machine: what runs on one has its environment, and is in a session of its own, as
what a RES starts. When its launcher dies it goes on, which no documentation rules out.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lsf_site import Job, RefusedError, Site

PASSED_ON = (signal.SIGINT, signal.SIGTERM)
RANK = re.compile(r"rank: (\d+): \{(.*)\}")


def blaunch(site: Site, argv: Sequence[str]) -> int:
    """``blaunch HOST COMMAND``, or with -z or -u the hosts of a list; blaunch(1)."""
    job = _job(site)
    words = list(argv)
    hosts: list[str] = []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-z":
            hosts = words.pop(0).split()
        elif option == "-u":
            hosts = Path(words.pop(0)).read_text().split()
        elif option != "-n":
            raise RefusedError(f"{option}: not played by this engine")
    if not hosts and words:
        hosts = [words.pop(0)]
    if not words:
        raise RefusedError("blaunch: no command")
    for host in hosts:
        if host not in job.hosts:
            raise RefusedError(f"{host}: not a host of job {job.id}")
    told = not site.quirks.blaunch_hides_gpus
    return _run_all(
        site,
        [(words, _environ(job, host, job.gpus.get(host, []) if told else [])) for host in hosts],
    )


def lsrun(site: Site, argv: Sequence[str]) -> int:
    """``lsrun -m HOST COMMAND``, of any process: it knows no jobs; lsrun(1)."""
    if argv[:1] != ["-m"] or len(argv) < 3:
        raise RefusedError(f"{' '.join(argv)}: not played by this engine")
    if argv[1] not in {host.name for host in site.hosts}:
        raise RefusedError(f"{argv[1]}: unknown host name")
    return _run_all(site, [(argv[2:], {**os.environ, "LSF_TASK_HOST": argv[1]})])


def jsrun(site: Site, argv: Sequence[str]) -> int:
    """``jsrun -n -a -c -g -r`` or ``--erf_input``; the IBM Job Step Manager."""
    job = _job(site)
    words = list(argv)
    sets = {"-n": 1, "-a": 1, "-c": 1, "-g": 0, "-r": 0}
    ranks: list[tuple[str, list[int]]] | None = None
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        value = value if equals else words.pop(0)
        if option == "--erf_input":
            ranks = _erf(job, Path(value).read_text())
        elif option in sets:
            sets[option] = int(value)
        else:
            raise RefusedError(f"{option}: not played by this engine")
    if not words:
        raise RefusedError("jsrun: no command")
    if ranks is None:
        ranks = _resource_sets(job, sets)
    return _run_all(
        site,
        [
            (words, {**_environ(job, host, gpus), "JSM_NAMESPACE_RANK": str(rank)})
            for rank, (host, gpus) in enumerate(ranks)
        ],
    )


def _erf(job: Job, text: str) -> list[tuple[str, list[int]]]:
    """Host and GPUs of each rank of an explicit resource file."""
    found = []
    for line in text.splitlines():
        if line.partition(":")[0] in {"overlapping_rs", "cpu_index_using"} or not line.strip():
            continue
        rank = RANK.fullmatch(line.strip())
        if rank is None or int(rank[1]) != len(found):
            raise RefusedError(f"jsrun: {line}: no rank")
        pairs = (pair.partition(":") for pair in rank[2].split(";"))
        said = {key.strip(): value.strip() for key, _, value in pairs}
        host, positions = said["hostname"], said.get("gpu", "{}").strip("{}")
        if host not in job.hosts or "cpu" not in said:
            raise RefusedError(f"jsrun: {line}: not a host of job {job.id}, or no cpu")
        found.append((host, [job.gpus[host][int(each)] for each in positions.split(",") if each]))
    return found


def _resource_sets(job: Job, sets: dict[str, int]) -> list[tuple[str, list[int]]]:
    """Host and GPUs of each task: as many sets on each host as it has room for."""
    ranks = []
    left = sets["-n"]
    for host, slots in job.hosts.items():
        room = min(slots // sets["-c"], sets["-r"] or slots, left)
        if sets["-g"]:
            room = min(room, len(job.gpus[host]) // sets["-g"])
        for each in range(room):
            gpus = job.gpus[host][each * sets["-g"] : (each + 1) * sets["-g"]]
            ranks += [(host, gpus)] * sets["-a"]
        left -= room
    if left:
        raise RefusedError("jsrun: more resource sets than the job has room for")
    return ranks


def _job(site: Site) -> Job:
    job_id, index = os.environ.get("LSB_JOBID", ""), os.environ.get("LSB_JOBINDEX", "0")
    if not job_id:
        raise RefusedError("not inside a job")
    return site.job(f"{job_id}[{index}]" if index != "0" else job_id)


def _environ(job: Job, host: str, gpus: Sequence[int]) -> dict[str, str]:
    environ = {**os.environ, "LSF_TASK_HOST": host}
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return environ


def _run_all(site: Site, tasks: Sequence[tuple[Sequence[str], dict[str, str]]]) -> int:
    """Run tasks side by side; the exit value of the first that went wrong."""
    children = []
    for words, environ in tasks:
        if environ["LSF_TASK_HOST"] in site.down():
            print(f"{environ['LSF_TASK_HOST']}: cannot be reached", file=sys.stderr)
            return 255
        # As by a shell on that host.
        argv = ["/bin/sh", "-c", 'exec "$@"', "sh", *words]
        children.append(subprocess.Popen(argv, env=environ, start_new_session=True))

    def pass_on(signum: int, _frame: object) -> None:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, signum)

    for signum in PASSED_ON:
        signal.signal(signum, pass_on)
    values = [child.wait() for child in children]
    return next((abs(value) for value in values if value), 0)
