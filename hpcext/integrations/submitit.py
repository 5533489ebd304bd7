"""The executor of submitit whose jobs run in a pilot: ``AutoExecutor(folder, cluster="hpcext")``.

submitit finds these classes by its entry points, in the process that submits and in its jobs. Each
is a job of the pilot with the preset ``submitit``: a suspension has it call the ``checkpoint()`` of
its callable, and the next attempt goes on with what that has returned.
"""

from __future__ import annotations

import collections
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar

from submitit.core import core, job_environment, logger, utils

from hpcext.checks import at, integer, known_keys, number
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.core.reasons import reason
from hpcext.core.values import State
from hpcext.jobfields import MAX_FACTOR, MAX_NAME_CHARS, MAX_NODES
from hpcext.jobfile import KEYS
from hpcext.jobtext import allowed_name, job_text
from hpcext.manager import choosing
from hpcext.manager import directory as pilots
from hpcext.manager.views.reading import Follower, Reading
from hpcext.manager.views.report import display_state
from hpcext.manager.waiting import asked
from hpcext.text import listed, shown

R_co = TypeVar("R_co", covariant=True)

NAME = "submitit"
"""The name of jobs that are given none, their preset, and where they come from, for messages."""

PILOT_VARIABLE = "SUBMITIT_PILOT"
"""The variable by which a job knows its pilot, whose id is a part of its own."""

LOOK_S = 10
"""The longest time, in seconds, between two looks at a pilot; its result a job finds by itself."""

MOST_AT_ONCE = 500
"""Jobs in one request to a manager, which is of limited size."""

ANSWER_S = 120.0
"""Seconds to wait for a manager: what it takes later would find no function to call."""

GONE = "GONE"
"""The state of a job whose pilot is no more."""

FINAL = frozenset({GONE, *(state.value.upper() for state in State if state.final)})

OWN_KEYS = frozenset({"command", "shell", "checkpoint", "trial"})
"""Keys of a job that are not the user's to state."""

JOB_KEYS = tuple(key for key in KEYS if key not in OWN_KEYS)

GENERIC = (
    "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout",
)  # fmt: skip
"""Parameters of all executors that are no keys."""


class HpcextInfoWatcher(core.InfoWatcher):
    """What pilots say of their jobs; all jobs of a pilot are looked at together."""

    def __init__(self, delay_s: int = LOOK_S) -> None:
        super().__init__(delay_s)
        self._followers: dict[str, Follower] = {}
        self._told: dict[str, str] = {}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of a job as ``hpcext status`` has it, in capitals."""
        return self.get_info(job_id, mode).get("State", "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether a job has ended, so that nothing more comes of it."""
        return self.get_state(job_id, mode) in FINAL

    def update(self) -> None:
        """Look at the pilots of all jobs that have not ended."""
        self._num_calls += 1
        self._last_status_check = time.time()
        waiting = collections.defaultdict(list)
        for job_id in self._registered - self._finished:
            waiting[job_id.rpartition(".")[0]].append(job_id)
        for pilot, job_ids in waiting.items():
            try:
                self._info_dict.update(self._look(pilot, job_ids))
            except HpcextError as error:
                self._tell(pilot, str(error))
        found = self._info_dict.items()
        self._finished |= {job_id for job_id, info in found if info["State"] in FINAL}

    def _look(self, pilot: str, job_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return what is known of some jobs of one pilot."""
        try:
            directory = _pilot_of(job_ids[0])
        except NoManagerError as error:
            return {job_id: {"State": GONE, "Why": str(error)} for job_id in job_ids}
        found = self._followers.setdefault(pilot, Follower(directory)).read()
        if found.standing.what:
            self._tell(pilot, f"{found.standing.what}; {found.standing.do}")
        return dict(_infos(found, job_ids))

    def _tell(self, pilot: str, what: str) -> None:
        """Log what keeps jobs of a pilot from going on, once."""
        if self._told.get(pilot) != what:
            self._told[pilot] = what
            logger.get_logger().warning(f"pilot {pilot}: {what}")


def _infos(found: Reading, job_ids: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for job_id in job_ids:
        # One that was submitted a moment ago may not have been read yet.
        job = found.world.jobs.get(job_id.rpartition(".")[2])
        if job is not None:
            state = display_state(job).upper()
            yield job_id, {"State": state, "Name": job.name, "Why": reason(job)}


def _pilot_of(job_id: str) -> Path:
    """Return the directory of the pilot of a job, by the id that the job has in submitit."""
    pilot, _, within = job_id.rpartition(".")
    if not pilot or not within.isdecimal():
        raise InputError(f"{shown(job_id)} is no job of a pilot", valid="PILOT.NUMBER")
    return pilots.find(pilot, load_settings().state_dir)


class HpcextJob(core.Job[R_co]):
    """A job in a pilot; its id is that of the pilot, a dot, and its id there."""

    watcher = HpcextInfoWatcher()

    def cancel(self, check: bool = True) -> None:
        """Cancel the job; one that has ended stays as it is.

        Parameters
        ----------
        check : bool
            Whether to raise the error if nobody can cancel it now.
        """
        try:
            asked(_pilot_of(self.job_id), "cancel", job=self.job_id.rpartition(".")[2])
        except HpcextError:
            if check and not self.watcher.is_done(self.job_id, mode="force"):
                raise


class HpcextJobEnvironment(job_environment.JobEnvironment):
    """What a job of submitit finds out about itself in a pilot."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "HPCEXT_JOB_ID",
        "num_tasks": "HPCEXT_NUM_NODES",
        "num_nodes": "HPCEXT_NUM_NODES",
        "node": "HPCEXT_NODE_INDEX",
        "global_rank": "HPCEXT_NODE_INDEX",
        "local_rank": "",
    }

    @property
    def raw_job_id(self) -> str:
        """The id of the job, by which its files are named."""
        return f"{os.environ[PILOT_VARIABLE]}.{super().raw_job_id}"

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        """Save at a suspension; SIGTERM, which submitit ignores, ends a job that is cancelled."""
        # What an attempt was writing when it was killed would keep this one from writing.
        for path in (paths.result_pickle, *([] if self.global_rank else [paths.submitted_pickle])):
            path.with_suffix(f"{path.suffix}.save_tmp").unlink(missing_ok=True)
        # Of an attempt that is retried.
        paths.result_pickle.unlink(missing_ok=True)
        saver = _Saver(self, paths, submission)
        signal.signal(signal.SIGUSR2, saver.checkpoint_and_try_requeue)

    def _requeue(self, countdown: int) -> None:
        """Say that the job has saved: the supervisor hears this in place of Slurm."""
        subprocess.run(["scontrol", "requeue", self.job_id], check=True, timeout=60)


class _Saver(job_environment.SignalHandler):
    """What a job does at a suspension."""

    def has_timed_out(self) -> bool:
        """Return False: a suspension is no timeout, however often there is one."""
        return False

    def checkpoint_and_try_requeue(self, signum: int, frame: FrameType | None = None) -> None:
        """Save what is left to do, unless there is a result already; rank 0 does so for all."""
        if self._job_paths.result_pickle.exists():
            return
        if self.env.global_rank == 0:
            super().checkpoint_and_try_requeue(signum, frame)
        else:
            self.env._requeue(self._delayed._timeout_countdown)
            self._exit()


class HpcextExecutor(core.Executor):
    """An executor whose jobs run in a pilot.

    Parameters
    ----------
    folder : pathlib.Path or str
        Where functions and results are stored. Jobs must see it under the same path.
    pilot : str
        Directory, id or name of the pilot; by default the only one that runs.
    python : str, optional
        The command of the interpreter of jobs, by default this one.
    """

    job_class = HpcextJob

    def __init__(self, folder: Path | str, pilot: str = "", python: str | None = None) -> None:
        super().__init__(folder)
        self.python = [sys.executable] if python is None else shlex.split(python)
        if pilot:
            self.parameters["pilot"] = pilot

    @classmethod
    def affinity(cls) -> int:
        """Return 0: it is used if asked for by its name."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"pilot", *JOB_KEYS}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        self.parameters.update(_parameters(kwargs))

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit functions, none of them if one cannot be pickled."""
        directory = _chosen(str(self.parameters.get("pilot", "")))
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        pickles = [folder / f"{uuid.uuid4().hex}.pkl" for _ in delayed_submissions]
        jobs: list[core.Job[Any]] = []
        try:
            for delayed, path in zip(delayed_submissions, pickles, strict=True):
                delayed.dump(path)
            names = self._names(len(pickles))
            for first in range(0, len(pickles), MOST_AT_ONCE):
                part = slice(first, first + MOST_AT_ONCE)
                job_ids = self._submit(directory, names[part])
                for job_id, path in zip(job_ids, pickles[part], strict=True):
                    jobs.append(self._handed_over(directory, job_id, path))
        finally:
            for path in pickles:
                path.unlink(missing_ok=True)
        return jobs

    def _names(self, count: int) -> list[str]:
        """Return a name for each of some jobs; the manager numbers those that are taken."""
        name = allowed_name(str(self.parameters.get("name", NAME))) or NAME
        if count == 1:
            return [name]
        most = MAX_NAME_CHARS - len(f"-{count}")
        return [f"{name[:most]}-{index}" for index in range(1, count + 1)]

    def _submit(self, directory: Path, names: Sequence[str]) -> list[str]:
        """Submit jobs of these names, which wait for their pickles; return their ids."""
        keys = {key: self.parameters[key] for key in JOB_KEYS if key in self.parameters}
        environ = {"SUBMITIT_EXECUTOR": self.name(), PILOT_VARIABLE: pilots.load(directory).id}
        command = [*self.python, "-u", "-m", "submitit.core._submit", str(self.folder)]
        # What a function raises is its result.
        same = {"retries": 0, **keys, "command": command, "checkpoint": NAME}
        same["env"] = {**keys.get("env", {}), **environ}
        text = job_text(*({**same, "name": name} for name in names))
        base = str(Path.cwd())
        words = {"text": text, "where": NAME, "base": base, "number": True}
        answer = asked(directory, "submit", timeout_s=ANSWER_S, **words)
        return [str(job_id) for job_id in answer["jobs"]]

    def _handed_over(self, directory: Path, within: str, pickle: Path) -> core.Job[Any]:
        """Return a job that was submitted, after giving it its function."""
        job_id = f"{pilots.load(directory).id}.{within}"
        ranks = range(self.parameters.get("nodes", 1))
        job: core.Job[Any] = self.job_class(self.folder, job_id, ranks)
        job.paths.move_temporary_file(pickle, "submitted_pickle")
        for rank in ranks:
            log = f"log.node-{rank}.txt" if rank else "log.txt"
            job.task(rank).paths.stdout.symlink_to(directory / "jobs" / within / log)
        return job


def _parameters(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of submitit as keys of a job, and the pilot."""
    known_keys(stated, ("pilot", *JOB_KEYS, *GENERIC), "parameter")
    found: dict[str, Any] = {}
    ignored = []
    for key, value in stated.items():
        if value is None:
            continue
        if key == "tasks_per_node":
            if value != 1:
                valid = "1: a function is one process on each node"
                raise InputError(shown(value), where=key, valid=valid)
        elif key == "nodes":
            with at(key):
                found[key] = integer(value, 1, MAX_NODES)
        elif key in {"mem_gb", "cpus_per_task"}:
            ignored.append(key)
        elif key == "gpus_per_node":
            found["gpus"] = value
        elif key == "timeout_min":
            with at(key):
                found["walltime_s"] = 60 * number(value, 0, MAX_FACTOR / 60, above=True)
        elif key != "stderr_to_stdout":
            found[key] = str(value) if isinstance(value, Path) else value
    _check_stated(found)
    if ignored:
        told = f"{listed(ignored)}: ignored, since a pilot shares out GPUs only"
        warnings.warn(told, stacklevel=2)
    return found


def _check_stated(keys: Mapping[str, Any]) -> None:
    """Refuse values that no job file could hold; the manager checks the others."""
    for key, value in keys.items():
        try:
            job_text({key: value})
        except TypeError:
            kind = type(value).__name__
            valid = "strings, numbers, and lists and dicts of these"
            raise InputError(f"a {kind}", where=key, valid=valid) from None


def _chosen(handle: str) -> Path:
    """Return the directory of the pilot of this name, or of the only one that runs."""
    state_dir = load_settings().state_dir
    if handle:
        return pilots.find(handle, state_dir)
    running = choosing.running(state_dir)
    if not running:
        raise NoManagerError(
            "no pilot is running",
            where="hpcext_pilot",
            valid="a directory, an id or a name",
            do="begin one: hpcext run --stay --name NAME --detach",
        )
    if len(running) > 1:
        raise InputError(
            f"{len(running)} pilots are running, so name the one that you mean",
            where="hpcext_pilot",
            valid=listed(pilots.load(path).id for path in running),
        )
    return running[0]
