"""The variables of experiment trackers: which attempt gets which, and what is left alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcext.launch import environment
from hpcext.launch.launch_file import Launch

RUN = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32
TRACKED = ("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID", "MLFLOW_MAX_LOG_PARAMS")
MLFLOW = {"MLFLOW_RUN_ID": "m-1", "MLFLOW_MAX_LOG_PARAMS": "0"}


class Home:
    """The directory of a job, with what its attempts have left there."""

    def __init__(self, path: Path) -> None:
        self.path = path / "1"
        self.checkpoints = self.path / "checkpoint"
        self.checkpoints.mkdir(parents=True)

    def attempt(self, number: int) -> Path:
        directory = self.path / f"attempt-{number:04d}"
        directory.mkdir(exist_ok=True)
        return directory

    def ended(self, number: int, **facts: Any) -> None:
        document = {"schema": "hpcext.exit/1", "attempt": number, "op": number, **facts}
        (self.attempt(number) / "exit.json").write_text(json.dumps(document))

    def noted(self, run: str) -> None:
        (self.checkpoints / "mlflow-run-id").write_text(f"{run}\n")

    def environ(
        self, number: int = 1, index: int = 0, nodes: int = 1, **more: str
    ) -> Mapping[str, str]:
        """What a command of an attempt finds in its environment."""
        document = {
            "attempt": number,
            "op": number,
            "argv": ["true"],
            "cwd": "/",
            "environ": {
                "HPCEXT_CHECKPOINT_DIR": str(self.checkpoints),
                "HPCEXT_REPORT_DIR": str(self.attempt(number)),
                "HPCEXT_NUM_GPUS": "1",
                "HPCEXT_NUM_NODES": str(nodes),
                "HPCEXT_RUN_ID": RUN,
                **more,
            },
            "log": str(self.path / "log.txt"),
            "gpus": [],
            "kill_grace_s": 1,
            "suspend_timeout_s": 1,
        }
        return environment.of_command(Launch(document, index), {}, {})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in (*TRACKED, "HPCEXT_RUN_ID", "HPCEXT_CHECKPOINT_DIR", "HPCEXT_TRACKERS"):
        monkeypatch.delenv(name, raising=False)
    return Home(tmp_path)


def tracked(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in TRACKED if name in environ}


def test_each_attempt_gets_the_run_of_its_job(home: Home) -> None:
    first = {"WANDB_RUN_ID": RUN, "WANDB_RESUME": "allow"}
    assert tracked(home.environ()) == first
    home.noted("m-1")
    assert tracked(home.environ(2)) == {**first, **MLFLOW}


def test_a_job_whose_id_is_not_stored_gets_none(home: Home) -> None:
    assert tracked(home.environ(HPCEXT_RUN_ID="")) == {}


def test_other_nodes_do_not_write_into_the_run_of_the_first(home: Home) -> None:
    home.noted("m-1")
    found = tracked(home.environ(2, index=1, nodes=2))
    assert found == {"WANDB_RUN_ID": f"{RUN}-node-1", "WANDB_RESUME": "allow"}


@pytest.mark.parametrize("where", ["job", "shell"])
@pytest.mark.parametrize("name", TRACKED)
def test_what_the_user_has_set_stays(
    home: Home, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    home.noted("m-1")
    more = {name: "mine"} if where == "job" else {}
    if where == "shell":
        monkeypatch.setenv(name, "mine")
    found = tracked(home.environ(2, **more))
    assert found.pop(name) == "mine"
    others = {"WANDB_RUN_ID": RUN, "WANDB_RESUME": "allow", **MLFLOW}
    assert found == {key: value for key, value in others.items() if key != name}


@pytest.mark.parametrize("said", ["0", "no", "Off", "false", "none"])
def test_nothing_is_set_if_the_user_does_not_want_it(
    home: Home, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    home.noted("m-1")
    assert tracked(home.environ(2, HPCEXT_TRACKERS="0")) == {}
    monkeypatch.setenv("HPCEXT_TRACKERS", said)
    assert tracked(home.environ(2)) == {}


def test_the_run_of_an_outer_job_is_not_that_of_its_inner_jobs(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager may have been started by a script that is itself an attempt."""
    outer = tmp_path / "outer"
    outer.mkdir()
    (outer / "mlflow-run-id").write_text("m-outer\n")
    monkeypatch.setenv("HPCEXT_RUN_ID", OTHER)
    monkeypatch.setenv("HPCEXT_CHECKPOINT_DIR", str(outer))
    for name, value in zip(TRACKED, (f"{OTHER}-node-2", "allow", "m-outer", "0"), strict=True):
        monkeypatch.setenv(name, value)
    assert tracked(home.environ()) == {"WANDB_RUN_ID": RUN, "WANDB_RESUME": "allow"}
    # What the user sets there is his own.
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_RESUME", "must")
    assert tracked(home.environ()) == {"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"}


def test_a_run_at_which_an_attempt_has_failed_is_not_tried_again(home: Home) -> None:
    home.noted("m-1")
    home.ended(1, exit_code=1, suspended=False)
    assert "MLFLOW_RUN_ID" not in home.environ(2)
    assert home.environ(2)["WANDB_RUN_ID"] == RUN


@pytest.mark.parametrize(
    "facts",
    [
        {"exit_code": 0, "suspended": True},
        {"exit_code": -15, "suspended": False, "kill_asked_at": 1.0},
        {"exit_code": -15, "suspended": False, "notice_at": 1.0},
        {"exit_code": 71, "suspended": False, "not_started": "no space left on device"},
        {"exit_code": 1, "suspended": False, "checkpoint": {"saved": False, "lost_s": 1.0}},
    ],
    ids=["suspended", "ended", "noticed", "not started", "saves by its own means"],
)
def test_a_run_is_continued_after_every_other_end(home: Home, facts: dict[str, Any]) -> None:
    home.noted("m-1")
    home.ended(1, **facts)
    assert home.environ(2)["MLFLOW_RUN_ID"] == "m-1"


def test_a_run_is_continued_after_a_training_that_had_begun(home: Home) -> None:
    home.noted("m-1")
    home.ended(1, exit_code=1, suspended=False)
    (home.attempt(1) / "report.json").write_text("{}")
    assert home.environ(2)["MLFLOW_RUN_ID"] == "m-1"


@pytest.mark.parametrize(
    "note", ["", "../../etc", "a b", "a\nLD_PRELOAD=x", "x" * 257, "\0", "é"], ids=repr
)
def test_a_note_that_is_no_id_is_not_used(home: Home, note: str) -> None:
    home.noted(note)
    assert "MLFLOW_RUN_ID" not in home.environ(2)


def test_a_note_that_is_a_link_is_not_followed(home: Home, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (home.checkpoints / "mlflow-run-id").symlink_to(tmp_path / "secret")
    assert "MLFLOW_RUN_ID" not in home.environ(2)


def restart(home: Home, number: int) -> str:
    return home.environ(number)["HPCEXT_RESTART_STEP"]


def test_the_restart_step_of_a_session_is_that_of_its_newest_checkpoint(home: Home) -> None:
    assert restart(home, 1) == "0"
    (home.checkpoints / "attempt-0001.opened").touch()
    assert restart(home, 2) == "0"
    for name in (
        "step-000000090.attempt-0001",
        "step-000000040.attempt-0002",
        "step-000000040.attempt-0002.1",
        ".draft-step-000000095.attempt-0002.x",
        "step-x.attempt-0003",
        "step-000000095",
    ):
        (home.checkpoints / name).mkdir()
    # Attempt 2 had begun from an older one.
    assert restart(home, 3) == "40"


def test_the_restart_step_of_another_program_is_that_of_its_suspension(home: Home) -> None:
    assert restart(home, 2) == ""
    document = {"schema": "hpcext.suspended/1", "attempt": 1, "op": 1, "step": 17}
    (home.attempt(1) / "suspended.json").write_text(json.dumps(document))
    assert restart(home, 2) == "17"
    # It was killed since, and where it begins is not known.
    assert restart(home, 3) == ""
