"""What ``hpcext run --dry-run`` prints: what would start first, and how long all would take."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from hpcext.admission import admit
from hpcext.cli.output import Output
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.core.facts import NodeJoined, Submitted
from hpcext.core.values import Node
from hpcext.jobspec import JobSpec
from hpcext.policies import find_policy
from hpcext.render.words import duration
from hpcext.sim.evaluate.expected import expected
from hpcext.sim.workloads.jobfiles import unstated
from hpcext.text import shown


def show(
    specs: Sequence[JobSpec], nodes: Sequence[Node], policy: str, out: Output, *, as_json: bool
) -> None:
    """Print what the first step of an engine would do.

    Parameters
    ----------
    specs : sequence of JobSpec
    nodes : sequence of Node
        The machine, and its shared GPU, if it has one.
    policy : str
        Its name and options.
    out : Output
    as_json : bool
        Whether to print a document.
    """
    for spec in specs:
        if not _program_found(spec):
            out.note(f"warning: job {spec.name}: there is no program {shown(spec.command[0])} here")
    engine = Engine(find_policy(policy))
    jobs = admit(specs, 1, {})
    engine.step(0.0, [*map(NodeJoined, nodes), *map(Submitted, jobs)])
    if engine.refusal:
        raise HpcextError(f"it {engine.refusal}", where=f"policy {policy}")
    plan = [engine.world.jobs[job.id] for job in jobs]
    # A relative curve says how to share GPUs, but not how long jobs take.
    known = not any(spec.relative for spec in specs)
    # Nothing says how fast jobs are that share a GPU.
    known = known and len(nodes) == 1
    schedule = expected(specs, nodes, policy) if known else None
    if as_json:
        document: dict[str, Any] = {
            "schema": "hpcext.plan/1",
            "policy": policy,
            "gpus": sum(node.real_gpus for node in nodes),
            "makespan_s": schedule.end_s if schedule else None,
            "jobs": [
                {
                    "id": job.id,
                    "name": job.name,
                    "gpus": dict(job.goal or {}),
                    "role": job.role.value if job.role else None,
                    "why": job.why,
                }
                for job in plan
            ],
        }
        out.document(document)
        return
    rows = [(job.id, job.name, str(sum((job.goal or {}).values()) or ""), job.why) for job in plan]
    out.table(("id", "job", "GPUs", "why"), rows)
    if schedule:
        span = duration(schedule.end_s)
        out.line(f"expected: {span} in all, if jobs are as fast as the file says")
    elif missing := unstated(specs):
        out.note(f"the time cannot be predicted: {missing}")


def _program_found(spec: JobSpec) -> bool:
    """Return whether the program of a job is on this machine, as far as that can be known."""
    program = spec.command[0]
    if spec.container is not None or "{" in program:
        return True
    if os.path.dirname(program):
        program = os.path.join(spec.workdir, program)
    return shutil.which(program, path=spec.env.get("PATH")) is not None
