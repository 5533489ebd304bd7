"""Nodes that are reserved for users between two instants, before weights and priorities."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_sites import Machine, weights

from hpcext.broker import settings as settings_module
from hpcext.broker.division import Pools, Reserved, Share, Wish, divide
from hpcext.broker.fair_share import Reading
from hpcext.broker.reservations import Reservation, next_change, when
from hpcext.broker.settings import Settings, load
from hpcext.cli.broker import main
from hpcext.core.errors import InputError

USERS = "abcd"
LOTS = 100


def test_reserved_nodes_come_before_weights_and_priorities() -> None:
    wishes = {"a1": Wish("a", LOTS), "b1": Wish("b", LOTS), "c1": Wish("c", LOTS)}
    shares = {"b": Share(9), "c": Share(priority=1)}
    found = divide(20, wishes, shares, {}, reserved=[Reserved(12, frozenset("a"))])
    assert found == {"a1": 12, "b1": 0, "c1": 8}


def test_they_count_towards_the_part_by_weight() -> None:
    """It is a guarantee, not nodes besides: with 16 of 32 by weight, 8 reserved ones are in it."""
    wishes = {"a1": Wish("a", LOTS), "b1": Wish("b", LOTS)}
    assert divide(32, wishes, {}, {}, reserved=[Reserved(8, frozenset("a"))])["a1"] == 16
    assert divide(32, wishes, {}, {}, reserved=[Reserved(20, frozenset("a"))])["a1"] == 20


def test_what_is_not_wanted_goes_to_others_and_limits_hold() -> None:
    wishes = {"a1": Wish("a", 3), "b1": Wish("b", LOTS)}
    reserved = [Reserved(16, frozenset("a"))]
    assert divide(20, wishes, {}, {}, reserved=reserved) == {"a1": 3, "b1": 17}
    wishes["a1"] = Wish("a", LOTS)
    limited = {"a": Share(limit=5)}
    assert divide(20, wishes, limited, {}, reserved=reserved) == {"a1": 5, "b1": 15}
    pools = Pools({"group x": 4}, {"a": ("group x",)})
    assert divide(20, wishes, {}, {}, pools, reserved=reserved) == {"a1": 4, "b1": 16}


def test_several_add_up_in_the_order_of_the_file() -> None:
    wishes = {f"{user}1": Wish(user, LOTS) for user in "abc"}
    both = [Reserved(6, frozenset("a")), Reserved(8, frozenset("ab"))]
    # The six of a count as had where the members share eight more.
    assert divide(14, wishes, {}, {}, reserved=both) == {"a1": 7, "b1": 7, "c1": 0}
    assert divide(5, wishes, {}, {}, reserved=both) == {"a1": 5, "b1": 0, "c1": 0}
    assert divide(5, wishes, {}, {}, reserved=both[::-1]) == {"a1": 3, "b1": 2, "c1": 0}


def test_nodes_without_leave_count_for_one_of_them() -> None:
    wishes = {"a1": Wish("a", LOTS), "b1": Wish("b", LOTS)}
    two = [Reserved(4, frozenset("a")), Reserved(4, frozenset("a"))]
    assert divide(4, wishes, {}, {"a": 4}, reserved=two) == {"a1": 4, "b1": 0}
    assert divide(4, wishes, {}, {"a": 8}, reserved=two) == {"a1": 0, "b1": 4}
    # Also of members who do not ask.
    pair = [Reserved(4, frozenset("ax"))]
    assert divide(4, wishes, {"b": Share(99)}, {"x": 3}, reserved=pair)["a1"] == 1


wish = st.builds(Wish, st.sampled_from(USERS), st.integers(0, 40), st.integers(0, 40))
wishes_of = st.dictionaries(st.text(USERS, min_size=1, max_size=3), wish)
share = st.builds(Share, st.floats(0.1, 10), st.sampled_from([0.0, 1.0]), st.none())
shares_of = st.dictionaries(st.sampled_from(USERS), share)
reservation = st.builds(
    Reserved, st.integers(1, 30), st.frozensets(st.sampled_from(USERS), min_size=1)
)
rounding = st.dictionaries(st.sampled_from(USERS), st.sampled_from([-0.5, 0.5]))


def of_users(parts: dict[str, int], wishes: dict[str, Wish]) -> dict[str, int]:
    found = dict.fromkeys(USERS, 0)
    for name, part in parts.items():
        found[wishes[name].user] += part
    return found


@given(st.integers(0, 60), wishes_of, shares_of, st.lists(reservation, max_size=3), rounding)
def test_no_node_is_left_that_somebody_wants(
    nodes: int,
    wishes: dict[str, Wish],
    shares: dict[str, Share],
    reserved: list[Reserved],
    behind: dict[str, float],
) -> None:
    found = divide(nodes, wishes, shares, {}, reserved=reserved, behind=behind)
    assert sum(found.values()) == min(nodes, sum(each.want for each in wishes.values()))
    assert all(0 <= found[name] <= each.want for name, each in wishes.items())


@given(st.integers(0, 60), wishes_of, shares_of, reservation)
def test_who_has_a_reservation_has_its_nodes_as_far_as_he_wants_them(
    nodes: int, wishes: dict[str, Wish], shares: dict[str, Share], reserved: Reserved
) -> None:
    found = of_users(divide(nodes, wishes, shares, {}, reserved=[reserved]), wishes)
    want = sum(each.want for each in wishes.values() if each.user in reserved.users)
    assert sum(found[user] for user in reserved.users) >= min(nodes, reserved.nodes, want)


@given(st.integers(0, 60), wishes_of, shares_of, reservation)
def test_nobody_has_less_than_weights_give_of_the_other_nodes(
    nodes: int, wishes: dict[str, Wish], shares: dict[str, Share], reserved: Reserved
) -> None:
    with_it = of_users(divide(nodes, wishes, shares, {}, reserved=[reserved]), wishes)
    rest = divide(max(0, nodes - reserved.nodes), wishes, shares, {})
    assert all(with_it[user] >= part for user, part in of_users(rest, wishes).items())


# The file.

FILE = """\
partition = "p"

[users.ann]
limit = 20

[groups.physics]
together = 30

[[reservations]]
user = "ann"
nodes = 16
from = 2026-12-01T08:00:00
to = 2026-12-01T18:00:00
"""


def written(path: Path, text: str) -> Path:
    file = path / "broker.toml"
    file.write_text(text)
    file.chmod(0o644)
    return file


def test_a_file_says_for_whom_how_many_and_when(tmp_path: Path) -> None:
    begins_at = time.mktime((2026, 12, 1, 8, 0, 0, 0, 0, -1))
    (only,) = load(written(tmp_path, FILE)).reservations
    assert only == Reservation("user", "ann", 16, begins_at, begins_at + 36_000)
    same = FILE.replace("T08:00:00\n", "T08:00:00Z\n").replace("T18:00:00\n", "T19:00:00+01:00\n")
    (other,) = load(written(tmp_path, same)).reservations
    assert other.ends_at - other.begins_at == 36_000
    for text in ('"2026-12-01T08:00"', "2026-12-01T08:00:00"):
        again = FILE.replace("2026-12-01T08:00:00", text)
        assert load(written(tmp_path, again)).reservations == (only,)
    (day,) = load(
        written(
            tmp_path, FILE.replace("T08:00:00", "").replace("2026-12-01T18:00:00", "2026-12-02")
        )
    ).reservations
    assert day.begins_at == begins_at - 8 * 3600


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('user = "ann"', "", "is for nobody"),
        ('user = "ann"', 'user = "ann"\ngroup = "g"', "has user and group"),
        ('user = "ann"', 'user = ""', "user: empty"),
        ("nodes = 16", "nodes = 0", "nodes: 0 (valid"),
        ("nodes = 16", "", "no nodes"),
        ("nodes = 16", "node = 16", "unknown key 'node'"),
        ("nodes = 16", "nodes = 21", "21 nodes for user ann at one time, whose limit is 20"),
        ("to = 2026-12-01T18:00:00", "to = 2026-12-01T08:00:00", "to: '2026-12-01 08:00:00'"),
        ("to = 2026-12-01T18:00:00", "to = 18:00:00", "to: "),
        ("to = 2026-12-01T18:00:00", 'to = "6 pm"', "to: '6 pm'"),
        ("to = 2026-12-01T18:00:00", 'to = "9999-12-31T23:59:59-23:59"', ""),
        ("[[reservations]]", "[reservations]", "reservations: a table"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, before: str, after: str, said: str) -> None:
    file = written(tmp_path, FILE.replace(before, after))
    if not said:
        assert load(file).reservations[0].ends_at > 2e11
        return
    with pytest.raises(InputError, match=r"reservations: ") as error:
        load(file)
    assert said in str(error.value)


def test_those_of_one_time_add_up_to_no_more_than_the_limit(tmp_path: Path) -> None:
    more = """
[[reservations]]
user = "ann"
nodes = 5
from = 2026-12-01T17:00:00
to = 2026-12-01T20:00:00
"""
    with pytest.raises(InputError, match=r"reservations: 2: 21 nodes for user ann"):
        load(written(tmp_path, FILE + more))
    load(written(tmp_path, FILE + more.replace("T17", "T18")))
    pooled = FILE.replace('user = "ann"', 'group = "physics"').replace("16", "31")
    with pytest.raises(InputError, match=r"31 nodes for group physics at one time"):
        load(written(tmp_path, pooled))


def test_an_account_needs_a_batch_system_that_has_some(tmp_path: Path) -> None:
    text = FILE.replace('user = "ann"', 'account = "thesis"')
    assert load(written(tmp_path, text)).asks
    with pytest.raises(InputError, match="lsf has no accounts"):
        load(written(tmp_path, f'batch = "lsf"\n{text}'))


def test_a_check_says_which_are_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, FILE.replace("2026-12", "2001-12"))
    assert main(["run", "--file", str(file), "--check"]) == 0
    assert "1 reservation is over already" in capsys.readouterr().err


def test_times_are_told_without_the_date_of_today() -> None:
    noon = time.mktime((2026, 12, 1, 12, 0, 0, 0, 0, -1))
    assert when(noon + 6 * 3600, noon) == "18:00"
    assert when(noon + 24 * 3600, noon) == "2026-12-02 12:00"


def test_the_next_change_is_the_next_edge() -> None:
    two = (Reservation("user", "a", 1, 10, 30), Reservation("user", "a", 1, 20, 40))
    assert [next_change(two, at) for at in (0, 10, 35, 40)] == [10, 20, 40, None]


def test_members_of_a_group_and_of_an_account_have_it_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def groups(user: str) -> frozenset[str]:
        return frozenset({"physics"} if user == "bob" else {user})

    monkeypatch.setattr(settings_module, "groups_of", groups)
    reading = Reading(accounts={"ann": frozenset({"thesis"}), "cat": frozenset({"thesis"})})
    settings = Settings(
        "p",
        reservations=(
            Reservation("account", "thesis", 5, 0.0, 100.0),
            Reservation("group", "physics", 6, 0.0, 100.0),
            # A user who is called as a group, and a group that is called as a user.
            Reservation("user", "physics", 7, 0.0, 100.0),
            Reservation("group", "ann", 8, 100.0, 200.0),
        ),
    )
    found = settings.reserved(["ann", "bob", "cat", "physics"], reading, 50.0)
    assert [(each.nodes, set(each.users)) for each in found] == [
        (5, {"ann", "cat"}),
        (6, {"bob", "physics"}),
        (7, {"physics"}),
    ]


# The broker.


class Clock:
    """A clock of the host, which may be set."""

    def __init__(self) -> None:
        self.now_s = time.mktime((2026, 12, 1, 12, 0, 0, 0, 0, -1))

    def __call__(self) -> float:
        return self.now_s


def reserved(
    clock: Clock, user: str, nodes: int, begins_s: float, ends_s: float
) -> tuple[Reservation, ...]:
    return (Reservation("user", user, nodes, clock.now_s + begins_s, clock.now_s + ends_s),)


def test_a_reservation_holds_as_the_clock_says(tmp_path: Path) -> None:
    clock = Clock()
    machine = Machine(
        tmp_path / "b",
        8,
        reservations=reserved(clock, "ann", 6, 3600, 7200),
        clock=clock,
        cycle_s=1.0,
    )
    both = {"ann": LOTS, "bob": LOTS}
    assert machine.grants(both) == {"ann": 4, "bob": 4}
    clock.now_s += 3600
    assert machine.grants(both) == {"ann": 6, "bob": 2}
    why = machine.ask("bob", LOTS).less
    assert why == "others have a reservation until 14:00, and the rest is divided by weights"
    assert machine.ask("ann", LOTS).less == "other users have the rest, by their weights"
    # The clock is set back, and forward beyond the end.
    clock.now_s -= 60
    assert machine.grants(both) == {"ann": 4, "bob": 4}
    clock.now_s += 7200
    assert machine.grants(both) == {"ann": 4, "bob": 4}


def test_what_is_not_wanted_of_it_others_have_and_are_told_nothing(tmp_path: Path) -> None:
    clock = Clock()
    machine = Machine(
        tmp_path / "b", 8, reservations=reserved(clock, "ann", 6, 0, 7200), clock=clock
    )
    assert machine.grants({"bob": LOTS, "eve": LOTS}) == {"bob": 4, "eve": 4}
    assert machine.ask("bob", LOTS).less == "other users have the rest, by their weights"
    assert machine.grants({"ann": 2, "bob": LOTS, "eve": 1}) == {"ann": 2, "bob": 5, "eve": 1}


def test_reservations_are_read_again_with_the_other_settings(tmp_path: Path) -> None:
    clock = Clock()
    machine = Machine(tmp_path / "b", 8, clock=clock)
    both = {"ann": LOTS, "bob": LOTS}
    assert machine.grants(both) == {"ann": 4, "bob": 4}
    settings = Settings("harvest", reservations=reserved(clock, "bob", 7, 0, 60))
    machine.site.reload(settings)
    assert machine.grants(both) == {"ann": 1, "bob": 7}


def test_the_status_has_them_for_administrators_and_for_whom_they_are(tmp_path: Path) -> None:
    clock = Clock()
    both = (
        *reserved(clock, "ann", 6, 0, 7200),
        *reserved(clock, "bob", 2, 3600, 7200),
        *reserved(clock, "bob", 3, -60, 0),
    )
    machine = Machine(
        tmp_path / "b",
        8,
        reservations=both,
        administrators=("ada",),
        users=weights(ann=1),
        clock=clock,
    )
    machine.settle({"ann": LOTS, "bob": LOTS})
    machine.take("ann", *machine.nodes[:5])
    machine.look()

    def shown(user: str) -> list[tuple[str, int, bool]]:
        rows = machine.site.status(machine.peer(user), machine.now_s)["reservations"]
        return [(row["for"], row["held"], row["holds"]) for row in rows]

    assert shown("ada") == [("user ann", 5, True), ("user bob", 0, False)]
    assert shown("ann") == [("user ann", 5, True)]
    assert shown("bob") == [("user bob", 0, False)]
    assert shown("eve") == []
