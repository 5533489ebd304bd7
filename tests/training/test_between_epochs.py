"""A rank dies as all meet at the end of an epoch: some have heard from it, and some have not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcext.rendezvous import Group
from hpcext.training.coordinator import Coordinator
from hpcext.training.loop import Loop
from hpcext.training.others import Others
from hpcext.training.ranks import Ranks
from hpcext.training.torch.resizing import InPlace


class Two(Ranks):
    """One of two ranks that are left, after step 8: what both say of themselves is known."""

    size = 2

    def __init__(self, *said: tuple[int, int, bool]) -> None:
        self.said = [list(map(float, each)) for each in said]

    def begin_gather(self, values: list[float]) -> None:
        """Say one's own."""
        assert list(map(float, values)) in self.said

    def gathered(self) -> list[list[float]]:
        """What both have said."""
        return self.said


class Three(Ranks):
    """One of three, of which one dies as they meet."""

    size = 3

    def smallest(self, value: int) -> int:
        """As all meet."""
        raise RuntimeError("gloo: Connection closed by peer")


def meeting(epoch: int, ranks: Two) -> tuple[Others, InPlace]:
    """A rank at the end of an epoch, after step 8, whose meeting breaks."""
    loop, coordinator = Loop(), Coordinator()
    coordinator.ranks = Three()
    coordinator.stepped(8, 8.0)
    loop.place.epoch = epoch
    loop.validates = bool(ranks.said[0][2])
    group = Group(2, 2, (0, 1), repairs=True)
    member: Any = SimpleNamespace(
        repair=lambda _: group,
        form=lambda _: ranks,
        belongs_to=lambda _: True,
        lost=lambda _: [2],
    )
    guard: Any = SimpleNamespace(
        on=True,
        caught=lambda error: "between" not in str(error),
        undo=bool,
        leave=bool,
        secure=bool,
    )
    sharding: Any = SimpleNamespace(depart=lambda _: None, copies=None)
    framework: Any = SimpleNamespace(models=[], member=member)
    resizing = InPlace(framework, sharding, guard, ())
    resizing.attach(coordinator, loop)
    keeper: Any = SimpleNamespace(before_change=bool, run_id="r")
    others = Others(
        coordinator, loop, resizing, features=(), keeper=keeper, facts=dict, follow=bool
    )
    return others, resizing


def test_who_had_not_heard_from_it_begins_the_next_epoch_too() -> None:
    """That rank lacks no step, and the others meet no more in this epoch."""
    others, resizing = meeting(4, Two((8, 4, False), (8, 5, False)))
    assert not others.meet()
    assert resizing.is_behind


def test_who_had_heard_from_it_makes_the_step_again_that_was_begun() -> None:
    others, resizing = meeting(5, Two((8, 4, False), (8, 5, False)))
    others.outlive()
    assert not resizing.is_behind


def test_where_all_were_alike_they_meet_again() -> None:
    others, _ = meeting(4, Two((8, 4, False), (8, 4, False)))
    assert others.meet()


def test_a_validation_in_between_would_be_made_alone() -> None:
    others, _ = meeting(4, Two((8, 4, True), (8, 5, True)))
    with pytest.raises(RuntimeError, match="with a validation in between; the job goes on from"):
        others.meet()
