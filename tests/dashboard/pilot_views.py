"""Pilots as the tests of the dashboard have them, without a manager."""

from __future__ import annotations

from pathlib import Path

from hpcext.core.engine import Engine
from hpcext.core.estimate import Estimate
from hpcext.core.history.node_time import NodeTime
from hpcext.core.values import Job, Node, Record, Role, Segment, State
from hpcext.harvest.leases import Terms
from hpcext.manager.pilot import Pilot
from hpcext.manager.views.reading import Reading
from hpcext.policies import find_policy

HOSTILE = "<script>fetch('//x.example')</script>\"'&\u202e"
"""Names of jobs may hold some of it, reasons and names of metrics all of it."""

PAUSED = {"signal": 0.1, "save": 0.4}


def reading(
    *jobs: tuple[Job, Record],
    nodes: tuple[Node, ...] = (Node("n2", 2), Node("n10", 2)),
    now_s: float = 100.0,
    harvest: Terms | None = None,
    name: str = "night",
    directory: Path = Path("/nowhere"),
    began_at: float = 1_700_000_000.0,
) -> Reading:
    engine = Engine(find_policy("marble"))
    for node in nodes:
        engine.world.nodes[node.name] = node
    for job, record in jobs:
        engine.world.put(job)
        engine.world.records[job.id] = record
    pilot = Pilot(
        id=f"{name}-1",
        name=name,
        policy="marble",
        node="n2",
        gpus=(0, 1),
        logical=True,
        report_interval_s=1.0,
        suspend_timeout_s=10.0,
        began_at=began_at,
        batch="" if harvest else "slurm",
        harvest=harvest,
    )
    return Reading(directory, pilot, engine, NodeTime(), "marble", began_at, now_s, alive=True)


def job(id: str, state: State = State.PENDING, **more: object) -> Job:
    return Job(id=id, name=f"job-{id}", order=int(id), sizes=(1, 2), optimal=2, state=state, **more)


def busy() -> Reading:
    """One was suspended, promoted and resized; one starts; one waits; one has ended."""
    both = ("n2:0", "n2:1")
    moved = Record(
        segments=(
            Segment(0.0, ("n2:0",), Role.SECONDARY, 20.0, suspend_s=PAUSED),
            Segment(30.0, both, Role.PRIMARY, 60.0),
            Segment(60.0, ("n2:0",), Role.PRIMARY, rescaled=True),
        ),
        suspends=1,
        rescales=1,
        metrics={"loss": 0.25, HOSTILE: 0.5},
    )
    running = job(
        "1",
        State.RUNNING,
        held={"n2": 1},
        gpus=("n2:0",),
        role=Role.PRIMARY,
        step=40,
        estimate=Estimate(work=80.0, done=40.0),
    )
    done = Record(segments=(Segment(0.0, ("n10:1",), Role.PRIMARY, 50.0),))
    return reading(
        (running, moved),
        (job("2", State.STARTING, held={"n10": 2}), Record()),
        (job("3", why=f"waits for {HOSTILE}"), Record()),
        (job("4", State.COMPLETED, since_s=50.0), done),
    )
