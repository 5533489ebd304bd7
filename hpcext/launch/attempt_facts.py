"""What a supervisor finds out about its attempt when something has happened."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hpcext.launch import tree
from hpcext.launch.attempt_processes import AttemptProcesses
from hpcext.launch.native import Native
from hpcext.launch.supervisor_files import SupervisorFiles
from hpcext.process import Process

if TYPE_CHECKING:
    from hpcext.launch.transparent.saver import Transparent


class AttemptFacts:
    """:class:`~hpcext.launch.attempt_events.Facts` of one event, each looked up at most once.

    Parameters
    ----------
    files : SupervisorFiles
    processes : AttemptProcesses
    native : Native or Transparent or None
        How the command saves by its own means, or is saved as it is, if its job states that.
    """

    def __init__(
        self,
        files: SupervisorFiles,
        processes: AttemptProcesses,
        native: Native | Transparent | None,
    ) -> None:
        self._files = files
        self._processes = processes
        self._native = native

    @cached_property
    def order(self) -> tuple[str, int]:
        """As the protocol has it."""
        return self._files.order()

    @cached_property
    def session(self) -> Process | None:
        """The process whose session has registered, as it calls itself."""
        return self._files.session()

    @property
    def registered(self) -> bool:
        """As the protocol has it."""
        return self.session is not None or self._native is not None

    @property
    def native(self) -> bool:
        """As the protocol has it."""
        return self._native is not None and self.session is None

    @property
    def saves(self) -> bool:
        """As the protocol has it."""
        return self._native is not None and not self._native.plain

    @cached_property
    def may_go(self) -> bool:
        """As the protocol has it."""
        return self._native is not None and self._native.may_go()

    @property
    def imaged(self) -> bool:
        """As the protocol has it."""
        return self._native is not None and (self._native.imaged or self._native.lost)

    @cached_property
    def answering(self) -> bool:
        """As the protocol has it."""
        return self._native is not None and self._native.answering()

    @cached_property
    def writing(self) -> bool:
        """As the protocol has it."""
        return self._native is not None and self._native.writing(self.processes)

    @cached_property
    def still(self) -> bool:
        """As the protocol has it."""
        return all(tree.still(process.pid) for process in self.processes)

    @cached_property
    def processes(self) -> list[Process]:
        """All processes of the attempt here."""
        return self._processes.find()

    @cached_property
    def process(self) -> Process | None:
        """The process of the session, if it still runs here.

        The pid that it reports means nothing on another node, nor outside of a container.
        """
        name = self.session
        found = tree.known_inside_as(name, self.processes) if name is not None else None
        return found if found is not None and found.alive() else None

    @property
    def here(self) -> bool:
        """As the protocol has it."""
        return self.process is not None

    @cached_property
    def unsaved(self) -> bool:
        """As the protocol has it."""
        return self._files.unsaved()

    @cached_property
    def suspended(self) -> bool:
        """As the protocol has it."""
        return self._files.suspended()

    @cached_property
    def declined(self) -> int:
        """As the protocol has it."""
        if self.native and self._native is not None:
            return self._native.declined
        return self._files.declined()
