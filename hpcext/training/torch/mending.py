"""Steps that a dead rank breaks: they end without effect, and those that are left make them again.

A step is broken if the gradients of this rank could not be averaged. The script does not notice:
its backward pass ends with gradients of this rank alone, and its optimizers do nothing. After the
step, what else it has changed (schedulers, scalers, buffers, random states) is set back. Other
ranks may have made the same step whole, if the rank died at its very end; those then send their
state, see :meth:`hpcext.training.torch.resizing.InPlace.mend`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hpcext.training.feature import Feature
from hpcext.training.membership import Overtaken
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.group import Member
from hpcext.training.torch.past import Past, Recorder
from hpcext.training.torch.ranks import NeverEnds, TorchRanks
from hpcext.training.torch.sharding import Sharding
from hpcext.training.torch.stuck import TrainingThread
from hpcext.training.torch.transfer import checksum
from hpcext.training.torch.weights import Averaging

if TYPE_CHECKING:
    from hpcext.training.torch.copies import Copies

WATCH_S, FAR_WATCH_S, FAR_OTHERS_S = 0.1, 1.0, 5.0
"""Seconds between two looks whether the launcher says so, on one node and on several; there other
ranks than 0, whose operations end with errors as a rule once rank 0 has aborted, look seldom."""

FREE_S = 3.0
"""Seconds after which what still waits there is not waited for any more, where that is possible."""

STUCK_S = 20.0
"""Seconds after which a rank ends that still waits in a group whose connections have ended: see
:mod:`hpcext.training.torch.stuck`. It would wait for half an hour."""

_PAUSE_S = 0.01

_CLOSED = "Application timeout caused pair closure"
"""What gloo says of operations that were ended with others of their group."""

_SEVERAL = "a step has several batches"

_LAST = "the job goes on from its last checkpoint"


class Guard(Feature):
    """The guard of steps against ranks that die.

    Parameters
    ----------
    framework : Torch
    sharding : Sharding
    followed : Feature
        A part of the session whose state follows the steps.
    why_not : callable
        Returns why steps cannot be made again; empty if they can.

    Attributes
    ----------
    broken : bool
        Whether the present step is broken.
    recorder : Recorder
        What is set back after a broken step.
    """

    def __init__(
        self,
        framework: Torch,
        sharding: Sharding,
        followed: Feature,
        why_not: Callable[[], str],
    ) -> None:
        self.broken = False
        self.recorder = Recorder(framework, followed)
        self._framework = framework
        self._sharding = sharding
        self._why_not = why_not
        self._before: Past | None = None
        self._stepped: set[int] = set()
        self._suppressed = False
        self._sum: int | None = None
        self._accumulates = False
        self._announced = self._said = False
        self._watches = False
        self._cut = False
        self._thread = TrainingThread()
        self._averagings: list[Averaging] = []
        # Held while a group is left or aborted, so that no group is both.
        self._leaving = threading.Lock()
        # Another one: threads that are waited for as a group is left may begin to watch.
        self._watching = threading.Lock()

    @property
    def on(self) -> bool:
        """Whether ranks that die are replaced."""
        member = self._framework.member
        return member is not None and member.replaces

    def caught(self, error: RuntimeError) -> bool:
        """Return whether an error is the end of a connection, which breaks the step."""
        member = self._framework.member
        known = isinstance(error, dist.DistError | Overtaken | NeverEnds) or str(error) == _CLOSED
        backend = known or "gloo" in str(error).lower()
        # A rank that has just joined has not announced it itself.
        if not backend or member is None or not (self._announced or member.mending):
            return False
        if not self._cut:
            member.cut()
        self._cut = True
        self._begin_to_watch(member)
        # Between two steps nothing is to be set back.
        self.broken |= self.loop.in_step
        return True

    @property
    def skips(self) -> bool:
        """Whether the present step is one without effect."""
        # After one that was left, as by `break`, a validation may follow, which would count.
        return self.broken and self.loop.in_step

    def survives(self, error: RuntimeError) -> bool:
        """Return whether the present step goes on, without effect, in spite of an error."""
        # Elsewhere, as in a validation, what comes of it would count.
        return self.loop.in_step and self.caught(error)

    def waits_for(self, averaging: Averaging) -> None:
        """Take note of an averaging, which is freed if it does not end."""
        self._averagings.append(averaging)

    # The hooks of a feature.

    def began(self) -> None:
        """Observe the optimizers."""
        if self.on:
            for optimizer in self._framework.state.optimizers():
                optimizer.register_step_pre_hook(self._steps)

    def step_begins(self) -> None:
        """Keep what the step may change; announce, before the second one, that steps are safe."""
        if not self.on:
            return
        # Once the ranks cannot communicate, a model may not even try to average.
        self.broken, self._suppressed = self._cut, False
        self._stepped.clear()
        self._averagings.clear()
        self._sum = self._before = None
        alone = self.coordinator.ranks.size == 1
        # A rank that has joined does as the others, from its first step.
        member = self._framework.member
        safe = self.loop.stepped or (member is not None and member.mending)
        if not safe or alone:
            return
        why = _SEVERAL if self._accumulates else self._why_not()
        if why:
            self._say(why)
        else:
            self._before = past = self.recorder.present()
            copies = self._sharding.copies
            if copies is not None:
                self._try(lambda: copies.copy_if_due(past, send=not self.broken))
            if copies is None or copies.ready:
                self._announce()

    def _say(self, why: str) -> None:
        """Tell, once, who has asked for it that ranks that die are not replaced."""
        # On several nodes nobody has asked.
        member = self._framework.member
        if not self._said and member is not None and not member.far and not self._announced:
            if self.coordinator.ranks.rank == 0:
                self.coordinator.reporter.note(f"ranks that die are not replaced: {why}")
            self._said = True

    def _try(self, communicate: Callable[[], object]) -> None:
        """Communicate with the others; the step is broken if that is not possible."""
        try:
            communicate()
        except RuntimeError as error:
            if not self.caught(error):
                raise

    def step_ends(self) -> None:
        """Notice scripts that make one step of several batches."""
        if self.on and not self._stepped:
            self._accumulates = True

    def _announce(self) -> None:
        member = self._framework.member
        if self._announced or member is None:
            return
        with contextlib.suppress(OSError):
            if self.coordinator.ranks.rank == 0:
                copies = self._sharding.copies
                member.mends(1 if copies is None else copies.replica)
            self._announced = True
            self._begin_to_watch(member)

    def _begin_to_watch(self, member: Member) -> None:
        with self._watching:
            if self._watches:
                return
            self._watches = True
        watch = functools.partial(self._watch, member)
        threading.Thread(target=watch, name="hpcext-guard", daemon=True).start()

    # A step.

    def _steps(self, optimizer: torch.optim.Optimizer, args: Any, named: Any) -> None:
        """Before the step of an optimizer: leave nothing to do if the gradients are not whole."""
        copies = self._sharding.copies
        if copies is not None and not self.broken and not self._stepped:
            self._try(copies.commit)
        if not self.broken:
            self._stepped.add(id(optimizer))
            return
        if len(args) > 1 or named.get("closure") is not None:
            raise RuntimeError(f"a rank has died in a step with a closure; {_LAST}")
        if self._sum is None:
            self._sum = self._checksum()
        self._suppressed = True
        _forget_gradients(optimizer)

    def _checksum(self) -> int:
        models = self._framework.models
        return checksum(each for model in models for each in model.parameters())

    # After a broken step.

    def undo(self) -> None:
        """Set back what a broken step has changed; after a whole one there is nothing to do.

        Raises
        ------
        RuntimeError
            That is not possible.
        """
        if self._sharding.copies is not None:
            self._hold_on(self._sharding.copies)
            return
        if not self.broken:
            return
        before = self._before
        if before is None or (why := self._why_for_ever()):
            why = self._why_not() or _SEVERAL if before is None else why
            raise RuntimeError(
                f"a rank has died, and its step cannot be made again: {why}; {_LAST}"
            )
        self._forget_gradients()
        self.recorder.set_back(before)

    def _hold_on(self, copies: Copies) -> None:
        """Prepare a sharded training to go on from copies, whatever the step has changed."""
        copies.hold_on(None if self.broken else self.recorder.present())
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        for optimizer in self._framework.state.optimizers():
            _forget_gradients(optimizer)

    def secure(self) -> Copies | None:
        """Make a certain copy of a sharded training, if it goes on from copies, and return them."""
        copies = self._sharding.copies
        alone = self.coordinator.ranks.size == 1
        if copies is None or not (copies.ready or (alone and copies.finds_room())):
            return None
        copies.secure(self.recorder.present())
        return copies

    def _why_for_ever(self) -> str:
        """Return why what a broken step has changed cannot be set back; empty if it can."""
        if self._stepped:
            return "one of its optimizers has made its step"
        if not self._suppressed:
            return _SEVERAL
        if self._checksum() != self._sum:
            return "something other than the session's optimizers has changed parameters"
        return ""

    def leave(self) -> None:
        """Leave the group that has broken, whose operations end with errors."""
        member, ranks = self._framework.member, self.coordinator.ranks
        assert member is not None
        with self._leaving:
            works = [each.work for each in self._averagings if each.work is not None]
            works += ranks.works() if isinstance(ranks, TorchRanks) else []
            copies = self._sharding.copies
            works += [] if copies is None else copies.works()
            until_s = time.monotonic() + FREE_S
            member.abort()
            while not all(work.is_completed() for work in works):
                if time.monotonic() > until_s:
                    member.free()
                    break
                time.sleep(_PAUSE_S)
                member.abort()
            self._averagings.clear()
            if copies is not None:
                copies.ended()
            member.leave()
        self.broken = self._cut = False

    def _watch(self, member: Member) -> None:
        """Abort what waits for ranks that have died; this runs in a thread."""
        since_s = time.monotonic()
        while True:
            far_s = FAR_WATCH_S if self._cut or self.coordinator.ranks.rank == 0 else FAR_OTHERS_S
            time.sleep(far_s if member.far else WATCH_S)
            with contextlib.suppress(OSError), self._leaving:
                if member.repair() is not None:
                    member.abort()
                    if member.connecting:
                        self._thread.forget()
                        continue
                    if time.monotonic() > since_s + FREE_S:
                        self._free(member)
                    if self._thread.waits_s() > STUCK_S:
                        _end()
                    continue
            self._thread.forget()
            since_s = time.monotonic()

    def _free(self, member: Member) -> None:
        """End the waiting for what does not end; only the thread of the training may be stuck."""
        for averaging in tuple(self._averagings):
            if not averaging.future.done():
                self.broken = self._cut = True
                member.free()
                averaging.free()
        if self._thread.waits_s() > FREE_S:
            member.free()


def _end() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write("hpcext: gloo goes on waiting for a rank that has died; this one ends\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr)
    os._exit(1)


def _forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
