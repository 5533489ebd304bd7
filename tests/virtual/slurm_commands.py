"""Slurm's commands, as programs of virtual processes: those that production calls, and no others.

What they print has the form of the recordings in tests/batch/recorded. Without slurmctld a command
gives up after a while.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from virtual import batch_commands, calls
from virtual.batch_commands import RETRIES_S, Refused
from virtual.kernel import Process
from virtual.slurm import FINAL, Job, Order, Place, Slurm, Step, compressed, expanded

FORWARDED = (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)
HANDLED = (*FORWARDED, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


class Commands(batch_commands.Commands):
    """The commands of one Slurm."""

    names = frozenset({"sbatch", "scancel", "scontrol", "squeue", "sinfo", "sacct"})
    no_answer = "Socket timed out on send/recv operation"

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(slurm)
        self._slurm = slurm

    def program(self, argv: Sequence[str]) -> Callable[[Process], int] | None:
        """Return the program of an argv, if it is one of these."""
        if argv[0].rpartition("/")[2] == "srun":
            return self._srun
        return super().program(argv)

    def _alone(self, name: str, words: list[str]) -> str | None:
        if words == ["--version"]:
            return "slurm {}.{:02d}.8\n".format(*self._slurm.site.release)
        if words[:2] == ["show", "hostnames"]:
            return "".join(f"{each}\n" for each in expanded(words[2]))
        return None

    def _reach(self) -> None:
        if not self._kernel.wait(lambda: self._slurm.up, self._kernel.now + RETRIES_S):
            raise Refused("Unable to contact slurm controller (connect failure)")

    # Each of them.

    def _sbatch(self, words: list[str]) -> str:
        options, rest = _options(words)
        if "wrap" in options:
            script = f"#!/bin/sh\n{options['wrap']}\n"
        elif rest:
            fd = calls.open(rest[0], os.O_RDONLY)
            script = calls.read(fd, 1 << 20).decode()
        else:
            script = calls.read(0, 1 << 20).decode()
        partition = options.get("partition", next(iter(self._slurm.partitions)))
        if partition not in self._slurm.partitions:
            raise Refused("Batch job submission failed: Invalid partition name specified")
        process = calls.me()
        order = Order(
            name=options.get("job-name", "sbatch"),
            partition=partition,
            nodes=int(options.get("nodes", 1)),
            cpus=int(options.get("cpus-per-task", 1)),
            gpus=_gpus(options),
            memory_mb=int(options.get("mem", 100)),
            exclusive="exclusive" in options,
            nodelist=tuple(expanded(options.get("nodelist", ""))),
            limit_s=_seconds(options["time"]) if "time" in options
            else self._slurm.partitions[partition].max_s,
            requeue="requeue" in options,
            no_kill="no-kill" in options,
            notice=_notice(options.get("signal", "")),
            comment=options.get("comment", ""),
            output=options.get("output", "/dev/null"),
            script=script,
            arguments=tuple(rest[1:]),
            environ=tuple(process.environ.items()),
            uid=process.uid,
        )  # fmt: skip
        job = self._slurm.submit(order)
        job.eligible += int(options.get("begin", "now+0").removeprefix("now+"))
        return f"{job.id}\n"

    def _scancel(self, words: list[str]) -> str:
        options, rest = _options(words)
        signum = getattr(signal, f"SIG{options['signal']}") if "signal" in options else None
        if "jobname" in options:
            named = [
                job for job in self._slurm.jobs.values()
                if job.order.name == options["jobname"] and job.order.uid == calls.me().uid
            ]  # fmt: skip
            for job in named:
                if "state" not in options or job.shown == options["state"]:
                    self._slurm.cancel(job)
            return ""
        number, _, step_id = rest[0].partition(".")
        job = self._job(int(number))
        if step_id:
            step = next((each for each in job.steps if each.id == step_id), None)
            if step is None:
                raise Refused(f"Kill job error on job step id {rest[0]}: Invalid job id specified")
            self._slurm.signal_step(step, signum or signal.SIGKILL)
        elif signum is None:
            self._slurm.cancel(job)
        else:
            self._slurm.signal(job, signum, batch="batch" in options)
        return ""

    def _scontrol(self, words: list[str]) -> str:
        words = [word for word in words if not word.startswith("--")]
        match words:
            case ["requeue", number]:
                self._slurm.requeue(self._job(int(number)))
                return ""
            case ["update", number, "StartTime=now"]:
                self._slurm.begin_now(self._job(int(number.removeprefix("JobId="))))
                return ""
            case ["show", "job", number]:
                return self._shown(self._job(int(number)))
            case ["show", "node", names]:
                return "".join(self._node(self._slurm.places[each]) for each in expanded(names))
            case ["show", "config"]:
                site = self._slurm.site
                return (
                    f"AuthInfo                = cred_expire={site.requeue_s:g}\n"
                    "PrivateData             = none\nSchedulerParameters     = (null)\n"
                )
            case ["show", "reservation"]:
                return "No reservations in the system\n"
        raise AssertionError(f"scontrol {' '.join(words)} is not modelled")

    def _shown(self, job: Job) -> str:
        preempted = "None" if job.preempted is None else self._time(job.preempted)
        return (
            f"JobId={job.id} JobName={job.order.name} JobState={job.shown} Reason={job.why} "
            f"Restarts={job.restarts} PreemptTime={preempted}\n"
        )

    @staticmethod
    def _node(place: Place) -> str:
        return f"NodeName={place.name} Gres=gpu:{place.gpus} NodeAddr=10.0.0.{place.name[1:]}\n"

    def _squeue(self, words: list[str]) -> str:
        options, _ = _options(words)
        jobs = list(self._slurm.jobs.values())
        if "jobs" in options:
            numbers = [int(each) for each in options["jobs"].split(",")]
            if len(numbers) == 1:
                self._job(numbers[0])
            jobs = [job for job in jobs if job.id in numbers]
        if "steps" in options:
            steps = [step for job in jobs for step in job.steps]
            return "".join(f"{step.whole}|{step.name}\n" for step in steps)
        if "me" in options:
            jobs = [job for job in jobs if job.order.uid == calls.me().uid]
        if "name" in options:
            jobs = [job for job in jobs if job.order.name == options["name"]]
        if "partition" in options:
            jobs = [job for job in jobs if job.order.partition == options["partition"]]
        if options.get("states") == "PENDING":
            jobs = [job for job in jobs if job.shown == "PENDING"]
        elif options.get("states") != "all":
            jobs = [job for job in jobs if job.state not in FINAL or job.completing]
        if "start" in options:
            jobs = [job for job in jobs if job.planned is not None or job.why == "BeginTime"]
        if "Format" in options:
            return "".join(self._wide(job, options["Format"]) for job in jobs)
        return "".join(self._line(job, options["format"]) for job in jobs)

    def _line(self, job: Job, form: str) -> str:
        return re.sub("%([a-zA-Z])", lambda found: self._cell(job, found[1]), form) + "\n"

    def _cell(self, job: Job, letter: str) -> str:
        order = job.order
        planned = job.planned[0] if job.planned else None
        if job.state == "PENDING" and not job.completing:
            starts = planned if planned is not None else None
            if job.why == "BeginTime":
                starts = job.eligible
            ends = None if starts is None else starts + order.limit_s
        else:
            starts = job.began
            ends = job.ends if job.state == "RUNNING" else job.ended
        nodes = tuple(job.shares) or (job.was_on if job.state in FINAL else ())
        return {
            "i": lambda: str(job.id),
            "j": lambda: order.name,
            "T": lambda: job.shown,
            "r": lambda: job.why,
            "N": lambda: compressed(nodes),
            "e": lambda: self._time(ends),
            "S": lambda: self._time(starts),
            "l": lambda: _limit(order.limit_s),
            "Y": lambda: compressed(job.planned[1]) if job.planned else "(null)",
            "n": lambda: ",".join(order.nodelist),
            "u": lambda: f"user{order.uid}",
            "V": lambda: self._time(job.submitted),
            "k": lambda: order.comment or "(null)",
        }[letter]()

    def _wide(self, job: Job, form: str) -> str:
        values = {
            "JobArrayID": str(job.id),
            "Reason": job.why,
            "RestartCnt": str(job.restarts),
            "SubmitTime": self._time(job.submitted),
            "EligibleTime": self._time(job.eligible),
        }
        return _columns(values, form)

    def _sinfo(self, words: list[str]) -> str:
        options, _ = _options(words)
        if options["partition"] not in self._slurm.partitions:
            return ""
        limit_s = self._slurm.partitions[options["partition"]].max_s
        return "".join(
            _columns(self._state(place, limit_s), options["Format"])
            for place in self._slurm.places.values()
        )

    def _state(self, place: Place, limit_s: float) -> dict[str, str]:
        jobs = [job for job in self._slurm.jobs.values() if job.holds and place.name in job.shares]
        shares = [job.shares[place.name] for job in jobs]
        cpus, memory = sum(each.cpus for each in shares), sum(each.memory_mb for each in shares)
        gpus = sum(len(each.gpus) for each in shares)
        planned = any(
            place.name in job.planned[1] for job in self._slurm.jobs.values()
            if job.planned and job.state == "PENDING"
        )  # fmt: skip
        if place.down:
            state = "down*"
        elif any(job.completing for job in jobs):
            state = "completing"
        elif not jobs:
            state = "planned" if planned else "idle"
        else:
            state = "allocated" if cpus >= place.cpus else "mixed"
        return {
            "NodeList": place.name,
            "StateLong": state,
            "Gres": f"gpu:{place.gpus}",
            "CPUs": str(place.cpus),
            "Memory": str(place.memory_mb),
            "Available": "up",
            "Time": _limit(limit_s),
            "GresUsed": f"gpu:{gpus}",
            "CPUsState": f"{cpus}/{place.cpus - cpus}/0/{place.cpus}",
            "AllocMem": str(memory),
        }

    def _sacct(self, words: list[str]) -> str:
        options, _ = _options(words)
        found = ""
        for number in map(int, options["jobs"].split(",")):
            job = self._slurm.jobs.get(number)
            state = job.shown if job else self._slurm.past.get(number)
            found += f"{number}|{state}\n" if state else ""
        return found

    def _job(self, number: int) -> Job:
        if number not in self._slurm.jobs:
            raise Refused("Invalid job id specified")
        return self._slurm.jobs[number]

    @staticmethod
    def _time(at: float | None) -> str:
        if at is None:
            return "N/A"
        if calls.me().environ.get("SLURM_TIME_FORMAT") == "%s":
            return str(int(at))
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))

    # srun.

    def _srun(self, process: Process) -> int:
        """Start a step, pass signals on, and end as it does; srun(1)."""
        process.name = "srun"
        options, command = _options(list(process.argv[1:]))
        told: list[int] = []
        for signum in HANDLED:
            calls.sigaction(signum, lambda signum, _frame: told.append(signum))
        calls.sleep(self._kernel.chance.uniform(0.005, self.slow_s))
        try:
            step = self._step(process, options, told)
        except Refused as error:
            with contextlib.suppress(OSError):  # its log may be on the full disk
                calls.write(2, f"srun: error: {error}\n".encode())
            return 1
        for name in step.shares:
            self._launch(process, step, name, command)
        return self._attend(step, told, kills="kill-on-bad-exit" in options)

    def _step(self, process: Process, options: dict[str, str], told: list[int]) -> Step:
        number = int(options.get("jobid") or process.environ.get("SLURM_JOB_ID", 0))
        while True:
            self._reach()
            job = self._slurm.jobs.get(number)
            if job is None:
                raise Refused(f"Unable to create step for job {number}: Invalid job id specified")
            if told:
                raise Refused(f"Cancelled pending job step with signal {told[0]}")
            nodes = expanded(options.get("nodelist", "")) or list(job.shares)
            nodes = nodes[: int(options.get("nodes", len(nodes)))]
            made = self._slurm.step_of(
                job, options.get("job-name", "srun"), nodes,
                int(options.get("cpus-per-task", 1)), _gpus(options) if "gres" in options else None,
            )  # fmt: skip
            if isinstance(made, Step):
                return made
            if made is not None:
                raise Refused(f"Unable to create step for job {number}: {made}")
            self._kernel.wait(
                lambda: bool(told), self._kernel.now + self._kernel.chance.uniform(0.5, 2)
            )

    def _launch(self, process: Process, step: Step, name: str, command: list[str]) -> None:
        share = step.shares[name]
        environ = {
            **process.environ,
            **self._slurm.environ_of(step.job, name),
            "SLURM_STEP_ID": step.id,
            "SLURM_NODEID": str(list(step.shares).index(name)),
            "SLURM_STEP_GPUS": ",".join(map(str, share.gpus)),
        }
        if share.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = environ["SLURM_STEP_GPUS"]
        streams = {fd: process.fds[fd] for fd in (1, 2) if fd in process.fds}

        def task(me: Process) -> int | None:
            program = self._kernel.programs(command)
            if program is None:
                calls.write(
                    2, f"slurmstepd: error: execve(): {command[0]}: No such file\n".encode()
                )
                return 2
            self._kernel.tell(f"{me!r} begins: {' '.join(command)[:100]}")
            return program(me)

        def prepare(me: Process) -> None:
            for fd, opened in streams.items():
                self._kernel.open_at(me, fd, opened)

        def begin() -> None:
            if step.job.state != "RUNNING":
                # "Job credential revoked"
                step.codes.setdefault(name, 1)
                self._slurm.not_launched(step, name)
                self._kernel.touched()
            elif step in step.job.steps:
                self._slurm.launch(step, name, command, environ, task, prepare=prepare)

        self._kernel.at(self._kernel.now + self._kernel.chance.uniform(0.01, 0.3), begin)

    def _attend(self, step: Step, told: list[int], *, kills: bool) -> int:
        """Wait for all tasks."""
        nodes = list(step.shares)
        places = self._slurm.places

        def known(name: str) -> bool:
            return name in step.daemons or name in step.codes or not places[name].node.up

        def over() -> bool:
            return all(name in step.codes for name in nodes)

        while not over():
            if not all(map(known, nodes)):
                # Nothing can be told to a task that has not begun.
                self._kernel.wait(over, self._kernel.now + 0.1)
                continue
            if told:
                self._forward(step, told.pop(0))
            if kills and any(step.codes.values()):
                kills = False
                self._slurm.signal_step(step, signal.SIGKILL)
            bad = (lambda: any(step.codes.values())) if kills else (lambda: False)
            self._kernel.wait(lambda bad=bad: over() or bool(told) or bad())
        codes = step.codes.values()
        return max(128 - code if code < 0 else code for code in codes)

    def _forward(self, step: Step, signum: int) -> None:
        if signum in FORWARDED:
            self._slurm.signal_step(step, signum)
        elif signum != signal.SIGINT:
            # "forcing job termination"
            self._slurm.signal_step(step, signal.SIGKILL)


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return options, and what follows them."""
    options = {}
    for at, word in enumerate(words):
        if not word.startswith("--"):
            return options, words[at:]
        name, _, value = word[2:].partition("=")
        options[name] = value
    return options, []


def _gpus(options: dict[str, str]) -> int:
    return int(options.get("gres", "gpu:0").rpartition(":")[2])


def _notice(text: str) -> tuple[int, bool, float] | None:
    found = re.fullmatch(r"(B:)?([A-Z0-9]+)(?:@(\d+))?", text)
    if found is None:
        return None
    return int(getattr(signal, f"SIG{found[2]}")), bool(found[1]), float(found[3] or 60)


def _seconds(text: str) -> float:
    """Return the seconds of ``--time``: minutes, or hours, minutes and seconds."""
    parts = [int(part) for part in text.split(":")]
    if len(parts) == 1:
        return parts[0] * 60.0
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds


def _limit(seconds: float) -> str:
    whole = int(seconds)
    days, rest = divmod(whole, 86_400)
    said = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{said}" if days else said


def _columns(values: dict[str, Any], form: str) -> str:
    cells = [each.rstrip("|").partition(":") for each in form.split(",")]
    return "".join(f"{values[name]:<{width}.{width}}|" for name, _, width in cells) + "\n"
