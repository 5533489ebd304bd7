"""Copies of the shards of a training, from which it goes on when ranks die.

Before each step, or some, a rank copies its shards, and sends that copy to another rank, on another
node if there is one, while the step is computed. Before the optimizers step, all ranks have theirs;
from then on that copy is the one to go back to, until the next one is everywhere. So a copy of the
same step is always on all ranks, and that of a rank that has died on one that lives. It costs the
memory of four shards: two copies of the own one, two of another rank's. Where several ranks have
the same shard (HSDP), nothing is sent.

Ranks may die while the others divide the shards anew. The copy from which these began is kept until
a step is made with what has come of it.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hpcext.protocol import environ, node_index
from hpcext.training.checkpoint.staging import room_bytes
from hpcext.training.copy_interval import Interval
from hpcext.training.feature import Feature
from hpcext.training.redistribution import ring
from hpcext.training.restart_copies import Choice, Place, choose, from_numbers, numbered
from hpcext.training.torch.division import Held, Redivision, held
from hpcext.training.torch.past import Past
from hpcext.training.torch.ranks import TorchRanks, wait_for
from hpcext.training.torch.shard_copy import Copy, Layout
from hpcext.training.torch.state import is_sharded
from hpcext.training.torch.wrapping import Wrapped

if TYPE_CHECKING:
    from hpcext.training.torch.group import Member
    from hpcext.training.torch.sharding import Sharding

_SHARDS = 4
"""How many times a rank holds the memory of a shard, besides its own."""

_NO_ROOM = (
    "there is no memory for copies of the shards in other ranks, so the training does not go on "
    "when a rank dies, but from its last checkpoint"
)

_MOST = 3
"""How many copies a rank may have: of the present step, of the last one, of a former group."""


class Copies(Feature):
    """The copies of a rank.

    Parameters
    ----------
    sharding : Sharding
    every : int or None
        Steps between two copies; None: as many as their cost asks for.
    """

    def __init__(self, sharding: Sharding, every: int | None) -> None:
        self._sharding = sharding
        self._interval = Interval(every)
        self._noted = 1  # the interval that the user has been told of
        self._place = Place(0, 1, 0)
        self._latest: Copy | None = None  # of the present step, or the step that has just ended
        self._certain: Copy | None = None  # which all ranks have
        self._former: Copy | None = None  # of a former group, from which this one began
        self._spare: list[torch.Tensor] = []
        self._known: tuple[object, list[Held] | ValueError] | None = None
        self._commits = 0
        self._has_room: bool | None = None  # on each node; None: not known of the present group
        self._spoilt = False  # whether the shards are not those of a step
        self._group: dist.ProcessGroup | None = None
        self._ring: list[int] = []
        # Asked before any of them has been gathered.
        self._whole = all(
            is_sharded(each) or not each.requires_grad
            for model in self._models
            for each in model.model.parameters()
        )

    @functools.cached_property
    def _models(self) -> list[Wrapped]:
        # All of them are wrapped before there is a session.
        return self._sharding.models()

    # In the course of a step.

    @property
    def ready(self) -> bool:
        """Whether the training could go on from a copy that all ranks have."""
        return self._certain is not None

    def copy_if_due(self, past: Past, *, send: bool) -> None:
        """Make a copy if it is time for one, as :meth:`begin` does."""
        if self._has_room is None:
            self._has_room = bool(self.coordinator.ranks.smallest(int(self.finds_room())))
            if not self._has_room and self.coordinator.ranks.rank == 0:
                self.coordinator.reporter.note(_NO_ROOM)
        if not self._has_room:
            return
        for copy in self._all():
            if copy.past.step == past.step:
                # The script may be in another epoch by now.
                copy.past = past
        there, certain = self._is_latest(past.step), self._certain
        due = certain is None or past.step - certain.past.step >= self._interval.steps
        self._interval.step_begins(time.monotonic(), copies=due and not there)
        if due or there:
            self.begin(past, send=send)

    def begin(self, past: Past, *, send: bool) -> None:
        """Copy the shards of this rank, and begin to send them; all ranks call it.

        Parameters
        ----------
        past : Past
            The present.
        send : bool
            Whether the ranks can communicate.
        """
        if self._is_latest(past.step):
            return
        self._latest = latest = self._copied(past)
        ranks = self.coordinator.ranks
        if send and isinstance(ranks, TorchRanks) and self._shards(ranks.size) == ranks.size:
            self._exchange(latest, ranks)

    def _is_latest(self, step: int) -> bool:
        return self._latest is not None and self._latest.key == (step, self._place.group)

    def commit(self) -> None:
        """Wait until all ranks have the copies of the others; all call it before they step.

        Raises
        ------
        RuntimeError
            The ranks cannot communicate.
        """
        latest = self._latest
        if latest is None:
            return
        self._interval.steps = -self._arrive(latest, -self._interval.wanted())
        self._note_interval()
        self._free(self._certain)
        self._certain, self._latest = latest, None
        self._commits += 1
        if self._commits > 1:
            # A step has been made with the present ranks, from which they would go on.
            self._free(self._former)
            self._former = None

    def _arrive(self, copy: Copy, value: int = 0) -> int:
        """Wait until all have what they get of a copy; return the smallest value of all ranks."""
        ranks = self.coordinator.ranks
        if copy.work is not None and isinstance(ranks, TorchRanks):
            wait_for(copy.work, ranks.freed)
            copy.work = None
        # Another one's may not have arrived yet.
        return ranks.smallest(value)

    def _note_interval(self) -> None:
        """Tell the user how many steps may be lost, if they are several and nobody asked for it."""
        steps = self._interval.steps
        if self._interval.given is None and steps > 2 * self._noted:
            self._noted = steps
            if self.coordinator.ranks.rank == 0:
                self.coordinator.reporter.note(
                    f"shards are copied to other ranks every {steps} steps, since that takes a "
                    "while; so many are made again when a rank dies (Session(copy_every_steps=1) "
                    "copies them in each)"
                )

    def works(self) -> list[dist.Work]:
        """Return the transfers that may not have ended."""
        return [self._latest.work] if self._latest and self._latest.work is not None else []

    # Between two groups.

    def secure(self, past: Past) -> None:
        """Make a certain copy of the present, before the ranks change; all ranks call it.

        Parameters
        ----------
        past : Past
        """
        self._interval.interrupted()
        self.begin(past, send=True)
        assert self._latest is not None
        self._arrive(self._latest)

    def keep(self) -> None:
        """Keep the latest copy until the ranks have made a step with what comes of it."""
        self._former, self._certain, self._latest = self._latest, None, None

    def hold_on(self, past: Past | None) -> None:
        """Prepare to go on from a copy, since ranks have died.

        Parameters
        ----------
        past : Past or None
            The present, if the shards are those of it.
        """
        self._spoilt |= past is None
        if past is None or self._spoilt:
            return
        # There may be one already, which was made before the ranks were to change.
        same = (copy for copy in self._all() if copy.key == (past.step, self._place.group))
        copy = next(same, None)
        if copy is None:
            self._latest = self._copied(past)
        else:
            copy.past = past

    def ended(self) -> None:
        """Find out whether transfers have ended well; they have ended in any case."""
        latest = self._latest
        if latest is None or latest.work is None:
            return
        if latest.work.is_completed() and not _failed(latest.work):
            latest.work = None
        else:
            latest.work, latest.ward, latest.kept = None, -1, None

    def told(self) -> list[float]:
        """Return what the others need to know of the copies, as equally many numbers."""
        epoch = self.loop.place.epoch
        # The script cannot go back into the epoch before.
        mine = [copy.told for copy in self._all() if copy.past.place.epoch == epoch]
        return numbered(mine, _MOST)

    def choose(self, numbers: Sequence[Sequence[float]]) -> Choice | None:
        """Choose a copy by what all ranks have told.

        Parameters
        ----------
        numbers : sequence of sequences
            What :meth:`told` returns on each rank.
        """
        told = [from_numbers(mine) for mine in numbers]
        return choose(told, self.replica if self.replica > 1 else None)

    def begin_again(self, choice: Choice) -> tuple[Past, Redivision]:
        """Return the past to which a choice goes back, and the division of its shards anew."""
        key = choice.step, choice.group
        copy = next(each for each in self._all() if each.key == key)
        for each in self._all():
            if each is not copy:
                self._free(each)
        self._latest = self._certain = None
        self._former = copy
        layout = self._layout(copy.tensors, copy.place)
        live = {each.names[0]: each.object for each in self.tensors()}
        change = Redivision(
            self._models,
            [dataclasses.replace(each, object=live[each.names[0]]) for each in copy.tensors],
            choice.size,
            self.coordinator.ranks.size,
            choice.stay,
            choice.copies,
            layout.views(copy.own, copy.tensors),
        )
        if copy.ward in choice.copies and copy.kept is not None:
            there = self._layout(copy.tensors, copy.place._replace(rank=copy.ward))
            change.hold(copy.ward, there.views(copy.kept, copy.tensors))
        return copy.past, change

    def _all(self) -> list[Copy]:
        every = self._latest, self._certain, self._former
        return [copy for copy in every if copy is not None]

    def divided(self, number: int) -> None:
        """Take note that the shards are divided over the present ranks.

        Parameters
        ----------
        number : int
            That of their group.
        """
        ranks = self.coordinator.ranks
        self._place = Place(number, ranks.size, ranks.rank)
        self._known, self._commits, self._spoilt, self._has_room = None, 0, False, None
        self._interval.interrupted()

    def connect(self, member: Member) -> None:
        """Connect the ranks for copies, each with one on another node if there is one."""
        ranks = self.coordinator.ranks
        nodes = [0] * ranks.size
        if member.far and ranks.size > 1:
            ranks.begin_gather([float(node_index())])
            nodes = [int(node) for (node,) in ranks.gathered() or []]
        self._ring = ring(nodes)
        self._group = member.subgroup(range(ranks.size)) if ranks.size > 1 else None

    # The shards, and their bytes.

    @property
    def replica(self) -> int:
        """How many ranks hold a model together at least; 1 if it is as many as there are."""
        return max((model.replica or 1 for model in self._models), default=1)

    def why_not(self) -> str:
        """Return why no copy is whole; empty if they are."""
        return "" if self._whole else "some parameters of a sharded model are not sharded"

    def tensors(self) -> list[Held]:
        """Return the sharded tensors, some of which an optimizer makes in its first step.

        Raises
        ------
        ValueError
            There are tensors that cannot be divided anew.
        """
        state = self._sharding.state
        signature = tuple(
            id(value)
            for optimizer in state.optimizers()
            for each in optimizer.state.values()
            for value in each.values()
            if is_sharded(value)
        )
        if self._known is None or self._known[0] != signature:
            try:
                self._known = signature, held(state, self._models)
            except ValueError as error:
                self._known = signature, error
        found = self._known[1]
        if isinstance(found, ValueError):
            raise found
        return found

    def _shards(self, ranks: int) -> int:
        return next((model.shards(ranks) for model in self._models), ranks)

    def _layout(self, tensors: Sequence[Held], place: Place) -> Layout:
        return Layout.of(tensors, self._shards(place.size), place)

    def _copied(self, past: Past) -> Copy:
        tensors = self.tensors()
        layout = self._layout(tensors, self._place)
        own = self._memory(layout.size)
        for view, each in zip(layout.views(own, tensors), tensors, strict=True):
            assert each.object is not None
            view.copy_(each.object._local_tensor.detach())
        return Copy(self._place, past, tensors, own)

    def _exchange(self, copy: Copy, ranks: TorchRanks) -> None:
        """Begin to send the own bytes to the next rank, and to receive those of the one before."""
        at = self._ring.index(ranks.rank)
        before, after = self._ring[at - 1], self._ring[(at + 1) % len(self._ring)]
        expected = self._layout(copy.tensors, copy.place._replace(rank=before)).size
        copy.ward, copy.kept = before, self._memory(expected)
        coming, going = ([0] * ranks.size for _ in range(2))
        coming[before], going[after] = expected, len(copy.own)
        copy.work = dist.all_to_all_single(
            copy.kept, copy.own, coming, going, group=self._group, async_op=True
        )

    def finds_room(self) -> bool:
        """Return whether there is memory for the copies of this node's ranks."""
        here = int(environ().get("LOCAL_WORLD_SIZE", "1"))
        size = self._layout(self.tensors(), self._place).size
        return room_bytes() > _SHARDS * size * here

    def _memory(self, size: int) -> torch.Tensor:
        for place, each in enumerate(self._spare):
            if len(each) == size:
                return self._spare.pop(place)
        self._spare.clear()
        return torch.empty(size, dtype=torch.uint8)

    def _free(self, copy: Copy | None) -> None:
        """Let memory be used again."""
        if copy is not None and copy.work is None:
            self._spare = [each for each in (copy.own, copy.kept) if each is not None]


def _failed(work: dist.Work) -> bool:
    try:
        work.wait()
    except RuntimeError:
        return True
    return False
