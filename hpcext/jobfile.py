"""Job and trainer files: one schema, read and checked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Gpus(msgspec.Struct, frozen=True):
    """GPUs per node that a job can use; ``optimal`` None: not stated."""

    min: int = 1
    max: int = 1
    optimal: int | None = None


class Nodes(msgspec.Struct, frozen=True):
    """Nodes that a job can use."""

    min: int = 1
    max: int = 1


class JobSpec(msgspec.Struct, frozen=True):
    """One ``[[job]]`` of a job file, checked.

    Attributes
    ----------
    name : str
        Letters, digits, ``._-``; at most 64; unique in its file.
    command : tuple of str
        argv with the placeholders ``{gpus} {nodes} {checkpoint_dir} {name}`` still in it.
    gpus : Gpus
    nodes : Nodes
    scaling : Mapping[int, float]
        GPUs → speed, in any unit; empty where not stated.
    work : float or None
        Total work, in `work_unit`.
    work_unit : {"steps", "samples"}
    after : tuple of str
        Names of jobs that must complete first.
    env : Mapping[str, str]
    workdir : str
        Absolute.
    retries : int
    suspend_timeout_s, rescale_up_s, rescale_down_s : float
    weight, priority : float
    mem_per_gpu : int or None
        Bytes.
    """

    name: str
    command: tuple[str, ...]
    gpus: Gpus = Gpus()
    nodes: Nodes = Nodes()
    scaling: Mapping[int, float] = msgspec.field(default_factory=dict)
    work: float | None = None
    work_unit: str = "steps"
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
