"""What a harvester made of the nodes that were idle: one document, schema hpcext.harvest-report/1.

How long nodes were idle, held, or left alone was counted from look to look; what trainings did with
them is in the journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcext.core.values import Segment
from hpcext.core.world import World
from hpcext.executors import lease_account

SCHEMA = "hpcext.harvest-report/1"
HOUR_S = 3600.0

HOURS = {
    "offered": "idle, or leased",
    "short": "left alone: soon needed",
    "held": "leased",
    "used": "a training had it",
    "starting": "of this: it started, or was resumed",
    "stopping": "of this: it was suspended",
}
"""Key of the document, without ``_node_h`` → what it is."""


def harvest_document(directory: Path, world: World, now_s: float) -> dict[str, Any]:
    """The account of a harvester, in node-hours.

    Parameters
    ----------
    directory : pathlib.Path
        Of the harvester.
    world : World
    now_s : float
        Until when its journal goes.
    """
    account = lease_account.load(directory)
    segments = [part for record in world.records.values() for part in record.segments]
    hours = {
        "offered": account.offered_node_s,
        "short": account.short_node_s,
        "held": account.held_node_s,
        "used": sum(_nodes(part) * _lasted_s(part, now_s) for part in segments),
        "starting": sum(_nodes(part) * _took_s(part.resume_s) for part in segments),
        "stopping": sum(_nodes(part) * _took_s(part.suspend_s) for part in segments),
    }
    return {
        "schema": SCHEMA,
        "seen_s": round(account.seen_s, 1),
        "leases": account.leases,
        "withdrawn": account.withdrawn,
        "refused": account.refused,
        **{f"{key}_node_h": round(seconds / HOUR_S, 4) for key, seconds in hours.items()},
    }


def _nodes(segment: Segment) -> int:
    return len({gpu.rpartition(":")[0] for gpu in segment.gpus})


def _lasted_s(segment: Segment, now_s: float) -> float:
    end_s = now_s if segment.end_s is None else segment.end_s
    return max(0.0, end_s - segment.start_s)


def _took_s(parts: Any) -> float:
    return sum(parts.values()) if parts else 0.0
