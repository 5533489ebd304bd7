"""The division of sharded tensors anew when ranks come and go: which rows go from where to where.

A sharded tensor is divided along its first dimension as ``torch.chunk`` divides it: each shard has
as many rows as the first, and the last ones may have fewer or none. With several *replicas* (HSDP)
each of them has all shards. Rows go directly from a rank that has them to the rank that needs them,
and none that are there already are sent. Who leaves parts with its rows before (in the old group,
in which there are no new ranks), so rows from there to a new rank go by way of one that stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BUCKET_BYTES = 32 << 20
"""Bytes that a rank sends, and that it receives, in one exchange."""


class Rows(NamedTuple):
    """Successive rows of a tensor.

    Attributes
    ----------
    start, stop : int
        The first, and the one after the last.
    """

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def common(self, other: Rows) -> Rows:
        """Return the rows that are in both; none if there are none."""
        return Rows(max(self.start, other.start), min(self.stop, other.stop))

    def without(self, other: Rows) -> list[Rows]:
        """Return the rows that are not in the other."""
        if not self.common(other):
            return [self] if self else []
        parts = [Rows(self.start, other.start), Rows(other.stop, self.stop)]
        return [part for part in parts if part]

    def __bool__(self) -> bool:
        return self.stop > self.start


@dataclass(frozen=True)
class Division:
    """The division of tensors over ranks.

    Attributes
    ----------
    ranks : int
    shards : int
        Shards of a tensor: one for each rank of a replica. Rank r has shard r modulo `shards`; with
        one shard, every rank has all rows.
    """

    ranks: int
    shards: int

    def rows(self, rank: int, total: int) -> Rows:
        """Return which of a tensor's `total` rows a rank has."""
        return self._shard(rank % self.shards, total)

    def holders(self, rows: Rows, total: int) -> Iterator[tuple[Rows, range]]:
        """Yield the parts of some rows that are in one shard, and the ranks that have it."""
        each = self._each(total)
        # Few of them where there are many.
        for shard in range(rows.start // each, -(-rows.stop // each)):
            yield rows.common(self._shard(shard, total)), range(shard, self.ranks, self.shards)

    def _each(self, total: int) -> int:
        """Return the rows of the first shard, which has most."""
        return max(1, -(-total // self.shards))

    def _shard(self, shard: int, total: int) -> Rows:
        each = self._each(total)
        return Rows(min(shard * each, total), min((shard + 1) * each, total))


class Move(NamedTuple):
    """Rows of a tensor that go from one rank to another.

    Attributes
    ----------
    tensor : int
        The tensor's place in the list of all.
    source, target : int
        Ranks: of the old group for a departure, of the new group for an arrival.
    rows : Rows
    """

    tensor: int
    source: int
    target: int
    rows: Rows


@dataclass(frozen=True)
class Change:
    """The change from one division to another.

    Attributes
    ----------
    before, after : Division
    stay : tuple of int
        Ranks of the old group that are in the new one, where the index of each is its rank.
    copies : Mapping of int to int
        Ranks of the old group that have died, and for each the rank of the new group that has a
        copy of its rows.
    """

    before: Division
    after: Division
    stay: tuple[int, ...]
    copies: Mapping[int, int] = field(default_factory=dict)

    def moves(self, tensor: int, total: int) -> tuple[list[Move], list[Move]]:
        """Return the moves of one tensor's rows.

        Parameters
        ----------
        tensor : int
            Its place in the list of all.
        total : int
            Its rows.

        Returns
        -------
        departures, arrivals : list of Move
            Those in the old group, from ranks that leave; and those in the new group.
        """
        departures: list[Move] = []
        arrivals: list[Move] = []
        numbers = {old: new for new, old in enumerate(self.stay)}
        for target in range(self.after.ranks):
            wanted = self.after.rows(target, total)
            stays = target < len(self.stay)
            here = self.before.rows(self.stay[target], total) if stays else Rows(0, 0)
            for missing in wanted.without(here):
                for rows, holders in self.before.holders(missing, total):
                    there = [rank for rank in holders if rank in numbers]
                    if there:
                        source = numbers[there[target % len(there)]]
                        arrivals.append(Move(tensor, source, target, rows))
                        continue
                    copied = [self.copies[rank] for rank in holders if rank in self.copies]
                    if copied:
                        if copied[0] != target:
                            arrivals.append(Move(tensor, copied[0], target, rows))
                        continue
                    courier = target if stays else target % len(self.stay)
                    leaves = holders[target % len(holders)]
                    departures.append(Move(tensor, leaves, self.stay[courier], rows))
                    if not stays:
                        arrivals.append(Move(tensor, courier, target, rows))
        return departures, arrivals


def exchanges(
    moves: Iterable[Move], row_bytes: list[int], limit: int = BUCKET_BYTES
) -> Iterator[list[Move]]:
    """Yield moves in groups, in each of which no rank sends or receives much more than a limit.

    Long moves are divided. Every rank computes the same groups, in the same order.

    Parameters
    ----------
    moves : iterable of Move
    row_bytes : list of int
        Bytes of a row of each tensor.
    limit : int
        Bytes; a single row may have more.
    """
    group: list[Move] = []
    sent, received = Counter[int](), Counter[int]()
    for move in _divided(moves, row_bytes, limit):
        size = len(move.rows) * row_bytes[move.tensor]
        if group and max(sent[move.source], received[move.target]) + size > limit:
            yield group
            group = []
            sent.clear()
            received.clear()
        group.append(move)
        sent[move.source] += size
        received[move.target] += size
    if group:
        yield group


def _divided(moves: Iterable[Move], row_bytes: list[int], limit: int) -> Iterator[Move]:
    for move in moves:
        step = max(1, limit // max(1, row_bytes[move.tensor]))
        for start in range(move.rows.start, move.rows.stop, step):
            yield move._replace(rows=Rows(start, min(start + step, move.rows.stop)))


def ring(nodes: Sequence[int]) -> list[int]:
    """Return the ranks in a ring in which the next one is on another node, if that is possible.

    Parameters
    ----------
    nodes : sequence of int
        The node of each rank.
    """
    turns: dict[int, int] = {}  # node → how many of its ranks there were
    keys = []
    for rank, node in enumerate(nodes):
        turns[node] = turns.get(node, -1) + 1
        keys.append((turns[node], node, rank))
    return [rank for _, _, rank in sorted(keys)]
