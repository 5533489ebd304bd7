"""What ``hpcext run --dry-run`` promises, and what the engine is told of a job file."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcext.admission import admit
from hpcext.core.errors import InputError
from hpcext.core.values import Node, State
from hpcext.jobspec import Gpus, JobSpec
from hpcext.sim.evaluate.expected import expected

NODES = (Node("n", 6),)
A = JobSpec("a", ("true",), Gpus(1, 6), scaling={1: 1, 2: 1.8, 3: 2.5, 6: 2.5}, work=50)
B = JobSpec("b", ("true",), Gpus(1, 6, 3), scaling={3: 4}, work=120, after=("a",))


def test_schedule_of_a_file_that_states_all() -> None:
    result = expected([A, B], NODES, "marble")
    assert result is not None
    assert result.end_s == pytest.approx(50 / 2.5 + 120 / 4)
    assert {row.name: row.ended_s for row in result.jobs} == {
        "a": pytest.approx(20),
        "b": pytest.approx(50),
    }


def test_rescaling_costs_are_those_of_the_file() -> None:
    spec = replace(A, rescale_up_s=4)
    result = expected([spec], NODES, "marble")
    assert result is not None
    assert result.end_s == pytest.approx(4 + 20)


@pytest.mark.parametrize("change", [{"scaling": {}}, {"work": None}, {"gpus": Gpus(7, 8)}], ids=str)
def test_nothing_is_promised_where_something_is_not_stated_or_cannot_run(
    change: dict[str, object],
) -> None:
    specs = [replace(A, **change), B]
    assert expected(specs, NODES, "marble") is None


def test_admission() -> None:
    known = {"old": "3", "a": "4"}
    first, second = admit([A, replace(B, after=("old", "a"), priority=2.0)], 5, known)
    assert (first.id, first.order, first.name, first.state) == ("5", 5, "a", State.PENDING)
    assert (first.sizes, first.optimal) == ((1, 2, 3, 4, 5, 6), 3)
    assert (first.estimate.stated, first.estimate.work) == (A.scaling, 50)
    assert (first.estimate.up_s, first.estimate.down_s) == (None, None)
    (costly,) = admit([replace(A, rescale_up_s=4.0, rescale_down_s=2.0)], 1, {})
    assert (costly.estimate.up_s, costly.estimate.down_s) == (4.0, 2.0)
    # A name of this submission goes before an older one of the same name.
    assert (second.after, second.optimal, second.priority) == (("3", "5"), 3, 2.0)
    with pytest.raises(InputError, match="'nobody'"):
        admit([replace(A, after=("nobody",))], 1, known)
