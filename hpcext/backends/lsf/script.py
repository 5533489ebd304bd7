"""The executor of a suspendable LSF job: its training runs on the first host, like its script.

LSF stops and kills the leader of that job, and may know of no other process. So the manager and the
supervisors of trainings stop and end with the leader (``launch/supervisor.py``).
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
"""The reason for a signal of LSF, which JOB_CONTROLS, -wa or -W send to a whole job."""


class OnLsf(OnNode):
    """An executor of attempts beside the manager in a job of LSF.

    LSF sends the signals for a job to every process group of it, once it has found these, half a
    minute after the begin. So a SIGTERM to a supervisor comes from LSF, and not from the manager.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(jobs=lsf.Commands(), wanted_back=WANTED_BACK, **common)


class LsfScript(OnLsf):
    """An executor that carries out actions on the first host of a suspendable job.

    Parameters
    ----------
    **common
        Parameters of the base classes.
    """

    _beside = False

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._leader = Process.of(os.getppid())
        self._later(self._follow)

    def _where(self, _action: Action, _gpus: Sequence[str]) -> dict[str, Any]:
        # The GPUs are those that LSF has given the job.
        return {"notices": True, "allocation": self._allocation, "leader": self._leader}

    async def _follow(self) -> None:
        """End when the leader is gone: it passes on all signals but SIGKILL."""
        pidfd = self._leader.open() if self._leader else None
        if pidfd is not None:
            await self._readable(pidfd)
            os.kill(os.getpid(), signal.SIGKILL)
