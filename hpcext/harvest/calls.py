"""Calls of agents whose nodes may be gone: one that does not answer in time is.

A batch system takes minutes to notice that a node has died. The ranks of a training on it notice in
seconds that they cannot reach each other, but not which of them is gone. So the manager leaves a
file for the agent of each of their leases, which the agent removes.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping

from hpcext.harvest.lease import Lease
from hpcext.launch import agent

LOOKS = 10
"""The number of looks, a second apart, after which an agent counts as silent. An agent looks once a
second. If this process itself hung, as its file system did, no look counts."""

LOOK_S = 1.0


@dataclasses.dataclass
class _Call:
    looked_s: float
    looks: int = 0


class Calls:
    """The agents that are called.

    Parameters
    ----------
    clock : callable
        Seconds, which never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[int, _Call] = {}

    def call(self, leases: Iterable[Lease]) -> None:
        """Call the agents of some leases, except those that leave or know of no calls."""
        for lease in leases:
            if lease.number in self._calls or not lease.answers or lease.leaving:
                continue
            try:
                (lease.directory / agent.CALL_FILE).touch()
            except OSError:
                # On a full disk what has become of them is known from the batch system.
                continue
            self._calls[lease.number] = _Call(self._clock())

    def silent(self, leases: Mapping[int, Lease]) -> list[Lease]:
        """Return leases whose agents have not answered in time, once each.

        Parameters
        ----------
        leases : Mapping of int to Lease
            Those that there are, by number.
        """
        found = []
        for number, call in list(self._calls.items()):
            lease = leases.get(number)
            if lease is None or lease.leaving:
                del self._calls[number]
            elif self._clock() >= call.looked_s + LOOK_S:
                call.looked_s = self._clock()
                call.looks += 1
                answered = _answered(lease)
                if answered or call.looks > LOOKS:
                    del self._calls[number]
                    found += [] if answered else [lease]
        return found


def _answered(lease: Lease) -> bool:
    try:
        # Opening a directory makes NFS look it up anew (nfs(5)).
        return agent.CALL_FILE not in os.listdir(lease.directory)
    except OSError:
        return True
