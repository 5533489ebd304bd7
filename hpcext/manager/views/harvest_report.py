"""The account of a harvester's idle nodes: one document, schema hpcext.harvest-report/1.

How long nodes were idle without a lease was counted from look to look; what became of leased ones
is in the journal, to the second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcext.core.history.node_time import NodeTime, Use
from hpcext.core.saving import lost_exactly
from hpcext.core.values import Job, Record, State
from hpcext.core.world import World
from hpcext.harvest import account as lease_account
from hpcext.manager.views.reading import Reading
from hpcext.manager.views.report import display_state
from hpcext.text import are, clean

SCHEMA = "hpcext.harvest-report/1"
HOUR_S = 3600.0
_SAID_CHARS = 300

PARTS = {
    "short": "left alone: needed too soon",
    "unleased": "idle, without a lease",
    Use.WAITING.value: "leased, and no trainer had it",
    Use.TRAINING.value: "trained",
    Use.STARTING.value: "first starts of trainers",
    Use.PREEMPTION.value: "lost because nodes left",
    Use.RESCALING.value: "lost to changes by the policy",
    Use.OTHER.value: "lost to requests and failures",
}
"""Parts of what was offered: key of the document, without ``_node_h`` → its name."""


def why_no_node(directory: Path, world: World, job: Job) -> str:
    """Return why a trainer waits while its harvester has no lease; empty if that is not why.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    world : World
    job : Job
    """
    if not job.ready or job.state is not State.PENDING:
        return ""
    if any(node.gpus for node in world.nodes.values()):
        return ""
    return why_no_lease(lease_account.load(directory))


def part(reading: Reading) -> str:
    """Return what the broker of the site grants a harvester at work; empty if nobody asks it.

    Parameters
    ----------
    reading : Reading
        Of any pilot.
    """
    if reading.pilot.harvest is None or not reading.alive:
        return ""
    if all(job.state.final for job in reading.world.jobs.values()):
        return ""
    return clean(lease_account.load(reading.directory).broker)[:_SAID_CHARS]


def why_no_lease(account: lease_account.Account) -> str:
    """Return why a harvester has no lease."""
    others, missing = account.others, clean(account.missing)[:_SAID_CHARS]
    if account.unanswered:
        missing = clean(account.unanswered)[:_SAID_CHARS]
    elif others:
        waits = f"; {missing}" if "waits in the queue" in missing else ""
        return f"no idle node; {others} {are(others)} leased by others{waits}"
    elif not missing and account.not_given:
        return f"the harvester was given no lease of {clean(account.not_given)[:_SAID_CHARS]}"
    return f"the harvester has no lease{f': {missing}' if missing else ' now'}"


def harvest_document(directory: Path, world: World, node_time: NodeTime) -> dict[str, Any]:
    """Return the account of a harvester in node-hours; its :data:`PARTS` add up to the offer.

    Parameters
    ----------
    directory : pathlib.Path
        The harvester's.
    world : World
    node_time : NodeTime
        Of its journal.
    """
    account = lease_account.load(directory)
    idle_s, held_s = account.unleased_node_s, node_time.held_s
    short_s = min(account.short_node_s, idle_s)
    waiting_s = node_time.spent.get(Use.WAITING, 0.0)
    seconds = {
        "offered": idle_s + held_s,
        "held": held_s,
        "used": held_s - waiting_s,
        "short": short_s,
        "unleased": idle_s - short_s,
        **{use.value: node_time.spent.get(use, 0.0) for use in Use},
    }
    return {
        "schema": SCHEMA,
        "seen_s": round(account.seen_s, 1),
        "away_s": round(node_time.away_s, 1),
        "mean_nodes": round(_mean_nodes(account, node_time), 4),
        "leases": account.leases,
        "withdrawn": account.withdrawn,
        "refused": account.refused,
        "broker": clean(account.broker)[:_SAID_CHARS],
        **{f"{key}_node_h": _hours(each) for key, each in seconds.items()},
        "trainers": [
            _trainer(job, world.records[job.id], node_time) for job in world.jobs.values()
        ],
    }


def _mean_nodes(account: lease_account.Account, node_time: NodeTime) -> float:
    """Return the mean number of nodes on offer: both parts over the time that each was counted."""
    counted_s = node_time.at_s - node_time.away_s
    idle = account.unleased_node_s / account.seen_s if account.seen_s else 0.0
    return idle + (node_time.held_s / counted_s if counted_s > 0 else 0.0)


def _trainer(job: Job, record: Record, node_time: NodeTime) -> dict[str, Any]:
    known, tally = job.estimate, node_time.jobs.get(job.id)
    nodes = [len({gpu.rpartition(":")[0] for gpu in part.gpus}) for part in record.segments]
    return {
        "id": job.id,
        "name": job.name,
        "state": display_state(job),
        "steps": job.step,
        "done": known.done,
        "work": known.work,
        "progress": round(min(1.0, known.done / known.work), 4) if known.work else None,
        "nodes": len(job.held) if job.state.active else 0,
        "most_nodes": max(nodes, default=0),
        "node_h": _hours(tally.node_s if tally else 0.0),
        "restarts": max(0, job.attempt - 1),
        "rescales": record.rescales,
        "lost_steps": record.lost_steps,
        "lost_steps_exact": lost_exactly(record),
        "lost_s": round(record.lost_s, 3),
        "lost_s_exact": record.lost_s_exact >= record.lost_s,
    }


def _hours(seconds: float) -> float:
    return round(seconds / HOUR_S, 4)
