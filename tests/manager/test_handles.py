"""What jobs are called where names meet."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.apply import apply
from hpcext.core.errors import InputError
from hpcext.core.world import World
from hpcext.jobfields import MAX_NAME_CHARS
from hpcext.jobspec import JobSpec
from hpcext.manager.handles import chosen, find_job, numbered, refuse_taken


def world(*jobs: tuple[str, v.State]) -> World:
    """Jobs of these names in these states, with ids from 1 on."""
    found = World()
    for number, (name, state) in enumerate(jobs, start=1):
        apply(found, 0.0, f.Submitted(v.Job(str(number), name, number, (1,), 1)))
        found.jobs[str(number)] = replace(found.jobs[str(number)], state=state)
    return found


def spec(name: str, *after: str) -> JobSpec:
    return JobSpec(name, ("true",), after=after)


def test_a_name_means_the_job_that_has_not_ended_or_else_the_newest() -> None:
    running, done = v.State.RUNNING, v.State.COMPLETED
    assert find_job(world(("a", running), ("a", done)), "a").id == "1"
    assert find_job(world(("a", done), ("a", done)), "a").id == "2"
    assert find_job(world(("a", done), ("a", done)), "1").id == "1"
    with pytest.raises(InputError, match=r"2 unfinished jobs are called a .valid: 1 .*, 3"):
        find_job(world(("a", running), ("a", done), ("a", v.State.PENDING)), "a")
    with pytest.raises(InputError, match=r"no job 'b' .*valid: a"):
        find_job(world(("a", done)), "b")


def test_which_one_is_shown_is_said_where_others_had_its_name() -> None:
    two = world(("a", v.State.COMPLETED), ("a", v.State.FAILED), ("b", v.State.FAILED))
    assert chosen(two, two.jobs["2"], "a") == "of 2 jobs called a, this is 2; also: 1"
    assert chosen(two, two.jobs["2"], "2") == ""
    assert chosen(two, two.jobs["3"], "b") == ""


def test_a_job_that_is_being_cancelled_gives_its_name_free() -> None:
    """A ticket that begins anew need not wait until the processes of its last trainer are gone."""
    found = world(("a", v.State.STOPPING))
    with pytest.raises(InputError, match="job 1 is called a, and is stopping"):
        refuse_taken([spec("a")], found.jobs.values(), "more.toml")
    found.jobs["1"] = replace(found.jobs["1"], cancelling=True)
    refuse_taken([spec("a")], found.jobs.values(), "more.toml")


def test_taken_names_get_numbers_and_what_comes_after_them_follows() -> None:
    long = "x" * MAX_NAME_CHARS
    taken = world(("a", v.State.RUNNING), ("a-2", v.State.PENDING), (long, v.State.PENDING))
    asked = [spec("a-3"), spec("a"), spec("b", "a", "a-2"), spec(long), spec("done")]
    found = numbered(asked, taken.jobs.values())
    assert [each.name for each in found] == ["a-3", "a-4", "b", f"{long[:-2]}-2", "done"]
    assert found[2].after == ("a-4", "a-2")
