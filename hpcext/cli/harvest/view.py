"""The report of a harvester as text on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcext.cli.output import Output
from hpcext.manager.views.harvest_report import PARTS
from hpcext.render.words import duration
from hpcext.text import counted

TRAINERS = ("id", "trainer", "state", "done", "nodes", "most", "hours", "restarts", "in place")


def show(out: Output, document: Mapping[str, Any]) -> None:
    """Print a report of :mod:`hpcext.manager.views.harvest_report`, with its efficiency."""
    leases = counted(document["leases"], "lease")
    out.line(f"observed for {duration(document['seen_s'])}; {leases}")
    offered = document["offered_node_h"]
    rows = [("idle, or leased", f"{offered:.2f}", "")]
    for key, text in PARTS.items():
        hours = document[f"{key}_node_h"]
        rows.append((text, f"{hours:.2f}", f"{hours / offered:.1%}" if offered else ""))
    out.table(("nodes", "hours", "share"), rows)
    out.table(TRAINERS, [_trainer(each) for each in document["trainers"]])
    out.line(_efficiency(document["efficiency"]))
    if document["broker"]:
        out.line(document["broker"])


def _trainer(said: Mapping[str, Any]) -> tuple[str, ...]:
    progress = "" if said["progress"] is None else f"{said['progress']:.0%} "
    return (
        said["id"],
        said["name"],
        said["state"],
        f"{progress}(step {said['steps']})" if progress else f"step {said['steps']}",
        str(said["nodes"]),
        str(said["most_nodes"]),
        f"{said['node_h']:.2f}",
        str(said["restarts"]),
        str(said["rescales"]),
    )


def _efficiency(said: Mapping[str, Any]) -> str:
    if said["value"] is None:
        return f"efficiency U: unknown, {said['why']}"
    return (
        f"efficiency U: {said['value']:.0%}, of the {said['unit']} that {said['nodes']:.2f} "
        "permanent nodes would have trained"
    )
