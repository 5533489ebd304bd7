"""An executor's knowledge of the place where an attempt will run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.process import Process


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """Where an attempt is to run, as its executor knows it.

    Attributes
    ----------
    gpus : sequence of str
        ``HOST:INDEX``, as far as the executor knows them.
    environ : Mapping[str, str]
        Variables that the executor adds; they take precedence over those of the job file.
    manager : pathlib.Path, optional
        The ``manager.json`` of the manager to which news is signalled.
    notices : bool
        Whether SIGTERM is the batch system's notice that the time is over, not a manager's order.
    rendezvous : str
        ``HOST:PORT`` where the ranks of several nodes meet, or those of one whose job may get
        others.
    allocation : str
        The allocation of the batch system, which :meth:`AttemptFiles.begun_in` returns.
    leader : Process, optional
        The process that the batch system stops and kills instead of the attempt, which follows it.
    nodes : sequence of Mapping
        Of each node ``name``, and ``gpus``: which of those that it has for us, by position, or
        None if what starts the supervisor sees to that. Empty: the batch system tells each.
    mps : Mapping of str to str, optional
        The way to its seat on a shared GPU, :class:`hpcext.launch.mps.Seat`.
    beside : bool
        Whether it runs beside its manager, which is still there while it is suspended.
    """

    gpus: Sequence[str] = ()
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    manager: Path | None = None
    notices: bool = False
    rendezvous: str = ""
    allocation: str = ""
    leader: Process | None = None
    nodes: Sequence[Mapping[str, Any]] = ()
    mps: Mapping[str, str] | None = None
    beside: bool = False
