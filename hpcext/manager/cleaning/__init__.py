"""The removal of old pilots: whole pilots, or only those of their files that nobody needs any more.

This package decides what may go, and how:

- never a pilot that a manager runs, or of which a process may still run: its lock is taken, its job
  is looked up, and if the batch system does not answer, the job may still run;
- never what another pilot's jobs need: their checkpoints may lie here, or be named in a command;
- never through a link, to another file system, or a file of somebody else;
- a removal that was interrupted is finished by the next one. It begins with one rename, after which
  the directory is no pilot, and needs no space on the disk.
"""

from __future__ import annotations

from hpcext.manager.cleaning.needs import Needs
from hpcext.manager.cleaning.places import DiskUse, size_of
from hpcext.manager.cleaning.plans import (
    Keep,
    Kept,
    RemovalPlan,
    left_of,
    plan,
    plan_whole,
    touched_at,
)
from hpcext.manager.cleaning.removal import doing, finish, remove

__all__ = [
    "DiskUse",
    "Keep",
    "Kept",
    "Needs",
    "RemovalPlan",
    "doing",
    "finish",
    "left_of",
    "plan",
    "plan_whole",
    "remove",
    "size_of",
    "touched_at",
]  # fmt: skip
