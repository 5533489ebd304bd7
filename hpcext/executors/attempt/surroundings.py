"""What an executor knows of the place where an attempt is to run."""

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
        Variables that the executor adds; they go before what the job file says.
    manager : pathlib.Path, optional
        The ``manager.json`` of who wants to hear of news.
    notices : bool
        Whether SIGTERM is the batch system's word that the time is over, not the manager's.
    rendezvous : str
        ``HOST:PORT`` where the ranks of several nodes meet, or those of one whose job may get
        others.
    allocation : str
        The allocation of the batch system, which :meth:`AttemptFiles.begun_in` returns.
    leader : Process, optional
        What the batch system stops and kills in place of the attempt, which is to do alike.
    nodes : sequence of Mapping
        Of each node ``name``, and ``gpus``: which of those that it has for us, by position, or
        None if what starts the supervisor sees to that. Empty: the batch system tells each.
    mps : Mapping of str to str, optional
        The way to its seat on a shared GPU, :class:`hpcext.launch.mps.Seat`.
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
