"""What an acceptance run needs from a batch system: the same interface for Slurm and LSF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcext.allocation import JobId
from hpcext.batch.jobs import OVER
from hpcext.batch.leasing import Held, Idle

FINAL = OVER
"""The states of jobs that have ended, unless somebody requeues them."""


NOUNS = {"slurm": "partition", "lsf": "queue"}
"""Batch systems with an acceptance run → their word for what jobs are submitted to."""


class Order(NamedTuple):
    """A job to be submitted.

    Attributes
    ----------
    name : str
    partition : str
        The partition or queue.
    hosts : tuple of str
        The names of the hosts to run on.
    output : pathlib.Path
        The file of its output.
    minutes : int
        The time limit.
    slots : int
        The slots of each host, if the job has hosts to itself; 0 for a job of one slot.
    gpus : int
        The GPUs on each host.
    memory_mb : int
        The memory of a job that has no host to itself, in MB.
    lead_s : int
        The lead in seconds if the job is suspendable; else 0.
    tasks : int
        The number of tasks of a job array; else 0.
    setting : str
        A flag and its value, such as ``scaling=NAME``; empty if none.
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
    """A batch system, whose methods raise BatchError if it does not answer.

    Attributes
    ----------
    key : {"slurm", "lsf"}
    verbs : Mapping[str, tuple of str]
        What can be done to a job → the command, with ``JOB`` for its id.
    ages : bool
        Whether it depends on the age of a job which processes get a signal.
    stop_frees : bool
        Whether a stopped job gives its host to others.
    bad_setting : str
        A setting that a flag refuses.
    queries : tuple of str
        The commands that query the batch system.
    silent : str
        Their error, after their name, if nobody answers.
    task : str
        The variable with the number of a task in a job array.
    changes : Mapping[str, str]
        Name of a scenario → a file, and what to change in it if the scenario has failed.
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
        """Return the command that submits an order, with the script on its standard input.

        Parameters
        ----------
        order : Order
        flags : bool
            Whether flags of hpcext make a job suspendable on this site.
        """

    def variables(self, order: Order, *, flags: bool) -> dict[str, str]:
        """Return the variables to set for that command.

        Parameters
        ----------
        order : Order
        flags : bool
            As in :meth:`words`.
        """

    def job_id(self, said: str) -> JobId:
        """Parse the id of the job from the output of that command."""

    def states(self, jobs: Sequence[JobId]) -> dict[JobId, str]:
        """Return the states of jobs, in the words of Slurm."""

    def cancel(self, jobs: Sequence[JobId]) -> None:
        """End those of these jobs that have not ended."""

    def cancel_named(self, name: str) -> None:
        """End all our jobs of this name."""

    def held(self, name: str) -> tuple[Held, ...]:
        """Return our jobs of this name that the batch system still knows, except arrays."""

    def named(self, name: str) -> dict[JobId, str]:
        """Return the states of our jobs of this name that it still knows, in the words of Slurm."""

    def pilot_of(self, job: JobId) -> str:
        """Return the name of the pilot of a suspendable job."""

    def tasks_of(self, job: JobId, count: int) -> tuple[JobId, ...]:
        """Return the ids of the tasks of a job array.

        Parameters
        ----------
        job : JobId
            The id of the array.
        count : int
            The number of its tasks.
        """

    def numbers_of(self, count: int) -> range:
        """Return the values of :attr:`task` in the tasks of a job array."""

    def pilot_options(self, order: Order) -> list[str]:
        """Return ``hpcext pilot submit`` options for the partition and the hosts of an order."""
