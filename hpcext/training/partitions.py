"""Data of which each rank holds a part: faster ranks traverse theirs more often, within a bound.

Section 3.5 of LB-BSP: if ranks train unequal batches from equal parts, samples of fast ranks are
trained more often than others. Once one part has been traversed a number of times more than another
(the bound), samples move from slow ranks to fast ones, until the parts are in proportion to the
batches. This is done once, and suffices as long as the batches stay the same.

Every rank keeps an account of the samples of all ranks, from facts that all ranks know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcext.training.batching import ElasticBatches, divide
from hpcext.training.data.sampler import Indices

BOUND = 2.0
"""Default of the traversals by which a part may be ahead of another (the paper's footnote 5)."""

MARKS = 256
"""Number of steps that can be undone: those read ahead by loaders, and those since a checkpoint."""


class Move(NamedTuple):
    """Samples that another rank trains from now on, and must receive copies of.

    The source is the rank that originally had them. It keeps them, so that no sample is lost with a
    rank that has only copies.
    """

    source: int
    target: int
    samples: Indices


class Partitions:
    """The account of the samples that each rank holds.

    Give it to the session by name, so that it is saved, ``Session(parts=partitions, ...)``, and to
    ``session.batch_sampler`` instead of the data set.

    Parameters
    ----------
    parts : sequence of sequence of int
        The samples of each rank; each sample is in one part only.
    bound : float
        Traversals by which a part may be ahead of another; at least 1.
    moved : Callable[[Move], object], optional
        Called on every rank with each move when samples must be copied to their new rank, before
        they are used there. The source keeps its own; samples that a rank has already received are
        not copied again.
    seed : int
    shuffle : bool
    """

    def __init__(
        self,
        parts: Sequence[Sequence[int]],
        *,
        bound: float = BOUND,
        moved: Callable[[Move], object] | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._given = [np.unique(np.asarray(part, dtype=np.int64)) for part in parts]
        total = sum(map(len, self._given))
        if not parts or min(map(len, self._given)) < 1:
            raise ValueError("Partitions(parts): each rank needs at least one sample")
        if len(np.unique(np.concatenate(self._given))) < total:
            raise ValueError("Partitions(parts): a sample is in more than one part")
        if bound < 1:
            raise ValueError(f"Partitions(bound={bound}): at least 1")
        self._total, self._bound = total, bound
        # All samples, ascending, and the original rank of each.
        order = np.argsort(np.concatenate(self._given))
        self._samples = np.concatenate(self._given)[order]
        self._origins = np.repeat(np.arange(len(parts)), list(map(len, self._given)))[order]
        self._moved, self._seed, self._shuffle = moved, seed, shuffle
        # (traversals, cursors) before each move, and the sizes of the parts after it.
        self._moves: list[tuple[list[int], list[int], list[int]]] = []
        self._marks: deque[list[Any]] = deque(maxlen=MARKS)
        self._begin()

    def _begin(self) -> None:
        self._owned = list(self._given)
        self._held = list(self._given)
        self._traversed = [0] * len(self._owned)
        self._cursors = [0] * len(self._owned)
        self._since = [0] * len(self._owned)
        self._orders = [self._order(rank) for rank in range(len(self._owned))]

    def __len__(self) -> int:
        """Return the number of samples in all parts."""
        return self._total

    @property
    def ranks(self) -> int:
        """The number of parts."""
        return len(self._owned)

    @property
    def sizes(self) -> list[int]:
        """The number of samples in each part."""
        return list(map(len, self._owned))

    @property
    def copies(self) -> list[Move]:
        """The copies that ranks hold, to be sent again to a rank that has lost them."""
        lists = [
            self._copies(rank, np.setdiff1d(held, self._given[rank]))
            for rank, held in enumerate(self._held)
        ]
        return [move for moves in lists for move in moves]

    def _copies(self, target: int, samples: Indices) -> list[Move]:
        origins = self._origins[np.searchsorted(self._samples, samples)]
        return [
            Move(source, target, samples[origins == source])
            for source in np.unique(origins).tolist()
        ]

    @property
    def traversals(self) -> list[float]:
        """The number of traversals of each part since samples moved last."""
        return [n / len(part) for n, part in zip(self._since, self._owned, strict=True)]

    def take(self, counts: Sequence[int]) -> list[Indices]:
        """Return the samples of each rank in a step of these counts; move samples if needed."""
        taken = [self._take(rank, count) for rank, count in enumerate(counts)]
        self._since = [n + count for n, count in zip(self._since, counts, strict=True)]
        ahead = self.traversals
        if max(ahead) - min(ahead) > self._bound:
            sizes = divide(self._total - self.ranks, self._since)
            self._move([size + 1 for size in sizes], self._moved)
        return taken

    def any_of(self, rank: int) -> int:
        """Return a sample of a rank, for a step in which it trains none."""
        return int(self._owned[rank][0])

    def _take(self, rank: int, count: int) -> Indices:
        pieces = []
        while count > 0:
            if self._cursors[rank] >= len(self._orders[rank]):
                self._traversed[rank] += 1
                self._cursors[rank] = 0
                self._orders[rank] = self._order(rank)
            begin = self._cursors[rank]
            pieces.append(self._orders[rank][begin : begin + count])
            self._cursors[rank] += len(pieces[-1])
            count -= len(pieces[-1])
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def _order(self, rank: int) -> Indices:
        """Return the order of a whole traversal of a part."""
        if not self._shuffle:
            return self._owned[rank]
        generator = np.random.default_rng((self._seed, rank, self._traversed[rank]))
        return generator.permutation(self._owned[rank])

    def _move(self, sizes: list[int], moved: Callable[[Move], object] | None) -> None:
        """Resize the parts; a rank gives away the samples that it would train last."""
        self._moves.append((list(self._traversed), list(self._cursors), sizes))
        spare: list[Indices] = [np.empty(0, dtype=np.int64)]
        for rank, size in enumerate(sizes):
            surplus = len(self._owned[rank]) - size
            if surplus > 0:
                spare.append(self._orders[rank][-surplus:])
                self._orders[rank] = self._orders[rank][:-surplus]
                self._owned[rank] = np.setdiff1d(self._owned[rank], spare[-1])
        left = np.concatenate(spare)
        for rank, size in enumerate(sizes):
            lacking = max(0, size - len(self._owned[rank]))
            samples, left = left[:lacking], left[lacking:]
            self._orders[rank] = np.concatenate([self._orders[rank], samples])
            self._owned[rank] = np.union1d(self._owned[rank], samples)
            new = np.setdiff1d(samples, self._held[rank])
            self._held[rank] = np.union1d(self._held[rank], new)
            if moved is not None:
                for move in self._copies(rank, new):
                    moved(move)
        self._since = [0] * len(sizes)

    # Returning to the place of the training, because loaders read ahead.

    def mark(self, epoch: int, consumed: int) -> None:
        """Mark the present place as that after `consumed` samples of an epoch."""
        place = [len(self._moves), list(self._traversed), list(self._cursors), list(self._since)]
        self._marks.append([epoch, consumed, *place])

    def seek(self, epoch: int, consumed: int) -> None:
        """Go to a marked place; at the beginning of an epoch, to the newest one.

        Parameters
        ----------
        epoch : int
        consumed : int
            Samples of the epoch that all ranks have consumed.

        Raises
        ------
        ValueError
            The place was not marked, or too long ago.
        """
        if consumed == 0:
            # Samples read ahead in an epoch that was left early were not trained.
            place: list[Any] = self._marks[-1] if self._marks else [epoch, 0, 0, *self._zeros()]
        else:
            found = [each for each in self._marks if each[:2] == [epoch, consumed]]
            if not found:
                raise ValueError(
                    f"no place after {consumed} samples of epoch {epoch} is known; give these "
                    "partitions to the session, Session(parts=partitions, ...), to have it saved"
                )
            place = found[-1]
        _, _, moves, traversed, cursors, since = place
        if (moves, traversed, cursors) != (len(self._moves), self._traversed, self._cursors):
            made = self._moves[:moves]
            self._moves = []
            self._begin()
            for before, at, sizes in made:
                self._set_place(before, at)
                self._move(sizes, None)
            self._set_place(traversed, cursors)
        self._since = list(since)

    def _zeros(self) -> list[list[int]]:
        return [[0] * self.ranks for _ in range(3)]

    def _set_place(self, traversed: Sequence[int], cursors: Sequence[int]) -> None:
        for rank, turn in enumerate(traversed):
            if turn != self._traversed[rank]:
                self._traversed[rank] = turn
                self._orders[rank] = self._order(rank)
        self._cursors = list(cursors)

    def state_dict(self) -> dict[str, Any]:
        """Return the account, the same on all ranks."""
        return {"moves": [list(each) for each in self._moves], "marks": list(self._marks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore an account."""
        self._moves = [(list(a), list(b), list(c)) for a, b, c in state["moves"]]
        self._marks = deque((list(mark) for mark in state["marks"]), maxlen=MARKS)
        # No cached order belongs to these moves, so all of them are drawn again.
        self._traversed = [-1] * self.ranks


class PartitionedBatches(ElasticBatches):
    """The batches of this rank, from the samples that it holds.

    In an epoch, all ranks together train as many samples as there are. The number of times that a
    sample is trained depends on the speed of its rank, within the bound of the partitions.

    Parameters
    ----------
    partitions : Partitions
    **options
        Options of :class:`~hpcext.training.batching.ElasticBatches`, except ``last="carried"``, and
        ``shuffle`` and ``seed``, which are the partitions' own.
    """

    of_any_ranks = False

    def __init__(self, partitions: Partitions, **options: Any) -> None:
        if options.get("last") == "carried":
            raise ValueError("last='carried': must be weighted or dropped, with partitions")
        self._partitions = partitions
        super().__init__(len(partitions), **options)

    def place(
        self, epoch: int, consumed: int = 0, carried: int = 0, *, final: bool = False
    ) -> None:
        """Begin the next iteration at a position, which must have been marked."""
        if self._world_size != self._partitions.ranks:
            raise ValueError(
                f"{self._partitions.ranks} partitions for {self._world_size} ranks: "
                "each rank needs one"
            )
        super().place(epoch, consumed, carried, final=final)
        self._partitions.seek(epoch, consumed)

    def __iter__(self) -> Iterator[list[int]]:
        self.begun += 1
        now = self._pass
        for turn in range(now.steps):
            count = now.after(turn + 1) - now.after(turn)
            counts = now.shares(turn) or divide(count, [1] * now.world_size)
            now.drawn = turn + 1
            mine = self._partitions.take(counts)[now.rank]
            self._partitions.mark(now.epoch, now.after(turn + 1))
            yield mine.tolist() or [self._partitions.any_of(now.rank)]
