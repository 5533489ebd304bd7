"""LSF's commands, as programs of virtual processes: those that production calls, and no others.

What they print has the form of the recordings in tests/lsf and of the contract engine in
tests/fakes/lsf, which :mod:`test_lsf_model` compares. Without mbatchd a command goes on trying.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Callable, Sequence

from virtual import batch_commands, calls
from virtual.batch import Place
from virtual.batch_commands import Refused
from virtual.kernel import Process
from virtual.lsf import ENDED, STOPPED, Job, Lsf, Order, Queue, Task

FILES = (
    "lsid", "bsub", "bjobs", "bkill", "bstop", "bresume", "brequeue", "bhosts", "bqueues",
    "bparams", "bslots", "brsvs", "bacct", "blaunch",
)  # fmt: skip
"""The commands that are installed; bhist, jsrun and lsrun are not."""

VALUES = {"-J", "-q", "-n", "-o", "-Q", "-W", "-R", "-gpu", "-m", "-Jd", "-cwd"}
OPTIONS = {
    "bsub": VALUES | {"-r", "-rn"},
    "bjobs": {"-a", "-J", "-o", "-json", "-u"},
    "bhosts": {"-w", "-X", "-o", "-json", "-gpu"},
    "bparams": {"-a", "-l"},
}
HOST_COLUMNS = ("HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV")
REACHED_S = 20.0
"""The most seconds until blaunch knows that a host cannot be reached."""


class Commands(batch_commands.Commands):
    """The commands of one LSF."""

    names = frozenset(FILES) - {"blaunch"}
    no_answer = "Failed in receiving reply from mbatchd: Communication time out"
    status = 255

    def __init__(self, lsf: Lsf) -> None:
        super().__init__(lsf)
        self._lsf = lsf

    def program(self, argv: Sequence[str]) -> Callable[[Process], int] | None:
        """Return the program of an argv, if it is one of these."""
        if argv[0].rpartition("/")[2] == "blaunch":
            return self._blaunch
        return super().program(argv)

    def _alone(self, name: str, words: list[str]) -> str | None:
        if name == "lsid":
            return (
                "IBM Spectrum LSF Standard 10.1.0.15, May 13 2025\n\n"
                "My cluster name is virtual\nMy master name is login\n"
            )
        if words[:1] == ["-h"]:
            usage = " ".join(f"[{word}]" for word in sorted(OPTIONS.get(name, ())))
            raise Refused(f"Usage: {name} {usage}")
        return None

    def _reach(self) -> None:
        if not self._lsf.up:
            calls.write(2, b"batch daemon not responding ... still trying\n")
            self._kernel.wait(lambda: self._lsf.up)

    def _refusal(self, name: str, error: Refused) -> str:
        return f"{error}\n"

    # Jobs.

    def _bsub(self, words: list[str]) -> str:
        options: dict[str, str] = {}
        while words and words[0].startswith("-"):
            option = words.pop(0)
            options[option] = words.pop(0) if option in VALUES else "Y"
        script = words[0] if words else calls.read(0, 1 << 20).decode()
        queue = self._lsf.queues.get(options.get("-q", next(iter(self._lsf.queues))))
        if queue is None:
            raise Refused(f"{options['-q']}: No such queue. Job not submitted.")
        slots = int(options.get("-n", "1"))
        found = re.fullmatch(r"span\[(?:ptile=(\d+)|hosts=1)\]", options.get("-R", "span[hosts=1]"))
        assert found, options["-R"]
        cpus = int(found[1] or slots)
        process = calls.me()
        order = Order(
            name=options.get("-J", "bsub"),
            partition=queue.name,
            nodes=slots // cpus,
            cpus=cpus,
            gpus=_gpus(options.get("-gpu", "num=0")),
            nodelist=tuple(options.get("-m", "").split()),
            limit_s=_seconds(options["-W"]) if "-W" in options else queue.limit_s,
            requeue="-rn" not in options and (queue.rerunnable or "-r" in options),
            comment=options.get("-Jd", ""),
            output=options.get("-o", "/dev/null"),
            script=script,
            environ=tuple(process.environ.items()),
            uid=process.uid,
            values=tuple(map(int, options.get("-Q", "").split())),
        )
        job = self._lsf.submit(order)
        return f"Job <{job.id}> is submitted to queue <{queue.name}>.\n"

    def _bkill(self, words: list[str]) -> str:
        if words[0] == "-s":
            job = self._job(int(words[2]))
            if job.state not in {"RUN", "USUSP"}:
                raise Refused(f"Job <{job.id}>: in state {job.state}")
            self._lsf.signal(job, signal.Signals[f"SIG{words[1].removeprefix('SIG')}"])
            return f"Job <{job.id}> is being signaled\n"
        if words[0] == "-J" and words[2:] == ["0"]:
            name = words[1]
            words = [
                str(job.id) for job in self._lsf.jobs.values()
                if self._mine(job) and job.order.name == name and not job.over
            ]  # fmt: skip
            if not words:
                raise self._none(name)
        return self._each(words, self._killed, "is being terminated")

    def _none(self, name: str) -> Refused:
        """Return what is said if there is no job of a name."""
        fails = self._lsf.site.none_fails
        return Refused("No matching job found" if fails else f"Job <{name}> is not found")

    def _killed(self, job: Job) -> None:
        if job.over:
            raise Refused(f"Job <{job.id}>: Job has already finished")
        self._lsf.cancel(job)

    def _bstop(self, words: list[str]) -> str:
        def stop(job: Job) -> None:
            if job.state not in {"RUN", "PEND"}:
                raise Refused(f"Job <{job.id}>: in state {job.state}")
            self._lsf.stop(job)

        return self._each(words, stop, "is being stopped")

    def _bresume(self, words: list[str]) -> str:
        def go_on(job: Job) -> None:
            if job.state not in {"PSUSP", *STOPPED}:
                raise Refused(f"Job <{job.id}>: in state {job.state}")
            self._lsf.go_on(job)

        return self._each(words, go_on, "is being resumed")

    def _brequeue(self, words: list[str]) -> str:
        hold = "-H" in words

        def again(job: Job) -> None:
            if job.state not in {"RUN", *STOPPED}:
                raise Refused(f"Job <{job.id}>: Job has not started yet or has finished")
            self._lsf.again(job, hold=hold)

        return self._each([each for each in words if each != "-H"], again, "is being requeued")

    def _each(self, words: Sequence[str], change: Callable[[Job], None], said: str) -> str:
        printed = ""
        refused = []
        for word in words:
            try:
                job = self._job(int(word))
                if not self._mine(job):
                    raise Refused(f"Job <{word}>: User permission denied")
                change(job)
                printed += f"Job <{word}> {said}\n"
            except Refused as error:
                refused.append(str(error))
        if refused:
            raise Refused("\n".join(refused))
        return printed

    @staticmethod
    def _mine(job: Job) -> bool:
        return calls.me().uid in {0, job.order.uid}

    def _job(self, number: int) -> Job:
        if number not in self._lsf.jobs:
            raise Refused(f"Job <{number}> is not found")
        job: Job = self._lsf.jobs[number]
        return job

    def _bjobs(self, words: list[str]) -> str:
        fields = _taken(words, "-o").split()
        users, name, queue = (_taken(words, each) for each in ("-u", "-J", "-q"))
        ended = "-a" in words
        ids = [int(word) for word in words if word not in {"-a", "-json"}]
        rows = []
        if ids:
            for number in ids:
                job = self._lsf.jobs.get(number)
                rows.append(
                    self._row(job, fields) if job
                    else {"JOBID": str(number), "ERROR": f"Job <{number}> is not found"}
                )  # fmt: skip
        else:
            rows = [
                self._row(job, fields) for job in self._lsf.jobs.values()
                if (users == "all" or self._mine(job)) and (ended or not job.over)
                and name in {"", job.order.name} and queue in {"", job.order.partition}
            ]  # fmt: skip
        if not rows and name and not self._lsf.site.none_fails:
            raise self._none(name)
        text = json.dumps({"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": rows}) + "\n"
        if not rows and self._lsf.site.none_fails:
            calls.write(1, text.encode())
            raise Refused("")
        return text

    def _row(self, job: Job, fields: Sequence[str]) -> dict[str, str]:
        order, hosts = job.order, [f"{each.cpus}*{name}" for name, each in job.shares.items()]
        ran_s, left_s = self._lsf.ran_s(job), (job.ends or math.inf) - self._lsf.now
        limited = order.limit_s < math.inf
        values = {
            "jobid": str(job.id),
            "jobindex": "0",
            "stat": job.state,
            "user": f"user{order.uid}",
            "queue": order.partition,
            "job_name": order.name,
            "job_description": order.comment,
            "exec_host": ":".join(hosts),
            "exit_code": str(job.code) if job.state == "EXIT" else "",
            "pend_reason": "Job's requirements are not satisfied" if job.state == "PEND" else "",
            "run_time": f"{ran_s:.0f} second(s)",
            "runtimelimit": f"{order.limit_s / 60:.3f}" if limited else "",
            "time_left": f"{_clock(max(0.0, left_s))} L" if limited and job.state == "RUN" else "",
        }
        return {name.upper(): values[name] for name in fields}

    def _bacct(self, words: list[str]) -> str:
        said = ""
        for number in map(int, words[1:]):
            job = self._lsf.jobs.get(number)
            state = job.state if job else self._lsf.past.get(number)
            if state in ENDED:
                said += f"\nJob <{number}>, User <user>, Project <default>, Status <{state}>, Queue"
                said += " <batch>, Command <batch.sh>\n"
        if not said:
            raise Refused("No matching job found")
        return said

    # Hosts and queues.

    def _bhosts(self, words: list[str]) -> str:
        fields = _taken(words, "-o").upper().split()
        names = [word for word in words if not word.startswith("-")]
        places = [each for each in self._lsf.places.values() if not names or each.name in names]
        if "-gpu" in words:
            return self._bhosts_gpu(places)
        rows = [self._host(place) for place in places]
        if "-json" in words:
            chosen = [{key: row[key] for key in fields} for row in rows]
            return json.dumps({"COMMAND": "bhosts", "HOSTS": len(rows), "RECORDS": chosen}) + "\n"
        shown = [dict(zip(HOST_COLUMNS, HOST_COLUMNS, strict=True)), *rows]
        lines = [" ".join(f"{row[each]:<14}" for each in HOST_COLUMNS).rstrip() for row in shown]
        return "".join(f"{line}\n" for line in lines)

    def _kept(self, place: Place) -> int:
        """Return the slots that are kept for a job that waits."""
        jobs = self._lsf.jobs.values()
        if not any(job.waits and job.planned and place.name in job.planned[1] for job in jobs):
            return 0
        used = sum(job.used(place.name).cpus for job in jobs if place.name in job.shares)
        return max(0, place.cpus - used)

    def _host(self, place: Place) -> dict[str, str]:
        here = [job for job in self._lsf.jobs.values() if place.name in job.shares]
        slots = dict.fromkeys(("RUN", "SSUSP", "USUSP"), 0)
        for job in here:
            slots[job.state if job.state in slots else "RUN"] += job.shares[place.name].cpus
        kept = self._kept(place)
        used = sum(slots.values()) + kept
        full = "closed_Full" if used >= place.cpus else "ok"
        return {
            "HOST_NAME": place.name,
            "STATUS": "unavail" if place.down else full,
            "JL/U": "-",
            "MAX": str(place.cpus),
            "NJOBS": str(used),
            **{state: str(count) for state, count in slots.items()},
            "RSV": str(kept),
            "NGPUS": str(place.gpus),
            "NGPUS_ALLOC": str(sum(len(job.shares[place.name].gpus) for job in here)),
        }

    def _bhosts_gpu(self, places: Sequence[Place]) -> str:
        said = (
            "HOST_NAME            GPU_ID                MODEL     MUSED      MRSV"
            "  NJOBS    RUN   SUSP    RSV\n"
        )
        for place in places:
            for gpu in range(place.gpus):
                used = sum(
                    place.name in job.shares and gpu in job.shares[place.name].gpus
                    for job in self._lsf.jobs.values() if job.state != "SSUSP"
                )  # fmt: skip
                name = "" if gpu else place.name
                said += f"{name:<20} {gpu:>6} {'TeslaV100_SXM2_16GB':>20}  0M  0M  {used}  {used}"
                said += "  0  0\n"
        return said

    def _bqueues(self, words: list[str]) -> str:
        said = ""
        for name in words[1:] or self._lsf.queues:
            if name not in self._lsf.queues:
                raise Refused(f"{name}: No such queue.")
            said += _shown(self._lsf.queues[name])
        return said

    def _bparams(self, words: list[str]) -> str:
        most = self._lsf.site.most_requeues
        default = next(iter(self._lsf.queues))
        return f"    DEFAULT_QUEUE = {default}\n    MAX_JOB_REQUEUE = {most}\n"

    def _bslots(self, words: list[str]) -> str:
        said = ""
        for job in self._lsf.jobs.values():
            if not job.waits or job.planned is None:
                continue
            seconds = int(job.planned[0] - self._lsf.now)
            hosts = {name: self._kept(self._lsf.places[name]) for name in job.planned[1]}
            hours, rest = divmod(max(0, seconds), 3600)
            said += f"SLOTS: {sum(hosts.values())}\n"
            said += f"RUNTIME: {hours} hours {rest // 60} minutes {rest % 60} seconds\n"
            said += f"HOSTS: {' '.join(f'{slots}*{name}' for name, slots in hosts.items())}\n\n"
        return said or "No backfill window exists at this time\n"

    def _brsvs(self, words: list[str]) -> str:
        return "No reservation found\n"

    # blaunch.

    def _blaunch(self, process: Process) -> int:
        """Start a command on a host of the job, pass signals on, and end as it does; blaunch(1)."""
        process.name = "blaunch"
        told: list[int] = []
        for signum in (signal.SIGINT, signal.SIGTERM):
            calls.sigaction(signum, lambda signum, _frame: told.append(signum))
        name, *command = process.argv[1:]
        job = self._lsf.jobs.get(int(process.environ.get("LSB_JOBID", 0)))
        calls.sleep(self._kernel.chance.uniform(0.01, 0.3))
        if job is None or name not in job.shares:
            calls.write(2, f"{name}: not a host of the job\n".encode())
            return 255
        task = self._task(process, job, name, command)
        node = self._lsf.places[name].node
        if task is None:
            if not node.up:
                calls.sleep(self._kernel.chance.uniform(0.5, REACHED_S))
            return self._unreached(process, name)
        boot_id = node.boot_id

        def lost() -> bool:
            # The host says so when it is back, or LSF when it knows that it is not.
            return self._lsf.places[name].down or (node.up and node.boot_id != boot_id)

        over = lambda: node.boot_id == boot_id and node.up and task.process.dead  # noqa: E731
        while not over() and not lost():
            if told:
                signum = told.pop(0)
                self._kernel.at(
                    self._kernel.now + self._kernel.chance.uniform(0.005, 0.1),
                    lambda signum=signum: task.process.signal(signum),
                )
            self._kernel.wait(lambda: over() or lost() or bool(told))
        return abs(task.process.code or 0) if over() else self._unreached(process, name)

    def _unreached(self, process: Process, name: str) -> int:
        for look in self._lsf.unreached:
            look(process)
        calls.write(2, f"{name}: cannot be reached\n".encode())
        return 255

    def _task(self, process: Process, job: Job, name: str, command: list[str]) -> Task | None:
        environ = {**process.environ, "LSF_TASK_HOST": name}
        if gpus := job.shares[name].gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        streams = {fd: process.fds[fd] for fd in (1, 2) if fd in process.fds}

        def task(me: Process) -> int | None:
            program = self._kernel.programs(command)
            if program is None:
                calls.write(2, f"{command[0]}: not found\n".encode())
                return 127
            self._kernel.tell(f"{me!r} begins: {' '.join(command)[:100]}")
            return program(me)

        def prepare(me: Process) -> None:
            for fd, opened in streams.items():
                self._kernel.open_at(me, fd, opened)

        return self._lsf.launch(job, name, command, environ, program=task, prepare=prepare)


def _taken(words: list[str], option: str) -> str:
    """Take an option out; return its value, or nothing."""
    if option not in words:
        return ""
    at = words.index(option)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def _gpus(text: str) -> int:
    found = re.match(r"num=(\d+)(/host)?", text)
    assert found, text
    return int(found[1])


def _seconds(text: str) -> float:
    """Return the seconds of ``[HOUR:]MINUTE[/HOST]``."""
    hours, _, minutes = text.partition("/")[0].rpartition(":")
    return 3600.0 * int(hours or 0) + 60.0 * int(minutes)


def _clock(seconds: float) -> str:
    minutes = round(seconds) // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _shown(queue: Queue) -> str:
    """Return a queue as ``bqueues -l`` shows it."""
    counts = "-    -    -    -     0     0     0     0     0    0"
    said = f"\nQUEUE: {queue.name}\n  -- A queue of the tests\n\nPARAMETERS/STATISTICS\n"
    said += "PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV \n"
    said += f" {queue.priority}   20  Open:Active       {counts}\n\n"
    if queue.limit_s < math.inf:
        said += f"RUNLIMIT\n {queue.limit_s / 60:.1f} min\n\n"
    said += f"SCHEDULING POLICIES:  {queue.policies}\n" if queue.policies else ""
    said += "" if queue.preemptive else "PREEMPTION = PREEMPTABLE\n"
    said += "USERS: all\nHOSTS:  all\n"
    if queue.values:
        said += f"REQUEUE_EXIT_VALUES:  {' '.join(map(str, queue.values))}\n"
    said += "RERUNNABLE :  yes\n" if queue.rerunnable else ""
    said += "TERMINATE_WHEN = PREEMPT\n" if queue.terminates else ""
    if queue.controls:
        said += "\nJOB_CONTROLS:\n"
        said += "".join(f"    {name}:     [{what}]\n" for name, what in queue.controls.items())
    return said
