"""The launcher of ranks: it runs a command once per GPU of a job, and changes their number.

It does what torchrun does, and one thing more: when the manager gives the job other GPUs, new ranks
are started *beside* the ones that train, and only when they are ready does the group change
(:mod:`hpcext.rendezvous`). Nothing is restarted, nothing goes through the disk.

One launcher runs on each node of the job. The one of the first node leads: it reads what the
manager asks for, and answers. New ranks of other nodes come with launchers of their own.

Run as ``python -I -S .../hpcext/launch/ranks.py RANKS COMMAND...``; RANKS is the number on each
node, or 0: one for each GPU of the attempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import documents, private, protocol
from hpcext.launch import command, stderr, tree
from hpcext.launch.node_ranks import NodeRanks
from hpcext.launch.other_node import OtherNode
from hpcext.process import Process
from hpcext.rendezvous import SHARED, Group, Rendezvous

USAGE = 2


@dataclass
class _Change:
    """A change of the group that is under way.

    Attributes
    ----------
    group : Group
        The group that it is to become.
    gpus, had : tuple of str
        ``HOST:INDEX``, one for each rank: what it is to have, and what it has.
    nodes : tuple of int
        Indices of the nodes of `gpus`.
    proposed : bool
        Whether every new rank is ready, and the old ones have been told.
    """

    group: Group
    gpus: tuple[str, ...]
    had: tuple[str, ...]
    nodes: tuple[int, ...]
    proposed: bool = False


@dataclass
class Launcher(NodeRanks):
    """The ranks of one attempt on its first node, and the group of all."""

    _number: int = 0
    _change: _Change | None = None

    def _begin(self) -> None:
        group = Group(0, len(self.nodes))
        for rank, index in enumerate(self.nodes):
            if index == self.index:
                self._start(rank, group, self.nodes)

    # The loop.

    def _looks(self) -> bool:
        change = self._change
        return change is not None and (change.proposed or bool(self.rendezvous.host))

    def _settle(self) -> bool:
        self._finish_change()
        change = self._change
        # New ranks that have not joined yet would wait for ever once the others have ended.
        called = change is not None and self.rendezvous.has_begun(change.group.number)
        if any(called or number <= self._number for number, _ in self._ranks.values()):
            return True
        if change and self.rendezvous.host:
            self.rendezvous.drop(change.group.number)
        self._change = None
        return False

    def _trains(self, number: int, rank: int) -> bool:
        return number <= self._number or bool(self._change and self._change.proposed)

    def _ended(self, number: int, rank: int, code: int) -> None:
        if not self._trains(number, rank):
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._give_up(f"a new rank ended with {how} before it was ready")
            return
        if code == protocol.EXIT_SUSPENDED:
            self._code = self._code or code
        elif code != 0:
            self._end(code)
        elif self._change and self._change.proposed and rank not in self._change.group.stay:
            self._sweep(self._mark(number, rank))

    def _end(self, code: int) -> None:
        if self._kill_s is None and self._change and self.rendezvous.host:
            self.rendezvous.drop(self._change.group.number)
        super()._end(code)
        self._change = None

    # Changing the group.

    def _look(self) -> None:
        change = self._requested()
        if change is None:
            return
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
            for pid, (_, rank) in self._ranks.items():
                first = Process.of(pid) if rank == 0 else None
                if first:
                    tree.tell(first, protocol.NEWS_SIGNAL)
        elif answer.why:
            change.proposed = False
            self._give_up(answer.why)
        else:
            self._finish_change()

    def _requested(self) -> _Change | None:
        """Return the change under way, after taking up a new one that the manager asks for."""
        change = self._change
        if self.attempt is None or (change and change.proposed):
            return change
        try:
            asked = documents.read_json(
                self.attempt.report_dir / protocol.RESCALE_FILE, protocol.RESCALE
            )
            if (asked["attempt"], asked["op"]) != (self.attempt.attempt, self.attempt.op):
                return change
            number, devices = int(asked["resize"]), str(asked["devices"])
            gpus, had = (tuple(str(gpu) for gpu in asked[key]) for key in ("gpus", "had"))
            nodes = tuple(int(index) for index in asked.get("nodes") or [0] * len(gpus))
        except documents.UNFIT:
            return change
        if number <= (change.group.number if change else self._number) or not gpus:
            return change
        if change is not None:
            # The manager has withdrawn it: a node that was to join is gone.
            self._give_up("another change was requested")
        stay = tuple(rank for rank, gpu in enumerate(had) if gpu in gpus)
        group = Group(number, len(gpus), stay)
        self._change = change = _Change(group, gpus, had, nodes)
        if len(had) != len(self.nodes) or [had[rank] for rank in stay] != list(gpus[: len(stay)]):
            self._give_up("its GPUs are not those that were requested")
            return None
        try:
            for rank in range(group.kept, group.size):
                if nodes[rank] == self.index:
                    self._start(rank, group, nodes, devices)
        except (OSError, command.CommandError) as error:
            self._give_up(str(error))
        return self._change

    def _give_up(self, why: str) -> None:
        """Keep the ranks as they are: end the new ones, and report it."""
        change = self._change
        if change is None:
            return
        self._change = None
        if self.rendezvous.host:
            self.rendezvous.drop(change.group.number)
        for pid, (number, rank) in list(self._ranks.items()):
            if number == change.group.number:
                del self._ranks[pid]
                self._sweep(self._mark(number, rank))
        self._number = change.group.number
        self._say(change.group.number, ok=False, why=why, gpus=change.had, nodes=self.nodes)

    def _finish_change(self) -> None:
        """Report that the group has changed, once the ranks that leave have ended."""
        change = self._change
        if change is None or not change.proposed:
            return
        group = change.group
        answer = self.rendezvous.answer(group.number)
        if answer is None or answer.why:
            return
        if any(self._leaves(group, number, rank) for number, rank in self._ranks.values()):
            return
        self.nodes, self._number, self._change = change.nodes, group.number, None
        self._say(
            group.number, ok=True, gpus=change.gpus, nodes=change.nodes, stall_s=answer.stall_s
        )
        # No further signal comes for a change that was requested in between.
        self._look()

    @staticmethod
    def _leaves(group: Group, number: int, rank: int) -> bool:
        """Return whether a rank of this node is to end with a change.

        Those that stay come first, and so keep their numbers.
        """
        return number < group.number and rank not in group.stay

    def _say(self, number: int, **facts: Any) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        document = {
            "schema": protocol.RESCALED,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "resize": number,
            "at": time.time(),
            **facts,
        }
        # If it cannot be written, the manager suspends the attempt at its deadline.
        with contextlib.suppress(OSError):
            path = attempt.report_dir / protocol.RESCALED_FILE
            documents.write_json(path, document, durable=False)
        if attempt.notify is not None:
            attempt.notify.send(protocol.NEWS_SIGNAL)


def launch(argv: Sequence[str], per_node: int, environ: Mapping[str, str]) -> int:
    """Run a command once per GPU.

    Parameters
    ----------
    argv : sequence of str
    per_node : int
        The number of ranks on this node; 0: one for each GPU of the attempt, one if there is no
        attempt.
    environ : Mapping[str, str]

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
        return _on_several(argv, per_node, attempt)
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
        return Launcher(argv, (0,) * per_node, Rendezvous(directory), attempt).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _on_several(argv: Sequence[str], per_node: int, attempt: protocol.Attempt) -> int:
    """Run this node's part of a job that has several nodes, or may get others."""
    directory = attempt.report_dir / SHARED
    host, _, _ = attempt.rendezvous.rpartition(":")
    place = Rendezvous(directory, host=host)
    index = protocol.node_index()
    nodes = tuple(node for node in range(attempt.num_nodes) for _ in range(per_node))
    try:
        private.make(directory)
        if index == 0:
            return Launcher(argv, nodes, place, attempt).run()
        if index < attempt.num_nodes:
            return OtherNode(argv, nodes, place, attempt, index).run()
        asked = documents.read_json(attempt.report_dir / protocol.RESCALE_FILE, protocol.RESCALE)
        number, later = int(asked["resize"]), tuple(int(each) for each in asked["nodes"])
        if index not in later or (asked["attempt"], asked["op"]) != (attempt.attempt, attempt.op):
            # The change that it was started for was given up.
            return 0
        return OtherNode(argv, later, place, attempt, index, joins=number).run()
    except documents.UNFIT as error:
        stderr.say(f"launch: {error}")
        return USAGE


if __name__ == "__main__":
    code = launch(sys.argv[2:], int(sys.argv[1]), protocol.environ())
    stderr.flush()
    os._exit(code)
