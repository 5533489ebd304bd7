"""The executor of submitit whose jobs run in a pilot: ``AutoExecutor(folder, cluster="hpcext")``.

submitit finds these classes by its entry points, in the process that submits and in its jobs. Each
is a job of the pilot with the preset ``submitit``: a suspension has it call the ``checkpoint()`` of
its callable, and the next attempt goes on with what that has returned.
"""

from __future__ import annotations

from hpcext.integrations.submitit.environment import HpcextJobEnvironment
from hpcext.integrations.submitit.executor import HpcextExecutor
from hpcext.integrations.submitit.job import HpcextJob

__all__ = ["HpcextExecutor", "HpcextJob", "HpcextJobEnvironment"]
