"""``hpcext simulate --users``: what users would have with a broker, counted by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from commands import simulate

from hpcext.cli import main as cli

HEAD = "name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2,rate_4,rate_8\n"
LONG = "0,1,8,10,5,1e9,1,2,4,8\n"
"""A trainer that never ends, and uses up to eight nodes."""

BROKER = """\
partition = "p"
policy = "equal_share"

[users.ann]
weight = 3
"""
RESERVED = """
[[reservations]]
user = "bob"
nodes = 5
from = 2026-12-01T08:15:00
to = 2026-12-01T08:30:00
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "broker.toml").write_text(BROKER)
    (tmp_path / "long.csv").write_text(f"{HEAD}a,{LONG}")
    return tmp_path


def users(
    capsys: pytest.CaptureFixture[str], *words: str, status: int = 1
) -> dict[str, dict[str, Any]]:
    """What users had with weights, by user; by default their trainers have not ended."""
    out, _ = simulate(capsys, *words, "--users", "broker.toml", "--json", status=status)
    return {row["user"]: row for row in json.loads(out)["users"]}


BOTH = ("ann=long.csv", "bob=long.csv", "--nodes", "8x1", "--hours", "1")


def test_users_have_what_their_weights_say(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    out, err = simulate(capsys, *BOTH, "--users", "broker.toml", status=1)
    labels = [line.split("  ")[0] for line in out.splitlines()[1:4]]
    assert labels == [
        "equal_share, one user",
        "equal_share, equal parts",
        "equal_share, by weights",
    ]
    assert "equal_share, by weights, node-hours of users:" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert (
        "User Weight Jobs Completed Wait (s) Wanted Fair share Had Difference In equal parts "
        "As one user"
    ) in lines
    assert "ann 3 1 0 0 8.00 6.00 6.00 +0.0 % 4.00 4.00" in lines
    assert "bob 1 1 0 0 8.00 2.00 2.00 +0.0 % 4.00 4.00" in lines
    assert "all 2 0 - 16.00 8.00 8.00 +0.0 % 8.00 8.00" in lines
    assert "1 of 2 jobs" not in err


def test_one_who_comes_later_has_his_part_once_it_is_given_back(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "late.csv").write_text(f"{HEAD}a,1800,{LONG[2:]}")
    found = users(capsys, "ann=long.csv", "bob=late.csv", *BOTH[2:])
    # Two nodes are ann's for the five seconds in which her trainer becomes smaller.
    assert found["ann"]["had_node_h"] == pytest.approx((8 * 1800 + 6 * 1800 + 2 * 5) / 3600)
    assert found["bob"]["had_node_h"] == pytest.approx((2 * 1795) / 3600)
    assert found["bob"]["entitled_node_h"] == pytest.approx(1.0)
    assert found["bob"]["wait_mean_s"] == pytest.approx(5.0)


def test_who_wants_less_leaves_the_rest_and_limits_hold(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "small.csv").write_text(f"{HEAD}a,{LONG.replace(',8,10', ',1,10')}")
    found = users(capsys, "ann=small.csv", *BOTH[1:])
    assert [found[user]["had_node_h"] for user in ("ann", "bob")] == pytest.approx([1, 7])
    (here / "broker.toml").write_text(BROKER.replace("weight = 3", "limit = 3\npriority = 1"))
    found = users(capsys, *BOTH)
    assert [found[user]["had_node_h"] for user in ("ann", "bob")] == pytest.approx([3, 5])
    out, _ = simulate(capsys, *BOTH, "--users", "broker.toml", status=1)
    assert "ann 1 1 3 1 0" in [" ".join(line.split()[:6]) for line in out.splitlines()]


def test_a_reservation_holds_between_its_instants(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "broker.toml").write_text(BROKER + RESERVED)
    found = users(capsys, *BOTH, "--date", "2026-12-01T08:00")
    # Of an hour, five of eight nodes are bob's for a quarter: three more than by weight.
    assert found["bob"]["entitled_node_h"] == pytest.approx(2 + 3 / 4)
    # ann gives them back within 5 s, and so does bob.
    assert found["bob"]["had_node_h"] == pytest.approx(2 + 3 / 4)
    assert found["ann"]["had_node_h"] == pytest.approx(6 - 3 / 4)
    later = users(capsys, *BOTH, "--date", "2026-12-01T09:00")
    assert later["bob"]["had_node_h"] == pytest.approx(2)


def test_rounding_goes_round(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Of three nodes on which nothing ever happens each user has one and a half, over hours."""
    (here / "broker.toml").write_text('partition = "p"\npolicy = "equal_share"\n')
    found = users(capsys, *BOTH[:2], "--nodes", "3x1", "--hours", "24")
    for user in ("ann", "bob"):
        assert found[user]["difference"] == pytest.approx(0.0, abs=0.02)
        assert found[user]["entitled_node_h"] == pytest.approx(36)


def test_a_run_ends_where_nobody_can_use_what_is_left(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "wide.csv").write_text(f"{HEAD}a,{LONG.replace('0,1,8', '0,5,8')}")
    (here / "idle.csv").write_text("time_s,joined,left\n0,0-2,\n600,,0\n601,0,\n")
    found = users(capsys, "ann=wide.csv", "bob=wide.csv", "--idle", "idle.csv")
    assert [found[user]["had_node_h"] for user in ("ann", "bob")] == [0, 0]
    assert found["ann"]["wait_mean_s"] is None


def test_a_table_names_users_and_so_does_a_log(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    named = HEAD.replace("name", "user,name")
    (here / "t.csv").write_text(f"{named}ann,a,{LONG}bob,b,{LONG}bob,c,{LONG}")
    found = users(capsys, "t.csv", *BOTH[2:])
    assert [found[user]["jobs"] for user in ("ann", "bob")] == [1, 2]
    assert found["ann"]["had_node_h"] == pytest.approx(6)
    # Jobs 1 and 2 are of users 7 and 9, and have four nodes each for 100 s.
    log = [
        f"{job} 0 -1 100 4 -1 -1 4 -1 -1 1 {user} 1 1 1 1 -1 -1" for job, user in ((1, 7), (2, 9))
    ]
    (here / "log.swf").write_text("; MaxNodes: 8\n" + "\n".join(log) + "\n")
    found = users(capsys, "log.swf", "--nodes", "8x1", status=0)
    assert {user: row["had_node_h"] for user, row in found.items()} == pytest.approx(
        {"7": 400 / 3600, "9": 400 / 3600}
    )


def test_made_up_jobs_are_drawn_for_each_user(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    words = ("ann=poisson:jobs=4,mean_s=99", "bob=poisson:jobs=4,mean_s=99", "--nodes", "1x8")
    found = users(capsys, *words, status=0)
    assert [found[user]["jobs"] for user in ("ann", "bob")] == [4, 4]
    assert found["ann"]["wanted_node_h"] != found["bob"]["wanted_node_h"]
    assert users(capsys, *words, status=0) == found


def test_a_report_shows_users_and_continues(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    words = (*BOTH, "--users", "broker.toml", "--seed", "1", "--seed", "2", "--report", "out")
    simulate(capsys, *words, status=1)
    page = (here / "out/report.html").read_text()
    assert 'id="users"' in page
    assert "Nodes by user: equal_share, by weights" in page
    assert "users.csv" in page
    with (here / "out/users.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["user"], float(row["had_node_h"])) for row in rows] == [("ann", 6), ("bob", 2)]
    _, err = simulate(capsys, *words, status=1)
    assert "6 of 6 runs already exist" in err
    # Other weights are another run.
    (here / "broker.toml").write_text(BROKER.replace("3", "7"))
    _, err = simulate(capsys, *words, status=1)
    assert "exist" not in err


def test_policies_are_compared_each_in_all_divisions(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    more = ("--policy", "equal_share", "--policy", "bftrainer", "--users", "broker.toml", "--json")
    found = json.loads(simulate(capsys, *BOTH, *more, status=1)[0])
    labels = [row["label"] for row in found["policies"]]
    assert labels == [
        f"{policy}, {division}"
        for policy in ("equal_share", "bftrainer")
        for division in ("one user", "equal parts", "by weights")
    ]
    assert [(row["label"], row["user"]) for row in found["users"]] == [
        (f"{policy}, by weights", user)
        for policy in ("equal_share", "bftrainer")
        for user in ("ann", "bob")
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a=long.csv", "b=long.csv"), "2 of them; give one, or say with --users"),
        (("a=long.csv",), "'a=long.csv' names a user; say with --users how users divide"),
        (("long.csv", "--date", "2026-12-01T08:00"), "--date: has no meaning without --users"),
        (("long.csv", "--users", "broker.toml"), "no column user"),
        (("broker.toml", "--users", "broker.toml"), "jobs of 'broker.toml' name no users"),
        (("capes:none", "--users", "broker.toml"), "USER=capes:none"),
        (("a=long.csv", "a=long.csv", "--users", "broker.toml"), "user a has two"),
        (("a=none.csv", "--users", "broker.toml"), "none.csv"),
        (("a=long.csv", "--users", "none.toml"), "none.toml"),
        (("a=long.csv", "--users", "wrong.toml"), "wrong.toml: no partition"),
        (("a=long.csv", "--users", "reserved.toml"), "--date: is missing, and reserved.toml has"),
        (("a=long.csv", "--users", "reserved.toml", "--date", "noon"), "--date: 'noon'"),
        (
            ("a=long.csv", "--users", "broker.toml", "--date", "2026-12-01"),
            "--date: has no meaning: broker.toml has no reservations",
        ),
        (
            ("a=long.csv", "--users", "broker.toml", "--autoscale", "0.5:0.7"),
            "--autoscale: cannot be given together with --users",
        ),
        (("nobody.csv", "--users", "broker.toml"), "nobody.csv: line 2: user ''"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], here: Path, words: tuple[str, ...], said: str
) -> None:
    (here / "wrong.toml").write_text("")
    (here / "reserved.toml").write_text(BROKER + RESERVED)
    (here / "nobody.csv").write_text(f"{HEAD.replace('name', 'user,name')},a,{LONG}")
    assert cli.main(["simulate", *words, "--nodes", "8x1", "--hours", "1"]) == 2
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_a_user_of_the_file_without_jobs_may_be_a_mistake(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    _, err = simulate(capsys, "anne=long.csv", *BOTH[2:], "--users", "broker.toml", status=1)
    assert "broker.toml has users without jobs: ann" in err
