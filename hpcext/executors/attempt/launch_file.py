"""The launch file of an attempt: all that its supervisor needs to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hpcext import protocol
from hpcext.core.values import Action, Alloc
from hpcext.executors.attempt.placeholders import fill, fill_shell
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.jobspec import JobSpec

CHECKPOINT = "checkpoint"
"""In the directory of a job: that of its checkpoints."""

KILL_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL, when a job is told to die."""


def launch_document(
    directory: Path,
    action: Action,
    spec: JobSpec,
    alloc: Alloc,
    where: Surroundings,
    *,
    run_id: str = "",
) -> dict[str, Any]:
    """Return the content of ``launch.json``.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    action : Action
        Any action on the attempt.
    spec : JobSpec
    alloc : Alloc
        GPUs per node, equally many on each.
    where : Surroundings
        The executor's knowledge of the place.
    run_id : str
        The id of the job's run for experiment trackers.
    """
    home = directory.parent
    trial = spec.trial
    told = protocol.Attempt(
        job_id=action.job,
        attempt=action.attempt,
        op=action.op,
        checkpoint_dir=home / CHECKPOINT,
        report_dir=directory,
        num_gpus=max(alloc.values()),
        num_nodes=len(alloc),
        notices=where.notices,
        rendezvous=where.rendezvous,
        rungs=(trial.first, trial.factor) if trial and trial.first else None,
        run_id=run_id,
    )
    argv, filled = _filled(spec, told)
    return {
        "schema": protocol.LAUNCH,
        "job": action.job,
        "attempt": action.attempt,
        "op": action.op,
        "argv": argv,
        "cwd": spec.workdir,
        "environ": {
            **spec.env,
            **where.environ,
            **told.environ(),
            **filled,
            **({} if spec.trackers else {protocol.TRACKERS_VARIABLE: "0"}),
        },
        "log": str(home / "log.txt"),
        "gpus": list(where.gpus),
        "kill_grace_s": KILL_GRACE_S,
        "suspend_timeout_s": spec.suspend_timeout_s,
        "manager": str(where.manager) if where.manager else None,
        "notices": where.notices,
        "allocation": where.allocation,
        "leader": str(where.leader) if where.leader else "none",
        "nodes": list(where.nodes),
        "mps": dict(where.mps) if where.mps else None,
        **_saves(spec, told),
        **({"stays": True} if where.beside and spec.as_is else {}),
        **({"container": msgspec.to_builtins(spec.container)} if spec.container else {}),
        **({"preload": spec.preload} if spec.preload else {}),
    }


def _saves(spec: JobSpec, told: protocol.Attempt) -> dict[str, Any]:
    """Return how a command saves by its own means, for ``launch.json``."""
    if spec.checkpoint is None:
        return {}
    document = msgspec.to_builtins(spec.checkpoint)
    pattern = spec.checkpoint.pattern(spec.command)
    if pattern:
        document["file"] = fill([pattern], _values(spec, told))[0]
    return {"checkpoint": document}


def _filled(spec: JobSpec, told: protocol.Attempt) -> tuple[list[str], dict[str, str]]:
    """Return a command with its placeholders filled, and the variables that its shell needs."""
    values = _values(spec, told)
    if not spec.shell:
        return fill(spec.command, values), {}
    text, filled = fill_shell(spec.command[-1], values)
    return [*spec.command[:-1], text], filled


def _values(spec: JobSpec, told: protocol.Attempt) -> dict[str, str]:
    return {
        "gpus": str(told.num_gpus),
        "nodes": str(told.num_nodes),
        "checkpoint_dir": str(told.checkpoint_dir),
        "name": spec.name,
        # On one node any port will do; torchrun finds it.
        "rendezvous": told.rendezvous if told.num_nodes > 1 else "localhost:0",
    }
