"""A training that is suspended, killed or fails continues one run of its tracker.

What stands for MLflow in ``standins`` follows its documentation; the slow tests use the trackers
themselves, without a network.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for
from written import whole_lines

HERE = Path(__file__).parent
STEPS = 300

needs = {
    name: pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"needs {name}: make test-slow installs it"
    )
    for name in ("mlflow", "wandb", "tensorboard")
}


def job(site: Site, tracker: str, *words: object, **more: Any) -> dict[str, Any]:
    env = {
        "MLFLOW_TRACKING_URI": f"file:{site.path / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        **more.pop("env", {}),
    }
    command = [sys.executable, str(HERE / "train_logged.py"), tracker, *map(str, words)]
    return {"name": tracker, "command": command, "env": env, **more}


def stood_in(site: Site, *words: object, **more: Any) -> dict[str, Any]:
    paths = [str(HERE / "standins"), os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **more.pop("env", {})}
    return job(site, "mlflow", *words, env=env, **more)


def suspended_once(site: Site, job: dict[str, Any]) -> None:
    """Run a job to its end; suspend it once in the middle of its work."""
    site.write_jobs(job)
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--name", "p")
    steps = site.path / "steps"
    wait_for(lambda: len(whole_lines(steps)) > 2, "the first steps")
    site.run_until_done("suspend", "p", "1")
    wait_for(lambda: site.document("status", "p")["jobs"][0]["state"] == "pending", "its end")
    site.run_until_done("resume", "p", "1")
    out, err = manager.communicate(timeout=480)
    assert manager.returncode == 0, (out, err, site.run("logs", "p", "1").out)


def run_to_its_end(site: Site, job: dict[str, Any]) -> None:
    site.write_jobs(job)
    ran = site.run("run", str(site.jobs), "--gpus", "1", "--name", "p")
    assert ran.code == 0, (ran, site.run("logs", "p", "1").out)


def runs_of_standin(site: Site) -> list[list[int]]:
    """The steps of each run."""
    return [
        [line[3] for line in map(json.loads, path.read_text().splitlines()) if line[0] == "metric"]
        for path in (site.path / "mlruns" / "standin").iterdir()
    ]


def test_a_suspended_training_continues_one_run_of_mlflow(site: Site) -> None:
    suspended_once(site, stood_in(site, STEPS))
    assert runs_of_standin(site) == [list(range(STEPS))]


def test_a_killed_training_continues_one_run_where_its_checkpoint_is(site: Site) -> None:
    run_to_its_end(site, stood_in(site, 20, 10))
    # MLflow keeps both values of a step that was done twice.
    assert runs_of_standin(site) == [[*range(10), *range(8, 20)]]


def test_a_run_that_is_gone_fails_no_job(site: Site) -> None:
    """As when the user deletes it, or a parameter changes with the number of GPUs."""
    gone = "import pathlib, shutil, os; shutil.rmtree(os.environ['RUNS'], ignore_errors=True); "
    train = stood_in(site, 20, 10, env={"RUNS": str(site.path / "mlruns")})
    script = site.path / "gone.py"
    script.write_text(
        gone + f"import runpy, sys; sys.argv[0] = {str(HERE / 'train_logged.py')!r}; "
        f"sys.path.insert(0, {str(HERE)!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    train["command"][1] = str(script)
    run_to_its_end(site, train)
    # The second attempt found no run, and the third began another one.
    assert runs_of_standin(site) == [list(range(8, 20))]
    assert site.document("status", "p")["jobs"][0]["attempts"] == 3
    assert "not found" in site.run("logs", "p", "1").out


SHOW = "echo $HPCEXT_JOB_ID $WANDB_RUN_ID $WANDB_RESUME >>ids; test $HPCEXT_ATTEMPT = 2"


def shown(site: Site, name: str, **more: Any) -> list[tuple[str, str, str]]:
    """What the attempts of two jobs, which all but the last of each fail, find."""
    jobs = ({"name": each, "command": SHOW, "shell": True, **more} for each in ("a", "b"))
    site.write_jobs(*jobs)
    (site.path / "ids").unlink(missing_ok=True)
    ran = site.run("run", str(site.jobs), "--gpus", "1", "--name", name)
    assert ran.code == 0, ran
    lines = (line.split() for line in (site.path / "ids").read_text().splitlines())
    return [(line[0], *(line[1:] or ("", ""))) for line in lines]  # type: ignore[misc]


def test_each_job_of_each_pilot_has_an_id_of_its_own(site: Site) -> None:
    found = {*shown(site, "p"), *shown(site, "q")}
    # Four jobs, each with the same in both of its attempts.
    assert len(found) == len({run for _, run, _ in found}) == 4
    assert {resume for *_, resume in found} == {"allow"}
    assert all(len(run) == 32 for _, run, _ in found)


def test_a_job_may_not_want_that(site: Site) -> None:
    assert {run for _, run, _ in shown(site, "p", trackers=False)} == {""}


# The trackers themselves.


@pytest.mark.slow
@needs["mlflow"]
def test_mlflow_itself(site: Site) -> None:
    suspended_once(site, job(site, "mlflow", STEPS))
    runs = [path for path in (site.path / "mlruns" / "0").iterdir() if path.is_dir()]
    assert len(runs) == 1
    lines = (runs[0] / "metrics" / "loss").read_text().splitlines()
    assert [int(line.split()[2]) for line in lines] == list(range(STEPS))


@pytest.mark.slow
@needs["mlflow"]
def test_a_trainer_of_transformers_logs_its_arguments_once(site: Site) -> None:
    """MLflow would refuse those of the second attempt, one of which has another value."""
    pytest.importorskip("transformers")
    train = job(site, "mlflow", STEPS, env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"})
    train["command"][1:3] = [str(HERE / "train_hf.py")]
    suspended_once(site, train)
    assert site.document("status", "p")["jobs"][0]["attempts"] == 2
    (run,) = (path for path in (site.path / "mlruns" / "0").iterdir() if path.is_dir())
    assert (run / "params" / "save_steps").read_text() == "501"
    lines = (run / "metrics" / "loss").read_text().splitlines()
    logged = [int(line.split()[2]) for line in lines]
    assert len(logged) == len({*logged})
    # The Trainer logs a step after all that its callbacks do, and one of them ends it here.
    (suspended,) = site.path.rglob("suspended.json")
    at = json.loads(suspended.read_text())["step"]
    assert {*range(1, STEPS + 1)} - {*logged} <= {at}


@pytest.mark.slow
@needs["mlflow"]
def test_a_parameter_that_changes_fails_no_job(site: Site) -> None:
    """MLflow refuses another value of a parameter in the same run."""
    train = job(site, "mlflow", 20, 10)
    words = " ".join(f"'{word}'" for word in train["command"])
    run_to_its_end(site, {**train, "command": f"SIZE=$HPCEXT_ATTEMPT exec {words}", "shell": True})
    runs = [path for path in (site.path / "mlruns" / "0").iterdir() if path.is_dir()]
    steps = [
        [int(line.split()[2]) for line in (run / "metrics" / "loss").read_text().splitlines()]
        for run in runs
    ]
    assert sorted(steps) == [list(range(10)), list(range(8, 20))]
    assert "Changing param values is not allowed" in site.run("logs", "p", "1").out


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a run's file: those of LevelDB's log format, after seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts = (b"" if kind in {1, 2} else parts) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:
            yield wandb_internal_pb2.Record.FromString(parts)


def wandb_run(path: Path) -> tuple[str, bool, list[int]]:
    """The id of a run, whether it is resumed if there is one, and its steps."""
    records = list(wandb_records(path))
    run = next(each.run for each in records if each.WhichOneof("record_type") == "run")
    steps = [each.history.step.num for each in records if each.HasField("history")]
    return run.run_id, run.resume, steps


@pytest.mark.slow
@needs["wandb"]
def test_weights_and_biases_itself(site: Site) -> None:
    """Without a network each attempt has a file, of the same run; ``wandb sync`` joins them."""
    suspended_once(site, job(site, "wandb", STEPS))
    files = sorted((site.path / "wandb").glob("offline-run-*/*.wandb"))
    first, second = [wandb_run(path) for path in files]
    assert first[0] == second[0]
    assert len(first[0]) == 32
    assert first[1]
    assert second[1]
    assert [*first[2], *second[2]] == list(range(STEPS))


@pytest.mark.slow
@needs["tensorboard"]
def test_tensorboard_shows_each_step_once(site: Site) -> None:
    """Those that its writer kept when the training was suspended, too."""
    suspended_once(site, job(site, "tensorboard", STEPS))
    assert curve(site) == list(range(STEPS))


@pytest.mark.slow
@needs["tensorboard"]
def test_tensorboard_hides_steps_that_are_done_again(site: Site) -> None:
    run_to_its_end(site, job(site, "tensorboard", 20, 10, env={"FLUSHED": "1"}))
    # Without purge_step it would show steps 8 and 9 twice.
    assert curve(site) == list(range(20))


def curve(site: Site) -> list[int]:
    """The steps that TensorBoard shows of both attempts."""
    pytest.importorskip("torch")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert len(list((site.path / "events").iterdir())) == 2
    events = EventAccumulator(str(site.path / "events"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars("loss")]
