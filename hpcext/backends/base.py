"""What a backend is: the handful of things that a batch system needs to run pilots.

A backend names itself by three attributes and writes five methods: which of its jobs this process
is in, how jobs are asked after, how a pilot becomes a job (two), and what runs attempts inside that
job. All else has a default: facts about signals and requeues, and what it need not offer, as
harvesters, trainers and suspendable scripts.
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
        Nodes, and GPUs on each.
    cpus_per_gpu : int
    requeue : bool
        It may go back into the queue: before its end, preempted, or after the loss of a node.
    time : str
        Its time limit as the user wrote it; empty where none was given.
    options : tuple of str
        Others of the user for the command that submits.
    as_log : bool
        Its output is to say what happens, as JSON.
    """

    nodes: int
    gpus: int
    cpus_per_gpu: int = 1
    requeue: bool = False
    time: str = ""
    options: tuple[str, ...] = ()
    as_log: bool = False


class PilotRun(NamedTuple):
    """A pilot inside its job, whose manager begins.

    Attributes
    ----------
    id, name : str
    directory : pathlib.Path
    node : str
        The machine that its manager is on.
    gpus : tuple of int
        Indices of the GPUs on each node; with `logical`, slots that stand for GPUs.
    logical : bool
    lead_s : float
        How long before the end of the job its trainings are suspended.
    alone : bool
        It has one training, which runs where the script of the job would have run.
    launcher : str
        What :meth:`Backend.launcher` said when it was submitted.
    orphans : tuple of (str, int, str)
        Job, attempt and node of what may run where a node was lost.
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
        Makes what runs attempts there, of the keywords that
        :class:`~hpcext.executors.processes.ProcessExecutor` has.
    requeue : callable
        Puts the job back into the queue, unless somebody has cancelled it.
    restarts : int
        How often it was put back so far.
    gone : tuple of str
        Nodes that the job had, and has no more.
    """

    nodes: tuple[Node, ...]
    executor: Callable[..., Executor]
    requeue: Callable[[], None]
    restarts: int = 0
    gone: tuple[str, ...] = ()


def refuse_array(option: str | None) -> None:
    """Refuse the option, if there is one, that makes a job array of a pilot.

    Raises
    ------
    InputError
        There is.
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
        As settings and the files of pilots have it.
    title : str
        As people write it.
    command : str
        The command that submits a job, by which the batch system is known to be there.
    polls : bool
        A signal to the script of a job may not reach its manager, or may end other things: the
        manager looks for requests by itself, every second.
    begins_elsewhere : bool
        A job whose host cannot be reached is begun again on another one, while the first may go on
        for a while.
    end_signals_s : float
        To end a job it sends several signals, so far apart at most that a later one is not a second
        wish of the user.
    settles_s : float
        So long a job that goes back into its queue may be shown as ended.
    delays_requeued : bool
        Such a job waits there for longer than it needs, see :meth:`begin_requeued`.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    command: ClassVar[str]
    polls: ClassVar[bool] = True
    begins_elsewhere: ClassVar[bool] = False
    end_signals_s: ClassVar[float] = 0.0
    settles_s: ClassVar[float] = 0.0
    delays_requeued: ClassVar[bool] = False

    # What a backend writes.

    @abc.abstractmethod
    def own_job(self) -> JobId | None:
        """Return the id of the job that this process is in; None if it is in none of these."""

    @abc.abstractmethod
    def jobs(self) -> Jobs:
        """Return what answers questions about jobs."""

    @abc.abstractmethod
    def prepare(self, directory: Path, order: PilotOrder, settings: Settings) -> Sequence[str]:
        """Write the script of a pilot, and return the options to submit it with.

        Parameters
        ----------
        directory : pathlib.Path
            Of the pilot. :func:`hpcext.backends.batch_job.write_script` writes a script.
        order : PilotOrder
        settings : Settings

        Raises
        ------
        BatchError
            The batch system does not say what has to be known for that.
        """

    @abc.abstractmethod
    def hand_in(self, directory: Path, options: Sequence[str]) -> JobId:
        """Submit the script of a pilot with options that :meth:`prepare` returned.

        It may be submitted so several times, one after the other.

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
        """Return what the job that this process is in gives the pilot in it.

        Raises
        ------
        HpcextError
            It is not the job of that pilot, or what it has cannot be found out.
        """

    # What has a default.

    def check(self, order: PilotOrder) -> PilotOrder:
        """Return an order that can be a pilot.

        Raises
        ------
        InputError
            It cannot.
        """
        return order

    def limit_s(self, time: str) -> float | None:
        """Return the seconds of a time limit as :attr:`command` takes it; None: not known."""
        return None

    def lacks(self, settings: Settings) -> tuple[str, ...]:
        """Say what a pilot will not be given here; a sentence each."""
        return ()

    def launcher(self, settings: Settings) -> str:
        """Return what starts attempts on the nodes of a job, where there are several ways."""
        return ""

    def send(self, job_id: JobId, signum: int) -> bool:
        """Send a signal to a job, whose manager does not poll; return False if it is gone."""
        return True

    def go_back(self, directory: Path, *, alone: bool) -> None:
        """Put the job that we are in back into the queue, of which no manager has begun.

        Parameters
        ----------
        directory : pathlib.Path
            Of its pilot.
        alone : bool
            See :class:`PilotRun`.
        """
        return

    def begin_requeued(self, ours: Callable[[], Collection[JobId]]) -> None:
        """Have requeued jobs begin that the batch system holds back for longer than they need.

        Parameters
        ----------
        ours : callable
            Gives the jobs of the user's pilots, of which the others are none of our business.

        Raises
        ------
        BatchError
            The batch system does not answer.
        """
        return

    def advice(self, job_id: JobId, state: Is, seen: Seen) -> str:
        """Say what lets a job go on that is stopped, or begin that is held; empty: not known."""
        return ""

    def leasing(self, settings: Settings) -> Leasing:
        """Return what lends idle nodes to a harvester.

        Raises
        ------
        InputError
            Nothing does.
        """
        raise InputError(f"idle nodes of {self.title} cannot be harvested", where="hpcext harvest")

    def ticket(self) -> OwnJob | None:
        """Return the job whose batch script this process is; None if it can be no ticket.

        Raises
        ------
        InputError
            It is one that cannot be a ticket.
        """
        return None

    def write_ticket(self, state_dir: Path, shell: int) -> None:
        """Write the script of a ticket for what the shell with this pid runs.

        Raises
        ------
        InputError
            That is not needed here, or what the shell runs cannot be read again.
        """
        raise InputError(f"is not for jobs of {self.title}", where="--shell")

    def suspendable(self, command: Sequence[str], shell: int | None) -> SuspendableJob:
        """Return the job whose batch script this process is, to be made suspendable.

        Parameters
        ----------
        command : sequence of str
        shell : int or None
            Pid of the shell whose command it is, instead of `command`.

        Raises
        ------
        InputError
            It cannot be.
        """
        raise InputError(f"is not for jobs of {self.title}", where="hpcext suspendable")

    # What follows from that.

    @property
    def submitted(self) -> SubmittedPilot:
        """What is noted in the directory of a pilot of its job."""
        return SubmittedPilot(self.name, "job.json", self.title, submit=self.command)

    def submit(self, directory: Path, order: PilotOrder, settings: Settings) -> JobId:
        """Submit a pilot for the first time; return the id of its job.

        Raises
        ------
        BatchError
            The batch system refused it.
        """
        return self._submit(directory, self.prepare(directory, order, settings))

    def resubmit(self, directory: Path) -> JobId:
        """Submit a pilot again, with the options that it had.

        Raises
        ------
        NoManagerError
            It was never submitted.
        BatchError
            The batch system refused it.
        """
        return self._submit(directory, self.submitted.options(directory))

    def _submit(self, directory: Path, options: Sequence[str]) -> JobId:
        job_id = self.hand_in(directory, options)
        self.submitted.write(directory, job_id, options)
        return job_id

    def standing(self, job_id: JobId, seen: Seen | None) -> Standing:
        """Return how a job stands by what was said of it; None: it is not known any more."""
        return of_job(self.title, job_id, seen, self.advice)
