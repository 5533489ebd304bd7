"""The executor of a suspendable LSF job: its training runs on the first host, as its script would.

LSF stops and kills the leader of that job, and may know of no other process. So the trainings do
what the leader has to do (``launch/supervisor.py``), and so does the manager.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from hpcext.batch import lsf
from hpcext.core.values import Action
from hpcext.executors.on_node import OnNode
from hpcext.process import Process

WANTED_BACK = "LSF wants the hosts back"
"""LSF has no steps: what it sends, by JOB_CONTROLS, bsub -wa or at the end of -W, goes to the whole
job, and is never about one training."""


class OnLsf(OnNode):
    """What runs attempts beside the manager in a job of LSF.

    LSF sends signals for a job to every process group that it has found, from half a minute after
    its begin on. So SIGTERM comes to a supervisor there from LSF, and not from the manager.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(jobs=lsf.Commands(), wanted_back=WANTED_BACK, **common)


class LsfScript(OnLsf):
    """An executor that carries out actions on the first host of one allocation.

    Parameters
    ----------
    **common
        Parameters of the base classes.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._leader = Process.of(os.getppid())
        self._later(self._follow())

    def _where(self, _action: Action, _gpus: Sequence[str]) -> dict[str, Any]:
        # The GPUs are what LSF has made them to be.
        return {"notices": True, "allocation": self._allocation, "leader": self._leader}

    async def _follow(self) -> None:
        """Leave when the leader is gone, which would have told us of all but SIGKILL."""
        pidfd = self._leader.open() if self._leader else None
        if pidfd is not None:
            await self._end_of(pidfd)
            os.kill(os.getpid(), signal.SIGKILL)
