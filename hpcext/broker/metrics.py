"""Metrics of a broker for a monitoring system, made of its status, by Prometheus's conventions.

Whoever can reach the monitoring system reads them, so that names of users are in them only if the
administrator asks for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple


class Metric(NamedTuple):
    """The description of a metric.

    Attributes
    ----------
    kind : {"gauge", "counter"}
        A counter never falls, and its name ends with ``_total``.
    text : str
    """

    kind: Literal["gauge", "counter"]
    text: str


UP = "hpcext_broker_up"

METRICS = {
    UP: Metric("gauge", "Whether the broker answers."),
    "hpcext_broker_decides": Metric("gauge", "Whether it decides, and can write its journal."),
    "hpcext_broker_nodes": Metric("gauge", "Nodes that it divides."),
    "hpcext_broker_users": Metric("gauge", "Users that have harvesters."),
    "hpcext_broker_harvesters": Metric("gauge", "Harvesters that have asked lately."),
    "hpcext_broker_trainers": Metric("gauge", "Trainers that these have told of."),
    "hpcext_broker_wanted_nodes": Metric("gauge", "Nodes that harvesters want."),
    "hpcext_broker_granted_nodes": Metric("gauge", "Nodes that are granted."),
    "hpcext_broker_held_nodes": Metric("gauge", "Nodes that harvesters have as leases."),
    "hpcext_broker_owed_nodes": Metric("gauge", "Nodes that are granted and not held."),
    "hpcext_broker_held_seconds_total": Metric("counter", "Node time of all leases."),
    "hpcext_broker_without_leave_seconds_total": Metric(
        "counter", "Node time of leases that it did not grant."
    ),
    "hpcext_broker_reserved_nodes": Metric("gauge", "Nodes that are reserved for users now."),
    "hpcext_broker_fair_share_failed": Metric(
        "gauge", "Whether the fair share could not be read the last time."
    ),
}

_SUMS = {
    "hpcext_broker_harvesters": "harvesters",
    "hpcext_broker_trainers": "trainers",
    "hpcext_broker_wanted_nodes": "want",
    "hpcext_broker_granted_nodes": "granted",
    "hpcext_broker_held_nodes": "held",
    "hpcext_broker_owed_nodes": "owed",
    "hpcext_broker_held_seconds_total": "held_node_s",
    "hpcext_broker_without_leave_seconds_total": "without_leave_node_s",
}
"""Metric → the key of a user's row."""

USERS = {
    f"hpcext_broker_user_{name}": Metric("gauge", f"{text} of a user.")
    for name, text in (
        ("weight", "Weight, with the fair share,"),
        ("wanted_nodes", "Nodes that harvesters want,"),
        ("granted_nodes", "Nodes that are granted,"),
        ("held_nodes", "Nodes that harvesters have,"),
    )
}
"""Metrics with the label ``user``."""

_OF_USER = dict(zip(USERS, ("weight", "want", "granted", "held"), strict=True))


class Sample(NamedTuple):
    """One number: its metric, the user if it is of one, and its value."""

    name: str
    user: str
    value: float


def samples(status: Mapping[str, Any] | None, *, users: bool) -> Iterator[Sample]:
    """Yield all numbers.

    Parameters
    ----------
    status : Mapping or None
        As an administrator sees it; None: the broker does not answer.
    users : bool
        Whether to name users.
    """
    yield Sample(UP, "", float(status is not None))
    if status is None:
        return
    rows = status["users"]
    yield Sample("hpcext_broker_decides", "", float(status["decides"]))
    yield Sample("hpcext_broker_nodes", "", float(status["nodes"]))
    yield Sample("hpcext_broker_users", "", float(sum(row["harvesters"] > 0 for row in rows)))
    together = [*rows, status.get("others", {})]
    for name, key in _SUMS.items():
        # In whatever order they are added, it is the same number, and so none falls.
        yield Sample(name, "", round(sum(float(row.get(key, 0)) for row in together), 1))
    reserved = sum(each["nodes"] for each in status["reservations"] if each["holds"])
    yield Sample("hpcext_broker_reserved_nodes", "", float(reserved))
    failed = bool(status["shares"]["failed"])
    yield Sample("hpcext_broker_fair_share_failed", "", float(failed))
    for row in rows if users else ():
        for name, key in _OF_USER.items():
            yield Sample(name, row["user"], float(row[key]))
