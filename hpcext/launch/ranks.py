"""The launcher of ranks: it runs a command once per GPU of a job, and changes their number.

It does what torchrun does, and one thing more: when the manager gives the job other GPUs, new ranks
are started *beside* the ones that train, and only when they are ready does the group change
(:mod:`hpcext.rendezvous`). Nothing is restarted, nothing goes through the disk. A rank that dies
can be replaced in the same way, after the others have formed a group without it.

One launcher runs on each node of the job. The one of the first node leads: it reads what the
manager asks for, and answers. New ranks of other nodes come with launchers of their own.

Run as ``python -I -S .../hpcext/launch/ranks.py RANKS[+REPLACE] COMMAND...``; RANKS is the number
on each node, or 0: one for each GPU of the attempt; REPLACE says how many that die are replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import documents, private, protocol
from hpcext.launch import command, stderr, tree
from hpcext.launch.change import Change, Request
from hpcext.launch.node_ranks import REMIND_S, NodeRanks, Place, how_ended
from hpcext.launch.other_node import OtherNode
from hpcext.process import Process
from hpcext.rendezvous import REPAIRS, SHARED, Group, Rendezvous

USAGE = 2

GATHER_S = 0.1
"""Seconds from the death of a rank until the others are told, since several may die at once."""


@dataclass
class Launcher(NodeRanks):
    """The ranks of one attempt on its first node, and the group of all.

    Parameters
    ----------
    replace : int
        How many ranks that die may be replaced, while the others train on.
    """

    replace: int = 0
    _number: int = 0
    _change: Change | None = None
    _devices: str | None = None  # what the last change said
    _lost: set[int] = field(default_factory=set)  # ranks that the others have not been told of
    _lost_s: float = 0.0
    _missing: int = 0  # ranks that are to be replaced

    def _begin(self) -> None:
        group = Group(0, len(self.nodes))
        for rank, index in enumerate(self.nodes):
            if index == self.index:
                self._start(rank, group, self.nodes)

    # The loop.

    def _looks(self) -> float | None:
        change = self._change
        if self._lost:
            return max(0.0, self._lost_s + GATHER_S - time.monotonic())
        if change is None:
            return REMIND_S if self._missing else None
        return REMIND_S if change.proposed or self.rendezvous.host else None

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

    def _ended(self, place: Place, code: int) -> None:
        change = self._change
        if place.number > self._number and not (change and change.proposed):
            self._give_up(f"a new rank ended with {how_ended(code)} before it was ready")
        elif code == protocol.EXIT_SUSPENDED:
            self._code = self._code or code
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
        self._change, self._missing = None, 0
        self._lost.clear()

    # Changing the group.

    def _look(self) -> None:
        change = None if self._lost else self._requested()
        if self._lost:
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
        if self.attempt is None or (change and (change.proposed or not change.asked)):
            return change
        request = Request.read(self.attempt)
        last = change.group.number if change else self._number
        if request is None or request.number <= last or not request.gpus:
            return change
        if change is not None:
            # The manager has withdrawn it: a node that was to join is gone.
            self._give_up("another change was requested")
        had = request.had
        if len(had) == len(self.nodes) and not request.lost.isdisjoint(had):
            # First the others go on without these.
            self._lost |= {rank for rank, gpu in enumerate(had) if gpu in request.lost}
            stderr.say(f"launch: lost {', '.join(sorted(request.lost))}; the other ranks go on")
            return None
        had = tuple(gpu for gpu in had if gpu not in request.lost)
        stay = tuple(rank for rank, gpu in enumerate(had) if gpu in request.gpus)
        group = Group(request.number, len(request.gpus), stay)
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
        else:
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
            how = f"rank {place.rank} of {len(self.nodes)} ended with {how_ended(code)}"
            stderr.say(f"launch: {how}, and all others are ended: {why}")
        return not why

    def _why_not(self, place: Place) -> str:
        """Return why the others cannot go on without a rank; empty if they can."""
        if self.rendezvous.host:
            return "on several nodes only the ranks of a node that is lost are replaced"
        if not self.replace:
            return "no more ranks are to be replaced"
        if place.rank == 0:
            return "it was the first one"
        if self._change and self._change.proposed:
            return "the ranks were changing"
        return "" if self.rendezvous.can_mend() else "the training cannot make a step again"

    def _lose(self, place: Place, code: int) -> None:
        """Note the end of a rank without which the others go on."""
        stderr.say(
            f"launch: rank {place.rank} of {len(self.nodes)} ended with {how_ended(code)}; "
            "the others go on without it"
        )
        self.replace -= 1
        self._missing += 1
        # The workers of its loaders keep its connections open, by which the others see its end.
        self._sweep(place.mark)
        self._give_up("a rank that trains has ended before a new one was ready")
        self._lost.add(place.rank)
        self._lost_s = time.monotonic()

    def _repair(self) -> None:
        """Tell the ranks that are left that they form a group, once all deaths are known."""
        if time.monotonic() < self._lost_s + GATHER_S:
            return
        stay = tuple(rank for rank in range(len(self.nodes)) if rank not in self._lost)
        group = Group(self._number + 1, len(stay), stay, repairs=True)
        try:
            self.rendezvous.propose(group)
        except OSError:
            # On a full disk this is tried again; until then the others wait.
            self._lost_s = time.monotonic() + REMIND_S
            return
        self._lost.clear()
        self._change = Change(group, tuple(self.nodes[rank] for rank in stay), proposed=True)

    def _replace_missing(self) -> None:
        """Start ranks in place of those that have died."""
        nodes = (*self.nodes, *[self.index] * self._missing)
        group = Group(self._number + 1, len(nodes), tuple(range(len(self.nodes))))
        self._change = Change(group, nodes, self._devices)
        self._start_new(self._change)


def launch(
    argv: Sequence[str], per_node: int, environ: Mapping[str, str], *, replace: int | None = None
) -> int:
    """Run a command once per GPU.

    Parameters
    ----------
    argv, environ : sequence of str, Mapping[str, str]
    per_node : int
        The number of ranks on this node; 0: one for each GPU of the attempt, or one.
    replace : int, optional
        How many ranks that die are replaced, if the others can go on. By default those of lost
        nodes are, where nodes come and go, and no others.

    Returns
    -------
    int
        Exit code.
    """
    try:
        attempt = protocol.Attempt.from_environ(environ)
    except ValueError as error:
        stderr.say(error)
        return USAGE
    per_node = per_node or (attempt.num_gpus if attempt else 1)
    if attempt is not None and attempt.rendezvous:
        return _on_several(argv, per_node, attempt, replace)
    if attempt is not None and attempt.num_nodes > 1:
        stderr.say(
            f"launch: the job has {attempt.num_nodes} nodes, but HPCEXT_RENDEZVOUS does not say "
            "where their ranks meet"
        )
        return USAGE
    try:
        directory = Path(tempfile.mkdtemp(prefix="hpcext-ranks-"))
    except OSError as error:
        stderr.say(f"launch: no directory for the ranks to meet in: {error}")
        return os.EX_CANTCREAT
    try:
        place = Rendezvous(directory, replaces=bool(replace))
        return Launcher(argv, (0,) * per_node, place, attempt, replace=replace or 0).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _on_several(
    argv: Sequence[str], per_node: int, attempt: protocol.Attempt, replace: int | None
) -> int:
    """Run this node's part of a job that has several nodes, or may get others."""
    directory = attempt.report_dir / SHARED
    host, _, _ = attempt.rendezvous.rpartition(":")
    # Nodes that the batch system may take back, with a notice as a rule, can be lost without one.
    place = Rendezvous(directory, host=host, replaces=attempt.notices and replace != 0)
    index = protocol.node_index()
    nodes = tuple(node for node in range(attempt.num_nodes) for _ in range(per_node))
    try:
        private.make(directory)
        if index == 0:
            return Launcher(argv, nodes, place, attempt, replace=replace or 0).run()
        if index < attempt.num_nodes:
            return OtherNode(argv, nodes, place, attempt, index).run()
        request = Request.read(attempt)
        if request is None or index not in request.nodes:
            # The change that it was started for was given up.
            return 0
        joins = request.number
        return OtherNode(argv, request.nodes, place, attempt, index, joins=joins).run()
    except documents.UNFIT as error:
        stderr.say(f"launch: {error}")
        return USAGE


if __name__ == "__main__":
    per_node, said, losses = sys.argv[1].partition("+")
    replace = int(losses) if said else None
    code = launch(sys.argv[2:], int(per_node), protocol.environ(), replace=replace)
    stderr.flush()
    os._exit(code)
