"""The values of the engine: what is true, what is wanted, what to do; all frozen.

Instants (``*_s``) are seconds since the manager began; durations are seconds. Targets speak in
GPUs per node; which GPUs a job got is the executor's answer and arrives as a fact.
"""

from __future__ import annotations

from hpcext.core.values.action import Action, Kind
from hpcext.core.values.job import (
    NO_RUN,
    TRANSITIONS,
    Job,
    Late,
    Request,
    Role,
    Run,
    Silence,
    State,
    Unsaved,
    size_of,
    suits,
)
from hpcext.core.values.nodes import Alloc, Node, per_node, total
from hpcext.core.values.record import Loss, Record, Segment
from hpcext.core.values.target import Cause, Grant, Snapshot, Target

__all__ = [
    "NO_RUN",
    "TRANSITIONS",
    "Action",
    "Alloc",
    "Cause",
    "Grant",
    "Job",
    "Kind",
    "Late",
    "Loss",
    "Node",
    "Record",
    "Request",
    "Role",
    "Run",
    "Segment",
    "Silence",
    "Snapshot",
    "State",
    "Target",
    "Unsaved",
    "per_node",
    "size_of",
    "suits",
    "total",
]
