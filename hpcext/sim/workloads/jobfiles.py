"""The jobs of a job file, all of them there from the beginning."""

from __future__ import annotations

from pathlib import Path

from hpcext.admission import admit
from hpcext.core.errors import InputError
from hpcext.core.values import Job
from hpcext.jobfile import read_jobs
from hpcext.profiles import Profiles
from hpcext.sim.expected import physics_of
from hpcext.sim.physics import Physics
from hpcext.text import shown


def read_job_file(
    path: Path, *, elastic: bool = False, profiles: Profiles | None = None
) -> list[tuple[Job, Physics]]:
    """Read jobs that state how fast they are and how much they have to do.

    Parameters
    ----------
    path : Path
    elastic : bool
        Those that say on how many nodes they run can change these while they train.
    profiles : Profiles, optional
        Where ``scaling = "NAME"`` is looked up.

    Raises
    ------
    InputError
        It is no job file, or a job in it does not state that.
    """
    specs = read_jobs(path, profiles=profiles)
    for spec in specs:
        if spec.relative:
            what = f"job {shown(spec.name)}: {spec.profile} was measured in another unit"
            do = "say its work in the unit of the profile"
            raise InputError(what, where=str(path), do=do)
        if not spec.scaling or not spec.work:
            what = "scaling" if not spec.scaling else "work"
            do = "say how fast it is on how many GPUs, and how much it has to do"
            raise InputError(f"job {shown(spec.name)} states no {what}", where=str(path), do=do)
    physics = (physics_of(spec, elastic=elastic) for spec in specs)
    return list(zip(admit(specs, 1, {}), physics, strict=True))
