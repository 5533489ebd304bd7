"""Queries of Slurm by its REST interface, in JSON.

The forms are those of https://slurm.schedmd.com/rest_api.html. Up to v0.0.38 a number that is not
set is null, and a state is a word; later a number is an object, and a state a list of words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from hpcext.allocation import JobId
from hpcext.batch import slurm
from hpcext.batch.jobs import End, Seen
from hpcext.batch.slurm import Host
from hpcext.batch.slurm.commands import Commands
from hpcext.batch.slurm.restd import VERSIONS, Answer, Restd
from hpcext.core.errors import BatchError
from hpcext.text import clean, shown

_NO_SUCH_JOB = 2017
"""ESLURM_INVALID_JOB_ID of slurm_errno.h."""

_NO_SUCH_URL = 404

_SHOWN_FIRST = (
    "completing", "stage_out", "configuring", "power_up_node", "resizing", "requeued",
    "requeue_fed", "requeue_hold", "special_exit", "stopped", "revoked", "resv_del_hold",
    "signaling",
)  # fmt: skip
"""Flags of a state that squeue(1) shows in its place, the first of them that is set."""


class _Number(msgspec.Struct):
    set: bool = False
    infinite: bool = False
    number: float = 0.0


_MaybeNumber = float | _Number | None


class Job(msgspec.Struct):
    """What is read of a job."""

    job_id: int
    job_state: str | list[str]
    state_reason: str | None = ""
    start_time: _MaybeNumber = None
    end_time: _MaybeNumber = None
    time_limit: _MaybeNumber = None
    preempt_time: _MaybeNumber = None
    nodes: str | None = ""

    @property
    def state(self) -> str:
        """The state as squeue(1) shows it, in the words of :data:`hpcext.batch.slurm.STATES`."""
        said = [self.job_state] if isinstance(self.job_state, str) else self.job_state
        words = [slurm.state(word) for word in said] or [slurm.state("")]
        return next((word for word in _SHOWN_FIRST if word in words), words[0])

    @property
    def why(self) -> str:
        """Why it waits, or has failed; empty if there is no reason."""
        return "" if self.state_reason in {"None", None} else str(self.state_reason)

    def end(self) -> End:
        """Return its state, and the latest instant of its end."""
        # An instant that is not known is 0.
        start_s, end_s = _number(self.start_time) or None, _number(self.end_time) or None
        limit_min = _number(self.time_limit)
        if start_s is None or limit_min is None:
            return End(self.state, end_s)
        return End(self.state, end_s, start_s + 60 * limit_min)


class _Node(msgspec.Struct):
    name: str
    address: str | None = ""
    gres: str | None = ""


class _Error(msgspec.Struct):
    description: str | None = ""
    error: str | None = ""
    error_number: int | None = None


class Said(msgspec.Struct):
    """What is read of an answer."""

    errors: list[_Error] = []
    jobs: list[Job] = []
    nodes: list[_Node] = []


def parse_answer(body: bytes) -> Said:
    """Parse an answer about jobs or nodes.

    Raises
    ------
    BatchError
        It is not in a form that any version of the interface has.
    """
    try:
        return msgspec.json.decode(body, type=Said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        says = f"slurmrestd answered {shown(body[:80].decode(errors='replace'))}: {error}"
        raise BatchError(clean(says)) from None


def _number(said: _MaybeNumber) -> float | None:
    """Return a number; None if it is not set, infinity if there is no limit."""
    if isinstance(said, _Number):
        if said.infinite:
            return math.inf
        said = said.number if said.set else None
    return None if said is None else float(said)


def _lacks_version(answer: Answer) -> bool:
    """Return whether it has no such version; of a job that is unknown it says so in JSON."""
    return answer.status == _NO_SUCH_URL and not answer.body.lstrip().startswith(b"{")


class Rest(Commands):
    """Queries by a slurmrestd of our own; by commands where it has no answers.

    It has none about steps. Asked for a task of an array it says all there is about each task of
    that array, which may be hundreds of megabytes.

    Parameters
    ----------
    daemon : Restd
    """

    def __init__(self, daemon: Restd) -> None:
        self._daemon = daemon
        self._version = ""

    def check(self) -> None:
        """Ask for the version of its interface.

        Raises
        ------
        BatchError
            It does not answer, or has no version that is read here.
        """
        for version in VERSIONS:
            answer = self._daemon.get(f"/slurm/{version}/ping")
            if not _lacks_version(answer):
                parse_answer(answer.body)
                self._version = version
                return
        raise BatchError(f"slurmrestd has no version of its interface among {', '.join(VERSIONS)}")

    def close(self) -> None:
        """End its slurmrestd."""
        self._daemon.close()

    def _held(self, job_ids: Sequence[JobId]) -> Mapping[JobId, Seen]:
        tasks = [job_id for job_id in job_ids if not isinstance(job_id, int)]
        found = dict(super()._held(tasks)) if tasks else {}
        for job_id in job_ids:
            if isinstance(job_id, int) and (job := self._job(job_id)) is not None:
                found[job_id] = Seen(job.state, why=job.why)
        return found

    def end(self, job_id: JobId) -> End:
        """Return the state of a job, and the latest instant of its end."""
        return self._known(job_id).end() if isinstance(job_id, int) else super().end(job_id)

    def preempted(self, job_id: JobId) -> bool:
        """Return whether a job, whose end is earlier than before, is being preempted."""
        if not isinstance(job_id, int):
            return super().preempted(job_id)
        return bool(_number(self._known(job_id).preempt_time))

    def _nodelist(self, job_id: JobId) -> str:
        if not isinstance(job_id, int):
            return super()._nodelist(job_id)
        job = self._known(job_id)
        return job.nodes or "" if job.state == "running" else ""

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """Return nodes by name."""
        found = {}
        for name in names:
            for node in self._get(f"node/{name}").nodes:
                found[node.name] = Host(node.address or node.name, slurm.gres_kind(node.gres or ""))
        return found

    def _known(self, job_id: int) -> Job:
        """Return a job that slurmctld knows."""
        job = self._job(job_id)
        if job is None:
            raise BatchError(f"no job {job_id} in slurmctld")
        return job

    def _job(self, job_id: int) -> Job | None:
        """Return a job; None if slurmctld does not know it."""
        found = self._get(f"job/{job_id}").jobs
        return next((job for job in found if job.job_id == job_id), None)

    def _get(self, path: str) -> Said:
        answer = self._daemon.get(f"/slurm/{self._version}/{path}")
        if _lacks_version(answer):
            # Slurm was upgraded meanwhile.
            self.check()
            answer = self._daemon.get(f"/slurm/{self._version}/{path}")
        said = parse_answer(answer.body)
        for error in said.errors:
            if error.error_number != _NO_SUCH_JOB:
                raise BatchError(f"slurmrestd: {clean(error.description or error.error or '?')}")
        return said
