"""The recording of a pilot's jobs, a document that the simulator takes as a workload.

Its speeds, gradient noise and costs are measurements of trainings that ran. A user may try policies
on such a file from another person, so it is checked like any other input.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from hpcext.core.errors import UNREADABLE, InputError, refused
from hpcext.core.estimate import GoodputReport
from hpcext.core.values import Node
from hpcext.documents import is_later, not_of, write_file
from hpcext.text import clean
from hpcext.textfiles import read_text

SCHEMA: Final = "hpcext.recording/1"

SOONEST_S = 0.1
"""Shortest time between two reports, in seconds."""

MOST_POINTS = 1000
"""Largest number of points of the noise of one training."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Above = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
From0 = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Curve = dict[Count, Above]


class RecordedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node: its number of GPUs, and their kind."""

    gpus: Count
    kind: Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z][\w.-]{0,99})?\Z")] = ""


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The costs of changes, in seconds, as in :class:`hpcext.sim.replay.physics.Physics`."""

    resume_s: Seconds = 0.0
    suspend_s: Seconds = 0.0
    leave_s: Seconds = 0.0
    in_place: bool = False
    join_s: Seconds = 0.0
    rescale_up_s: Seconds = 0.0
    rescale_down_s: Seconds = 0.0


class Adapting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training that chooses its batch by its goodput.

    Attributes
    ----------
    goodput : GoodputReport
        The last report; its throughput is that of all steps that were timed.
    noise : tuple of (float, float)
        Pairs of work done and of the noise scale from there on, ascending.
    known_from : float
        Work done when it first reported its goodput.
    pace : float
        Actual progress as a multiple of that by its throughput, because it does more than steps.
    """

    goodput: GoodputReport
    noise: Annotated[
        tuple[tuple[From0, Annotated[float, msgspec.Meta(ge=0)]], ...],
        msgspec.Meta(min_length=1, max_length=MOST_POINTS),
    ]
    known_from: From0 = 0.0
    pace: Above = 1.0

    def __post_init__(self) -> None:
        if self.goodput.throughput is None:
            raise ValueError("goodput has no throughput")
        if any(after[0] <= before[0] for before, after in itertools.pairwise(self.noise)):
            raise ValueError("noise must be in the order of the work done")


class Stated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that a job states in its file, which policies know."""

    scaling: Curve = {}
    work: Above | None = None
    up_s: Seconds | None = None
    down_s: Seconds | None = None


class CompletedJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job that completed.

    Attributes
    ----------
    id, name : str
    submitted_s : float
    sizes : tuple of int
    optimal : int
    work : float
        All of its work.
    nodes : (int, int) or None
    priority, weight, suspend_timeout_s : float
    after : tuple of str
        Ids of jobs.
    stated : Stated
    costs : Costs
    speed : Mapping[int, float]
        Work per second by number of GPUs; empty if it adapts.
    adapting : Adapting or None
    """

    id: Name
    name: Name
    submitted_s: Seconds
    sizes: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=100_000)]
    optimal: Count
    work: Above
    nodes: tuple[Count, Count] | None = None
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 1.0
    suspend_timeout_s: Seconds = 60.0
    after: tuple[Name, ...] = ()
    stated: Stated = Stated()
    costs: Costs = Costs()
    speed: Curve = {}
    adapting: Adapting | None = None

    def __post_init__(self) -> None:
        if bool(self.speed) == (self.adapting is not None):
            raise ValueError("needs either speed or adapting")
        if any(after <= before for before, after in itertools.pairwise(self.sizes)):
            raise ValueError("sizes must ascend")
        if self.nodes is not None and self.nodes[0] > self.nodes[1]:
            raise ValueError("nodes: the minimum is more than the maximum")


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recorded pilot.

    Attributes
    ----------
    policy : str
        The policy that shared its GPUs.
    nodes : tuple of RecordedNode
    jobs : tuple of CompletedJob
        Jobs in the order of their submission.
    report_s : float
        Mean seconds between two reports of a job.
    """

    policy: str
    nodes: Annotated[tuple[RecordedNode, ...], msgspec.Meta(min_length=1, max_length=1_000_000)]
    jobs: Annotated[tuple[CompletedJob, ...], msgspec.Meta(min_length=1)]
    report_s: Annotated[float, msgspec.Meta(ge=SOONEST_S, le=1e6)] = 1.0
    schema: Literal["hpcext.recording/1"] = SCHEMA

    def __post_init__(self) -> None:
        ids = {job.id for job in self.jobs}
        if len(ids) < len(self.jobs):
            raise ValueError("two jobs have the same id")
        for before, job in itertools.pairwise(self.jobs):
            if job.submitted_s < before.submitted_s:
                raise ValueError(f"job {job.name} was submitted before the one above it")
        for job in self.jobs:
            if not ids.issuperset(job.after):
                raise ValueError(f"job {job.name} waits for a job that is not in the recording")

    @property
    def machine(self) -> str:
        """The nodes as an argument of ``hpcext simulate --nodes``: ``2xa100:4,4xv100:8``."""
        groups = itertools.groupby(self.nodes)
        return ",".join(
            f"{len(list(each))}x{f'{node.kind}:' if node.kind else ''}{node.gpus}"
            for node, each in groups
        )


def machine_of(nodes: Mapping[str, Node]) -> tuple[RecordedNode, ...]:
    """Return the nodes of a pilot, with names of kinds that are valid in an option."""
    return tuple(
        RecordedNode(
            node.gpus, re.sub(r"[^\w.-]+|\A[^A-Za-z]+", "-", node.kind, flags=re.A).strip("-")
        )
        for node in nodes.values()
        if node.gpus
    )


def read_recording(path: Path) -> Recording:
    """Read a recording, which need not come from :func:`write_recording`.

    Raises
    ------
    InputError
        It cannot be read, or a value in it is not valid.
    """
    where, text = clean(str(path)), read_text(path)
    try:
        document = msgspec.json.decode(text)
        if is_later(document, SCHEMA) or not isinstance(document, dict):
            raise InputError(not_of(document, SCHEMA), where=where)
        if document.get("schema") != SCHEMA:
            do = "make one with hpcext trace pilot PILOT -o FILE"
            raise InputError(not_of(document, SCHEMA), where=where, do=do)
        return msgspec.json.decode(text, type=Recording)
    except UNREADABLE as error:
        valid = "a recording made by hpcext trace pilot"
        raise InputError(clean(str(error))[:300], where=where, valid=valid) from None


def write_recording(path: Path, recording: Recording) -> None:
    """Write a recording to a file.

    Raises
    ------
    InputError
        As in :func:`encoded`.
    HpcextError
        The file cannot be written.
    """
    data = encoded(recording, clean(str(path)))
    try:
        write_file(path, msgspec.json.format(data, indent=1) + b"\n", mode=0o644)
    except OSError as error:
        raise refused(error, clean(str(path))) from None


def encoded(recording: Recording, where: str = "") -> bytes:
    """Return a recording as JSON, checked like one that is read.

    Parameters
    ----------
    recording : Recording
    where : str
        The pilot, for messages.

    Raises
    ------
    InputError
        A job reported impossible values.
    """
    data = msgspec.json.encode(recording)
    try:
        msgspec.json.decode(data, type=Recording)
    except msgspec.ValidationError as error:
        what = f"a job reported an impossible value: {clean(str(error))[:300]}"
        raise InputError(what, where=where) from None
    return data
