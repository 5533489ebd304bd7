"""The provider of Parsl whose blocks are jobs of a pilot: ``HpcextProvider(pilot="pool")``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parsl.jobs.states import JobState, JobStatus
from parsl.providers.base import ExecutionProvider
from parsl.providers.errors import SubmitException
from parsl.utils import RepresentationMixin

from hpcext.core.errors import HpcextError
from hpcext.core.reasons import reason
from hpcext.core.values import Job, State
from hpcext.integrations.pilots import chosen
from hpcext.jobtext import allowed_name, job_text
from hpcext.manager.views.reading import Follower
from hpcext.manager.waiting import asked

log = logging.getLogger(__name__)

NAME = "parsl"
"""Where jobs come from, for messages."""

POLL_S = 5
"""Seconds between two looks at blocks."""

_STATES = {
    State.PENDING: JobState.PENDING,
    State.COMPLETED: JobState.COMPLETED,
    State.CANCELLED: JobState.CANCELLED,
    State.FAILED: JobState.FAILED,
}


class HpcextProvider(ExecutionProvider, RepresentationMixin):  # type: ignore[misc]
    """A provider whose blocks of workers are jobs of a pilot.

    A pilot that needs the GPUs of a block takes them as it takes those of any job without a
    session: the block is ended, and begins again when there is room, as it does if it fails. What
    its workers were doing Parsl does again, if it has ``retries``.

    Parameters
    ----------
    pilot : str
        Directory, id or name of the pilot; by default the only one that runs.
    gpus : int or str
        GPUs, or logical slots, of a block.
    init_blocks, min_blocks, max_blocks : int
        Blocks at the beginning, at least and at most.
    parallelism : float
        Blocks per slot that tasks need, as for all providers.
    keys : Mapping[str, Any], optional
        Further keys of their jobs, as in a job file.
    """

    def __init__(
        self,
        pilot: str = "",
        *,
        gpus: int | str = 1,
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 1,
        parallelism: float = 1,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        self.pilot, self.gpus, self.keys = pilot, gpus, dict(keys or {})
        self.init_blocks, self.min_blocks, self.max_blocks = init_blocks, min_blocks, max_blocks
        self.parallelism = parallelism
        self.nodes_per_block = 1
        self.script_dir: str | None = None
        self.resources: dict[object, Any] = {}
        self._directory: Path | None = None
        self._follower: Follower | None = None
        self._told = ""

    @property
    def label(self) -> str:
        """The name of this kind of provider."""
        return "hpcext"

    @property
    def status_polling_interval(self) -> int:
        """Seconds between two looks at blocks."""
        return POLL_S

    @property
    def directory(self) -> Path:
        """The directory of the pilot."""
        if self._directory is None:
            self._directory = chosen(self.pilot, "HpcextProvider(pilot=)")
        return self._directory

    def submit(self, command: str, tasks_per_node: int, job_name: str = NAME) -> str:
        """Submit a block.

        Parameters
        ----------
        command : str
            What a shell runs: the workers of the block.
        tasks_per_node : int
            Ignored: workers are as many as the executor says.
        job_name : str

        Returns
        -------
        str
            The id of its job.

        Raises
        ------
        SubmitException
            There is no pilot, or it does not take the job.
        """
        name = allowed_name(job_name, NAME)
        try:
            keys = {**self.keys, "gpus": self.gpus}
            text = job_text({**keys, "name": name, "command": ["bash", "-c", command]})
            words = {"text": text, "where": NAME, "base": str(Path.cwd()), "number": True}
            (found,) = asked(self.directory, "submit", **words)["jobs"]
        except HpcextError as error:
            raise SubmitException(job_name, str(error)) from None
        return str(found)

    def status(self, job_ids: Sequence[object]) -> list[JobStatus]:
        """Return the states of blocks; those of a pilot that cannot be read are unknown."""
        try:
            self._follower = self._follower or Follower(self.directory)
            found = self._follower.read()
        except HpcextError as error:
            return [JobStatus(JobState.UNKNOWN, message=str(error)) for _ in job_ids]
        if found.standing.what != self._told:
            self._told = found.standing.what
            if self._told:
                log.warning("pilot %s: %s; %s", self.directory, self._told, found.standing.do)
        return [self._status(found.world.jobs.get(str(job_id))) for job_id in job_ids]

    def _status(self, job: Job | None) -> JobStatus:
        if job is None:
            # It was submitted a moment ago.
            return JobStatus(JobState.PENDING)
        output = str(self.directory / "jobs" / job.id / "log.txt")
        state = JobState.HELD if job.on_hold else _STATES.get(job.state, JobState.RUNNING)
        return JobStatus(state, message=reason(job), stdout_path=output, stderr_path=output)

    def cancel(self, job_ids: Sequence[object]) -> list[bool]:
        """Cancel blocks; return for each whether it will end."""
        return [self._cancelled(str(job_id)) for job_id in job_ids]

    def _cancelled(self, job_id: str) -> bool:
        try:
            asked(self.directory, "cancel", job=job_id)
        except HpcextError:
            (status,) = self.status([job_id])
            return bool(status.terminal)
        return True
