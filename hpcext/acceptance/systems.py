"""What an acceptance run asks of a batch system, in the same words for Slurm and for LSF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcext.batch.leasing import Held, Idle
from hpcext.protocol import JobId

FINAL = frozenset(
    {
        "boot_fail", "cancelled", "completed", "deadline", "failed", "node_fail", "out_of_memory",
        "preempted", "timeout", "launch_failed", "revoked",
    }
)  # fmt: skip
"""States after which nothing of a job comes any more, unless somebody requeues it."""


NOUNS = {"slurm": "partition", "lsf": "queue"}
"""Batch systems that can be accepted, and what they call that which a job is submitted to."""


class Order(NamedTuple):
    """A job to be submitted.

    Attributes
    ----------
    name : str
    partition : str
        Or queue.
    hosts : tuple of str
        On which it is to run.
    output : pathlib.Path
    minutes : int
        Its time limit.
    slots : int
        Of each host that it has for itself; 0: it wants one slot.
    gpus : int
        On each of them.
    memory_mb : int
        Of a job that has no host for itself.
    lead_s : int
        It is suspendable, so long before its end; 0: it is not.
    tasks : int
        It is a job array of so many; 0: it is none.
    setting : str
        One that a flag has, as an esub takes it: ``scaling=NAME``.
    """

    name: str
    partition: str
    hosts: tuple[str, ...]
    output: Path
    minutes: int = 10
    slots: int = 0
    gpus: int = 0
    memory_mb: int = 700
    lead_s: int = 0
    tasks: int = 0
    setting: str = ""


class System(Protocol):
    """A batch system. Methods raise BatchError where there is no answer.

    Attributes
    ----------
    key : {"slurm", "lsf"}
    verbs : Mapping[str, tuple of str]
        What can be done to a job → the command, in which ``JOB`` stands for it.
    ages : bool
        Whether what a job hears differs by its age.
    stop_frees : bool
        Whether others get the host of a job that is stopped.
    bad_setting : str
        One that a flag refuses.
    queries : tuple of str
        The commands that only ask.
    silent : str
        What they say when nobody answers, after their name.
    task : str
        The variable that has a task's number in an array.
    changes : Mapping[str, str]
        Name of a scenario → file, and what to change there if it has failed.
    """

    key: str
    verbs: Mapping[str, tuple[str, ...]]
    ages: bool
    stop_frees: bool
    bad_setting: str
    queries: tuple[str, ...]
    silent: str
    task: str
    changes: Mapping[str, str]

    def release(self) -> str:
        """What it is, with its version."""

    def flags(self, partition: str) -> str:
        """Why a flag makes no job suspendable there; empty: it does."""

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Node → what it is."""

    def words(self, order: Order, *, flags: bool) -> list[str]:
        """The command that submits it; its script is on standard input."""

    def variables(self, order: Order, *, flags: bool) -> dict[str, str]:
        """What is to be in the environment of that command."""

    def job_id(self, said: str) -> JobId:
        """Which job that command has made."""

    def states(self, jobs: Sequence[JobId]) -> dict[JobId, str]:
        """States of jobs, in Slurm's words."""

    def cancel(self, jobs: Sequence[JobId]) -> None:
        """End these jobs, as far as they have not ended."""

    def cancel_named(self, name: str) -> None:
        """End all jobs of ours that have this name."""

    def held(self, name: str) -> tuple[Held, ...]:
        """Jobs of ours of a name that it still knows, but for arrays."""

    def named(self, name: str) -> dict[JobId, str]:
        """States of jobs of ours of a name that it still knows, in Slurm's words."""

    def pilot_of(self, job: JobId) -> str:
        """The name of the pilot that a suspendable job is."""

    def tasks_of(self, job: JobId, count: int) -> tuple[JobId, ...]:
        """The jobs of an array, each as it is called."""

    def numbers_of(self, count: int) -> range:
        """What :attr:`task` says in each of them."""

    def pilot_options(self, order: Order) -> list[str]:
        """What ``hpcext pilot submit`` passes on: its partition and hosts."""
