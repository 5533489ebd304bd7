"""The job files that were submitted, kept beside the journal.

There is one file per submission, written before the journal has its jobs. These files define the
jobs, and the journal records what happened to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from hpcext.admission import admit
from hpcext.core.errors import UNREADABLE, InputError, JournalError
from hpcext.core.values import Job, Node
from hpcext.documents import read_own, write_file
from hpcext.jobfile import place
from hpcext.jobspec import JobSpec


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that were submitted together; their ids count up from `first_id`."""

    schema: Literal["hpcext.submission/1"] = "hpcext.submission/1"
    first_id: int
    jobs: tuple[JobSpec, ...]


class Submissions:
    """All that was submitted to one pilot.

    Parameters
    ----------
    directory : pathlib.Path
        ``PILOT/submissions``.

    Attributes
    ----------
    jobs : tuple of Job
        As the engine receives them, in order.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._specs: dict[str, JobSpec] = {}
        self._ids: dict[str, str] = {}
        self.jobs: tuple[Job, ...] = ()
        found: dict[int, tuple[Path, Submission]] = {}
        for path in directory.glob("*.json"):
            try:
                submission = msgspec.json.decode(read_own(path), type=Submission)
            except (OSError, *UNREADABLE) as error:
                raise JournalError(f"cannot be read: {error}", where=str(path)) from None
            other, _ = found.setdefault(submission.first_id, (path, submission))
            if other != path:
                raise JournalError(
                    f"has jobs with the same ids as {other.name}, and one of the two was refused",
                    where=str(path),
                    do="remove the one whose submission was refused, the older one",
                )
        for _, (_, submission) in sorted(found.items()):
            self._take(submission)

    def __contains__(self, name: object) -> bool:
        """Return whether a submission of this name was stored."""
        return isinstance(name, str) and (self._directory / f"{name}.json").exists()

    def spec(self, job_id: str) -> JobSpec:
        """Return the specification of a job."""
        return self._specs[job_id]

    @property
    def names(self) -> frozenset[str]:
        """Names of all jobs, to which `after` may refer."""
        return frozenset(self._ids)

    def add(self, name: str, specs: Sequence[JobSpec]) -> tuple[Job, ...]:
        """Store jobs under the name of their submission; return them.

        Raises
        ------
        OSError
            Nothing was stored.
        """
        submission = Submission(first_id=len(self._specs) + 1, jobs=tuple(specs))
        path = self._directory / f"{name}.json"
        try:
            write_file(path, msgspec.json.encode(submission))
        except OSError:
            # It may be there: the error may be that of its directory.
            path.unlink(missing_ok=True)
            raise
        return self._take(submission)

    def _take(self, submission: Submission) -> tuple[Job, ...]:
        jobs = admit(submission.jobs, submission.first_id, self._ids)
        self.jobs += jobs
        for job, spec in zip(jobs, submission.jobs, strict=True):
            self._specs[job.id] = spec
            self._ids[spec.name] = job.id
        return jobs


def check_fits(
    specs: Sequence[JobSpec],
    offers: Sequence[Node],
    where: str,
    nodes: int = 1,
    *,
    seat_bytes: int | None = None,
) -> None:
    """Refuse jobs that can never run on this many nodes like the first, or on a seat, if one is.

    Parameters
    ----------
    specs : sequence of JobSpec
    offers : sequence of Node
    where : str
        Where the jobs come from.
    nodes : int
    seat_bytes : int or None
        Memory of a seat, if known.

    Raises
    ------
    InputError
        Names the first such job.
    """
    node, *others = offers
    seats = any(each.seats for each in others)
    for number, spec in enumerate(specs, start=1):
        stated = place(where, number, spec.name)
        if not node.gpus and not spec.mps:
            raise InputError(
                "false, and the only GPU here is shared",
                where=f"{stated}: mps",
                valid="true, for a job that can run on a part of a GPU",
            )
        if spec.mps and seat_bytes is not None and (spec.mem_per_gpu or 0) > seat_bytes:
            raise InputError(
                f"needs {spec.mem_per_gpu} bytes of a GPU, and a seat on the shared one has "
                f"{seat_bytes}",
                where=f"{stated}: mem_per_gpu",
                do="say mps = false, or share the GPU among fewer",
            )
        if spec.gpus.min > node.gpus and not (spec.mps and seats):
            raise InputError(
                f"needs at least {spec.gpus.min} GPUs, and {node.name} has {node.gpus}",
                where=f"{stated}: gpus",
                valid=f"a min of 1 to {node.gpus}",
            )
        if spec.nodes.min > nodes:
            has = "one" if nodes == 1 else str(nodes)
            raise InputError(
                f"needs at least {spec.nodes.min} nodes, and this pilot has {has}",
                where=f"{stated}: nodes",
                valid="1" if nodes == 1 else f"a min of 1 to {nodes}",
            )


def check_in_time(specs: Sequence[JobSpec], left_s: float | None, where: str) -> None:
    """Refuse jobs that by their stated speeds take longer than the time that is left.

    Parameters
    ----------
    specs : sequence of JobSpec
    left_s : float or None
        Seconds that the pilot has left; None if it has no end.
    where : str
        Where the jobs stand, for the message.

    Raises
    ------
    InputError
        Names the first such job.
    """
    for number, spec in enumerate(specs, start=1):
        # A relative curve does not tell how long anything takes.
        curves = spec.by_kind.values() or [spec.scaling]
        speeds = [speed for curve in curves for speed in curve.values()]
        fastest = 0.0 if spec.relative else max(speeds, default=0.0)
        if left_s is None or spec.work is None or not fastest:
            continue
        least_s = spec.work / fastest
        if least_s > left_s:
            raise InputError(
                f"takes {least_s / 60:.1f} minutes at its best speed, "
                f"and the pilot has {max(0.0, left_s) / 60:.1f} left",
                where=f"{place(where, number, spec.name)}: work",
                do="ask for more time, or submit the pilot with --requeue",
            )
