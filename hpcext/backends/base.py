"""The base class of backends: the handful of things that a batch system needs to run pilots.

A backend has three attributes with its names, and five methods: which of its jobs this process is
in, how to query jobs, how a pilot becomes a job (two), and what runs attempts inside that job. All
else has a default: facts about signals and requeues, and what a backend need not offer: harvesters,
trainers and suspendable scripts.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from hpcext.allocation import JobId
from hpcext.backends.batch_job import SubmittedPilot
from hpcext.backends.own_job import OwnJob
from hpcext.backends.suspendable_job import SuspendableJob
from hpcext.batch.jobs import Jobs, Seen
from hpcext.batch.leasing import Leasing
from hpcext.batch.standing import Is, Standing, of_job
from hpcext.config import Settings
from hpcext.core.errors import InputError
from hpcext.core.values import Node
from hpcext.executors.base import Executor
from hpcext.text import shown


class PilotOrder(NamedTuple):
    """A pilot that is to become a job.

    Attributes
    ----------
    nodes, gpus : int
        The number of nodes, and of GPUs on each.
    cpus_per_gpu : int
    requeue : bool
        Whether it may be requeued: before its end, after a preemption, or after the loss of a node.
    time : str
        Its time limit as the user wrote it; empty if none was given.
    options : tuple of str
        Further options of the user for the command that submits it.
    as_log : bool
        Whether its output is a log of events in JSON.
    """

    nodes: int
    gpus: int
    cpus_per_gpu: int = 1
    requeue: bool = False
    time: str = ""
    options: tuple[str, ...] = ()
    as_log: bool = False


class PilotRun(NamedTuple):
    """A pilot inside its job, as its manager begins.

    Attributes
    ----------
    id, name : str
    directory : pathlib.Path
    node : str
        The machine of its manager.
    gpus : tuple of int
        The indices of the GPUs on each node.
    logical : bool
        Whether the GPUs are slots that stand for GPUs.
    lead_s : float
        Seconds before the end of the job at which its trainings are suspended.
    alone : bool
        Whether it has a single training, which runs in place of the script of the job.
    launcher : str
        The answer of :meth:`Backend.launcher` when it was submitted.
    orphans : tuple of (str, int, str)
        Job, attempt and node of processes that may still run on a lost node.
    """

    id: str
    name: str
    directory: Path
    node: str
    gpus: tuple[int, ...]
    logical: bool = False
    lead_s: float = 0.0
    alone: bool = False
    launcher: str = ""
    orphans: tuple[tuple[str, int, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class JobPlace:
    """What a job gives the pilot in it.

    Attributes
    ----------
    nodes : tuple of Node
    executor : callable
        Creates what runs attempts there, from keywords of
        :class:`~hpcext.executors.processes.ProcessExecutor`.
    requeue : callable
        Requeues the job, unless somebody has cancelled it.
    restarts : int
        How often it has been requeued so far.
    gone : tuple of str
        Nodes that the job has lost.
    """

    nodes: tuple[Node, ...]
    executor: Callable[..., Executor]
    requeue: Callable[[], None]
    restarts: int = 0
    gone: tuple[str, ...] = ()


def refuse_array(option: str | None) -> None:
    """Refuse an option that would make a pilot a job array.

    Parameters
    ----------
    option : str or None
        None if there is no such option.

    Raises
    ------
    InputError
        There is one.
    """
    if option is not None:
        raise InputError(
            "a pilot is a single job; its jobs are those of its file",
            where=shown(option),
            do="put the tasks into the job file; hpcext sweep writes one",
        )


class Backend(abc.ABC):
    """A batch system whose jobs are pilots.

    Attributes
    ----------
    name : str
        Its name in settings and in files of pilots.
    title : str
        Its name for people.
    command : str
        The command that submits a job; where it exists, the batch system does.
    polls : bool
        Whether a manager looks for requests by itself, every second, because a signal to the script
        of its job may not reach it, or may end other processes.
    begins_elsewhere : bool
        Whether a job whose host cannot be reached begins again on another one, while its processes
        on the first may go on for a while.
    end_signals_s : float
        If it sends several signals to end a job: the seconds after the first one in which another
        is not a second request of the user.
    settles_s : float
        Seconds for which a job that is being requeued may be shown as ended.
    delays_requeued : bool
        Whether a requeued job waits for longer than it needs (:meth:`begin_requeued`).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    command: ClassVar[str]
    polls: ClassVar[bool] = True
    begins_elsewhere: ClassVar[bool] = False
    end_signals_s: ClassVar[float] = 0.0
    settles_s: ClassVar[float] = 0.0
    delays_requeued: ClassVar[bool] = False

    # What each backend must define.

    @abc.abstractmethod
    def own_job(self) -> JobId | None:
        """Return the id of the job in which this process runs; None if it is in no such job."""

    @abc.abstractmethod
    def jobs(self) -> Jobs:
        """Return an object for queries about jobs."""

    @abc.abstractmethod
    def prepare(self, directory: Path, order: PilotOrder, settings: Settings) -> Sequence[str]:
        """Write the script of a pilot, and return the options with which to submit it.

        Parameters
        ----------
        directory : pathlib.Path
            The pilot's; :func:`hpcext.backends.batch_job.write_script` writes a script.
        order : PilotOrder
        settings : Settings

        Raises
        ------
        BatchError
            The batch system does not answer a query that is needed for that.
        """

    @abc.abstractmethod
    def hand_in(self, directory: Path, options: Sequence[str]) -> JobId:
        """Submit the script of a pilot, perhaps once more.

        Parameters
        ----------
        directory : pathlib.Path
            The pilot's.
        options : sequence of str
            Those that :meth:`prepare` has returned.

        Returns
        -------
        int or str
            The id of the job: a number, ``NUMBER_NUMBER`` or ``NUMBER[NUMBER]``.

        Raises
        ------
        BatchError
            The batch system refused it.
        """

    @abc.abstractmethod
    def place(self, run: PilotRun) -> JobPlace:
        """Return what the job in which this process runs gives the pilot.

        Raises
        ------
        HpcextError
            It is not the job of the pilot, or its nodes cannot be determined.
        """

    # What has a default.

    def check(self, order: PilotOrder) -> PilotOrder:
        """Return a checked order, which may differ from the given one.

        Raises
        ------
        InputError
            The order cannot be a pilot.
        """
        return order

    def limit_s(self, time: str) -> float | None:
        """Return the seconds of a time limit in the form of :attr:`command`; None if unknown."""
        return None

    def lacks(self, settings: Settings) -> tuple[str, ...]:
        """Return a sentence for each thing that a pilot cannot get on this system."""
        return ()

    def launcher(self, settings: Settings) -> str:
        """Return the command that starts attempts on nodes of a job, if there are several."""
        return ""

    def send(self, job_id: JobId, signum: int) -> bool:
        """Send a signal to a job whose manager does not poll; return False if the job is gone."""
        return True

    def go_back(self, directory: Path, *, alone: bool) -> None:
        """Requeue the job in which this process runs, if its manager could not begin.

        Parameters
        ----------
        directory : pathlib.Path
            The pilot's.
        alone : bool
            As in :class:`PilotRun`.
        """
        return

    def begin_requeued(self, ours: Callable[[], Collection[JobId]]) -> None:
        """Have requeued jobs begin that the batch system delays for longer than they need.

        Parameters
        ----------
        ours : callable
            Returns the jobs of the user's pilots; all other jobs are left alone.

        Raises
        ------
        BatchError
            The batch system does not answer.
        """
        return

    def advice(self, job_id: JobId, state: Is, seen: Seen) -> str:
        """Return what lets a stopped job go on, or a held one begin; empty if that is unknown.

        Parameters
        ----------
        job_id : int or str
        state : {Is.STOPPED, Is.HELD}
        seen : Seen
            What the batch system says of the job.
        """
        return ""

    def leasing(self, settings: Settings) -> Leasing:
        """Return what lends idle nodes to a harvester.

        Raises
        ------
        InputError
            This backend lends no nodes.
        """
        raise InputError(f"idle nodes of {self.title} cannot be harvested", where="hpcext harvest")

    def ticket(self) -> OwnJob | None:
        """Return the job whose batch script this process is, to be a ticket; None if it is in none.

        Raises
        ------
        InputError
            The job cannot be a ticket.
        """
        return None

    def write_ticket(self, state_dir: Path, shell: int) -> None:
        """Write the script of a ticket that trains the command of a shell.

        Parameters
        ----------
        state_dir : pathlib.Path
        shell : int
            The pid of the shell.

        Raises
        ------
        InputError
            This batch system has no job starter, or the shell's command cannot be read again.
        """
        raise InputError(f"is not for jobs of {self.title}", where="--shell")

    def suspendable(self, command: Sequence[str], shell: int | None) -> SuspendableJob:
        """Return the job whose batch script this process is, to be made suspendable.

        Parameters
        ----------
        command : sequence of str
        shell : int or None
            The pid of a shell whose command it is, instead of `command`.

        Raises
        ------
        InputError
            It cannot be suspendable.
        """
        raise InputError(f"is not for jobs of {self.title}", where="hpcext suspendable")

    # What follows from these.

    @property
    def submitted(self) -> SubmittedPilot:
        """The notes on its job in the directory of a pilot."""
        return SubmittedPilot(self.name, "job.json", self.title, submit=self.command)

    def submit(self, directory: Path, order: PilotOrder, settings: Settings) -> JobId:
        """Submit a pilot for the first time; return the id of its job.

        Parameters
        ----------
        directory : pathlib.Path
            The pilot's.
        order : PilotOrder
        settings : Settings

        Raises
        ------
        BatchError
            The batch system refused the job.
        """
        return self._submit(directory, self.prepare(directory, order, settings))

    def resubmit(self, directory: Path) -> JobId:
        """Submit a pilot again, with its former options.

        Raises
        ------
        NoManagerError
            The pilot was never submitted.
        BatchError
            The batch system refused the job.
        """
        return self._submit(directory, self.submitted.options(directory))

    def _submit(self, directory: Path, options: Sequence[str]) -> JobId:
        job_id = self.hand_in(directory, options)
        self.submitted.write(directory, job_id, options)
        return job_id

    def standing(self, job_id: JobId, seen: Seen | None) -> Standing:
        """Return the standing of a job; `seen` is None if the batch system has forgotten it."""
        return of_job(self.title, job_id, seen, self.advice)
