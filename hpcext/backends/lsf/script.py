"""The executor of a suspendable LSF job: its training runs on the first host, as its script would.

LSF stops and kills the leader of that job, and may know of no other process. So the trainings do
what the leader has to do (``launch/supervisor.py``), and so does the manager.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from hpcext.executors.allocation import AllocationExecutor
from hpcext.executors.local import LocalExecutor
from hpcext.protocol import Process


class OnLsf(AllocationExecutor, LocalExecutor):
    """The base of executors that run attempts beside the manager in a job of LSF.

    LSF sends signals for a job to every process group that it has found, from half a minute after
    its begin on. So SIGTERM comes to a supervisor there from LSF, and not from the manager.
    """

    _hears_notices = True


class LsfScript(OnLsf):
    """An executor that carries out actions on the first host of one allocation.

    Parameters
    ----------
    **common
        Parameters of the base classes.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(system="lsf", **common)
        self._leader = Process.of(os.getppid())
        self._later(self._follow())

    def _more(self, _gpus: Sequence[str]) -> dict[str, Any]:
        # The GPUs are what LSF has made them to be.
        return {"notices": True, "allocation": self._allocation, "leader": self._leader}

    async def _follow(self) -> None:
        """Leave when the leader is gone, which would have told us of all but SIGKILL."""
        pidfd = self._leader.open() if self._leader else None
        if pidfd is None:
            return
        ended = asyncio.Event()
        self._loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        os.kill(os.getpid(), signal.SIGKILL)
