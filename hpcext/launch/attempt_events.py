"""The events of an attempt, the facts that can be found out about it, and the effects on it.

These are the words of :mod:`hpcext.launch.attempt_state`.
"""

from __future__ import annotations

import signal
from enum import Enum, auto
from typing import NamedTuple, Protocol

from hpcext.protocol import NEWS_SIGNAL, NOTICE_SIGNAL, SUSPEND_SIGNAL

_ENDS = {signal.SIGTERM, signal.SIGINT}
"""Signals by which a batch system ends a job: bkill(1) of LSF sends the second, then the first."""


class Phase(Enum):
    """What is happening to the processes of an attempt.

    Attributes
    ----------
    RUNNING
        The command runs.
    ENDING
        The command runs, was told to end, and is killed at the deadline.
    REMAINING
        The command has ended, and what it left goes on.
    SAVING
        The command has ended, and a session that it left saves itself until the deadline.
    EMPTYING
        The command has ended, what it left was told to end, and is killed at the deadline.
    """

    RUNNING = auto()
    ENDING = auto()
    REMAINING = auto()
    SAVING = auto()
    EMPTYING = auto()


class Suspension(Enum):
    """Whether the session is to save itself and leave.

    Attributes
    ----------
    NONE
        It is not.
    REQUESTED
        It is requested, but the session may decline if it cannot save.
    REQUIRED
        It is requested, and again after every refusal.
    """

    NONE = auto()
    REQUESTED = auto()
    REQUIRED = auto()


class Event(Enum):
    """What has happened to an attempt.

    Attributes
    ----------
    SUSPEND
        The manager asks for a suspension, which the session may decline.
    LOOK
        It is time to look for a new order, which the manager may write without sending a signal.
    NEWS
        The session or the manager has written something. A requested suspension is announced
        again, the rest of a suspended training's script is killed, and other processes are told.
    NOTICE
        The batch system wants the node. A session has to save itself, and EMPTYING becomes
        REMAINING again; a command without a session is told to end.
    EARLY_NOTICE
        The same, but a command without a session is left alone: another notice will come.
    WARNING
        The batch system wants the node, and the agent will say what to do. EMPTYING becomes
        REMAINING again, where a session waits for that.
    END
        The attempt is to end: SIGTERM, and the deadline after its grace. No notice undoes it.
    DEADLINE
        It is :attr:`AttemptState.deadline_s`.
    MAIN_ENDED
        The command has ended.
    REMAINDER
        The command has ended, and something that it started has not. A session that saves itself
        gets ``suspend_timeout_s``; else there is SIGTERM, and the deadline soon after.
    LEADER_STOPPED
        The leader of the job is stopped, and a session has to save itself.
    LEADER_STAYS_STOPPED
        All processes are stopped, unless there is a deadline: what is told to end must be able to.
    LEADER_CONTINUED
        The leader is continued, and so are all processes.
    LEADER_ENDED
        SIGTERM, and the deadline soon after.
    """

    SUSPEND = auto()
    LOOK = auto()
    NEWS = auto()
    NOTICE = auto()
    EARLY_NOTICE = auto()
    WARNING = auto()
    END = auto()
    DEADLINE = auto()
    MAIN_ENDED = auto()
    REMAINDER = auto()
    LEADER_STOPPED = auto()
    LEADER_STAYS_STOPPED = auto()
    LEADER_CONTINUED = auto()
    LEADER_ENDED = auto()


class Effect(Enum):
    """What a supervisor is to do.

    Attributes
    ----------
    STOP_SCRIPT, CONTINUE_SCRIPT, KILL_SCRIPT
        Stop the shells above the session (:class:`~hpcext.launch.script.Script`); continue or kill
        those that were stopped.
    TELL_SUSPENSION
        Send the suspension's signal to every process that does something about it.
    ASK_TO_SAVE
        Ask a command that saves by its own means to do so, as its job states; the shells above
        what is asked are stopped before.
    TERMINATE, KILL, STOP, CONTINUE
        Send SIGTERM and SIGCONT, SIGKILL, SIGSTOP or SIGCONT to every process.
    HAND_NEWS_DOWN
        Tell a launcher of ranks if it was asked to change its size.
    TELL_MANAGER
        Tell the manager that there is news.
    WRITE_STACKS
        Have every process that can write the stacks of its threads to the log.
    """

    STOP_SCRIPT = auto()
    CONTINUE_SCRIPT = auto()
    KILL_SCRIPT = auto()
    TELL_SUSPENSION = auto()
    ASK_TO_SAVE = auto()
    TERMINATE = auto()
    KILL = auto()
    STOP = auto()
    CONTINUE = auto()
    HAND_NEWS_DOWN = auto()
    TELL_MANAGER = auto()
    WRITE_STACKS = auto()


class Now(NamedTuple):
    """An instant.

    Attributes
    ----------
    s : float
        By the monotonic clock, for deadlines.
    at : float
        Seconds since the epoch, for the record.
    """

    s: float
    at: float


class Facts(Protocol):
    """Facts that can be found out about an attempt; each is looked up only when it is read."""

    @property
    def order(self) -> tuple[str, int]:
        """The manager's written order, such as ``suspend`` or ``end``, and its number."""

    @property
    def registered(self) -> bool:
        """Whether a session has registered, of whichever attempt, or the command saves natively."""

    @property
    def native(self) -> bool:
        """Whether the command saves by its own means, as its job states, and has no session."""

    @property
    def saves(self) -> bool:
        """Whether such a command says when it has saved; else it may be ended at any time."""

    @property
    def may_go(self) -> bool:
        """Whether such a command has saved, or may be ended now all the same."""

    @property
    def imaged(self) -> bool:
        """Whether such a command can never go on: it is in images, or is stuck in a driver."""

    @property
    def answering(self) -> bool:
        """Whether a process of such a command that was asked to save still runs."""

    @property
    def writing(self) -> bool:
        """Whether such a command is writing a checkpoint at this moment."""

    @property
    def still(self) -> bool:
        """Whether all processes have stopped, or ended, with all of their threads."""

    @property
    def here(self) -> bool:
        """Whether that session is one of our processes, and runs."""

    @property
    def suspended(self) -> bool:
        """Whether a suspension of this attempt was acknowledged."""

    @property
    def unsaved(self) -> bool:
        """Whether the session has done a step that is in none of its checkpoints."""

    @property
    def declined(self) -> int:
        """The number of suspensions that were declined, because it could not be saved."""


_MEANINGS: dict[int, Event] = {
    SUSPEND_SIGNAL: Event.SUSPEND,
    NEWS_SIGNAL: Event.NEWS,
    signal.SIGTERM: Event.END,
}

# After SIGINT bkill(1) sends SIGTERM, which ends what does not save itself.
_NOTICED: dict[int, Event] = {
    NOTICE_SIGNAL: Event.NOTICE,
    signal.SIGINT: Event.EARLY_NOTICE,
    signal.SIGTERM: Event.NOTICE,
}


def heard(signum: int, *, notices: bool, agent: bool) -> Event | None:
    """Return what a signal to the supervisor means; None if nothing.

    Parameters
    ----------
    signum : int
    notices : bool
        Whether the batch system may send its notices to every process.
    agent : bool
        Whether an agent has started us. The batch system sends its signals to all processes that it
        knows; it is the agent's word that counts.
    """
    if agent and signum in {SUSPEND_SIGNAL, *_ENDS}:
        return Event.WARNING
    return (_NOTICED if notices else {}).get(signum) or _MEANINGS.get(signum)
