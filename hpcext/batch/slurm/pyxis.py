"""Pyxis, by which Slurm begins steps in containers: https://github.com/NVIDIA/pyxis."""

from __future__ import annotations

import functools

from hpcext.batch import runner
from hpcext.core.errors import BatchError

_OPTION = "--container-image"


@functools.lru_cache(maxsize=1)
def offered() -> bool:
    """Return whether the srun that is here has the options of pyxis."""
    try:
        return _OPTION in runner.run(["srun", "--help"])
    except BatchError:
        return False
