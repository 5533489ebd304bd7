"""The specification of a job: the checked contents of a job file, or of a submission."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from hpcext import containers
from hpcext import jobfields as fields
from hpcext.checkpointers import Checkpointer
from hpcext.containers import Container
from hpcext.core.trials import Trial
from hpcext.scaling.curve import fewest_near_best

PLACEHOLDERS = ("gpus", "nodes", "checkpoint_dir", "name", "rendezvous")
"""The words in braces that are replaced in a command."""


class Gpus(msgspec.Struct, frozen=True):
    """GPUs per node that a job can use; ``optimal`` is None if the file does not state it.

    It can use multiples of ``multiple`` alone. The limits are checked when a value is decoded, such
    as a stored submission that was damaged.
    """

    min: Annotated[int, msgspec.Meta(ge=1, le=fields.MAX_GPUS)] = 1
    max: Annotated[int, msgspec.Meta(ge=1, le=fields.MAX_GPUS)] = 1
    optimal: Annotated[int, msgspec.Meta(ge=1, le=fields.MAX_GPUS)] | None = None
    multiple: Annotated[int, msgspec.Meta(ge=1, le=fields.MAX_GPUS)] = 1

    @property
    def sizes(self) -> range:
        """The numbers that it can use, ascending."""
        return range(self.min, self.max + 1, self.multiple)


class Nodes(msgspec.Struct, frozen=True):
    """The number of nodes that a job can use."""

    min: Annotated[int, msgspec.Meta(ge=1, le=fields.MAX_NODES)] = 1
    max: Annotated[int, msgspec.Meta(ge=1, le=fields.MAX_NODES)] = 1


class JobSpec(msgspec.Struct, frozen=True):
    """The specification of one job: a ``[[job]]`` of a job file, checked.

    Attributes
    ----------
    name : str
        Letters, digits, ``._-``; at most 64; unique in its file.
    command : tuple of str
        The argv, with unreplaced placeholders ``{gpus} {nodes} {checkpoint_dir} {name}``.
    gpus : Gpus
    nodes : Nodes
    scaling : Mapping[int, float]
        Speed by total GPUs, in any unit; empty if not stated.
    by_kind : Mapping[str, Mapping[int, float]]
        The same for each kind of GPU, in one unit; empty if kinds are not distinguished. Otherwise
        `scaling` is the curve of this machine's kind, or else of the slowest kind.
    profile : str
        Name of the stored profile from which `scaling` was taken when the job was submitted; empty
        if the file states the curve. The job's own progress refines that profile.
    relative : bool
        Whether `scaling` is only the shape of a profile, measured in another unit than the work's.
    work : float or None
        Total work, in `work_unit`.
    work_unit : {"steps", "samples"}
    target_loss : float or None
        The loss at which the job is done.
    after : tuple of str
        Names of jobs that must complete first.
    env : Mapping[str, str]
    workdir : str
        Absolute.
    retries : int
    suspend_timeout_s, rescale_up_s, rescale_down_s : float
    weight, priority : float
    mem_per_gpu : int or None
        Memory for each GPU in bytes.
    mps : bool
        Whether the job may share a GPU with other jobs through MPS, as a secondary.
    trial : Trial or None
        Its place in its sweep.
    shell : bool
        Whether a shell runs the command, whose last word is then the shell's script.
    checkpoint : Checkpointer or None
        How the command saves by its own means, if it does.
    hang : {"report", "restart", "ignore"}
        The reaction when it seems to hang.
    hang_after_s : float
        The shortest time without a step after which it seems to hang, in seconds.
    walltime_s : float or None
        The longest time that an attempt takes, in seconds; None: not stated.
    trackers : bool
        Whether its attempts continue one run of an experiment tracker.
    container : Container or None
        What the command runs in.
    preload : tuple of str
        Modules that are imported once for all of its attempts.
    learns : bool
        Whether these are modules that its attempts are seen to import, where that makes no
        difference to them, since the job states none.
    """

    name: str
    command: tuple[str, ...]
    gpus: Gpus = Gpus()
    nodes: Nodes = Nodes()
    scaling: Mapping[int, float] = msgspec.field(default_factory=dict)
    by_kind: Mapping[str, Mapping[int, float]] = msgspec.field(default_factory=dict)
    profile: str = ""
    relative: bool = False
    work: float | None = None
    work_unit: str = "steps"
    target_loss: float | None = None
    after: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    workdir: str = "/"
    retries: int = 2
    suspend_timeout_s: float = 60.0
    rescale_up_s: float = 0.0
    rescale_down_s: float = 0.0
    weight: float = 1.0
    priority: float = 0.0
    mem_per_gpu: int | None = None
    mps: bool = False
    trial: Trial | None = None
    shell: bool = False
    checkpoint: Checkpointer | None = None
    hang: str = "report"
    hang_after_s: float = 60.0
    walltime_s: float | None = None
    trackers: bool = True
    container: Container | None = None
    preload: tuple[str, ...] = ()
    learns: bool = True

    @property
    def as_is(self) -> bool:
        """Whether its processes are suspended as they are."""
        return self.checkpoint is not None and self.checkpoint.transparent


def optimum(spec: JobSpec) -> int:
    """Return the number of GPUs per node on which a job runs best.

    That is the stated number. If the file states none, it is the smallest number whose speed is
    within 2 % of the best, among the sizes that the job may have on its fewest nodes; without
    stated speeds, it is the largest number that the job can use.

    Parameters
    ----------
    spec : JobSpec

    Returns
    -------
    int
        One of ``spec.gpus.sizes``.
    """
    if spec.gpus.optimal is not None:
        return spec.gpus.optimal
    nodes = spec.nodes.min
    usable = {
        gpus // nodes: speed
        for gpus, speed in spec.scaling.items()
        if gpus % nodes == 0 and gpus // nodes in spec.gpus.sizes
    }
    return fewest_near_best(usable) if usable else spec.gpus.max


def contained(spec: JobSpec, base: Path, runtime: str) -> JobSpec:
    """Return a job whose container, if it has one, is fully stated.

    Parameters
    ----------
    spec : JobSpec
    base : pathlib.Path
        The directory at which the path of an image starts.
    runtime : str
        What runs containers of jobs that do not state it.

    Raises
    ------
    InputError
        The job cannot run in it.
    """
    if spec.container is None:
        return spec
    whole = containers.settle(
        spec.container, spec.workdir, spec.checkpoint, base=base, runtime=runtime
    )
    return msgspec.structs.replace(spec, container=whole)
