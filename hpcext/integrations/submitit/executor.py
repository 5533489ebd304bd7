"""The executor: functions become jobs of a pilot, and pickles that these find."""

from __future__ import annotations

import shlex
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from hpcext.integrations.pilots import chosen
from hpcext.integrations.submitit.environment import PILOT_VARIABLE
from hpcext.integrations.submitit.job import HpcextJob
from hpcext.integrations.submitit.parameters import JOB_KEYS, PILOT, parameters
from hpcext.jobfields import MAX_NAME_CHARS
from hpcext.jobtext import allowed_name, job_text
from hpcext.manager import directory as pilots
from hpcext.manager.waiting import asked

NAME = "submitit"
"""The name of jobs that are given none, their preset, and where they come from, for messages."""

MOST_AT_ONCE = 200
"""Jobs in one request to a manager, which is of limited size."""

ANSWER_S = 120.0
"""Seconds to wait for a manager: what it takes later would find no function to call."""


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
            self.parameters[PILOT] = pilot

    @classmethod
    def affinity(cls) -> int:
        """Return 0: it is used if asked for by its name."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {PILOT, *JOB_KEYS}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        self.parameters.update(parameters(kwargs))

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit functions, none of them if one cannot be pickled."""
        directory = chosen(str(self.parameters.get(PILOT, "")), "hpcext_pilot")
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
        name = allowed_name(str(self.parameters.get("name", NAME)), NAME)
        if count == 1:
            return [name]
        most = MAX_NAME_CHARS - len(f"-{count}")
        return [f"{name[:most]}-{index}" for index in range(1, count + 1)]

    def _submit(self, directory: Path, names: Sequence[str]) -> list[str]:
        """Submit jobs of these names, which wait for their pickles; return their ids."""
        keys = {key: self.parameters[key] for key in JOB_KEYS if key in self.parameters}
        pilot = pilots.load(directory).id
        environ = {"SUBMITIT_EXECUTOR": self.name(), PILOT_VARIABLE: pilot}
        command = [*self.python, "-u", "-m", "submitit.core._submit", str(self.folder)]
        # What a function raises is its result.
        same = {"retries": 0, **keys, "command": command, "checkpoint": NAME}
        same["env"] = {**keys.get("env", {}), **environ}
        text = job_text(*({**same, "name": name} for name in names))
        base = str(Path.cwd())
        words = {"text": text, "where": NAME, "base": base, "number": True}
        answer = asked(directory, "submit", timeout_s=ANSWER_S, **words)
        return [f"{pilot}.{within}" for within in answer["jobs"]]

    def _handed_over(self, directory: Path, job_id: str, pickle: Path) -> core.Job[Any]:
        """Return a job that was submitted, after giving it its function."""
        logs = directory / "jobs" / job_id.rpartition(".")[2]
        ranks = range(self.parameters.get("nodes", 1))
        job: core.Job[Any] = self.job_class(self.folder, job_id, ranks)
        job.paths.move_temporary_file(pickle, "submitted_pickle")
        for rank in ranks:
            log = f"log.node-{rank}.txt" if rank else "log.txt"
            job.task(rank).paths.stdout.symlink_to(logs / log)
        return job
