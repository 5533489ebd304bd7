"""The fair share of a real Slurm, as a broker reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, cluster

from hpcext.batch.slurm.fair_share import fair_share_command, parse_fair_share

CONFIGURATION = "PriorityType=priority/multifactor\nPriorityCalcPeriod=1\n"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with cluster(CONFIGURATION) as one:
        yield one


def test_a_user_is_known_in_each_account_and_in_those_above(slurm: Cluster) -> None:
    for words in (
        ("account", "physics", "fairshare=10"),
        ("account", "optics", "parent=physics", "fairshare=3"),
        ("user", slurm.user, "account=optics", "fairshare=2"),
    ):
        said = slurm.run("sacctmgr", "--immediate", "add", *words)
        assert said.returncode == 0, said

    def accounts() -> dict[str, tuple[str, ...]]:
        # As an ordinary user, like the service.
        said = slurm.as_user(*fair_share_command())
        assert said.returncode == 0, said
        found = parse_fair_share(said.stdout)
        assert all(0 <= each.factor <= 1 for each in found)
        return {each.accounts[-1]: each.accounts for each in found if each.user == slurm.user}

    wanted = {"optics": ("root", "physics", "optics"), "science": ("root", "science")}
    slurm.wait_for(lambda: accounts() == wanted, "the accounts of the user")
