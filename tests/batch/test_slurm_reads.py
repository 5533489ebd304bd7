"""What is asked of Slurm, by its commands and by pyslurm: the same answers.

pyslurm is built for one release of Slurm (25.11 in the registry), which is not that of these tests.
Here it is a stand-in with the attributes that pyslurm's reference documents.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcext.batch import runner, slurm
from hpcext.batch.jobs import UNKNOWN, End
from hpcext.batch.slurm import Host, SlurmStep
from hpcext.batch.slurm import reads as slurm_reads
from hpcext.batch.slurm.api import Api
from hpcext.batch.slurm.commands import Commands
from hpcext.core.errors import BatchError

RECORDED = Path(__file__).parent / "recorded" / "slurm-22.05"
END_S = 1795620716.0


class RPCError(Exception):
    """pyslurm.RPCError."""


def one_of(jobs: dict[int, Any], job_id: int) -> Any:
    if job_id not in jobs:
        raise RPCError("Invalid job id specified")
    return jobs[job_id]


def stand_in(version: str = "22.5.0") -> types.ModuleType:
    """The same cluster that is recorded, as pyslurm would show it."""
    make = types.SimpleNamespace
    day: dict[str, Any] = {"start_time": int(END_S) - 86_400, "time_limit": 1440}
    alone: dict[str, Any] = {"array_id": None, "array_task_id": None, **day}
    jobs = {
        1: make(state="RUNNING", end_time=int(END_S), allocated_nodes="n[1-2]", **alone),
        2: make(state="PENDING", end_time=None, allocated_nodes=None, **alone),
        3: make(state="FAILED", end_time=1, allocated_nodes="n1", **alone),
        4: make(state="CANCELLED", end_time=1, allocated_nodes="n1", **alone),
    }
    steps = {0: "hpcext-1-1", 1: "hpcext-2-1", "batch": "batch"}
    jobs[1].steps = {each: make(id=each, name=name) for each, name in steps.items()}
    nodes = {
        "n1": make(state="MIXED", address="127.0.0.1"),
        "n2": make(state="IDLE+DRAIN", address="127.0.0.1"),
        "n4": make(state="IDLE", address=None),
    }
    module = types.ModuleType("pyslurm")
    past = {9: make(state="NODE_FAIL")}
    vars(module).update(
        __version__=version,
        RPCError=RPCError,
        Jobs=make(load=lambda: jobs),
        Job=make(load=lambda job_id: one_of(jobs, job_id)),
        Nodes=make(load=lambda: nodes),
        db=make(Job=make(load=lambda job_id: one_of(past, job_id))),
    )
    return module


def recorded(argv: Sequence[str], **_: Any) -> str:
    """What the real commands printed."""
    name = {
        ("squeue", "--steps"): "squeue-steps.txt",
        ("scontrol", "--oneliner"): "scontrol-nodes.txt",
        ("scontrol", "--version"): "scontrol-version.txt",
    }.get((argv[0], argv[1]))
    if argv[:3] == ["scontrol", "show", "hostnames"]:
        return {"n[1-2]": "n1\nn2\n"}[argv[3]]
    if argv[0] == "sacct":
        return "9|NODE_FAIL\n" if "--jobs=9" in argv else ""
    if argv[0] == "squeue" and slurm.end_command(1)[-1] in argv:
        name = "squeue-end.txt"
    elif argv[0] == "squeue" and name is None:
        if "--jobs=9" in argv:
            said = (RECORDED / "squeue-unknown.txt").read_text()
            raise BatchError("squeue failed", argv=argv, exit_code=1, stderr=said)
        name = "squeue-jobs.txt"
    assert name is not None, argv
    return (RECORDED / name).read_text()


@pytest.fixture(params=["commands", "pyslurm"])
def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setattr(runner, "run", recorded)
    by: dict[str, Callable[[], Commands]] = {
        "commands": Commands,
        "pyslurm": lambda: Api(stand_in()),
    }
    return by[request.param]()


def test_states(reads: Commands) -> None:
    known = {1: "running", 2: "pending", 3: "failed", 4: "cancelled"}
    assert reads.states([1, 2, 3, 4]) == known
    assert reads.states([]) == {}


def test_the_task_of_an_array_in_pyslurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for the number of the last one, it would answer with any of them."""
    monkeypatch.setattr(runner, "run", recorded)
    module = stand_in()
    steps = {0: types.SimpleNamespace(id=0, name="hpcext-1-1")}
    facts = {"array_id": 7, "state": "RUNNING", "end_time": int(END_S), "steps": steps}
    facts |= {"start_time": 7, "time_limit": "UNLIMITED"}
    tasks = {8: {"array_task_id": 0, "state": "COMPLETED"}, 7: {"array_task_id": 1}}
    for number, more in tasks.items():
        module.Jobs.load()[number] = types.SimpleNamespace(**{**facts, **more})
    reads = Api(module)
    assert reads.states(["7_0", "7_1", "7_2"]) == {"7_0": "completed", "7_1": "running"}
    assert reads.end("7_1") == End("running", END_S, math.inf)
    assert reads.steps("7_1") == (SlurmStep("7_1.0", "hpcext-1-1"),)
    with pytest.raises(BatchError, match="no job 7_2 in slurmctld"):
        reads.end("7_2")


def test_a_job_that_slurmctld_has_forgotten_is_looked_up_in_accounting(
    reads: Commands,
) -> None:
    assert reads.states([9]) == {9: "node_fail"}


@pytest.mark.parametrize(
    ("complaint", "states"),
    [
        ("sacct: error: Problem talking to the database: Connection refused", {9: "unknown"}),
        # Printed by sacct 22.05 where AccountingStorageType is not set.
        ("Slurm accounting storage is disabled\n", {}),
    ],
)
def test_a_job_is_unknown_if_accounting_does_not_answer(
    reads: Commands,
    monkeypatch: pytest.MonkeyPatch,
    complaint: str,
    states: dict[int, str],
) -> None:
    def without(argv: Sequence[str], **more: Any) -> str:
        if argv[0] == "sacct":
            raise BatchError("sacct failed", argv=argv, exit_code=1, stderr=complaint)
        return recorded(argv, **more)

    monkeypatch.setattr(runner, "run", without)
    assert reads.states([9]) == states


def test_the_end_of_a_job(reads: Commands) -> None:
    assert reads.end(1) == End("running", END_S, END_S)


def test_steps(reads: Commands) -> None:
    assert reads.steps(1) == (
        SlurmStep("1.0", "hpcext-1-1"), SlurmStep("1.1", "hpcext-2-1"),
        SlurmStep("1.batch", "batch"),
    )  # fmt: skip


def test_nodes(reads: Commands) -> None:
    assert reads.nodes_of(1) == ("n1", "n2")
    assert reads.nodes_of(4) == ()
    assert reads.hosts(["n1", "n2"]) == {"n1": Host("127.0.0.1", ""), "n2": Host("127.0.0.1", "")}


def test_the_type_of_gpus_that_pyslurm_says() -> None:
    module = stand_in()
    module.Nodes.load()["n1"].configured_gres = {"gpu:a100": 4, "mps": 400}
    hosts = Api(module).hosts(["n1", "n2"])
    assert hosts == {"n1": Host("127.0.0.1", "a100"), "n2": Host("127.0.0.1", "")}


def test_what_pyslurm_cannot_say_is_an_error_like_any_other() -> None:
    with pytest.raises(BatchError, match="Invalid job id"):
        Api(stand_in()).end(77)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], str]]:
    """How a process asks that has such a pyslurm, or none."""
    monkeypatch.setattr(runner, "run", recorded)

    def choose(version: str | None) -> str:
        slurm_reads.reads.cache_clear()
        module = None if version is None else stand_in(version)
        monkeypatch.setattr(slurm_reads, "find_pyslurm", lambda: module)
        return type(slurm_reads.reads()).__name__

    yield choose
    slurm_reads.reads.cache_clear()


def test_pyslurm_is_used_where_it_is_for_this_release_only(
    chosen: Callable[[str | None], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(None) == "Commands"
    assert chosen("22.5.1") == "Api"
    assert chosen("25.11.0") == "Commands"
    assert chosen("") == "Commands"
    monkeypatch.setattr(runner, "run", lambda *_, **__: "no version\n")
    assert chosen("22.5.1") == "Commands"


@pytest.mark.parametrize(
    ("text", "release"),
    [("slurm 24.11.5\n", (24, 11)), ("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 26.05.5", (26, 5))],
)
def test_versions(text: str, release: tuple[int, int]) -> None:
    assert slurm.parse_version(text) == release


def test_an_unknown_state_is_warned_about_and_is_not_an_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert slurm.state("BRAND_NEW") == UNKNOWN
    assert "unknown state of a job: 'BRAND_NEW'" in caplog.text


@pytest.mark.parametrize("text", ["", "\n", "RUNNING", "RUNNING|1"])
def test_no_end(text: str) -> None:
    with pytest.raises(BatchError, match="not the state of a job"):
        slurm.parse_end(text)


def test_an_end_may_be_unset_or_unlimited() -> None:
    assert slurm.parse_end("RUNNING|NONE|7|INVALID\n") == End("running", None)
    assert slurm.parse_end("RUNNING|NONE|7|UNLIMITED\n") == End("running", None, math.inf)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-12", 129600), ("1-0:30", 88200),
        ("1-0:0:5", 86405), ("UNLIMITED", None), ("", None), ("-5", None), ("1:2:3:4", None),
    ],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    assert slurm.parse_time_limit(text) == seconds
