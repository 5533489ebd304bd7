"""Why a harvester has no lease: one sentence for each cause, to explain why a trainer waits.

No I/O. Unanswered queries of the batch system and the leases of others are in the account.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from hpcext.batch.leasing import Idle
from hpcext.text import are, counted, listed


class Look(NamedTuple):
    """The findings of a look.

    Attributes
    ----------
    partition : str
    gpus : int
        That a lease needs; 0: it is counted in slots.
    nodes : Mapping[str, Idle]
        All that the partition has.
    idle, steady : collection of str
        Those that are idle and have what a lease needs; of these, those that were so twice.
    short : Mapping[str, float]
        Idle nodes that are not used: node → for how many seconds it is free.
    refused : Mapping[str, float]
        Nodes that were refused lately: node → seconds until it is requested again.
    waiting : Mapping[str, str]
        Node of a lease of ours that waits in the queue → why, as the batch system has it.
    coming : collection of str
        Nodes of leases whose job runs, but whose agent has not reported yet.
    part : int or None
        The number of nodes that are our part beside other harvesters; None: there are no others.
    leave : str
        What the broker of the site says of that; empty if nobody asks it.
    only : collection of str or None
        The nodes that may be taken by what the broker says; None: any.
    why_refused : str
    tickets_keep : bool
        Whether a job on one slot of a node keeps the whole node from being leased.
    """

    partition: str
    gpus: int
    nodes: Mapping[str, Idle]
    idle: Collection[str] = ()
    steady: Collection[str] = ()
    short: Mapping[str, float] = {}
    refused: Mapping[str, float] = {}
    waiting: Mapping[str, str] = {}
    coming: Collection[str] = ()
    part: int | None = None
    leave: str = ""
    only: Collection[str] | None = None
    why_refused: str = ""
    tickets_keep: bool = False


def why(looked: Look) -> str:
    """Say what is missing for a lease; empty where nothing is known to be.

    Examples
    --------
    >>> why(Look("killable", 2, {}))
    'killable has no nodes'
    >>> why(Look("killable", 0, {}, waiting={"n1": "Job slot limit reached"}))
    'its lease of n1 waits in the queue: Job slot limit reached'
    """
    if looked.coming:
        return (
            f"its lease of {_some(looked.coming)} is running, but the agent there has not "
            "started yet"
        )
    if looked.waiting:
        node = min(looked.waiting)
        return (
            f"its lease of {node} waits in the queue: {looked.waiting[node] or 'no reason given'}"
        )
    if not looked.nodes:
        return f"{looked.partition} has no nodes"
    return _of_idle(looked) if looked.idle else _of_none(looked)


def _of_none(looked: Look) -> str:
    able = [each for each in looked.nodes.values() if each.gpus >= looked.gpus]
    if looked.gpus and not able:
        most = max(each.gpus for each in looked.nodes.values())
        return (
            f"no node of {looked.partition} has {counted(looked.gpus, 'GPU')}, which a lease "
            f"must have (--gpus-per-node); the largest has {most}"
        )
    there = [each for each in able if not each.lost]
    if not there:
        return f"{_some([each.name for each in able])} cannot be reached"
    planned = sum(each.planned for each in there)
    kept = f"; {planned} {are(planned)} kept for waiting jobs" if planned else ""
    tickets = "; a ticket also keeps its host from being idle" if looked.tickets_keep else ""
    return f"no node of {looked.partition} is idle (0 of {len(there)}){kept}{tickets}"


def _of_idle(looked: Look) -> str:
    free = set(looked.idle)
    if soon := free - set(looked.steady):
        return (
            f"{_some(soon)} {are(len(soon))} idle only since the last look, and will be "
            "requested soon"
        )
    if looked.part == 0 or (looked.only is not None and free.isdisjoint(looked.only)):
        return looked.leave or "the idle nodes are the share of other harvesters now"
    if again := {node: looked.refused[node] for node in free & looked.refused.keys()}:
        said = f": {looked.why_refused}" if looked.why_refused else ""
        left_s = max(0.0, min(again.values()))
        return (
            f"{_some(again)} was refused a moment ago, and will be requested again in "
            f"{left_s:.0f} s{said}"
        )
    if short := {node: looked.short[node] for node in free & looked.short.keys()}:
        most_s = max(0.0, *short.values())
        return f"{_some(short)} {are(len(short))} idle, but needed too soon: in {most_s:.0f} s"
    return ""


def _some(nodes: Collection[str]) -> str:
    return listed(sorted(nodes), most=3)
