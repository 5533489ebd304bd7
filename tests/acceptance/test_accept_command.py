"""hpcext-admin accept: what is no good input, before anything is submitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcext.acceptance import on_lsf, on_slurm, suite
from hpcext.batch.leasing import Idle
from hpcext.cli import admin

IDLE = Idle("n1", True, False, 0, "", 8, 1000)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Slurm with one idle node in each of two partitions, that takes no job."""

    def idle(_: object, partition: str) -> Mapping[str, Idle]:
        return {"harvest": {"n1": IDLE}, "other": {"n2": IDLE}}.get(partition, {})

    monkeypatch.setattr(on_slurm.SlurmSystem, "release", lambda _: "slurm 22.05.8")
    monkeypatch.setattr(on_slurm.SlurmSystem, "idle", idle)
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--partition", "harvest", "--hosts", "4"), "--hosts: 4 (valid: 1 to 3)"),
        (("--partition", "harvest", "--age", "-1"), "--age: -1 (valid: 0 to 300)"),
        (("--partition", "harvest", "--silence", "600"), "--silence: 600 (valid: 10 to 90)"),
        (("--partition", "harvest", "--only", "kil"), "did you mean kill?"),
        (("--partition", "nowhere"), "--partition: nowhere has no hosts"),
        (("--partition", "harvest", "--above", "harvest"), "--above: harvest"),
        (("--partition", "harvest", "--above", "other"), "--above: other does not have n1"),
        ((), "--partition"),
    ],
)
@pytest.mark.usefixtures("slurm")
def test_impossible_values_are_refused(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin.main(["accept", "slurm", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("slurm")
def test_no_host_is_idle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_slurm.SlurmSystem, "idle", lambda *_: {"n1": IDLE._replace(idle=False)})
    assert admin.main(["accept", "slurm", "--partition", "harvest", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["where"], error["do"]) == ("--partition", "try again later")


def test_what_follows_two_dashes_is_for_the_batch_system() -> None:
    args = admin.parse(["accept", "lsf", "--partition", "q", "--", "-P", "abc", "--", "-x"])
    assert (args.partition, args.rest) == ("q", ("-P", "abc", "--", "-x"))


def test_every_scenario_that_can_fail_says_what_to_change() -> None:
    for system in (on_slurm.SlurmSystem(), on_lsf.LsfSystem()):
        without = {"slurm": {"migrate", "notice", "stop", "suspend"}, "lsf": set()}[system.key]
        assert {*suite.names(system), suite.REMOVAL} - without == system.changes.keys()
