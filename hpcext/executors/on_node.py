"""Runs attempts on the one node of a batch job, beside the manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcext.core.values import Action
from hpcext.executors.allocation import AllocationExecutor
from hpcext.executors.local import LocalExecutor


class OnNode(AllocationExecutor, LocalExecutor):
    """Carries out actions on the node of an allocation, where the manager is.

    Parameters
    ----------
    **common
        Those of the base classes.
    """

    _hears_notices = True

    def _where(self, action: Action, gpus: Sequence[str]) -> dict[str, Any]:
        return {**super()._where(action, gpus), "notices": True, "allocation": self._allocation}

    def _leaves(self) -> bool:
        return self._walltime.leaving
