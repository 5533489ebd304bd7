"""The check of the site's broker: whether one is here, and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcext.config import Settings
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.harvest import leave, ways
from hpcext.text import clean, counted

NAME = "broker"

UNIT = Path("/etc/systemd/system/hpcext-broker.service")
"""Where ``hpcext-admin install broker`` puts its unit, unless told otherwise."""


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Ask the broker of the site, where there is one."""
    settings = asked.settings or Settings()
    way = ways.find(settings.broker)
    do = "an administrator looks at: systemctl status hpcext-broker"
    if way is None:
        if settings.broker == leave.AUTO and UNIT.exists():
            yield Finding(NAME, "note", f"one is installed, but nothing is at {leave.SOCKET}", do)
        else:
            yield Finding(NAME, "ok", "none here: harvesters divide idle nodes by the queue")
        return
    try:
        said = ways.status(way)
    except leave.BrokerError as error:
        yield Finding(NAME, "wrong", clean(str(error)), error.do or do)
        return
    partition, nodes = clean(str(said.get("partition"))), said.get("nodes")
    if not said.get("decides"):
        why = "it has begun a moment ago, or cannot look at the partition or write its journal"
        yield Finding(
            NAME, "note", f"{clean(str(way))} decides nothing for {partition} now: {why}", do
        )
        return
    has = counted(nodes, "node") if isinstance(nodes, int) else "nodes"
    yield Finding(NAME, "ok", f"{clean(str(way))} answers: it divides {has} of {partition}")
