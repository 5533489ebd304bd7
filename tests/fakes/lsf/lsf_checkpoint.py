"""Contract engine of LSF, written from the vendor's documentation: checkpoints and restarts."""

from __future__ import annotations

import re
from typing import Any

from lsf_site import Job, RefusedError


def options(text: str) -> dict[str, Any]:
    """What ``bsub -k`` says: ``DIR [method=NAME]``; periods are not played."""
    if not text:
        return {}
    found = re.fullmatch(r"(\S+)(?: method=([\w-]+))?", text, re.ASCII)
    if not found:
        raise RefusedError(f"-k: {text}: not played by this engine")
    return {"checkpoint_dir": found[1], "checkpoint_method": found[2] or "default"}


def environ_of(job: Job) -> dict[str, str]:
    """What a job that can be checkpointed is told."""
    if not job.checkpoint_dir:
        return {}
    said = {"LSB_CHKPNT_DIR": f"{job.checkpoint_dir}/{job.id}"}
    return {**said, "LSB_RESTART": "Y"} if job.restart else said
