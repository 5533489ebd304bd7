"""The shares of LSF's users: what its manuals show, and what the contract engine answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsf_site import Queue, Site
from lsf_tools import MakeSite

from hpcext.batch.leasing import Association, FairShared
from hpcext.batch.lsf.fair_share import parse_shares
from hpcext.batch.lsf.leasing import LsfLeasing
from hpcext.broker.fair_share import LEAST, FairShare
from hpcext.broker.settings import load
from hpcext.core.errors import BatchError, InputError

RECORDED = Path(__file__).parents[1] / "batch" / "recorded" / "lsf"

TREE = {"q": {"team": 3.0, "ann": 1.5, "eve": 0.0}, "q/team": {"bob": 0.2, "ann": 0.1}}


def said(name: str) -> str:
    return (RECORDED / name).read_text()


def factors(text: str) -> list[tuple[str, float]]:
    return [(each.user, round(each.factor, 3)) for each in parse_shares(text)]


def test_a_priority_counts_beside_the_largest_of_its_table_and_below_that_of_its_group() -> None:
    assert factors(said("bhpart-tree.txt")) == [
        ("group1", 1.0),
        ("user1", round(0.775 / 1.867, 3)),
        ("user2", round(0.775 / 1.867 * 0.667 / 1.144, 3)),
    ]
    # Of a user in two places both are there, and a broker takes the larger.
    assert factors(said("bqueues-shares.txt")) == [
        ("ann", 0.5),
        ("eve", 0.0),
        ("ann", 1.0),
        ("bob", 0.333),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SHARE_INFO_FOR: q/\n",
        "SHARE_INFO_FOR: q/\nUSER/GROUP SHARES STARTED\nann 1 2\n",
        "SHARE_INFO_FOR: q/\nUSER/GROUP SHARES PRIORITY\nann 1 nan\n",
        "SHARE_INFO_FOR: q/\nUSER/GROUP SHARES PRIORITY\nann 1 \u0663\n",
        # Of a group that no table has.
        "SHARE_INFO_FOR: q/team/\nUSER/GROUP SHARES PRIORITY\nann 1 2\n",
        "USER/GROUP SHARES PRIORITY\nann 1 2\n",
    ],
)
def test_what_is_no_table_has_no_users(text: str) -> None:
    assert parse_shares(text) == ()


def test_users_without_any_priority_are_alike() -> None:
    text = "SHARE_INFO_FOR: q/\nUSER/GROUP SHARES PRIORITY\nann 1 0.000\nbob 1 -1.5\n"
    assert factors(text) == [("ann", 1.0), ("bob", 1.0)]


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10**17), min_size=1))
def test_a_factor_is_from_nothing_to_1_and_the_first_of_a_table_has_1(
    priorities: dict[str, int],
) -> None:
    rows = "".join(f"{name} 1 {number}.000\n" for name, number in priorities.items())
    found = parse_shares(f"SHARE_INFO_FOR: q/\nUSER/GROUP SHARES PRIORITY\n{rows}")
    assert {each.user for each in found} == priorities.keys()
    assert all(0 <= each.factor <= 1 and math.isfinite(each.factor) for each in found)
    assert max(each.factor for each in found) == 1


@pytest.fixture
def use(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> MakeSite:
    """Make a site, and have its commands first."""

    def used(*quirks: str, **settings: object) -> Site:
        site = make_site(*quirks, **settings)
        monkeypatch.setenv("PATH", f"{site.directory}:/usr/bin:/bin")
        monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
        return site

    return used


def test_the_share_tree_of_a_queue(use: MakeSite) -> None:
    use(queues={"q": Queue(policies="FAIRSHARE", shares=TREE), "other": Queue()})
    system = LsfLeasing()
    assert isinstance(system, FairShared)
    assert system.associations("q") == (
        Association("ann", (), 0.5),
        Association("eve", (), 0.0),
        Association("bob", (), 1.0),
        Association("ann", (), 0.5),
    )
    shares = FairShare(lambda: system.associations("q"), 60, lambda: 7.0)
    shares.read()
    assert shares.now.factors == {"ann": 0.5, "bob": 1.0, "eve": LEAST}
    assert not any(shares.now.accounts.values())


def test_host_partitions_count_where_the_queue_has_no_fairshare(use: MakeSite) -> None:
    use(queues={"q": Queue()}, host_partitions={"night": {"night": {"ann": 1.0, "bob": 4.0}}})
    assert LsfLeasing().associations("q") == (
        Association("ann", (), 0.25),
        Association("bob", (), 1.0),
    )


@pytest.mark.parametrize("command", ["bhpart", "no bhpart"])
def test_a_queue_without_fairshare_is_said_in_one_line(use: MakeSite, command: str) -> None:
    site = use(queues={"q": Queue()})
    if command != "bhpart":
        (site.directory / "bhpart").unlink()
    shares = FairShare(lambda: LsfLeasing().associations("q"), 60)
    shares.read()
    assert shares.now.failed == (
        "queue q has no fairshare (lsb.queues), and no host partition has (lsb.hosts), so that "
        "LSF has no shares of users"
    )
    with pytest.raises(BatchError, match="No such queue"):
        LsfLeasing().associations("none")


def test_a_broker_on_lsf_takes_shares_and_has_no_accounts(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    text = 'partition = "q"\nbatch = "lsf"\nshares = "batch"\n'
    file.write_text(text)
    assert load(file).asks
    reserved = 'account = "a"\nnodes = 1\nfrom = 2026-12-01\nto = 2026-12-02\n'
    for more in ("[accounts.a]\ntogether = 1\n", f"[[reservations]]\n{reserved}"):
        file.write_text(text + more)
        with pytest.raises(InputError, match=r"lsf has no accounts .*name a group of the system"):
            load(file)
