"""Attempt directories: what is written for the supervisor, and what is made of hostile files."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcext import documents, protocol
from hpcext.checkpointers import checkpoint
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.estimate import GoodputReport
from hpcext.executors.attempt import directory as attempts
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.attempt.ends import SUPERVISOR_LOG
from hpcext.executors.attempt.placeholders import fill, fill_shell
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.jobspec import Gpus, JobSpec

START = v.Action(v.Kind.START, "12", 7, 3, {"n": 2})
REPORT = {
    "schema": "hpcext.report/1",
    "attempt": 3,
    "op": 7,
    "pid": 1,
    "start": 1,
    "world_size": 2,
    "step": 20,
    "resumed_step": 10,
    "saved_step": 15,
    "done": 20.0,
    "rate": 4.5,
    "metrics": {"loss": 0.25},
    "registered_at": 1003.0,
    "restored_at": 1003.5,
    "first_step_at": None,
    "at": 1004.0,
}
GOODPUT = {
    "noise_scale": 900.5,
    "initial_batch": 128,
    "most_batch": 4096,
    "least_per_gpu": 2,
    "most_per_gpu": 64,
    "accumulates": False,
    "throughput": [0.02, 1e-3, 0.0, 0, 0.1, 0.003, 2.5],
}
SUSPENDED = {
    "schema": "hpcext.suspended/1",
    "attempt": 3,
    "op": 7,
    "step": 30,
    "manifest": "m",
    "agreed_at": 100.5,
    "written_at": 102.5,
    "acknowledged_at": 102.625,
}
EXIT = {
    "schema": "hpcext.exit/1",
    "attempt": 3,
    "op": 7,
    "exit_code": 0,
    "suspended": False,
    "started_at": 90.0,
    "suspend_asked_at": 100.0,
    "kill_asked_at": None,
    "main_ended_at": 103.0,
    "ended_at": 103.125,
    "cpu_s": 1.0,
}


class Directory:
    """An attempt's directory whose files the test writes."""

    def __init__(self, path: Path) -> None:
        self.files = AttemptFiles(path / "jobs", START)
        self.path = path / "jobs" / "12" / "attempt-0003"
        self.path.mkdir(parents=True)

    def put(self, name: str, document: object, **changes: Any) -> None:
        """Put a file into place as a session does: as a whole."""
        if isinstance(document, dict):
            document = {**document, **changes}
        temporary = self.path / f".{name}.new"
        temporary.write_text(json.dumps(document))
        temporary.rename(self.path / name)

    def report(self, **changes: Any) -> list[f.Fact]:
        self.put("report.json", REPORT, **changes)
        return self.files.news()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def texts(document: Any) -> Any:
    """The document with what is no text in place of each of its texts."""
    if isinstance(document, dict):
        return {key: texts(value) for key, value in document.items()}
    if isinstance(document, list):
        return [texts(value) for value in document]
    return "\ud800\x1b\n" if isinstance(document, str) else document


def test_words_that_are_no_text_can_be_written_down(directory: Directory) -> None:
    """Otherwise the manager would die of them, and each manager after it."""
    said = ["of a training"]
    report = {
        **REPORT, "manifest": "m", "notes": said, "unsaved": "why", "declined": 1,
        "metrics": {"loss": 1.0, "\ud800": 2.0}, "diverged": said,
    }  # fmt: skip
    rescaled = {
        "schema": "hpcext.rescaled/1", "attempt": 3, "op": 7, "resize": 1, "gpus": ["n:0"],
        "ok": False, "why": "it",
    }  # fmt: skip
    supervisor = {"schema": "hpcext.supervisor/1", "attempt": 3, "op": 7, "gpus": ["n:0"]}
    failed = {**EXIT, "exit_code": 1, "cannot_run": "it", "last_line": "end", "gpus_broken": said}
    ends = [{**EXIT, "exit_code": 71, "not_started": "it"}, failed, {**failed, "cannot_run": None}]
    own = ("schema", "attempt", "op")
    for name, document in [
        ("report.json", report),
        ("rescaled.json", rescaled),
        ("supervisor.json", supervisor),
        ("suspended.json", SUSPENDED),
    ]:
        directory.put(name, {**texts(document), **{key: document[key] for key in own}})
    (directory.path / "supervisor.log").write_bytes(b"\xed\xa0\x80 \x1b")
    facts = [*directory.files.news(), f.Started("12", 7, directory.files.step_gpus())]
    assert {type(fact) for fact in facts} >= {f.Rescaled, f.Registered, f.Progressed}
    for end in ends:
        directory.put("exit.json", {**texts(end), "schema": EXIT["schema"]})
        ended = directory.files.ends.ended()
        assert ended is not None
        facts.append(ended)
    facts.append(directory.files.ends.lost(directory.files.ends.supervisor_said()))
    assert b"\\ud800" in msgspec.json.encode(facts)


# Saving.


def test_a_change_in_its_ability_to_save_is_reported(directory: Directory) -> None:
    def told(**changes: Any) -> list[f.Fact]:
        return [fact for fact in directory.report(**changes) if isinstance(fact, f.NotSaved)]

    assert told() == []
    assert told(cannot_save="disk full") == [f.NotSaved("12", 7, "disk full")]
    assert told(cannot_save="disk full", step=21) == []
    declined = f.NotSaved("12", 7, "disk full", 1)
    assert told(cannot_save="disk full", declined=1) == [declined]
    waits = f.NotSaved("12", 7, "disk full", 1, waits=True)
    assert told(cannot_save="disk full", declined=1, waits_to_save=True) == [waits]
    assert told(cannot_save=None, declined=1) == [f.NotSaved("12", 7, "", 1)]


@pytest.mark.parametrize(
    "said", [{"cannot_save": 7}, {"declined": -1}, {"declined": "1"}, {"waits_to_save": True}]
)
def test_nonsense_of_checkpoints_costs_no_report(directory: Directory, said: Any) -> None:
    facts = directory.report(**said)
    assert [type(fact) for fact in facts] == [f.Registered, f.Progressed]


def test_a_long_reason_is_cut_and_made_harmless(directory: Directory) -> None:
    (fact,) = (
        each
        for each in directory.report(cannot_save="\x1b[2J" + "x" * 9999)
        if isinstance(each, f.NotSaved)
    )
    assert len(fact.why) == 120
    assert fact.why.isprintable()


@pytest.mark.parametrize(
    ("text", "step"),
    [("0000000000000047\n", 47), ("", None), ("-3", None), ("9" * 18, None), ("x" * 2**21, None)],
)
def test_the_last_step_is_reported_with_the_end(
    directory: Directory, text: str, step: int | None
) -> None:
    directory.put("exit.json", EXIT, exit_code=-9)
    (directory.path / "last-step").write_text(text)
    ended = directory.files.ends.ended()
    assert ended is not None
    assert ended.step == step
    assert directory.files.ends.lost("gone").step == step


def test_each_order_has_its_own_number(directory: Directory) -> None:
    for number in (1, 2):
        directory.files.order("suspend")
        assert json.loads((directory.path / "order.json").read_text())["number"] == number
    again = AttemptFiles(directory.path.parents[1], START)
    again.order("end")
    assert json.loads((directory.path / "order.json").read_text())["number"] == 3


# Writing.


def test_placeholders_are_filled_and_other_braces_left_alone() -> None:
    values = {"gpus": "2", "nodes": "1", "checkpoint_dir": "/c/{name}", "name": "cnn"}
    argv = [
        "run",
        "--n={gpus}x{nodes}",
        "{checkpoint_dir}/{name}",
        "{}{other}{{gpus}}${gpus",
        "{ gpus }",
    ]
    assert fill(argv, values) == [
        "run", "--n=2x1", "/c/{name}/cnn", "{}{other}{2}${gpus", "{ gpus }",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value", ["plain", "/a b/c", "x; touch gone", "$(touch gone)", "a'b\"c", "*"]
)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("printf '<%s>' {name}", "<{}>"),
        ("printf '<%s>' '{name}' \"{name}\" a{name}b", "<{}><{}><a{}b>"),
        ("printf '<%s>' \"it's {name}\" \\' '\"{name}\\'x", "<it's {}><'><\"{}\\x>"),
        ('printf \'<%s>\' "$(printf %s "{name}")"', None),
        ("printf '<%s>' '{other}' {gpus}", "<{{other}}><2>"),
    ],
)
def test_a_value_is_one_word_for_a_shell_and_never_run(
    tmp_path: Path, value: str, text: str, said: str | None
) -> None:
    filled, environ = fill_shell(text, {"name": value, "gpus": "2"})
    command = ["/bin/sh", "-c", filled]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, check=True)
    if said is not None:
        assert done.stdout.decode() == said.format(*[value] * 3)
    assert list(tmp_path.iterdir()) == []


def test_launch_says_all_that_a_supervisor_needs(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path / "jobs", START)
    spec = JobSpec(
        "cnn",
        ("torchrun", "--nproc-per-node", "{gpus}", "train.py"),
        Gpus(1, 4),
        env={"SEED": "1", "HPCEXT_OP": "999", "CUDA_VISIBLE_DEVICES": "7"},
        workdir="/work",
        suspend_timeout_s=33.0,
    )
    gpus, environ = ("n:0", "n:2"), {"CUDA_VISIBLE_DEVICES": "0,2"}
    manager = tmp_path / "manager.json"
    where = Surroundings(gpus=gpus, environ=environ, manager=manager)
    files.write_launch(spec, START.alloc, where)
    home = tmp_path / "jobs" / "12"
    assert (home / "checkpoint").is_dir()
    document = json.loads((home / "attempt-0003" / "launch.json").read_text())
    told = protocol.Attempt.from_environ(document["environ"])
    assert told == protocol.Attempt(
        "12", 3, 7, home / "checkpoint", home / "attempt-0003", 2,
        run_id=(home / "run-id").read_text().strip(),
    )  # fmt: skip
    assert document["environ"]["SEED"] == "1"
    assert document["environ"]["CUDA_VISIBLE_DEVICES"] == "0,2"
    del document["environ"]
    assert document == {
        "schema": "hpcext.launch/1",
        "job": "12",
        "attempt": 3,
        "op": 7,
        "argv": ["torchrun", "--nproc-per-node", "2", "train.py"],
        "cwd": "/work",
        "log": str(home / "log.txt"),
        "gpus": ["n:0", "n:2"],
        "kill_grace_s": 5.0,
        "suspend_timeout_s": 33.0,
        "manager": str(manager),
        "notices": False,
        "allocation": "",
        "nodes": [],
        "leader": "none",
        "mps": None,
    }
    assert files.sizes.held() == ("n:0", "n:2")


@pytest.mark.parametrize(
    ("saves", "words", "file"),
    [
        ("transformers", "", "**/checkpoint-*/trainer_state.json"),
        ("transformers", "--output_dir out/{name}", "out/cnn/**/checkpoint-*/trainer_state.json"),
        ("accelerate", "--output-dir=a[1] --x", "a[[]1]/**/random_states_0.pkl"),
        ("keras", "--output_dir out", "**/training_metadata.json"),
        ({"preset": "accelerate", "file": "{name}.pkl"}, "--output_dir out", "cnn.pkl"),
    ],
)
def test_checkpoints_are_where_the_command_is_told_to_write(
    tmp_path: Path, saves: Any, words: str, file: str
) -> None:
    """Elsewhere there may be those of other jobs."""
    files = AttemptFiles(tmp_path / "jobs", START)
    command = ("python", "train.py", *words.split())
    files.write_launch(JobSpec("cnn", command, checkpoint=checkpoint(saves)), START.alloc)
    document = json.loads((files.directory / "launch.json").read_text())
    assert document["checkpoint"]["file"] == file


# Reports.


def test_a_session_registers_once_and_progresses_when_something_changed(
    directory: Directory,
) -> None:
    assert directory.files.news() == []
    progressed = f.Progressed("12", 7, 20, 15, 20.0, 4.5, {"loss": 0.25})
    assert directory.report() == [f.Registered("12", 7, 10), progressed]
    assert directory.files.news() == []
    assert directory.report(at=2000.0) == [], "nothing that matters has changed"
    assert directory.report(step=21, rate=None) == [
        f.Progressed("12", 7, 21, 15, 20.0, None, {"loss": 0.25})
    ]


def test_the_parts_of_a_resumption_come_once_with_the_first_step(directory: Directory) -> None:
    directory.put("supervisor.json", {"schema": "hpcext.supervisor/1", "at": 1000.0})
    directory.report()
    [fact] = directory.report(step=21, first_step_at=1003.75)
    assert isinstance(fact, f.Progressed)
    assert fact.resume_s == {"start_s": 3.0, "restore_s": 0.5, "first_step_s": 0.25}
    [fact] = directory.report(step=22, first_step_at=1003.75)
    assert isinstance(fact, f.Progressed)
    assert fact.resume_s is None


def test_a_clock_that_was_set_back_makes_no_negative_durations(directory: Directory) -> None:
    directory.put("supervisor.json", {"schema": "hpcext.supervisor/1", "at": 5000.0})
    *_, fact = directory.report(first_step_at=1003.75)
    assert isinstance(fact, f.Progressed)
    assert fact.resume_s == {"start_s": 0.0, "restore_s": 0.5, "first_step_s": 0.25}


@pytest.mark.parametrize(
    "changes",
    [
        {"op": 6},
        {"attempt": 2},
        {"schema": "hpcext.report/2"},
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"step": 10**400},
        {"step": None},
        {"saved_step": "5"},
        {"resumed_step": [5]},
        {"done": math.nan},
        {"done": math.inf},
        {"done": -1},
        {"done": 10**400},
        {"done": {}},
    ],
)
def test_a_report_that_makes_no_sense_is_left_out_with_one_warning(
    directory: Directory, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert directory.report(**changes) == []
    assert directory.report(**changes) == []
    assert len(caplog.records) == 1
    assert caplog.text.count("\n") == 1
    facts = directory.report()
    assert [type(fact) for fact in facts] == [f.Registered, f.Progressed], "the next one counts"


def test_a_report_before_a_place_to_stop_does_not_register_it(directory: Directory) -> None:
    """Its steps are not told then: with them it would have lost none, whatever it did."""
    said = {"notes": ["nothing is saved"], "suspendable": False}
    noted = f.Noted("12", 7, ("nothing is saved",), {"loss": 0.25})
    assert directory.report(**said) == [noted]
    assert directory.report(at=2000.0, **said) == []
    said["suspendable"] = True
    kinds = [type(fact) for fact in directory.report(at=3000.0, **said)]
    assert kinds == [f.Registered, f.Noted, f.Progressed]
    assert directory.report(at=4000.0, **said) == []


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ("text", ()),
        ({"a": 1}, ()),
        ([1, None, ["x"], "fine"], ("fine",)),
        (["\x1b[31mred\nhpcext: all is well"], (r"\x1b[31mred\nhpcext: all is well",)),
        (["x" * 100_000], ("x" * 500,)),
        ([f"note {number}" for number in range(1000)], tuple(f"note {n}" for n in range(8))),
    ],
    ids=["text", "object", "mixed", "escapes", "long", "many"],
)
def test_notes_are_few_short_and_printable(
    directory: Directory, notes: object, told: tuple[str, ...]
) -> None:
    noted = [fact for fact in directory.report(notes=notes) if isinstance(fact, f.Noted)]
    assert [each.notes for each in noted] == ([told] if told else [])


def test_what_is_noted_beside_a_training_stays_beside_its_own_notes(directory: Directory) -> None:
    said = "preload has no effect: \x1b[31mred"
    assert directory.files.note(said) == f.Noted("12", 7, (r"preload has no effect: \x1b[31mred",))
    # The training has nothing to add.
    assert [type(fact) for fact in directory.report()] == [f.Registered, f.Progressed]
    (noted,) = directory.report(at=2000.0, notes=["fine"])
    assert noted == f.Noted("12", 7, (r"preload has no effect: \x1b[31mred", "fine"))
    assert directory.files.note("more").notes[1:] == ("more", "fine")
    assert directory.report(at=3000.0, notes=["fine"]) == []


def test_the_metrics_at_rungs_are_reported_once(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"10": {"loss": 0.5, "acc": None, "text": "1"}, "-3": {"loss": 1.0}, "30": [1]}
    *_, fact = directory.report(step=31, rungs=said)
    assert isinstance(fact, f.Progressed)
    assert fact.rungs == {10: {"loss": 0.5, "acc": None}, 30: {}}
    assert len(caplog.records) == 1
    *_, fact = directory.report(step=95, rungs={**said, "90": {"loss": math.nan}})
    assert isinstance(fact, f.Progressed)
    assert fact.rungs == {90: {"loss": None}}
    *_, fact = directory.report(step=96, rungs=[3])
    assert isinstance(fact, f.Progressed)
    assert fact.rungs == {}


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0, "fast", 10**400])
def test_a_rate_that_makes_no_sense_is_unknown(directory: Directory, rate: object) -> None:
    *_, fact = directory.report(rate=rate)
    assert isinstance(fact, f.Progressed)
    assert fact.rate is None


@pytest.mark.parametrize(
    "said", [[1.0], [2.0, 1.0], [-1.0, 1.0], [math.nan, 1.0], [1, "x"], [True, 2], 3, [1.0, 1e300]]
)
def test_times_of_steps_that_make_no_sense_are_unknown(directory: Directory, said: Any) -> None:
    *_, fact = directory.report(step_s=said)
    assert isinstance(fact, f.Progressed)
    assert fact.step_s is None
    *_, fact = directory.report(step_s=[1, 2.5], step=95)
    assert isinstance(fact, f.Progressed)
    assert fact.step_s == (1.0, 2.5)


def test_it_stands_still_if_it_did_no_step_since_its_report_or_the_last_look(
    directory: Directory,
) -> None:
    last_step = directory.path / "last-step"
    assert not directory.files.stands_still(), "it says nothing of its steps"
    directory.report(step=40)
    last_step.write_text(f"{40:016}\n")
    assert directory.files.stands_still()
    last_step.write_text(f"{40:016}\t")
    assert not directory.files.stands_still(), "it writes a checkpoint, or validates"
    last_step.write_text(f"{43:016}\n")
    assert not directory.files.stands_still(), "it did three more, who knows when"
    assert directory.files.stands_still()
    last_step.write_text("nonsense\n")
    assert not directory.files.stands_still()
    assert not directory.files.stands_still()


def test_metrics_that_make_no_sense_are_left_out_and_the_rest_stays(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = {
        "loss": math.nan,
        "val/acc@5": 0.5,
        "grad-norm": -3,
        "\x1b[31mred": 1.0,
        "two words": 1.0,
        "x" * 65: 1.0,
        "": 1.0,
        "text": "1",
        "flag": True,
        "list": [1],
        "large": 10**400,
    }
    *_, fact = directory.report(metrics=metrics)
    assert isinstance(fact, f.Progressed)
    assert fact.metrics == {"val/acc@5": 0.5, "grad-norm": -3.0}
    assert fact.diverged == ("loss",)
    assert len(caplog.records) == 1
    *_, fact = directory.report(metrics={f"m{number}": number for number in range(1000)})
    assert isinstance(fact, f.Progressed)
    assert len(fact.metrics) == 32
    *_, fact = directory.report(metrics=[1, 2])
    assert isinstance(fact, f.Progressed)
    assert fact.metrics == {}


def test_a_goodput_is_reported_when_it_changes(directory: Directory) -> None:
    *_, fact = directory.report(goodput=GOODPUT)
    assert isinstance(fact, f.Progressed)
    assert fact.goodput == GoodputReport(
        900.5, 128, 4096, 2, 64, accumulates=False, throughput=(0.02, 1e-3, 0, 0, 0.1, 0.003, 2.5)
    )
    least = {"noise_scale": 0, "initial_batch": 1, "of a later release": {"\ud800": [1]}}
    [fact] = directory.report(goodput={**least, "\ud800": 1})
    assert isinstance(fact, f.Progressed)
    assert fact.goodput == GoodputReport(0.0, 1)
    [fact] = directory.report(goodput=None)
    assert isinstance(fact, f.Progressed)
    assert fact.goodput is None


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_scale": math.nan},
        {"noise_scale": math.inf},
        {"noise_scale": -1e-9},
        {"noise_scale": 10**400},
        {"noise_scale": "900"},
        {"noise_scale": True},
        {"noise_scale": None},
        {"noise_scale": [1.0]},
        {"initial_batch": 0},
        {"initial_batch": 128.5},
        {"initial_batch": True},
        {"initial_batch": 10**400},
        {"initial_batch": {"a": 1}},
        {"most_batch": 127},
        {"batch": 127},
        {"batch": 4097},
        {"batch": 0},
        {"batch": "128"},
        {"batch": 2**41},
        {"least_per_gpu": 65},
        {"most_per_gpu": 2**41},
        {"accumulates": 1},
        {"accumulates": "\x1b[31m"},
        {"throughput": [0.02, 1e-3, 0.0, 0.0, 0.1, 0.003]},
        {"throughput": [0.0, 0.0, 0.0, 0.0, 0.1, 0.003, 2.5]},
        {"throughput": [0.02, 1e-3, 0.0, 0.0, 0.1, 0.003, 0.5]},
        {"throughput": [0.02, -1e-3, 0.0, 0.0, 0.1, 0.003, 2.5]},
        {"throughput": [0.02, math.nan, 0.0, 0.0, 0.1, 0.003, 2.5]},
        {"throughput": [0.02, 1e7, 0.0, 0.0, 0.1, 0.003, 2.5]},
        {"throughput": [[0.02], 1e-3, 0.0, 0.0, 0.1, 0.003, 2.5]},
        {"throughput": "seven  "},
        {"throughput": {"alpha_grad": 0.02}},
    ],
)
def test_a_goodput_that_makes_no_sense_is_left_out_and_the_rest_counts(
    directory: Directory, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    *_, fact = directory.report(goodput={**GOODPUT, **changes})
    assert isinstance(fact, f.Progressed)
    assert (fact.goodput, fact.step, fact.metrics) == (None, 20, {"loss": 0.25})
    [record] = caplog.records
    assert "report.json: goodput: " in record.message
    assert "\x1b" not in record.message
    [fact] = directory.report(goodput=GOODPUT)
    assert isinstance(fact, f.Progressed)
    assert fact.goodput is not None, "the next one counts"


@pytest.mark.parametrize("what", [[], "goodput", 3, True, {}, [["noise_scale", 1]], [{}] * 9])
def test_an_invalid_goodput_is_ignored(directory: Directory, what: object) -> None:
    *_, fact = directory.report(goodput=what)
    assert isinstance(fact, f.Progressed)
    assert (fact.goodput, fact.step) == (None, 20)


def test_paths_that_are_not_files_are_ignored_and_leak_no_descriptor(
    directory: Directory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory.path / "report.json"
    # The address of a socket has 107 bytes at most, and a path may be longer.
    monkeypatch.chdir(path.parent)
    good = directory.path / "good.json"
    good.write_text(json.dumps(REPORT))
    before = len(os.listdir("/proc/self/fd"))

    def sock(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)

    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink(good, path), sock):
        make(path)
        assert directory.files.news() == []
        os.rmdir(path) if path.is_dir() and not path.is_symlink() else os.unlink(path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"\0" * 100,
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b" " * (documents.MAX_FILE_BYTES + 1),
        b'{"schema": "hpcext.report/1", "attempt": 3, "op": 7, "step": ' + b"9" * 10_000 + b"}",
        b'{"schema": "hpcext.report/1", "\\ud800": 1, "attempt": "\\ud800"}',
    ],
    ids=["empty", "binary", "zeros", "deep list", "deep object", "huge", "digits", "surrogates"],
)
@pytest.mark.parametrize("name", ["report.json", "exit.json", "suspended.json", "supervisor.json"])
def test_hostile_bytes_raise_nothing(directory: Directory, name: str, content: bytes) -> None:
    (directory.path / name).write_bytes(content)
    assert directory.files.news() == []
    assert directory.files.ends.ended() is None
    assert directory.files.supervisor() is None
    assert directory.files.ends.lost("gone").outcome is f.Outcome.LOST


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -(10**400), "\x1b[2J", "\ud800", 2**53 + 1, 1e308, -0.0])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def changed(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A document with some of its values replaced by anything."""
    keys = sorted(set(document) - {"schema"})
    return st.dictionaries(st.sampled_from(keys), VALUES, max_size=4)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    report=changed({**REPORT, "goodput": None})
    | changed(GOODPUT).map(lambda some: {"goodput": {**GOODPUT, **some}}),
    exit_=changed(EXIT),
    suspended=changed(SUSPENDED),
)
def test_whatever_the_files_hold_facts_make_sense(
    tmp_path: Path, report: dict[str, Any], exit_: dict[str, Any], suspended: dict[str, Any]
) -> None:
    directory = Directory(tmp_path / os.urandom(8).hex())
    directory.put("supervisor.json", {"schema": "hpcext.supervisor/1", "at": 900.0})
    facts = directory.report(**report)
    directory.put("exit.json", EXIT, **exit_)
    directory.put("suspended.json", SUSPENDED, **suspended)
    ends = [directory.files.ends.ended(), directory.files.ends.lost("gone")]
    assert len(facts) in {0, 1, 2}
    for fact in facts:
        if isinstance(fact, f.Registered):
            assert type(fact.step) is int
            assert fact.step >= 0
            continue
        assert isinstance(fact, f.Progressed)
        assert type(fact.step) is type(fact.saved_step) is int
        assert min(fact.step, fact.saved_step) >= 0
        numbers = [fact.done, fact.rate or 0.0, *(fact.resume_s or {}).values()]
        assert all(type(number) is float and 0 <= number < math.inf for number in numbers)
        assert all(math.isfinite(value) for value in fact.metrics.values())
    for ended in ends:
        parts = (ended and ended.suspend_s) or {}
        assert all(0 <= value < math.inf for value in parts.values())
    # What is journaled must be JSON, and be read again.
    written = msgspec.json.encode([*facts, *(ended for ended in ends if ended)])
    assert msgspec.json.decode(written, type=list[f.Fact]) == [*facts, *filter(None, ends)]


# Ends.


def test_a_suspension_is_reported_with_its_parts(directory: Directory) -> None:
    directory.put("suspended.json", SUSPENDED)
    directory.put("exit.json", EXIT, suspended=True)
    assert directory.files.ends.ended() == f.Ended(
        "12",
        7,
        f.Outcome.SUSPENDED,
        0,
        {"agree_s": 0.5, "write_s": 2.0, "acknowledge_s": 0.125, "teardown_s": 0.5},
    )


def test_a_job_that_suspended_itself_had_no_request(directory: Directory) -> None:
    directory.put("suspended.json", SUSPENDED)
    directory.put("exit.json", EXIT, suspended=True, suspend_asked_at=None)
    ended = directory.files.ends.ended()
    assert ended is not None
    assert ended.suspend_s == {"write_s": 2.0, "acknowledge_s": 0.125, "teardown_s": 0.5}


@pytest.mark.parametrize(
    ("changes", "outcome", "code"),
    [
        ({}, f.Outcome.COMPLETED, 0),
        ({"exit_code": 1}, f.Outcome.FAILED, 1),
        ({"exit_code": -9}, f.Outcome.FAILED, -9),
        ({"kill_asked_at": 102.0}, f.Outcome.FAILED, 0),
        # The batch system said so: done all the same, or no fault of its own.
        ({"kill_asked_at": 102.0, "went_on": True}, f.Outcome.EVICTED, 0),
        ({"notice_at": 102.0}, f.Outcome.COMPLETED, 0),
        ({"notice_at": 102.0, "kill_asked_at": 102.0}, f.Outcome.EVICTED, 0),
        ({"notice_at": 102.0, "exit_code": 1}, f.Outcome.EVICTED, 1),
    ],
)
def test_how_an_attempt_ended(
    directory: Directory, changes: dict[str, Any], outcome: f.Outcome, code: int
) -> None:
    assert directory.files.ends.ended() is None
    directory.put("exit.json", EXIT, **changes)
    ended = directory.files.ends.ended()
    assert ended is not None
    assert (ended.outcome, ended.exit_code) == (outcome, code)


@pytest.mark.parametrize("changes", [{"op": 6}, {"exit_code": None}, {"exit_code": True}])
def test_an_invalid_end_is_ignored(
    directory: Directory, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    directory.put("exit.json", EXIT, **changes)
    assert directory.files.ends.ended() is None
    assert directory.files.ends.lost("gone") == f.Ended("12", 7, f.Outcome.LOST, why="gone")


def test_an_acknowledgement_counts_without_a_recorded_end(directory: Directory) -> None:
    directory.put("suspended.json", SUSPENDED)
    assert directory.files.ends.lost("gone") == f.Ended(
        "12", 7, f.Outcome.SUSPENDED, None, {"write_s": 2.0, "acknowledge_s": 0.125}, "gone"
    )
    directory.put("suspended.json", SUSPENDED, op=6)
    assert directory.files.ends.lost("gone").outcome is f.Outcome.LOST


def test_what_the_supervisor_said_is_fit_for_a_terminal(directory: Directory) -> None:
    path = directory.path / SUPERVISOR_LOG
    assert directory.files.ends.supervisor_said() == ""
    path.write_bytes(b"first\nhpcext: no \x1b[31mroom \xff\n\n")
    assert directory.files.ends.supervisor_said() == "no \\x1b[31mroom \ufffd"
    path.write_bytes(b"x" * 100_000)
    assert len(directory.files.ends.supervisor_said()) == 200


def test_warnings_are_fit_for_a_terminal(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        directory.report(metrics={"\x1b[2J\n": 1.0})
    assert "\x1b" not in caplog.records[0].getMessage()
    assert "\n" not in caplog.records[0].getMessage()


def test_the_last_attempts_are_kept(tmp_path: Path) -> None:
    """A job that is preempted for weeks fills no disk; its checkpoints and its log stay."""
    spec = JobSpec("a", ("true",), Gpus(1, 1), str(tmp_path))
    home = tmp_path / "12"
    for number in range(1, 13):
        action = msgspec.structs.replace(START, attempt=number)
        files = AttemptFiles(tmp_path, action)
        files.write_launch(spec, action.alloc)
        (files.directory / "node-0001").mkdir()
        (home / "checkpoint" / f"step-{number}").touch()
    kept = sorted(path.name for path in home.glob("attempt-*"))
    assert kept == [f"attempt-{number:04d}" for number in range(5, 13)]
    assert len(list((home / "checkpoint").iterdir())) == 12
    AttemptFiles(tmp_path, msgspec.structs.replace(START, attempt=13)).write_launch(
        spec, START.alloc, spare={5}
    )
    assert (home / "attempt-0005").exists(), "it may still run on a lost node"


# What is said of a failure.

SLURM_SAID = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. "
    "Some of the step tasks have been OOM Killed.\nsrun: error: n1: task 0: Out Of Memory\n"
)


@pytest.mark.parametrize(
    ("changes", "step_said", "why"),
    [
        ({"exit_code": 3}, "", "exit code 3"),
        ({"exit_code": -11}, "", "killed by SIGSEGV"),
        ({"exit_code": 139}, "", "exit code 139, by which a shell reports SIGSEGV"),
        ({"exit_code": -40}, "", "killed by signal 40"),
        ({"exit_code": 255}, "", "exit code 255"),
        ({"exit_code": 1, "last_line": "no data"}, "", "exit code 1; last line of its log: no data"),  # noqa: E501
        ({"exit_code": 127, "cannot_run": "no such program 'x'"}, "", "no such program 'x'"),
        ({"exit_code": -9, "oom_kills": 0}, "", "killed by SIGKILL"),
        ({"exit_code": -9, "oom_kills": 1}, "",
         "killed by SIGKILL: out of memory, as the kernel counted in its cgroup"),
        ({"exit_code": -9}, SLURM_SAID, "killed by SIGKILL: out of memory, as Slurm reports"),
        ({"exit_code": 1, "oom_kills": 2}, "",
         "exit code 1; out of memory: the kernel killed 2 processes of its cgroup meanwhile"),
        # A hostile job: nothing that moves a cursor, nothing long, nothing of another type.
        ({"exit_code": 1, "last_line": "\x1b[2J\nx"}, "",
         "exit code 1; last line of its log: \\x1b[2J\\nx"),
        ({"exit_code": 1, "last_line": ["x"], "cannot_run": 7, "oom_kills": "many"}, "",
         "exit code 1"),
        ({"exit_code": -15, "kill_asked_at": 101.0}, "", "told to end: killed by SIGTERM"),
    ],
)  # fmt: skip
def test_a_failure_is_described_in_words(
    directory: Directory, changes: dict[str, Any], step_said: str, why: str
) -> None:
    (directory.path / SUPERVISOR_LOG).write_text(step_said)
    directory.put("exit.json", EXIT, **changes)
    ended = directory.files.ends.ended()
    assert ended is not None
    assert ended.outcome is f.Outcome.FAILED
    assert ended.why == why


def test_a_directory_that_was_away_is_told_from_a_command_that_cannot_be_run(
    directory: Directory,
) -> None:
    away = {"exit_code": 126, "cannot_run": "no such directory '/x'", "no_directory": True}
    for said in (True, False):
        directory.put("exit.json", EXIT, **{**away, "no_directory": said})
        ended = directory.files.ends.ended()
        assert ended is not None
        assert (ended.outcome, ended.exit_code) == (f.Outcome.FAILED, 126)
        assert ended.never_ran is said


def test_the_description_of_a_failure_is_short(directory: Directory) -> None:
    for key in ("last_line", "cannot_run"):
        directory.put("exit.json", EXIT, exit_code=1, **{key: "\x1b" * 100_000})
        ended = directory.files.ends.ended()
        assert ended is not None
        assert len(ended.why) < 500


@pytest.mark.parametrize(
    ("here", "there", "code", "why"),
    [
        # The first one was killed by its launcher, since the other one had failed.
        ((-15, 103.0), (3, 102.0), -15, "on its node 1: exit code 3"),
        ((3, 102.0), (-9, 103.0), 3, "on its node 0: exit code 3"),
        ((0, 103.0), (-11, 102.0), -11, "on its node 1: killed by SIGSEGV"),
        ((1, None), (2, 102.0), 1, "on its node 1: exit code 2"),
    ],
)
def test_among_several_nodes_the_first_failure_is_reported(
    tmp_path: Path,
    here: tuple[int, float | None],
    there: tuple[int, float],
    code: int,
    why: str,
) -> None:
    files = AttemptFiles(tmp_path, v.Action(v.Kind.START, "12", 7, 3, {"n": 2, "o": 2}))
    (files.directory / "node-0001").mkdir(parents=True)
    for where, (exit_code, at) in ((".", here), ("node-0001", there)):
        document = {**EXIT, "exit_code": exit_code, "main_ended_at": at}
        (files.directory / where / "exit.json").write_text(json.dumps(document))
    ended = files.ends.ended()
    assert ended is not None
    assert (ended.outcome, ended.exit_code, ended.why) == (f.Outcome.FAILED, code, why)


@pytest.mark.parametrize(
    ("here", "there", "failed"),
    [
        # srun ended this one since the other had failed; nobody knows how this one ended.
        ({"exit_code": 143, "main_ended_at": 104.0, "notice_at": 103.0}, {"exit_code": 3}, 1),
        ({"exit_code": 0, "main_ended_at": 104.0, "notice_at": 103.0}, {"exit_code": 3}, 1),
        (None, {"exit_code": 3}, 1),
        # It had time to save itself, which makes its failure none the less one.
        ({"suspended": True, "notice_at": 103.0, "suspend_asked_at": 103.0}, {"exit_code": 3}, 1),
        # A shell is ended by the signal that tells its supervisor.
        ({"exit_code": -15, "main_ended_at": 101.0, "notice_at": 103.0}, {"exit_code": 3}, 1),
        ({"exit_code": 3, "main_ended_at": 101.0, "notice_at": 103.0},
         {"exit_code": -9, "main_ended_at": 104.0, "notice_at": 103.0}, 0),
        # A preemption: what failed had lost the others by then.
        ({"exit_code": 143, "main_ended_at": 101.5, "notice_at": 101.0}, {"exit_code": 3}, None),
        ({"exit_code": 143, "notice_at": 103.0}, {"exit_code": 143}, None),
        # A suspension: torchrun makes 1 of the end of its workers.
        ({"suspended": True, "suspend_asked_at": 101.0}, {"exit_code": 1}, None),
        ({"exit_code": 0}, {"exit_code": 0}, None),
        ({"exit_code": 0}, {"exit_code": 3, "main_ended_at": None}, None),
    ],
)  # fmt: skip
def test_a_failure_counts_whichever_node_was_ended_for_it(
    tmp_path: Path, here: dict[str, Any] | None, there: dict[str, Any], failed: int | None
) -> None:
    files = AttemptFiles(tmp_path, v.Action(v.Kind.START, "12", 7, 3, {"n": 2, "o": 2}))
    (files.directory / "node-0001").mkdir(parents=True)
    for where, changes in ((".", here), ("node-0001", there)):
        if changes is not None:
            document = {**EXIT, "suspend_asked_at": None, "main_ended_at": 102.0, **changes}
            (files.directory / where / "exit.json").write_text(json.dumps(document))
    ended = files.ends.failed_by_itself()
    if failed is None:
        assert ended is None
    else:
        assert ended is not None
        assert (ended.outcome, ended.exit_code) == (f.Outcome.FAILED, 3)
        assert ended.why == f"on its node {failed}: exit code 3"


def test_what_may_be_left_on_a_node(tmp_path: Path) -> None:
    """A supervisor began there, or nobody knows, and nothing says that it has ended."""

    def left(node: str) -> bool:
        return attempts.left_on(tmp_path, "12", 3, node)

    assert left("n2")
    own = tmp_path / "12" / "attempt-0003"
    own.mkdir(parents=True)
    assert not left("n2")
    for where, node in ((own, "n1"), (own / "node-0001", "n2")):
        where.mkdir(exist_ok=True)
        document = {"schema": protocol.SUPERVISOR, "node": node}
        (where / protocol.SUPERVISOR_FILE).write_text(json.dumps(document))
    (own / protocol.EXIT_FILE).touch()
    assert [left(node) for node in ("n1", "n2", "n3")] == [False, True, False]
    (own / "node-0001" / protocol.SUPERVISOR_FILE).write_text("{")
    assert [left(node) for node in ("n1", "n2", "n3")] == [False, True, True]
