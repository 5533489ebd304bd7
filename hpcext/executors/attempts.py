"""The base of executors that run attempts in directories of their own and watch them."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from hpcext.core.facts import Rescaled, Silent, Started
from hpcext.core.values import Action
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.base import Emit
from hpcext.jobspec import JobSpec

NO_PRELOAD = "preload has no effect: the jobs of this pilot do not run beside their manager"
"""What a user is told whose job states it where it has none."""

log = logging.getLogger(__name__)


class Watched(Protocol):
    """An attempt that is not known to have ended."""

    @property
    def files(self) -> AttemptFiles:
        """Its files."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that it has, as ``HOST:INDEX``."""


W = TypeVar("W", bound=Watched)


class AttemptExecutor(abc.ABC, Generic[W]):
    """The base of executors whose attempts each have a supervisor and a directory.

    Parameters
    ----------
    directory : pathlib.Path
        The parent of the jobs' directories.
    spec : callable
        Job id → the job's specification.
    emit : Emit
    loop : asyncio.AbstractEventLoop
        The driver's; everything here happens in its thread.
    manager_file : pathlib.Path, optional
        The ``manager.json`` of the process to signal when there is news.
    """

    _preloads = False
    """Whether modules that a job preloads are imported for it: only where it is forked here."""

    def __init__(
        self,
        *,
        directory: Path,
        spec: Callable[[str], JobSpec],
        emit: Emit,
        loop: asyncio.AbstractEventLoop,
        manager_file: Path | None = None,
    ) -> None:
        self._directory = directory.absolute()
        self._spec = spec
        self._emit = emit
        self._loop = loop
        self._manager_file = manager_file.absolute() if manager_file else None
        self._watches: dict[int, W] = {}

    @property
    def left_s(self) -> float | None:
        """None, as what attempts run on has no end; see :class:`hpcext.executors.base.Executor`."""
        return None

    @property
    def preempted(self) -> bool:
        """False, because its nodes are never all taken at once; see the base class."""
        return False

    @abc.abstractmethod
    def _start(self, action: Action) -> None:
        """Start an attempt that does not exist yet."""

    @abc.abstractmethod
    def _launched(self, files: AttemptFiles) -> W | None:
        """Find an attempt by what was written down when it was launched; None if it was not."""

    @abc.abstractmethod
    def _take_over(self, watch: W) -> None:
        """Go on with an attempt that an earlier manager launched."""

    def _began(self, watch: W) -> None:
        """Tell that an attempt runs, and what its job states that has no effect here."""
        files = watch.files
        self._emit(Started(files.job, files.op, watch.gpus))
        if not self._preloads and self._spec(files.job).preload:
            self._emit(files.note(NO_PRELOAD))

    def _unpreloaded(self, files: AttemptFiles, why: str) -> None:
        """Tell why the modules of a job are imported by each of its attempts all the same."""
        self._emit(files.note(f"preload has no effect: {why}"))

    def _adopt(self, action: Action) -> bool:
        """Take over an attempt that was launched before; return False if it was not."""
        known = self._watches.get(action.op)
        watch = known or self._launched(AttemptFiles(self._directory, action))
        if watch is None:
            return False
        self._watches[action.op] = watch
        self._began(watch)
        if known is None:
            self._take_over(watch)
        return True

    @abc.abstractmethod
    def _look(self, watch: W) -> None:
        """Read what an attempt has reported, and tell it."""

    def _inspect(self, watch: W) -> bool:
        """Look whether an attempt does something; if not, tell, and order its stacks.

        Returns
        -------
        bool
            Whether there is an order for its supervisor.
        """
        files = watch.files
        self._look(watch)
        if not files.stands_still():
            return False
        self._emit(Silent(files.job, files.op))
        return self._order(files, "stacks")

    def _order(self, files: AttemptFiles, what: str) -> bool:
        """Order a supervisor to ``suspend``, ``end`` or write ``stacks``; False if that failed.

        A suspension still has its deadline, after which the attempt is ended by force.
        """
        try:
            files.order(what)
        except OSError as error:
            log.warning(
                "the supervisor of job %s could not be given its order: %s",
                files.job,
                error.strerror,
            )
            return False
        return True

    def _refuse(self, files: AttemptFiles, action: Action, had: tuple[str, ...], why: str) -> None:
        """Answer that an attempt cannot change its size, and keeps what it had."""
        self._emit(Rescaled(files.job, files.op, action.resize, had, ok=False, why=why))
