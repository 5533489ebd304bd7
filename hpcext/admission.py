"""Admission: the conversion of the jobs of a job file into jobs of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.jobspec import JobSpec, optimum


def admit(specs: Sequence[JobSpec], first_id: int, known: Mapping[str, str]) -> tuple[Job, ...]:
    """Assign jobs their ids and their positions in the queue.

    Parameters
    ----------
    specs : sequence of JobSpec
        In the order of their file, which is the order of the queue.
    first_id : int
        Id of the first job; those of the others count up from it.
    known : Mapping[str, str]
        Ids of earlier jobs by name. A name among `specs` takes precedence over one of these.

    Returns
    -------
    tuple of Job
        As long as `specs`.

    Raises
    ------
    InputError
        `after` names an unknown job.

    Examples
    --------
    >>> specs = [JobSpec("a", ("true",)), JobSpec("b", ("true",), after=("a",))]
    >>> [(job.id, job.after) for job in admit(specs, 7, {})]
    [('7', ()), ('8', ('7',))]
    """
    ids = {**known, **{spec.name: str(number) for number, spec in enumerate(specs, first_id)}}
    return tuple(_job(spec, number, ids) for number, spec in enumerate(specs, first_id))


def _job(spec: JobSpec, number: int, ids: Mapping[str, str]) -> Job:
    for name in spec.after:
        if name not in ids:
            raise InputError(
                f"needs {name!r}, which is not a job",
                where=f"job {spec.name}: after",
                valid=", ".join(list(ids)[:20]),
            )
    return Job(
        id=str(number),
        name=spec.name,
        order=number,
        sizes=tuple(spec.gpus.sizes),
        optimal=optimum(spec),
        nodes=(spec.nodes.min, spec.nodes.max),
        priority=spec.priority,
        weight=spec.weight,
        after=tuple(ids[name] for name in spec.after),
        shares=spec.mps,
        retries=spec.retries,
        suspend_timeout_s=spec.suspend_timeout_s,
        trial=spec.trial,
        hang=spec.hang,
        hang_after_s=spec.hang_after_s,
        walltime_s=spec.walltime_s,
        estimate=Estimate(
            stated=spec.scaling,
            by_kind=spec.by_kind,
            work=spec.work,
            target_loss=spec.target_loss,
            # 0: the file does not state it.
            up_s=spec.rescale_up_s or None,
            down_s=spec.rescale_down_s or None,
        ),
    )
