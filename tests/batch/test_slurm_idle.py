"""Idle nodes, planned jobs and leases, as three releases of Slurm printed them (record.py)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hpcext.batch.leasing import Held, Idle
from hpcext.batch.slurm import idle as slurm_idle
from hpcext.batch.slurm.idle import Planned
from hpcext.batch.slurm.tables import new_mark

RECORDED = Path(__file__).parent / "recorded"
THEIRS = "hpcext-theirs-20261124-120000-ab12"
RELEASES = sorted(path.parent.name for path in RECORDED.glob("*/sinfo-idle.txt"))


@pytest.fixture(params=RELEASES)
def said(request: pytest.FixtureRequest) -> Path:
    """The recordings of one release."""
    return RECORDED / str(request.param)


def test_idle_nodes(said: Path) -> None:
    nodes = slurm_idle.parse_idle((said / "sinfo-idle.txt").read_text())
    assert [name for name, node in nodes.items() if node.idle and not node.shared] == ["n4"]
    assert nodes["n4"]._replace(limit_s=math.inf) == Idle("n4", True, True, 6, "", 24, 12000)
    assert not nodes["n3"].planned
    # A job without GPUs has two CPUs there, and 200 MB; as much again is left to the next one.
    assert nodes["n3"] == Idle("n3", True, False, 6, "", 20, 11600, 86400.0, shared=True)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("mixed|gpu:a100:4|32|9000|up|infinite|gpu:a100:0(IDX:N/A)|1/31/0/32|100", (30, 8800)),
        ("MIXED|gpu:4|32|9000|up|infinite|gpu:(null):0(IDX:N/A)|10/22/0/32|4000", (12, 2500)),
        ("mixed-|gpu:4|32|9000|up|infinite|gpu:0|1/31/0/32|0", (30, 9000)),
        ("mixed|gpu:4|32|9000|up|infinite|gpu:0,mps:0|1/1/30/32|0", (1, 9000)),
        # Half of it, or a GPU, is in use; or that is not known.
        ("mixed|gpu:4|32|9000|up|infinite|gpu:0|16/16/0/32|100", None),
        ("mixed|gpu:4|32|9000|up|infinite|gpu:0|1/31/0/32|4500", None),
        ("mixed|gpu:4|32|9000|up|infinite|gpu:1(IDX:0)|1/31/0/32|100", None),
        ("mixed|gpu:4|32|9000|up|infinite|gpu:(null):2(IDX:0-1)|1/31/0/32|100", None),
        ("mixed|gpu:4|32|9000|up|infinite||1/31/0/32|100", None),
        ("mixed|gpu:4|32|9000|up|infinite|gpu:0|N/A|100", None),
        ("mixed|gpu:4|32|9000|up|infinite", None),
        ("mixed|(null)|32|9000|up|infinite|(null)|1/31/0/32|100", None),
        # It does not answer, or is to be had by nobody.
        ("mixed*|gpu:4|32|9000|up|infinite|gpu:0|1/31/0/32|100", None),
        ("draining|gpu:4|32|9000|up|infinite|gpu:0|1/31/0/32|100", None),
        ("mixed|gpu:4|32|9000|down|infinite|gpu:0|1/31/0/32|100", None),
    ],
)
def test_nodes_of_which_small_jobs_use_no_gpu(said: str, expected: tuple[int, int] | None) -> None:
    node = slurm_idle.parse_idle(f"a|{said}\n")["a"]
    assert (node.idle, node.shared) == (expected is not None, expected is not None)
    if expected is not None:
        assert (node.cpus, node.memory_mb) == expected


def test_planned_jobs(said: Path) -> None:
    """That of a job that may begin later alone no node is known."""
    (wide,) = slurm_idle.parse_planned((said / "squeue-planned.txt").read_text())
    assert (wide.job_id, wide.name, wide.nodes) == (5, "wide", "n[1,4]")
    assert wide.start_s > 1.7e9


def test_leases(said: Path) -> None:
    jobs = {
        job.comment: job for job in slurm_idle.parse_held((said / "squeue-held.txt").read_text())
    }
    assert set(jobs) == {"7", "8"}
    assert (jobs["7"].state, jobs["7"].node) == ("running", "n4")
    assert jobs["7"].end_s is not None
    assert (jobs["8"].state, jobs["8"].node) == ("cancelled", "")


def test_leases_of_others(said: Path) -> None:
    """Known by the name and the comment of their jobs; what else is in the queue is none."""
    text = (said / "squeue-others.txt").read_text()
    name = "hpcext-trainers-20261124-120000-ab12"
    leases = slurm_idle.parse_others(text)
    # One that has ended, though not the one that never had a node; those that wait, for any node
    # and for one; and one that runs.
    assert sorted(each[:4] for each in leases) == [
        (name, "root", "", False), (name, "root", "n4", False),
        (name, "root", "n4", True), (name, "root", "n4", True),
    ]  # fmt: skip
    (ended,) = (each for each in leases if each.until_s is not None)
    (runs,) = (each for each in leases if each.begun and each is not ended)
    waits = [each for each in leases if not each.begun]
    assert 1.7e9 < (ended.asked_s or 0) <= (ended.since_s or 0) <= (ended.until_s or 0)
    # When it ends is its limit, and when they may begin is only expected.
    assert (ended.until_s or 0) <= (runs.since_s or 0)
    assert {each.since_s for each in waits} == {None}
    assert all((each.asked_s or 0) > 1.7e9 for each in (runs, *waits))
    more = "".join(
        f"RUNNING|n1|n1|bob|1|1|1|{what}\n"
        for what in (f"{name}|", f"{name}|x", "train|7", f"a|{name}|7", f"{name}-|7", "|", "")
    )
    assert slurm_idle.parse_others(text + more) == leases


@pytest.mark.parametrize(
    ("state", "idle", "planned"),
    [
        ("idle", True, False), ("IDLE", True, False), ("planned", True, True),
        ("idle-", True, True), ("idle~", False, False), ("idle#", False, False),
        ("idle%", False, False), ("idle*", False, False), ("idle@", False, False),
        ("reserved", False, False), ("maint", False, False), ("drained", False, False),
        ("mixed", False, False), ("allocated", False, False), ("completing", False, False),
        ("unknown*", False, False), ("idle$", True, False),
    ],
)  # fmt: skip
def test_states(state: str, idle: bool, planned: bool) -> None:
    """sinfo(1), NODE STATE CODES; what sleeps, does not answer or is kept is none of ours."""
    node = slurm_idle.parse_idle(f"a|{state}|gpu:a100:2(S:0-1),gpu:v100:1|24+|900\n")["a"]
    assert (node.idle, node.planned) == (idle, planned)
    assert node[3:8] == (3, "", 24, 900, math.inf)
    assert (node.lost, node.shared) == (state.endswith("*"), False)


@pytest.mark.parametrize(
    ("partition", "idle", "limit_s"),
    [
        ("up|1-00:00:00", True, 86400), ("up|30:00", True, 1800), ("up|infinite", True, math.inf),
        ("down|4:00:00", False, 14400), ("drain|infinite", False, math.inf),
        ("inact|infinite", False, math.inf),
    ],
)  # fmt: skip
def test_what_a_partition_allows(partition: str, idle: bool, limit_s: float) -> None:
    """sinfo(1), %a and %l; one that is not up queues jobs and starts none."""
    node = slurm_idle.parse_idle(f"a|idle|gpu:2|24|900|{partition}\n")["a"]
    assert (node.idle, node.limit_s) == (idle, limit_s)


@pytest.mark.parametrize("text", ["", "\n", "a\n", "|idle|", "garbage without bars"])
def test_invalid_nodes_are_ignored(text: str) -> None:
    assert slurm_idle.parse_idle(text) == {}


def test_lines_without_a_plan_or_a_lease_are_ignored() -> None:
    text = "7|N/A|n1|a\n8|1795383683|(null)|b\n9_[1-4]|1795383683|n2|c|d\n||\nx\n"
    assert slurm_idle.parse_planned(text) == (Planned(9, "c|d", 1795383683.0, "n2"),)
    assert slurm_idle.parse_held("3|RUNNING|n1|N/A|None|4\nx|RUNNING|n1|1|None|4\n") == (
        Held(3, "4", "running", "n1", None, "None"),
    )


NAMES = (
    "x\n1|1000|n[1-64]|y", "x\n0123456789abcdef|1|1000|n[1-64]|y", "x|1000|n1|y", "\n\n",
    "x\r1|2|n2|y", "x\x851|1000|n3|y", "x\u20281|1000|n3|y", "x\x0c1|1000|n3|y", "a|b", "",
)  # fmt: skip
"""Names of jobs, which squeue prints as they are (``sbatch -J $'x\\n...'``)."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_name_whatever_it_looks_like(name: str) -> None:
    mark = new_mark()
    assert new_mark() != mark
    rest = name.partition("\n")[0].strip()
    text = f"{mark}|7|1795383683|n[1-4]|{name}\n{mark}|8|1795383684|n5|last\n"
    assert slurm_idle.parse_planned(text, mark) == (
        Planned(7, rest, 1795383683.0, "n[1-4]"),
        Planned(8, "last", 1795383684.0, "n5"),
    )
    text = f"{mark}|BeginTime|{name}\nResources|b\n{mark}|Dependency|c\n"
    assert not slurm_idle.parse_due(text, mark)
    assert slurm_idle.parse_due(f"{text}{mark}|Priority|d\n", mark)


@pytest.mark.parametrize("name", ["x", THEIRS])
@pytest.mark.parametrize("comment", ["", "7"])
@pytest.mark.parametrize("between", ["\n", "\r", "\x85", "\u2028", "|7\n"])
def test_nobody_forges_leases_of_others(name: str, comment: str, between: str) -> None:
    mark = new_mark()
    forged = f"RUNNING|n9|n9|bob|1|1|1|{THEIRS}|7"
    held = f"RUNNING|n1|n1|eve|1|1|1|{name}"
    for row in (f"{held}{between}{forged}|{comment}", f"{held}|{comment}{between}{forged}"):
        found = slurm_idle.parse_others(f"{mark}|{row}\n{mark}|{held}|\n", mark)
        assert {(each.user, each.node) for each in found} <= {("eve", "n1")}


def test_what_is_asked_has_the_mark_before_each_row() -> None:
    for command in (
        slurm_idle.planned_command("f00"),
        slurm_idle.due_command("f00"),
        slurm_idle.others_command("p", "f00"),
    ):
        assert command[-1].startswith("--format=f00|%")


@pytest.mark.parametrize("why", ["None", "Resources", "Priority"])
def test_a_job_that_waits_for_nodes_is_not_a_lease(why: str) -> None:
    lease = f"{why}|hpcext-a-20261124-120000-ab12\n"
    assert slurm_idle.parse_due(f"{lease}{why}|a|b\n")
    assert not slurm_idle.parse_due(lease)
    assert not slurm_idle.parse_due(f"BeginTime|{why}\nJobHeldUser|b\nDependency|c\n\n")


def test_a_node_ends_when_the_first_job_begins_there() -> None:
    planned = [
        Planned(1, "", 90.0, "n[1-2]"), Planned(2, "", 50.0, "n2"), Planned(3, "", 10.0, "n9"),
    ]  # fmt: skip
    names = {"n[1-2]": ["n1", "n2"], "n2": ["n2"]}
    assert slurm_idle.ends(planned, names) == {"n1": 90.0, "n2": 50.0}


def test_a_node_ends_when_a_reservation_begins() -> None:
    """As 22.05 prints them; what reserves licences has no nodes."""
    text = (
        "ReservationName=soon StartTime=1795392460 EndTime=1795396060 Duration=01:00:00 "
        "Nodes=n[1-4] NodeCnt=4 CoreCnt=96 Features=(null) PartitionName=(null) Flags=SPEC_NODES "
        "TRES=cpu=96 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE\n"
        "ReservationName=some StartTime=1795392460 EndTime=1795396060 Nodes=(null) NodeCnt=0\n"
    )
    assert slurm_idle.parse_reserved(text) == (Planned(0, "soon", 1795392460.0, "n[1-4]"),)
    assert slurm_idle.parse_reserved("No reservations in the system\n") == ()
