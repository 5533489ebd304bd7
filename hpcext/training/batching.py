"""Global batches in one common order, divided among any number of ranks.

The user states which batch size a resize keeps, the global one or that of each GPU, and the
treatment of the last samples of an epoch, which do not fill a batch. No framework is needed: an
instance serves as ``batch_sampler=`` of a PyTorch ``DataLoader`` and as a plain iterable of index
lists.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpcext.training.data.sampler import Indices, Walk, check_position, share

LAST = ("weighted", "carried", "dropped")
"""Treatments of the last samples of an epoch; see :class:`ElasticBatches`."""


def divide(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divide a total exactly in proportion to shares; of equal shares, the first get the remainder.

    Parameters
    ----------
    total : int
    shares : sequence of float
        Not negative, and not all 0.

    Returns
    -------
    tuple of int
        Their sum is `total`.
    """
    whole = math.fsum(shares)
    exact = [total * share / whole for share in shares]
    sizes = [math.floor(each) for each in exact]
    order = sorted(range(len(sizes)), key=lambda at: (sizes[at] - exact[at], at))
    for at in order[: total - sum(sizes)]:
        sizes[at] += 1
    return tuple(sizes)


@dataclasses.dataclass
class _Pass:
    """One iteration: a part of an epoch, traversed by a fixed number of ranks."""

    epoch: int
    carried: int
    start: int
    end: int
    samples: int
    rank: int
    world_size: int
    global_batch: int
    # (step, shares of the ranks from it on), ascending; empty for equal shares.
    divisions: list[tuple[int, tuple[int, ...]]]
    drawn: int = 0

    @property
    def steps(self) -> int:
        return -(-(self.end - self.start) // self.global_batch)

    def after(self, turns: int) -> int:
        """Return the position in the epoch after `turns` steps."""
        return min(self.start + turns * self.global_batch, self.end)

    def shares(self, turn: int) -> tuple[int, ...] | None:
        """Return the samples of each rank in a step; None: as equal as possible."""
        found = [shares for begin, shares in self.divisions if begin <= turn]
        if not found:
            return None
        count = self.after(turn + 1) - self.after(turn)
        return found[-1] if sum(found[-1]) == count else divide(count, found[-1])


class ElasticBatches(Walk):
    """The batches of this rank in a training whose number of ranks changes.

    All ranks walk one common order, drawn from the seed and the epoch. The global batch of a step
    is a contiguous piece of it, so the samples of a step do not depend on the number of ranks as
    long as the global batch stays the same. A piece is divided as equally as possible: the batches
    of two ranks differ by one sample at most, and :meth:`weight` is the weight of a rank's mean
    gradient in the average.

    Parameters
    ----------
    length : int
        Number of samples in the data set.
    global_batch : int, optional
        Samples in a step on all ranks together; a resize keeps it, and so the learning rate.
    gpu_batch : int, optional
        Samples in a step on one rank; a resize keeps it, and changes the global batch. Exactly one
        of the two is given.
    rank, world_size : int
    seed : int
    shuffle : bool
    last : {"weighted", "carried", "dropped"}
        Treatment of the samples at the end of an epoch that do not fill a global batch.
        "weighted": they form a smaller batch, divided like any other. If there are fewer of them
        than ranks, a rank without a sample gets one of them once more, with weight 0.
        "carried": they come first in the next epoch, so that every batch is full; the last epoch
        trains its own as "weighted" does.
        "dropped": they are left out; other ones in each epoch, if shuffled.

    Attributes
    ----------
    adapted : bool
        Whether a session chooses the size of the batches while it trains.
    of_any_ranks : bool
        Whether the number of ranks may change.

    Notes
    -----
    An epoch trains each sample exactly once, however often the number of ranks changes in it; with
    "carried", some of them at the beginning of the next epoch.
    """

    adapted = False
    of_any_ranks = True

    def __init__(
        self,
        length: int,
        *,
        global_batch: int | None = None,
        gpu_batch: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        last: str = "weighted",
    ) -> None:
        if (global_batch is None) == (gpu_batch is None):
            raise ValueError(
                f"global_batch={global_batch}, gpu_batch={gpu_batch}: give exactly one of them, "
                "the one that stays the same when the number of ranks changes"
            )
        size = gpu_batch if global_batch is None else global_batch
        if size is None or size < 1:
            name = "gpu_batch" if global_batch is None else "global_batch"
            raise ValueError(f"{name}={size}: at least 1")
        if last not in LAST:
            raise ValueError(f"last={last!r}: must be one of {', '.join(LAST)}")
        super().__init__(length, rank=rank, world_size=world_size, seed=seed, shuffle=shuffle)
        self._per_rank = gpu_batch is not None
        self._size = size
        self._last = last
        self._shares: tuple[int, ...] | None = None
        self.place(0)

    @property
    def length(self) -> int:
        """The number of samples in the data set."""
        return self._length

    @property
    def global_batch(self) -> int:
        """The samples in a step on all ranks together, at the present number of ranks."""
        return self._size * self._world_size if self._per_rank else self._size

    @property
    def batch_size(self) -> int:
        """The samples in the largest batch of this rank, at the present number of ranks."""
        if self._shares is not None:
            return max(1, divide(self.global_batch, self._shares)[self._rank])
        full, more = divmod(self.global_batch, self._world_size)
        return max(1, full + (self._rank < more))

    @property
    def drawn(self) -> int:
        """The number of batches of this iteration already drawn; a loader may read ahead."""
        return self._pass.drawn

    def divide(self, shares: Sequence[int], turn: int | None = None, *, trained: int = 0) -> None:
        """Divide each step in proportion to these shares of the ranks, instead of equally.

        A step still trains the same samples; only the assignment to ranks changes. The shares hold
        until the number of ranks changes.

        Parameters
        ----------
        shares : sequence of int
            Samples of each rank; they must be the same on all ranks.
        turn : int, optional
            The first batch of this iteration that is divided like this, which must not be drawn
            yet; by default, the first one of the next iteration.
        trained : int
            Number of batches whose :meth:`weight` is no longer needed.
        """
        if len(shares) != self._world_size or min(shares) < 0 or sum(shares) < 1:
            raise ValueError(
                f"shares={tuple(shares)}: must be one for each of {self._world_size} ranks"
            )
        before, self._shares = self._shares, tuple(shares)
        if turn is None or self._shares == before:
            return
        now = self._pass
        if turn < now.drawn:
            raise ValueError(f"turn={turn}: {now.drawn} batches have been drawn already")
        later = [begin for begin, _ in now.divisions if begin <= trained]
        now.divisions[:] = [each for each in now.divisions if not later or each[0] >= later[-1]]
        now.divisions.append((turn, self._shares))

    def resize(self, rank: int, world_size: int) -> None:
        """Set the rank of this process and the number of ranks, and divide steps equally again.

        Parameters
        ----------
        rank, world_size : int
        """
        super().resize(rank, world_size)
        self._shares = None

    def resize_batch(self, global_batch: int) -> None:
        """Make global batches of `global_batch` samples from the next :meth:`place` on.

        As with :meth:`resize`, the present iteration stays as it is.
        """
        if global_batch < 1:
            raise ValueError(f"global_batch={global_batch}: at least 1")
        self._per_rank, self._size = False, global_batch

    def begin(self, epoch: int) -> None:
        """Begin the next iteration at the beginning of this epoch, and carry nothing on."""
        self.place(epoch, final=True)

    def place(
        self, epoch: int, consumed: int = 0, carried: int = 0, *, final: bool = False
    ) -> None:
        """Begin the next iteration at a position, with the ranks of the last :meth:`resize`.

        Parameters
        ----------
        epoch : int
        consumed : int
            Position in this epoch, as returned by :meth:`consumed`; 0 at its beginning.
        carried : int
            The `rest` of the epoch before; the same number in all iterations of one epoch.
        final : bool
            Whether no epoch follows: with ``last="carried"`` the rest is then trained now.

        Raises
        ------
        ValueError
            There is no such position, because the data set is another one.
        """
        if not 0 <= carried <= epoch * self._length:
            raise ValueError(
                f"carried={carried}: the {epoch} epochs before had {epoch * self._length} samples"
            )
        samples = self._length + carried
        check_position(consumed, samples)
        whole = consumed + (samples - consumed) // self.global_batch * self.global_batch
        trained = self._last == "weighted" or (final and self._last == "carried")
        self._pass = _Pass(
            epoch=epoch,
            carried=carried,
            start=consumed,
            end=samples if trained else whole,
            samples=samples,
            rank=self._rank,
            world_size=self._world_size,
            global_batch=self.global_batch,
            divisions=[(0, self._shares)] if self._shares else [],
        )

    @property
    def rest(self) -> int:
        """The number of samples of this epoch that the next one trains, for its :meth:`place`.

        The number is enough, because they are always the last ones of the order.
        """
        return self._pass.samples - self._pass.end if self._last == "carried" else 0

    def consumed(self, turns: int) -> int:
        """Return the position in the epoch after `turns` batches, over all ranks."""
        return self._pass.after(turns)

    def weight(self, turn: int) -> float:
        """Return the weight of this rank's mean gradient in a step of this iteration.

        It is the samples of this rank times the number of ranks, divided by the samples of all
        ranks: 1 if the batches are equal. If each rank's mean gradient is multiplied by its weight,
        the average over the ranks is the mean over the samples.

        Parameters
        ----------
        turn : int
            Number of the batch in this iteration, from 0.
        """
        now = self._pass
        count = now.after(turn + 1) - now.after(turn)
        if turn < 0 or count == 0:
            raise ValueError(f"turn={turn}: this iteration has {now.steps} batches, from 0")
        shares = now.shares(turn)
        if shares is not None:
            return shares[now.rank] * now.world_size / count
        full, more = divmod(count, now.world_size)
        return (full + (now.rank < more)) * now.world_size / count

    def order(self) -> Indices:
        """Return the order of this epoch for all ranks, carried samples first.

        Carried samples are the last part of the orders of the epochs before, in sequence; they
        reach back over several epochs if an epoch is smaller than a batch.

        Returns
        -------
        array of int, shape (carried + length,)
        """
        parts, missing, epoch = [self._order_of(self._pass.epoch)], self._pass.carried, 0
        while missing:
            epoch += 1
            before = self._order_of(self._pass.epoch - epoch)[-missing:]
            parts.append(before)
            missing -= len(before)
        return np.concatenate(parts[::-1])

    def __len__(self) -> int:
        """Return the number of batches in the iteration that :meth:`place` set up, on any rank."""
        return self._pass.steps

    def __iter__(self) -> Iterator[list[int]]:
        self.begun += 1
        now, order = self._pass, self.order()
        for turn in range(now.steps):
            piece = order[now.after(turn) : now.after(turn + 1)]
            shares = now.shares(turn)
            now.drawn = turn + 1
            if shares is None:
                mine = share(piece, now.rank, now.world_size)
            else:
                mine = piece[sum(shares[: now.rank]) :][: shares[now.rank]]
            # With weight 0, since every rank must take part in every collective of the step.
            yield mine.tolist() or [int(piece[now.rank % len(piece)])]
