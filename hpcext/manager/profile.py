"""Measures the speed of a command by its number of GPUs (MARBLE §V-D: offline profiling).

A composition: a pilot of its own with one job for each number of GPUs, which run one after the
other. An observer reads their progress, and cancels each as soon as its speed is known.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcext import documents, protocol
from hpcext.config import Settings
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.core.values import Action, Job, Kind, State
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.jobspec import Gpus, JobSpec
from hpcext.manager import pilot as pilots
from hpcext.manager import spool
from hpcext.profiles import Measurement
from hpcext.scaling.steady import Mark, Speed, speed
from hpcext.text import clean

LOOK_S = 0.2
"""Seconds between two looks at progress.

Measurements do not depend on it: reports carry the instant at which they were made.
"""

START_FACTOR = 10
"""The longest time of a first step, as a multiple of the time to measure: imports, compilation."""

LEAST_S = 0.5
"""Seconds below which an observation is not a speed."""

SUSPEND_TIMEOUT_S = 5.0
"""Seconds to save: nothing of an interrupted measurement needs to be."""

_LINE_CHARS = 200


class SizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command on one number of GPUs.

    Attributes
    ----------
    gpus : int
    steps_per_s, samples_per_s : float or None
        None if not measured; samples also if the training does not count them.
    seconds : float
        How long the speed was observed, without warm-up.
    half_width : float or None
        Of its 95 % interval, relative; None if too little was seen to know.
    error : str
        Why there is no speed.
    """

    gpus: int
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    seconds: float = 0.0
    half_width: float | None = None
    error: str = ""

    def measurement(self, gpu: str) -> Measurement | None:
        """Return what to store, if there is a speed."""
        if self.steps_per_s is None:
            return None
        return Measurement(
            at=time.time(),
            gpus=self.gpus,
            steps_per_s=self.steps_per_s,
            samples_per_s=self.samples_per_s,
            seconds=self.seconds,
            source="profile",
            gpu=gpu,
        )


def measure(
    command: Sequence[str],
    sizes: Sequence[int],
    *,
    name: str,
    gpus: Sequence[int],
    logical: bool,
    seconds: float,
    settings: Settings,
    tell: Callable[[SizeResult], None],
) -> tuple[list[SizeResult], signal.Signals | None]:
    """Run a command on each number of GPUs for a while.

    Each run has a directory for checkpoints of its own, which is removed with everything else.

    Parameters
    ----------
    command : sequence of str
        argv with the placeholders of a job file.
    sizes : sequence of int
        Numbers of GPUs.
    name : str
        The pilot is called ``profile-NAME``, for ``hpcext status`` and ``hpcext logs``.
    gpus : sequence of int
        GPU indices that may be used; with `logical`, slots.
    logical : bool
    seconds : float
        Longest time to measure one size, from its first step on.
    settings : Settings
    tell : callable
        Told of each size as it is done.

    Returns
    -------
    sizes : list of SizeResult
        Those that were tried.
    stopped_by : signal.Signals or None
        The signal that ended it before all were.

    Raises
    ------
    HpcextError
        The pilot cannot be made, or its directory not be written.
    """
    specs = [_spec(command, count) for count in sizes]
    directory = pilots.create(
        specs,
        pilots.NewPilot(
            name=f"profile-{name}"[:64],
            gpus=gpus,
            logical=logical,
        ),
        settings=dataclasses.replace(settings, policy="exclusive", report_interval_s=LOOK_S),
        where="command",
    )
    observer = _Observer(directory, seconds, tell)
    try:
        _, driver = pilots.run(directory, observer)
        return observer.sizes, driver.stopped_by
    finally:
        _end_what_is_left(directory)
        shutil.rmtree(directory, ignore_errors=True)


def _spec(command: Sequence[str], count: int) -> JobSpec:
    return JobSpec(
        name=f"gpus-{count}",
        command=tuple(command),
        gpus=Gpus(min=count, max=count),
        workdir=os.getcwd(),
        retries=0,
        suspend_timeout_s=SUSPEND_TIMEOUT_S,
    )


class _Run:
    """One number of GPUs while it is measured: what its reports said."""

    def __init__(self, files: AttemptFiles, gpus: int, began_s: float) -> None:
        self.files = files
        self.gpus = gpus
        self.began_s = began_s
        self.marks: list[Mark] = []
        self.registered = False
        self.cancelled = False

    def look(self) -> None:
        """Take in a new report, if there is one."""
        path = self.files.directory / protocol.REPORT_FILE
        try:
            document = documents.read_json(path, protocol.REPORT)
            mark = _mark(document)
        except (OSError, ValueError):
            return  # The executor reads it too, and warns of what is wrong with it.
        self.registered = True
        last = self.marks[-1] if self.marks else None
        # The first step is a mark; the registration before it is not, so it does not count.
        if mark.step > (last.step if last else 0) and mark.at_s > (last.at_s if last else 0):
            self.marks.append(mark)

    def speed(self) -> Speed | None:
        """Return the speed as far as it is known."""
        return speed(self.marks)

    def over(self, now_s: float, seconds: float) -> bool:
        """Return whether it has run long enough."""
        if self.marks:
            known = self.speed()
            steady = known is not None and known.steady
            return steady or self.marks[-1].at_s - self.marks[0].at_s >= seconds
        return now_s - self.began_s >= START_FACTOR * seconds


def _mark(document: dict[str, Any]) -> Mark:
    """Read the numbers of a report; what a training wrote is not to be trusted."""
    at_s, step, done = (document.get(key) for key in ("at", "step", "done"))
    if not all(type(value) in (int, float) for value in (at_s, step, done)):
        raise ValueError("not numbers")
    mark = Mark(float(at_s or 0), int(step or 0), float(done or 0))
    if not all(0 <= value < 1e15 for value in mark):
        raise ValueError("not plausible numbers")
    return mark


class _Observer:
    """An observer of the pilot that has each job cancelled when its speed is known."""

    def __init__(self, directory: Path, seconds: float, tell: Callable[[SizeResult], None]) -> None:
        self.sizes: list[SizeResult] = []
        self._directory = directory
        self._seconds = seconds
        self._tell = tell
        self._runs: dict[str, _Run] = {}
        self._told: set[str] = set()

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Look at all jobs, after a turn of the driver."""
        for job in engine.world.jobs.values():
            if job.state.active:
                self._watch(job, now_s)
            elif job.state.final and job.id not in self._told:
                self._told.add(job.id)
                self._done(job, engine.world.records[job.id].exit_code)

    def _watch(self, job: Job, now_s: float) -> None:
        run = self._runs.get(job.id)
        if run is None:
            action = Action(Kind.START, job.id, job.op, job.attempt)
            files = AttemptFiles(self._directory / "jobs", action)
            run = self._runs[job.id] = _Run(files, job.sizes[0], now_s)
        run.look()
        if not run.cancelled and run.over(now_s, self._seconds):
            run.cancelled = True
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        """Ask the manager, as any other terminal would."""
        spool.put(self._directory, "cancel", job=job.id)
        os.kill(os.getpid(), protocol.NEWS_SIGNAL)

    def _done(self, job: Job, exit_code: int | None) -> None:
        run = self._runs.get(job.id)
        if run is None:  # It could not be started; or not was, before all was ended.
            size = SizeResult(gpus=job.sizes[0], error=job.why)
        else:
            run.look()
            size = self._result(run, job, exit_code)
        self.sizes.append(size)
        self._tell(size)

    def _result(self, run: _Run, job: Job, exit_code: int | None) -> SizeResult:
        if job.state is State.COMPLETED and len(run.marks) > 2:
            del run.marks[-1]  # reported when all was done and saved, not when the step was
        known = run.speed()
        if job.state is State.FAILED:
            last = _last_line(run.files.directory.parent / "log.txt")
            return SizeResult(gpus=run.gpus, error=f"exit code {exit_code}: {last or 'no output'}")
        if known is None or known.seconds < LEAST_S:
            return SizeResult(gpus=run.gpus, error=self._why_unknown(run, job))
        # A training that does not count samples reports its steps as its work.
        samples = [mark.done for mark in run.marks] != [mark.step for mark in run.marks]
        return SizeResult(
            gpus=run.gpus,
            steps_per_s=known.steps_per_s,
            samples_per_s=known.done_per_s if samples and known.done_per_s > 0 else None,
            seconds=known.seconds,
            half_width=known.half_width if math.isfinite(known.half_width) else None,
        )

    def _why_unknown(self, run: _Run, job: Job) -> str:
        if job.state is State.COMPLETED:
            if run.registered:
                return f"ended after {job.step} steps, too soon to be measured"
            return "ended without a report: the training does not use a session of hpcext"
        if run.marks:
            return f"only one report of progress in {self._seconds:g} s: more --seconds are needed"
        what = "no step was completed" if run.registered else "no session of hpcext reported"
        return f"{what} in {START_FACTOR * self._seconds:g} s"


def _last_line(path: Path) -> str:
    """Return the last line of a log that has any text."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said: Iterator[str] = (line.strip() for line in reversed(lines) if line.strip())
    return clean(next(said, ""))[:_LINE_CHARS]


def _end_what_is_left(directory: Path) -> None:
    """End attempts that an interrupted manager left, which unlike a pilot's are not continued."""
    for path in sorted((directory / "jobs").glob("*/attempt-*")):
        files = AttemptFiles(directory / "jobs", Action(Kind.KILL, path.parent.name, 0, 1))
        supervisor = files.supervisor()
        if supervisor is not None and supervisor.alive():
            supervisor.send(signal.SIGTERM)
            deadline = time.monotonic() + 4 * SUSPEND_TIMEOUT_S
            while supervisor.alive():
                if time.monotonic() > deadline:
                    raise HpcextError(
                        "a training does not end, though it was told to",
                        where=f"pid {supervisor.pid}",
                    )
                time.sleep(0.05)
