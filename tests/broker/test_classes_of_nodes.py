"""Limits by class of nodes: classes of a file, the division by class, and whose node is whose."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.broker import classes
from hpcext.broker.by_class import NONE, Layout, Rules, divide_by_class, entitled_by_class
from hpcext.broker.classes import NodeClass, expand
from hpcext.broker.division import NO_POOLS, Pools, Reserved, Share, Wish, assign, divide
from hpcext.broker.entitlement import entitled
from hpcext.broker.settings import load
from hpcext.cli.broker import main
from hpcext.core.errors import InputError

USERS = "abcd"
NAMES = ("big", "small", NONE)
LOTS = 100

FILE = """
partition = "p"

[classes.big]
nodes = "gpu[001-002],big1"

[classes.a100]
kind = "a100"

[everybody]
limits = { big = 3, a100 = 8 }

[users.ann]
limit = 9
limits = { big = 0 }

[groups.none-such]
weight = 2
limits = { a100 = 1 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.toml"


def test_the_file_says_which_nodes_are_of_which_class_and_who_may_have_how_many(file: Path) -> None:
    file.write_text(FILE)
    found = load(file)
    big = NodeClass("big", frozenset({"gpu001", "gpu002", "big1"}))
    assert found.classes == (big, NodeClass("a100", kind="a100"))
    assert found.everybody == Share(limits={"big": 3, "a100": 8})
    # What a table does not say of a class, that of everybody says.
    assert found.share("ann") == Share(limit=9, limits={"big": 0, "a100": 8})
    assert found.groups["none-such"] == Share(2, limits={"big": 3, "a100": 1})
    # The first class of the file that fits.
    kinds = {"gpu001": "a100", "gpu003": "a100", "gpu004": "h100", "big1": ""}
    layout = classes.layout(found.classes, kinds, {"gpu001": "ann", "gpu004": "ann"})
    assert layout.names == ("big", "a100", NONE)
    assert layout.of == {"gpu001": "big", "gpu003": "a100", "gpu004": NONE, "big1": "big"}
    assert layout.without == {"big": {"ann": 1}, "a100": {}, NONE: {"ann": 1}}
    assert classes.layout((), kinds) == Layout()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[classes.x]", "classes: x: neither nodes nor kind (valid: nodes = a hostlist"),
        ('[classes.x]\nnodes = "a"\nkind = "b"', "classes: x: both nodes and kind (valid:"),
        ('[classes.x]\nnode = "a"', "classes: x: unknown key 'node'"),
        ('[classes.x]\nnodes = ""', "classes: x: nodes: an empty hostlist (valid: a hostlist"),
        ('[classes.x]\nnodes = ","', "classes: x: nodes: an empty hostlist (valid: a hostlist"),
        ('[classes.x]\nnodes = "a[3-1]"', "classes: x: nodes: 'a[3-1]' (valid: a hostlist"),
        ('[classes.x]\nnodes = "a[1-2"', "classes: x: nodes: 'a[1-2' (valid: a hostlist"),
        ('[classes.x]\nnodes = "a b"', "classes: x: nodes: 'a b' (valid: a hostlist"),
        ('[classes.x]\nnodes = "a[1-999999999]"', "classes: x: nodes: more than 10000 nodes"),
        ("[classes.x]\nnodes = 3", "classes: x: nodes: 3 is an integer (valid: a string)"),
        ('[classes.x]\nkind = " "', "classes: x: kind: an empty name (valid: the kind of GPU"),
        ('[classes.x]\nkind = "a"\n[classes.x]\nkind = "b"', "line 4"),
        ('[classes."x y"]\nkind = "a"', "classes: 'x y' (valid: a name of letters"),
        ("classes = 3", "classes: 3 is an integer (valid: a table)"),
        ("[classes]\nx = 3", "classes: x: 3 is an integer (valid: a table)"),
        ("[users.ann]\nlimits = { x = 1 }", "users: ann: limits: unknown class 'x' (valid: none"),
        (
            '[classes.y]\nkind = "a"\n[everybody]\nlimits = { x = 1 }',
            "everybody: limits: unknown class 'x' (valid: y); add a table [classes.x]",
        ),
        (
            '[classes.y]\nkind = "a"\n[groups.g]\nlimits = { y = -1 }',
            "groups: g: limits: y: -1 (valid: an integer",
        ),
        ("[users.ann]\nlimits = 3", "users: ann: limits: 3 is an integer (valid: a table such as"),
    ],
)
def test_what_is_wrong_with_classes_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    # Before the first table, as TOML wants it.
    file.write_text(f'partition = "p"\n{text}\n')
    assert main(["run", "--file", str(file), "--check"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert line in said, said


def test_hostlists() -> None:
    assert expand("a[08-10,2]-ib, b ,c[1]") == {"a08-ib", "a09-ib", "a10-ib", "a2-ib", "b", "c1"}
    for wrong in ("a[1]b[2]", "a]", "[1-2]", "a[]", "a[1,,2]", "a[\u0663]", "a[1-2-3]"):
        with pytest.raises(InputError):
            expand(wrong)


# The division.


def parts_of(
    nodes: dict[str, int],
    wishes: dict[str, Wish],
    shares: dict[str, Share],
    pools: Pools = NO_POOLS,
) -> dict[str, dict[str, int]]:
    return divide_by_class(nodes, wishes, {}, Rules(shares, {}, pools))


def test_the_nodes_of_each_class_are_divided_by_weights_among_those_who_may_have_them() -> None:
    wishes = {"a1": Wish("a", LOTS), "b1": Wish("b", LOTS), "c1": Wish("c", 3)}
    shares = {"a": Share(3), "c": Share(limits={"big": 0})}
    assert parts_of({"big": 8, NONE: 10}, wishes, shares) == {
        "big": {"a1": 6, "b1": 2, "c1": 0},
        NONE: {"a1": 6, "b1": 2, "c1": 2},
    }
    # Whoever has all that he wants of one class wants none of the next.
    assert parts_of({"big": 9, NONE: 9}, {**wishes, "b1": Wish("b", 2)}, {}) == {
        "big": {"a1": 4, "b1": 2, "c1": 3},
        NONE: {"a1": 9, "b1": 0, "c1": 0},
    }


def test_limits_of_all_nodes_hold_for_all_classes_together() -> None:
    wishes = {"a1": Wish("a", LOTS), "b1": Wish("b", LOTS)}
    shares = {"a": Share(limit=6, limits={"big": 4})}
    assert parts_of({"big": 10, NONE: 10}, wishes, shares) == {
        "big": {"a1": 4, "b1": 6},
        NONE: {"a1": 2, "b1": 8},
    }
    pools = Pools({"x": 7}, {"a": ("x",), "b": ("x",)})
    found = parts_of({"big": 4, NONE: 10}, wishes, {}, pools)
    assert found == {"big": {"a1": 2, "b1": 2}, NONE: {"a1": 2, "b1": 1}}


def test_reservations_go_on_in_the_next_class_and_nodes_without_leave_count() -> None:
    wishes = {"a1": Wish("a", LOTS), "b1": Wish("b", LOTS)}
    shares = {"a": Share(0.1, limits={"big": 3})}
    rules = Rules(shares, {}, Pools(), (Reserved(8, frozenset("a")),))
    found = divide_by_class({"big": 6, NONE: 10}, wishes, {}, rules)
    assert found == {"big": {"a1": 3, "b1": 3}, NONE: {"a1": 5, "b1": 5}}
    rules = Rules(shares, {"big": {"a": 2}}, Pools())
    found = divide_by_class({"big": 6, NONE: 0}, wishes, {}, rules)
    assert found["big"] == {"a1": 0, "b1": 6}
    assert divide_by_class({"big": 9}, {"a1": Wish("a", 9)}, {}, rules) == {"big": {"a1": 1}}


wish = st.builds(Wish, st.sampled_from(USERS), st.integers(0, 20), st.integers(0, 20))
wishes_of = st.dictionaries(st.text(USERS, min_size=1, max_size=2), wish)
limits_of = st.dictionaries(st.sampled_from(NAMES[:2]), st.integers(0, 9))
share = st.builds(
    Share,
    st.floats(0.1, 10),
    st.sampled_from([0.0, 1.0]),
    st.none() | st.integers(0, 20),
    limits_of,
)
shares_of = st.dictionaries(st.sampled_from(USERS), share)
nodes_of = st.fixed_dictionaries({name: st.integers(0, 15) for name in NAMES})
had_of = st.dictionaries(
    st.sampled_from(NAMES), st.dictionaries(st.sampled_from(USERS), st.integers(0, 5))
)
pools_of = st.builds(
    Pools,
    st.fixed_dictionaries({"x": st.integers(0, 20), "y": st.integers(0, 20)}),
    st.dictionaries(st.sampled_from(USERS), st.sampled_from([(), ("x",), ("x", "y")])),
)
reserved_of = st.lists(
    st.builds(Reserved, st.integers(1, 20), st.frozensets(st.sampled_from(USERS), min_size=1)),
    max_size=2,
).map(tuple)
rules_of = st.builds(
    Rules,
    shares_of,
    had_of,
    pools_of,
    reserved_of,
    st.dictionaries(st.sampled_from(USERS), st.sampled_from([-0.5, 0.5])),
)


def of_users(found: dict[str, dict[str, int]], wishes: dict[str, Wish]) -> Counter[tuple[str, str]]:
    had = Counter[tuple[str, str]]()
    for name, own in found.items():
        for harvester, part in own.items():
            had[wishes[harvester].user, name] += part
    return had


@given(nodes_of, wishes_of, rules_of)
def test_nobody_has_more_than_his_limits_and_no_node_is_left_that_one_may_have_and_wants(
    nodes: dict[str, int], wishes: dict[str, Wish], rules: Rules
) -> None:
    found = divide_by_class(nodes, wishes, {}, rules)
    gained = of_users(found, wishes)
    has = Counter(gained)
    for name, own in rules.had.items():
        for user, count in own.items():
            has[user, name] += count
    everything = Counter({user: sum(has[user, name] for name in NAMES) for user in USERS})
    full = {
        pool
        for pool, limit in rules.pools.limits.items()
        if sum(everything[user] for user in USERS if pool in rules.pools.of.get(user, ())) >= limit
    }
    for name, count in nodes.items():
        given = sum(found[name].values())
        assert given <= count
        for harvester, each in wishes.items():
            got = sum(own[harvester] for own in found.values())
            assert got <= each.want
            user_has = rules.shares.get(each.user, Share())
            limit = user_has.limits.get(name, math.inf)
            most = math.inf if user_has.limit is None else user_has.limit
            # Whoever had more without leave was given none.
            assert gained[each.user, name] == 0 or has[each.user, name] <= limit
            assert gained[each.user, name] == 0 or everything[each.user] <= most
            assert (
                given == count
                or got == each.want
                or has[each.user, name] >= limit
                or everything[each.user] >= most
                or full & set(rules.pools.of.get(each.user, ()))
            )


@given(st.integers(0, 40), wishes_of, rules_of)
def test_one_class_without_limits_is_as_no_class(
    nodes: int, wishes: dict[str, Wish], rules: Rules
) -> None:
    shares = {user: each._replace(limits={}) for user, each in rules.shares.items()}
    without = dict(rules.had.get(NONE, {}))
    one = rules._replace(shares=shares, had={NONE: without})
    want = Counter[str]()
    for each in wishes.values():
        want[each.user] += each.want
    have = {NONE: {name: each.have for name, each in wishes.items()}}
    assert divide_by_class({NONE: nodes}, wishes, have, one) == {
        NONE: divide(
            nodes, wishes, shares, without, one.pools, reserved=one.reserved, behind=one.behind
        )
    }
    assert entitled_by_class({NONE: nodes}, want, one) == entitled(
        nodes, want, shares, without, one.pools, reserved=one.reserved
    )


@given(nodes_of, st.dictionaries(st.sampled_from(USERS), st.integers(0, 20)), rules_of)
def test_what_users_are_entitled_to_is_as_much_as_whole_nodes(
    nodes: dict[str, int], wants: dict[str, int], rules: Rules
) -> None:
    """In one class; in several, who is full after one of them depends on the rounding."""
    wishes = {user: Wish(user, want) for user, want in wants.items()}
    alone = rules._replace(pools=Pools(), behind={})
    whole = divide_by_class({"big": nodes["big"]}, wishes, {}, alone)
    found = entitled_by_class({"big": nodes["big"]}, wants, alone)
    assert math.fsum(found.values()) == pytest.approx(sum(whole["big"].values()), abs=1e-6)
    all_of = entitled_by_class(nodes, wants, rules)
    assert all(-1e-6 <= part <= wants[user] + 1e-6 for user, part in all_of.items())
    assert math.fsum(all_of.values()) <= sum(nodes.values()) + 1e-6


@given(nodes_of, wishes_of, rules_of, st.dictionaries(st.integers(0, 44), st.text(USERS)))
def test_each_node_is_in_one_part_and_of_its_class(
    nodes: dict[str, int], wishes: dict[str, Wish], rules: Rules, holders: dict[int, str]
) -> None:
    names = {name: [f"{name or 'n'}{each}" for each in range(nodes[name])] for name in NAMES}
    every = [node for own in names.values() for node in own]
    held = {every[at]: who for at, who in holders.items() if at < len(every) and who in wishes}
    found = divide_by_class(nodes, wishes, {}, rules)
    chosen = {name: assign(found[name], names[name], held, {}) for name in NAMES}
    taken = [node for own in chosen.values() for part in own.values() for node in part]
    assert len(taken) == len(set(taken))
    for name, own in chosen.items():
        assert {who: len(part) for who, part in own.items()} == found[name]
        assert {node for part in own.values() for node in part} <= set(names[name])
