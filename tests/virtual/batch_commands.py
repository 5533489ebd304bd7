"""Commands of a batch system, as programs of virtual processes.

A command takes its time; it may be slow, fail, or be obeyed without an answer. Without its
controller it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from virtual import calls
from virtual.batch import Controller
from virtual.kernel import Process

RETRIES_S = 10.0
"""Seconds for which a command tries to reach its controller, or waits for an answer."""


class Refused(Exception):
    """What a command says that fails."""


class Commands:
    """The commands of one batch system: each is a method, ``_bjobs`` for ``bjobs``.

    Attributes
    ----------
    slow_s : float
        The most seconds that each takes now.
    fails : bool
        Whether they fail now.
    late : bool
        Whether they do what they are told now, and say that they have failed.
    """

    names: frozenset[str] = frozenset()
    no_answer = ""
    """What they say when they fail."""

    status = 1
    """Of one that is refused."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._kernel = controller, controller.kernel
        self.slow_s, self.fails, self.late = 0.1, False, False

    def program(self, argv: Sequence[str]) -> Callable[[Process], int] | None:
        """Return the program of an argv, if it is one of these."""
        name = argv[0].rpartition("/")[2]
        return (lambda process: self._run(name, process)) if name in self.names else None

    def _run(self, name: str, process: Process) -> int:
        process.name = name
        words = list(process.argv[1:])
        calls.sleep(self._kernel.chance.uniform(0.005, self.slow_s))
        try:
            said = self._alone(name, words)
            if said is None:
                self._reach()
                if self.fails:
                    raise Refused(self.no_answer)
                said = getattr(self, f"_{name}")(words)
                self._kernel.happened()
                if self.late:
                    calls.sleep(self._kernel.chance.uniform(1, RETRIES_S))
                    raise Refused(self.no_answer)
        except Refused as error:
            calls.write(2, self._refusal(name, error).encode())
            return self.status
        calls.write(1, said.encode())
        return 0

    def _alone(self, name: str, words: list[str]) -> str | None:
        """Return what a command says without its controller; None if it needs that."""
        return None

    def _reach(self) -> None:
        """Wait for the controller."""
        raise NotImplementedError

    def _refusal(self, name: str, error: Refused) -> str:
        return f"{name}: error: {error}\n"
