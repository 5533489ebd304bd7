"""The processes of an attempt on this node, as its supervisor finds them and signals them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hpcext.launch import stderr, tree
from hpcext.launch.attempt_events import Effect
from hpcext.launch.script import Script
from hpcext.process import Process
from hpcext.protocol import SUSPEND_SIGNAL

if TYPE_CHECKING:
    from hpcext.launch.attempt_facts import AttemptFacts
    from hpcext.launch.container import Container
    from hpcext.launch.mps import Seat
    from hpcext.launch.native import Native
    from hpcext.launch.transparent.saver import Transparent

_SIGNALS = {
    # A stopped process would not receive SIGTERM.
    Effect.TERMINATE: (signal.SIGTERM, signal.SIGCONT),
    Effect.KILL: (signal.SIGKILL,),
    Effect.STOP: (signal.SIGSTOP,),
    Effect.CONTINUE: (signal.SIGCONT,),
}


class AttemptProcesses:
    """All processes below a supervisor, and those of its script's steps.

    Parameters
    ----------
    supervisor : Process
    seat : Seat or None
        The attempt's on a shared GPU.
    native : Native or Transparent or None
        How the command saves by its own means, or is saved as it is, if its job states that.
    spared : bool
        Whether they began to ignore SIGTERM, since the batch system sends it before they are saved.
        Those that ignore it still are sent SIGKILL in its place: they would be ended by it.
    container : Container or None
        The container of the command.
    """

    def __init__(
        self,
        supervisor: Process,
        seat: Seat | None,
        native: Native | Transparent | None = None,
        *,
        spared: bool = False,
        container: Container | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._seat = seat
        self._native = native
        self._spared = spared
        self._container = container
        self._script = Script(supervisor)

    def find(self, *, around: bool = False) -> list[Process]:
        """Return all of them; none if the machine has no descriptors left.

        Suspensions and kills are repeated, so those will come later.

        Parameters
        ----------
        around : bool
            Whether to include what has made the container of the command, which ends with it, and
            which signals would end too early.
        """
        try:
            below = self._below()
            if self._container is not None and not around:
                below = self._container.inside(below)
            if not any(tree.program(process) == "srun" for process in below):
                return below
            # Processes of a script's step on this node are not descendants of its srun.
            elsewhere = tree.marked([f"HPCEXT_NOTIFY={self._supervisor}"])
            return list(dict.fromkeys([*below, *elsewhere]))
        except OSError as error:
            stderr.say(f"no signal was sent: {error}")
            return []

    def command(self, pid: int) -> Process | None:
        """Return the process of the command, which in a container is not the one that was started.

        Parameters
        ----------
        pid : int
            Of the process that was started.
        """
        if self._container is None:
            return Process.of(pid)
        return next(iter(self.find()), None)

    def _below(self) -> list[Process]:
        """Return all processes below the supervisor, without what it has started itself."""
        below = tree.descendants(self._supervisor.pid)
        helper = self._native.helper if self._native is not None else None
        if helper is None:
            return below
        own = {helper.pid, *(each.pid for each in tree.descendants(helper.pid))}
        return [each for each in below if each.pid not in own]

    def affect(self, effect: Effect, facts: AttemptFacts) -> None:
        """Carry out an effect on them.

        Parameters
        ----------
        effect : Effect
        facts : AttemptFacts
            The facts on which the effect was decided.
        """
        if effect in _SIGNALS:
            self._signal(*_SIGNALS[effect])
        elif effect is Effect.TELL_SUSPENSION:
            for process in facts.processes:
                tree.tell(process, SUSPEND_SIGNAL)
        elif effect is Effect.ASK_TO_SAVE and self._native is not None:
            self._native.ask(facts.processes, self._supervisor.pid, self._script.stop)
        elif effect is Effect.STOP_SCRIPT and facts.process is not None:
            steps = [each for each in facts.processes if tree.program(each) == "srun"]
            self._script.stop([facts.process, *steps])
        else:
            self._script.release(suspended=effect is Effect.KILL_SCRIPT)

    def _signal(self, *signums: signal.Signals) -> None:
        if self._native is not None and not {signal.SIGTERM, signal.SIGKILL}.isdisjoint(signums):
            self._native.abandon()
        # The processes are searched again, because a tree may have forked.
        processes = self.find(around=signal.SIGKILL in signums)
        if not processes and signal.SIGTERM in signums:
            # Its container is being made, perhaps of an image that takes long to fetch.
            processes = self.find(around=True)
        if signal.SIGKILL in signums:
            # The end of a parent would let go on what is stopped below it: setpgid(2).
            processes.reverse()
        if self._seat is not None:
            self._seat.release([each for each in processes if tree.ends(each, *signums)])
        if signums == _SIGNALS[Effect.CONTINUE]:
            # A script that is stopped until its training has left stays so.
            processes = [each for each in processes if each not in self._script.stopped]
        for process in processes:
            deaf = self._spared and tree.ignores(process, signal.SIGTERM)
            ends = signal.SIGTERM in signums and deaf
            tree.send(process, *((signal.SIGKILL,) if ends else signums))
