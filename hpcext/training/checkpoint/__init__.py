"""A directory of checkpoints that survives crashes, full disks and late writers.

Layout of the directory::

    step-000000123.attempt-0004/      a committed checkpoint: its files and manifest.json
    .draft-step-...                   being written, or left by an attempt that died
    attempt-0004.opened               the newest attempt: older ones may not commit any more
    run-id                            one id for the job, for experiment trackers
    training-2/                       such a directory of the process's second training

All files of a checkpoint are flushed before one rename makes it visible: that rename is the commit.
Of two checkpoints, the one of the later attempt is newer, then the one of the later step. So a
checkpoint that a fenced-off attempt might still commit is never taken for the newest.

It needs only the standard library, and no locks, which not every shared file system has.
"""

from hpcext.training.checkpoint.errors import CheckpointError, FencedError, reason, warn
from hpcext.training.checkpoint.manifest import (
    MANIFEST,
    SCHEMA,
    Checkpoint,
    open_inside,
    verify,
)
from hpcext.training.checkpoint.store import FURTHER, Draft, Store, committed

__all__ = [
    "FURTHER",
    "MANIFEST",
    "SCHEMA",
    "Checkpoint",
    "CheckpointError",
    "Draft",
    "FencedError",
    "Store",
    "committed",
    "open_inside",
    "reason",
    "verify",
    "warn",
]
