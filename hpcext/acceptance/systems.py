"""What an acceptance run asks of a batch system, in the same words for Slurm and for LSF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcext.allocation import JobId
from hpcext.batch.jobs import OVER
from hpcext.batch.leasing import Held, Idle

FINAL = OVER
"""States after which nothing more happens to a job, unless somebody requeues it."""


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
        The hosts to run on.
    output : pathlib.Path
    minutes : int
        The time limit.
    slots : int
        Slots of each host, if it has hosts to itself; 0 for a job of one slot.
    gpus : int
        GPUs of each host.
    memory_mb : int
        Memory of a job that has no host to itself.
    lead_s : int
        If it is suspendable, its lead; else 0.
    tasks : int
        The number of tasks of a job array; else 0.
    setting : str
        A setting of a flag, as an esub takes it: ``scaling=NAME``.
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
    """A batch system; its methods raise BatchError if there is no answer.

    Attributes
    ----------
    key : {"slurm", "lsf"}
    verbs : Mapping[str, tuple of str]
        What can be done to a job → the command, in which ``JOB`` stands for its id.
    ages : bool
        Whether the signals that a job gets depend on its age.
    stop_frees : bool
        Whether other jobs get the host of a stopped job.
    bad_setting : str
        A setting that a flag refuses.
    queries : tuple of str
        The commands that only ask.
    silent : str
        What these say, after their name, when nobody answers.
    task : str
        The variable that has a task's number in an array.
    changes : Mapping[str, str]
        Name of a scenario → a file, and what to change there if it has failed.
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
        """Return the product and its version."""

    def flags(self, partition: str) -> str:
        """Return why no flag makes a job suspendable there; empty if one does."""

    def idle(self, partition: str) -> Mapping[str, Idle]:
        """Return the nodes of a partition by name."""

    def words(self, order: Order, *, flags: bool) -> list[str]:
        """Return the command that submits an order; its script is on standard input."""

    def variables(self, order: Order, *, flags: bool) -> dict[str, str]:
        """Return the variables to set for that command."""

    def job_id(self, said: str) -> JobId:
        """Parse the id of the job from that command's output."""

    def states(self, jobs: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs, in Slurm's words."""

    def cancel(self, jobs: Sequence[JobId]) -> None:
        """End those of these jobs that have not ended."""

    def cancel_named(self, name: str) -> None:
        """End all our jobs of this name."""

    def held(self, name: str) -> tuple[Held, ...]:
        """Return our jobs of this name that the batch system still knows, except arrays."""

    def named(self, name: str) -> dict[JobId, str]:
        """Return the states of our jobs of this name that it still knows, in Slurm's words."""

    def pilot_of(self, job: JobId) -> str:
        """Return the name of the pilot that a suspendable job is."""

    def tasks_of(self, job: JobId, count: int) -> tuple[JobId, ...]:
        """Return the ids of an array's tasks."""

    def numbers_of(self, count: int) -> range:
        """Return the numbers that :attr:`task` has in an array's tasks."""

    def pilot_options(self, order: Order) -> list[str]:
        """Return what ``hpcext pilot submit`` passes on: an order's partition and hosts."""
