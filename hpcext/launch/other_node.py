"""The ranks of an attempt on a node that is not its first.

They run from the beginning, or join a training that is in progress. The first node
(:mod:`hpcext.launch.ranks`) decides what becomes of the group; here ranks are only started and
ended.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from hpcext import protocol
from hpcext.launch.node_ranks import REMIND_S, NodeRanks, Place, how_ended
from hpcext.rendezvous import Group


@dataclass
class OtherNode(NodeRanks):
    """The ranks of one attempt on such a node.

    Parameters
    ----------
    joins : int
        The number of the change by which this node came; 0 if it was there from the beginning.
    """

    joins: int = 0
    _begun: bool = False

    def _begin(self) -> None:
        self._begun = self.joins == 0
        group = Group(self.joins, len(self.nodes))
        for rank, index in enumerate(self.nodes):
            if index == self.index:
                self._start(rank, group, self.nodes)

    def _looks(self) -> float | None:
        return None if self._begun else REMIND_S

    def _look(self) -> None:
        if self._begun:
            return
        assert self.attempt is not None
        directory = self.attempt.report_dir
        over = any(
            (directory / name).exists() for name in (protocol.SUSPENDED_FILE, protocol.EXIT_FILE)
        )
        if over or self.rendezvous.dropped(self.joins):
            self._end(0)
        else:
            self._begun = self.rendezvous.has_begun(self.joins)

    def _ended(self, place: Place, code: int) -> None:
        self._look()
        if not self._begun and self._kill_s is None:
            why = f"a new rank ended with {how_ended(code)} before it was ready"
            # If it cannot be written, our own end tells the others.
            with contextlib.suppress(OSError):
                self.rendezvous.fail(place.number, why)
            self._end(code or 1)
        elif code == protocol.EXIT_SUSPENDED:
            self._code = self._code or code
        elif code != 0 and self._kill_s is None:
            self._end(code)

    def _settle(self) -> bool:
        return True
