"""An attempt on leases: a part on each of its nodes, which come and go as it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Container, Iterable

from hpcext import documents, protocol
from hpcext.core.facts import Rescaled
from hpcext.core.values import Action
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.harvest.lease import Lease
from hpcext.rendezvous import REPAIRS, SHARED, Rendezvous

FAILURES = 3
"""How many nodes of an attempt may be given up because their ranks have failed by themselves."""

CUT_S = 10.0
"""Seconds from such a failure within which the others say that they wait to go on without them."""

_NODE = re.compile(r"node-[0-9]{1,18}\Z")


def run_file(op: int, index: int) -> str:
    """Name the file that announces an attempt to a lease's agent, unique even if it comes again."""
    return f"run-{op}-{index}.json"


@dataclasses.dataclass(frozen=True)
class Part:
    """An attempt on one of its nodes.

    Attributes
    ----------
    index : int
        The index of the node among those of the attempt; it is never reused.
    node : str
    devices : tuple of str
    lease : int or None
        None: it is gone.
    resize : int
        Number of the change by which it came; 0: it was there from the beginning.
    """

    index: int
    node: str
    devices: tuple[str, ...]
    lease: int | None
    resize: int = 0

    @property
    def gpus(self) -> tuple[str, ...]:
        """As ``HOST:INDEX``."""
        return tuple(f"{self.node}:{device}" for device in self.devices)

    def has_ended(self, files: AttemptFiles) -> bool:
        """Return whether the supervisor of this part has said that it ended."""
        own = protocol.node_directory(files.directory, self.index)
        return os.path.lexists(own / protocol.EXIT_FILE)


@dataclasses.dataclass
class Watch:
    """An attempt that is not known to have ended.

    Attributes
    ----------
    files : AttemptFiles
    parts : list of Part
        Those that it has, is to have, or gives up.
    to_end : bool
        Whether it was ordered to end.
    answer : Rescaled or None
        Its answer, which is passed on when the GPUs that it gave up are free.
    later : Action or None
        A change that waits for a part of the one before to end.
    preloads : bool
        Whether its modules are imported once, for all that is known.
    cuts : frozenset of str
        What its ranks have said so far of connections that ended.
    failed : dict
        Index of a part whose ranks have failed by themselves → when that was seen, monotonic;
        infinity once its lease has been given up for it.
    """

    files: AttemptFiles
    parts: list[Part]
    to_end: bool = False
    answer: Rescaled | None = None
    later: Action | None = None
    preloads: bool = True
    cuts: frozenset[str] = frozenset()
    failed: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        """As ``HOST:INDEX``, of all parts."""
        return tuple(gpu for part in self.parts for gpu in part.gpus)

    def look_anew(self) -> None:
        """Have files be seen that nodes wrote before they went."""
        for part in self.parts:
            documents.look_anew(protocol.node_directory(self.files.directory, part.index))

    def members(self) -> list[Part]:
        """Return the parts that train, by its last answer, in its order."""
        had = self.files.sizes.had()
        found = [part for part in self.parts if set(part.gpus) <= set(had)]
        return sorted(found, key=lambda part: had.index(part.gpus[0]))

    def lost(self, leases: Container[int | None]) -> list[Part]:
        """Return the parts that train, for all that the attempt has said, and are lost.

        Parameters
        ----------
        leases : container of int
            The numbers of those that there are.
        """
        return [
            each
            for each in self.members()
            if each.index in self.failed
            or (each.lease not in leases and not each.has_ended(self.files))
        ]

    def note_nodes(self) -> None:
        """Have its end be that on the nodes where it trains now."""
        self.files.ends.nodes = {part.index: part.node for part in self.members()}

    def next_index(self) -> int:
        """Return an index that no part has had."""
        last = max(part.index for part in self.parts)
        with contextlib.suppress(OSError):
            names = os.listdir(self.files.directory)
            last = max([last, *(int(name[5:]) for name in names if _NODE.match(name))])
        return last + 1

    def keeps(self, part: Part) -> bool:
        """Return whether a part that trains is to go on, by the last change that was requested."""
        wanted = self.files.sizes.requested_gpus()
        return not wanted or set(part.gpus) <= set(wanted)

    def suspends(self) -> bool:
        """Return whether the attempt has suspended itself."""
        return os.path.lexists(self.files.directory / protocol.SUSPENDED_FILE)

    # What its ranks say where they meet.

    def outlives(self, part: Part) -> bool:
        """Return whether its other ranks can go on without those of a part that is lost."""
        return part.index > 0 and self._rendezvous().can_mend()

    def outlives_loss(self, part: Part, *, alone: bool) -> bool | None:
        """Return whether its other ranks go on without those of a part that is over.

        Parameters
        ----------
        part : Part
        alone : bool
            Whether nothing else uses its lease, which is given up if its ranks have failed.

        Returns
        -------
        bool or None
            None: they have not said so yet.
        """
        if not part.has_ended(self.files):
            return self.outlives(part)
        if len({*self.failed} - {part.index}) >= FAILURES or not alone or not self.outlives(part):
            return False
        since_s = self.failed.setdefault(part.index, time.monotonic())
        if since_s == math.inf:
            # Its lease is about to end.
            return None
        if self._rendezvous().is_cut():
            return True
        return None if time.monotonic() < since_s + CUT_S else False

    def is_cut(self) -> bool:
        """Return whether ranks have said, since the last call, that connections ended."""
        before, self.cuts = self.cuts, frozenset(self._rendezvous().cuts())
        return not self.cuts <= before

    def fail(self, resize: int, why: str) -> None:
        """Tell the attempt that a node will not come; if that fails, its deadline applies."""
        with contextlib.suppress(OSError):
            self._rendezvous().fail(resize * REPAIRS, why)

    def _rendezvous(self) -> Rendezvous:
        return Rendezvous(self.files.directory / SHARED, host=self.parts[0].node)


def known(files: AttemptFiles, leases: Iterable[Lease]) -> list[Part]:
    """Find the parts of an attempt on leases, from what is written down."""
    there = list(leases)
    devices: dict[tuple[int, str], list[str]] = {}
    for gpu, index in files.sizes.nodes().items():
        node, _, device = gpu.rpartition(":")
        devices.setdefault((index, node), []).append(device)
    had, requested = set(files.sizes.had()), files.sizes.requested()
    parts = []
    for (index, node), named in devices.items():
        has = [
            lease.number
            for lease in there
            if lease.node == node and (lease.directory / run_file(files.op, index)).exists()
        ]
        came = 0 if f"{node}:{named[0]}" in had else requested
        parts.append(Part(index, node, tuple(named), max(has, default=None), came))
    return parts
