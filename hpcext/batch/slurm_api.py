"""What is asked of Slurm, through pyslurm: no process is started for a question.

An extra: pyslurm X.Y is built against the libraries of Slurm X.Y, and works with no other release.
Attributes are those that pyslurm's reference names; https://pyslurm.github.io.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from hpcext.batch.slurm import End, Host, Step, gres_kind, state
from hpcext.core.errors import BatchError
from hpcext.numerals import whole

_Found = TypeVar("_Found")


def find() -> ModuleType | None:
    """pyslurm, if it is installed and the libraries of its Slurm are."""
    try:
        return importlib.import_module("pyslurm")
    except (ImportError, OSError):
        return None


def release_of(module: Any) -> tuple[int, int] | None:
    """The release of Slurm that a pyslurm is for: 24.5.0 is for 24.05."""
    major, minor = map(whole, [*str(getattr(module, "__version__", "")).split("."), ""][:2])
    return None if major is None or minor is None else (major, minor)


class Api:
    """By pyslurm; :class:`~hpcext.batch.slurm_reads.Reads`.

    Parameters
    ----------
    module : module
        pyslurm, or what has its attributes.
    """

    def __init__(self, module: Any) -> None:
        self._slurm = module

    def states(self, job_ids: Sequence[int]) -> dict[int, str]:
        """As Reads has it; what slurmctld has forgotten is looked up in accounting."""
        if not job_ids:
            return {}
        jobs = self._ask(self._slurm.Jobs.load)
        found = {job_id: state(jobs[job_id].state) for job_id in job_ids if job_id in jobs}
        for job_id in set(job_ids) - found.keys():
            # No accounting, or it does not know the job either.
            with contextlib.suppress(BatchError):
                found[job_id] = self._past(job_id)
        return found

    def _past(self, job_id: int) -> str:
        return state(self._ask(lambda: self._slurm.db.Job.load(job_id)).state)

    def end(self, job_id: int) -> End:
        """As Reads has it."""
        job = self._ask(lambda: self._slurm.Job.load(job_id))
        return End(state(job.state), None if job.end_time is None else float(job.end_time))

    def steps(self, job_id: int) -> tuple[Step, ...]:
        """As Reads has it."""
        steps = self._ask(lambda: self._slurm.Job.load(job_id)).steps
        return tuple(Step(f"{job_id}.{step.id}", step.name or "") for step in steps.values())

    def node_states(self, names: Sequence[str]) -> dict[str, str]:
        """As Reads has it."""
        nodes = self._ask(self._slurm.Nodes.load)
        # As MIXED+DRAIN: what follows the first word is flags.
        return {
            name: nodes[name].state.lower().partition("+")[0] for name in names if name in nodes
        }

    def hosts(self, names: Sequence[str]) -> dict[str, Host]:
        """As Reads has it."""
        nodes = self._ask(self._slurm.Nodes.load)
        found = {}
        for name in names:
            if name in nodes:
                # As {"gpu:a100": 4}, {"gpu": 4}; older ones have none.
                gres = getattr(nodes[name], "configured_gres", None) or {}
                kind = gres_kind(",".join(f"{what}:{count}" for what, count in gres.items()))
                found[name] = Host(nodes[name].address or name, kind)
        return found

    def _ask(self, question: Callable[[], _Found]) -> _Found:
        try:
            return question()
        except self._slurm.RPCError as error:
            raise BatchError(f"pyslurm: {error}") from None
