"""Why a harvester has no lease: each cause is a sentence that names what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcext.batch.leasing import Idle
from hpcext.harvest import account
from hpcext.harvest.missing import Look, why
from hpcext.manager.views.harvest_report import why_no_lease


def node(name: str, gpus: int = 2, **more: Any) -> Idle:
    return Idle(name, idle=False, planned=False, gpus=gpus, kind="", cpus=4, memory_mb=0)._replace(
        **more
    )


TWO = {"n1": node("n1"), "n2": node("n2")}
IDLE: dict[str, Any] = {"idle": ["n1"], "steady": ["n1"]}


@pytest.mark.parametrize(
    ("nodes", "more", "said"),
    [
        ({}, {}, "q has no nodes"),
        ({"n1": node("n1", 1)}, {}, "no node of q has 2 GPUs, which a lease must have"),
        (TWO, {}, "no node of q is idle (0 of 2)"),
        (
            TWO,
            {"tickets_keep": True},
            "idle (0 of 2); a ticket also keeps its host from being idle",
        ),
        ({"n1": node("n1", planned=True)}, {}, "(0 of 1); 1 is kept for waiting jobs"),
        ({"n1": node("n1", lost=True)}, {}, "n1 cannot be reached"),
        (TWO, {"idle": ["n1"]}, "n1 is idle only since the last look"),
        (TWO, {**IDLE, "part": 0}, "the idle nodes are the share of other harvesters now"),
        (
            TWO,
            {**IDLE, "refused": {"n1": 90.0}, "why_refused": "n1: too many jobs"},
            "n1 was refused a moment ago, and will be requested again in 90 s: n1: too many jobs",
        ),
        (TWO, {**IDLE, "short": {"n1": 60.0}}, "n1 is idle, but needed too soon: in 60 s"),
        (TWO, {"waiting": {"n1": "Job slot limit"}}, "n1 waits in the queue: Job slot limit"),
        (TWO, {"waiting": {"n1": ""}}, "n1 waits in the queue: no reason given"),
        (
            TWO,
            {"coming": ["n1"]},
            "its lease of n1 is running, but the agent there has not started yet",
        ),
        (TWO, IDLE, ""),
    ],
)
def test_each_cause_is_a_sentence(nodes: dict[str, Idle], more: dict[str, Any], said: str) -> None:
    found = why(Look("q", 2, nodes, **more))
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "the harvester has no lease now"),
        ({"missing": "q has no nodes"}, "the harvester has no lease: q has no nodes"),
        ({"missing": "x", "unanswered": "LSF is down"}, "the harvester has no lease: LSF is down"),
        ({"others": 1, "missing": "no node of q is idle"}, "no idle node; 1 is leased by others"),
        (
            {"others": 2, "missing": "its lease of n1 waits in the queue: a limit"},
            "no idle node; 2 are leased by others; its lease of n1 waits in the queue: a limit",
        ),
        ({"not_given": "n1: refused"}, "the harvester was given no lease of n1: refused"),
    ],
)
def test_why_explains_the_wait(facts: dict[str, Any], said: str, tmp_path: Path) -> None:
    account.save(account.Account(**facts), tmp_path)
    assert why_no_lease(account.load(tmp_path)) == said
