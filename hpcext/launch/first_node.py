"""The ranks of an attempt on its first node, which leads those of the others.

It changes the group of ranks: as the manager asks, and without ranks that have died. New ones
in their places come by a change like others.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from hpcext import documents, protocol
from hpcext.launch import command, stderr, tree
from hpcext.launch.change import Change, Request, leaving
from hpcext.launch.node_ranks import REMIND_S, NodeRanks, Place, how_ended
from hpcext.process import Process
from hpcext.rendezvous import REPAIRS, Group

GATHER_S = 0.1
"""Seconds from the death of a rank until the others are told, since several may die at once."""

CUT_S, FAR_CUT_S = 2.0, 40.0
"""Seconds after which ranks that cannot communicate, and of which none is known to have died, are
to form a group anew, on one node and on several. Another node's death is known late."""

TRIES = 3
"""How often they may be told so before they make a step."""

FAR_LOOK_S = 5.0
"""Seconds between two looks whether ranks on several nodes can communicate."""


@dataclass
class FirstNode(NodeRanks):
    """The ranks of one attempt on its first node, and the group of all.

    Parameters
    ----------
    replace : int
        How many ranks that die may be replaced, while the others train on.
    """

    replace: int = 0
    _number: int = 0  # of the last group that was proposed
    _formed: int = 0  # of the last one that has made a step
    _change: Change | None = None
    _devices: str | None = None  # what the last change said
    _lost: set[int] = field(default_factory=set)  # of that group: ranks that have died
    _repair_s: float | None = None  # when the others are to be told to form a group of their own
    _missing: int = 0  # ranks that are to be replaced
    _cut_s: float | None = None  # when ranks that cannot communicate are to try again
    _tries: int = TRIES

    def _begin(self) -> None:
        group = Group(0, len(self.nodes))
        for rank, index in enumerate(self.nodes):
            if index == self.index:
                self._start(rank, group, self.nodes)

    # The loop.

    def _looks(self) -> float | None:
        change, due_s = self._change, self._repair_s
        if due_s is not None:
            return max(0.0, due_s - time.monotonic())
        waits = bool(self._missing or self._cut_s)
        if change is not None:
            waits |= change.proposed or bool(self.rendezvous.host)
        if waits:
            return REMIND_S
        # Ranks of other nodes cannot signal that they are cut off from each other.
        return FAR_LOOK_S if self.rendezvous.host and self.rendezvous.replaces else None

    def _settle(self) -> bool:
        self._finish_change()
        change = self._change
        # New ranks that have not joined yet would wait for ever once the others have ended.
        called = change is not None and self.rendezvous.has_begun(change.group.number)
        if any(called or place.number <= self._number for place in self._ranks.values()):
            return True
        if change and self.rendezvous.host:
            self.rendezvous.drop(change.group.number)
        self._change = None
        return False

    def _child_ended(self, pid: int, code: int) -> None:
        # Perhaps a change was made just before.
        self._finish_change()
        super()._child_ended(pid, code)

    def _ended(self, place: Place, code: int) -> None:
        change = self._change
        if place.number > self._number and not (change and change.proposed):
            self._give_up(f"a new rank ended with {how_ended(code)} before it was ready")
        elif code == protocol.EXIT_SUSPENDED:
            self._code = self._code or code
        elif code != 0 and place.number <= self._number and place.rank in self._lost:
            self._sweep(place.mark)
        elif code != 0:
            if self._replaces(place, code):
                self._lose(place, code)
            else:
                self._end(code)
        elif change and change.proposed and place.rank not in change.group.stay:
            self._sweep(place.mark)

    def _end(self, code: int) -> None:
        if self._kill_s is None and self._change and self.rendezvous.host:
            self.rendezvous.drop(self._change.group.number)
        super()._end(code)
        self._change, self._missing, self._repair_s = None, 0, None

    # Changing the group.

    def _look(self) -> None:
        self._look_for_cut()
        change = None if self._repair_s is not None else self._requested()
        if self._repair_s is not None:
            self._repair()
        elif change is not None:
            self._pursue(change)
        elif self._missing:
            self._replace_missing()

    def _pursue(self, change: Change) -> None:
        number = change.group.number
        if not change.proposed:
            if why := self.rendezvous.host and self.rendezvous.failure(number):
                self._give_up(why)
                return
            new = range(change.group.kept, change.group.size)
            if not all(self.rendezvous.is_ready(number, rank) for rank in new):
                return
            try:
                self.rendezvous.propose(change.group)
            except OSError:
                # On a full disk this is tried again, until there is space or the manager gives up.
                return
            change.proposed = True
        answer = self.rendezvous.answer(number)
        if answer is None:
            if why := self.rendezvous.host and self.rendezvous.failure(number):
                self._give_up(why)
                self._repair_s = time.monotonic()
                return
            for pid, place in self._ranks.items():
                first = Process.of(pid) if place.rank == 0 else None
                if first:
                    tree.tell(first, protocol.NEWS_SIGNAL)
        elif answer.why:
            change.proposed = False
            self._give_up(answer.why)
        else:
            self._finish_change()

    def _requested(self) -> Change | None:
        """Return the change under way, after taking up a new one that the manager asks for."""
        change = self._change
        request = None if self.attempt is None else Request.read(self.attempt)
        last = change.group.number if change else self._number
        if request is None or request.number <= last or not request.gpus:
            return change
        had = request.had
        lost = {rank for rank, gpu in enumerate(had) if gpu in request.lost} - self._lost
        lost = lost if len(had) == len(self.nodes) else set()
        if change is not None:
            goes_on = change.proposed or not change.asked
            if goes_on and not (lost and self._can_be_overtaken(change)):
                return change
            # The manager has withdrawn it: a node that was to join is gone.
            self._give_up("another change was requested")
        if lost:
            # First the others go on without these.
            self._lost |= lost
            self._repair_s = time.monotonic()
            stderr.say(f"launch: lost {', '.join(sorted(request.lost))}; the other ranks go on")
            return None
        had = tuple(gpu for gpu in had if gpu not in request.lost)
        stay = tuple(rank for rank, gpu in enumerate(had) if gpu in request.gpus)
        group = Group(request.number, len(request.gpus), stay, of=self._formed)
        self._change = change = Change(
            group, request.nodes, request.devices, asked=True, gpus=request.gpus, had=had
        )
        if len(had) != len(self.nodes) or [had[r] for r in stay] != list(request.gpus[: len(stay)]):
            self._give_up("its GPUs are not those that were requested")
            return None
        if len(stay) == len(had) == len(request.gpus):
            # Nothing is left to do, as after the loss of a node.
            self._change_is_done(change)
            return None
        self._start_new(change)
        return self._change

    def _start_new(self, change: Change) -> None:
        """Start the new ranks of a change on this node."""
        group = change.group
        try:
            for rank in range(group.kept, group.size):
                if change.nodes[rank] == self.index:
                    self._start(rank, group, change.nodes, change.devices)
        except (OSError, command.CommandError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        """Keep the ranks as they are: end the new ones, and report it."""
        change = self._change
        if change is None:
            return
        self._change = None
        if self.rendezvous.host:
            self.rendezvous.drop(change.group.number)
        for pid, place in list(self._ranks.items()):
            if place.number == change.group.number:
                del self._ranks[pid]
                self._sweep(place.mark)
        self._number = change.group.number
        if change.asked:
            self._say(change, ok=False, why=why, gpus=change.had, nodes=self.nodes)
        elif not change.group.repairs:
            # Each further try counts, so that there is an end of them.
            self._missing = self._missing if self.replace else 0
            self.replace = max(0, self.replace - 1)
            stderr.say(f"launch: {why}; {'once more' if self._missing else 'it is not replaced'}")

    def _finish_change(self) -> None:
        """Report that the group has changed, once the ranks that leave have ended."""
        change = self._change
        if change is None or not change.proposed:
            return
        group = change.group
        answer = self.rendezvous.answer(group.number)
        if answer is None or answer.why:
            return
        old = [place for place in self._ranks.values() if place.number < group.number]
        if any(place.rank not in group.stay for place in old):
            return
        for pid, place in self._ranks.items():
            if place.number < group.number:
                rank = group.stay.index(place.rank)
                self._ranks[pid] = place._replace(number=group.number, rank=rank)
        self._formed, self._tries = group.number, TRIES
        self._lost.clear()
        self._change_is_done(change, answer.stall_s)
        if not (change.asked or group.repairs):
            self._missing = 0
        # No further signal comes for a change that was requested in between.
        self._look()

    def _change_is_done(self, change: Change, stall_s: float | None = None) -> None:
        self.nodes, self._number, self._change = change.nodes, change.group.number, None
        self._devices = change.devices or self._devices
        if change.asked:
            self._say(change, ok=True, gpus=change.gpus, nodes=change.nodes, stall_s=stall_s)

    def _say(self, change: Change, **facts: Any) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        document = {
            "schema": protocol.RESCALED,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "resize": change.group.number // REPAIRS,
            "at": time.time(),
            **facts,
        }
        path = attempt.report_dir / protocol.RESCALED_FILE
        # If it cannot be written, the manager suspends the attempt at its deadline.
        with contextlib.suppress(OSError):
            documents.write_json(path, document, durable=False)
        if attempt.notify is not None:
            attempt.notify.send(protocol.NEWS_SIGNAL)

    # Replacing ranks that die.

    def _replaces(self, place: Place, code: int) -> bool:
        """Return whether the others go on without a rank that has ended; say why if they do not."""
        if self._kill_s is not None or self._code is not None or not self.rendezvous.replaces:
            return False
        if why := self._why_not(place):
            how = self._how(place, code)
            stderr.say(f"launch: {how}, and all others are ended: {why}")
        return not why

    def _how(self, place: Place, code: int) -> str:
        """Return which rank has ended, and how."""
        change, size = self._change, len(self.nodes)
        if change is not None and place.number == change.group.number:
            size = change.group.size
        return f"rank {place.rank} of {size} ended with {how_ended(code)}"

    def _why_not(self, place: Place) -> str:
        """Return why the others cannot go on without a rank; empty if they can."""
        if self.rendezvous.host:
            return "on several nodes only the ranks of a node that is lost are replaced"
        joins = place.number > self._number
        if not self.replace and not joins:
            return "no more ranks are to be replaced"
        if place.rank == 0:
            return "it was the first one"
        change = self._change
        if change and change.proposed and not self._can_be_overtaken(change):
            return "another one was leaving"
        return "" if self.rendezvous.can_mend() else "the training cannot make a step again"

    def _lose(self, place: Place, code: int) -> None:
        """Note the end of a rank without which the others go on."""
        stderr.say(f"launch: {self._how(place, code)}; the others go on without it")
        # The workers of its loaders keep its connections open, by which the others see its end.
        self._sweep(place.mark)
        if place.number > self._number:
            self._give_up("a new rank has ended while it was joining")
        else:
            self.replace -= 1
            self._missing += 1
            self._lost.add(place.rank)
            self._give_up("a rank that trains has ended before a new one was there")
        self._repair_s = time.monotonic() + GATHER_S

    def _look_for_cut(self) -> None:
        """Have ranks that cannot communicate form a group anew, if they do for a while."""
        change, now_s = self._change, time.monotonic()
        proposed = change if change and change.proposed else None
        present = proposed.group.number if proposed else self._formed
        if self._repair_s is not None or self.rendezvous.last_cut() < present:
            self._cut_s = None
            return
        if self._cut_s is None:
            self._cut_s = now_s + (FAR_CUT_S if self.rendezvous.host else CUT_S)
        if now_s < self._cut_s or not self._tries or not self.rendezvous.can_mend():
            return
        trains = sum(place.number <= self._number for place in self._ranks.values())
        here = [rank for rank, node in enumerate(self.nodes) if node == self.index]
        if trains < len({*here} - self._lost):
            # Some have ended well, and come to no further group.
            return
        if proposed is None or self._can_be_overtaken(proposed):
            self._tries -= 1
            stderr.say("launch: the ranks cannot communicate, and none has died; they try again")
            self._give_up("the ranks could not communicate")
            self._cut_s, self._repair_s = None, now_s

    def _can_be_overtaken(self, change: Change) -> bool:
        """Return whether ranks that are making a change can form another group instead."""
        group = change.group
        return change.proposed and (group.repairs or group.kept == len(self.nodes))

    def _repair(self) -> None:
        """Tell the ranks that are left that they form a group, once all deaths are known."""
        if self._repair_s is None or time.monotonic() < self._repair_s:
            return
        multiple, size = self.rendezvous.multiple(), len(self.nodes)
        further = leaving(size, self._lost, multiple)
        fewer = size - len(self._lost) < multiple
        if fewer or (further and self.rendezvous.host):
            how = "are fewer" if fewer else "would be parts of replicas on several nodes"
            stderr.say(f"launch: {multiple} ranks hold the model together, and those left {how}")
            self._end(1)
            return
        # They hold no whole model without those that have died, and are replaced with them.
        self._missing += len(further) if self._missing else 0
        self._lost |= further
        stay = tuple(rank for rank in range(size) if rank not in self._lost)
        group = Group(self._number + 1, len(stay), stay, repairs=True, of=self._formed)
        try:
            self.rendezvous.propose(group)
        except OSError:
            # On a full disk this is tried again; until then the others wait.
            self._repair_s = time.monotonic() + REMIND_S
            return
        self._repair_s = None
        self._change = Change(group, tuple(self.nodes[rank] for rank in stay), proposed=True)

    def _replace_missing(self) -> None:
        """Start ranks in place of those that have died."""
        nodes = (*self.nodes, *[self.index] * self._missing)
        stay = tuple(range(len(self.nodes)))
        group = Group(self._number + 1, len(nodes), stay, of=self._formed)
        self._change = Change(group, nodes, self._devices)
        self._start_new(self._change)
