"""hpcext doctor --job: a training is suspended and goes on, or it is said why it cannot."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from site_of_test import Site, wait_for

from hpcext.cli import main as cli
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.doctor import job
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.manager.refine import profiles_for
from hpcext.profiles import Measurement


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A place for job files; what is left behind is seen by its environment."""
    found = Site(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    found.environ["TMPDIR"] = str(tmp_path / "tmp")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HPCEXT_REPORT_INTERVAL_S"):
        monkeypatch.setenv(name, found.environ[name])
    return found


def found(site: Site, *jobs: dict[str, object]) -> list[Finding]:
    site.write_jobs(*jobs)
    findings = list(job.check(CheckOptions(load_settings(), jobs=site.jobs)))
    assert {each.name for each in findings} == {"job"}
    assert nothing_left(site)
    return findings


def nothing_left(site: Site) -> bool:
    """No process, no file, no name of a pilot."""
    pilots = site.path / "state" / "hpcext" / "pilots"
    files = [*(site.path / "tmp").iterdir(), *(pilots.iterdir() if pilots.exists() else ())]
    words = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
    return not files and not any(str(site.path / "tmp") in word for each in words for word in each)


def test_it_is_suspended_and_goes_on(site: Site) -> None:
    """As its own account has it; jobs beside it never begin."""
    one = site.counter("one", steps=100_000, step_s=0.02, gpus={"min": 1, "max": 4})
    begun, suspended, gone_on, same = found(
        site, one, {"name": "two", "command": f"touch {site.path}/two"}
    )
    assert {each.verdict for each in (begun, suspended, gone_on)} == {"ok"}
    # It is no session of ours, and says nothing of its state.
    assert (same.verdict, "is unknown" in same.says) == ("note", True)
    assert "one continues where it was" in gone_on.says
    steps = site.steps("one")
    assert {step.attempt for step in steps} == {1, 2}
    assert {len(step.gpus) for step in steps} == {1}
    last = max(step.step for step in steps if step.attempt == 1)
    assert f"suspended at step {last} in" in suspended.says
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert not (site.path / "two").exists()


SCRIPT = """
import time
import torch
from hpcext.training.torch import Session

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
session = Session(GIVEN, seed=1)
loader = torch.utils.data.DataLoader(data, batch_sampler=session.batch_sampler(data, gpu_batch=4))
for epoch in session.epochs(100_000):
    for x, y in session.batches(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        session.report(loss=loss)
    schedule.step()
"""
ALL = "model=model, optimizer=optimizer, schedule=schedule"


ARRAYS = """
import time
import numpy as np
from hpcext.training.session import Session

rng = np.random.default_rng(0)
weights = rng.normal(size=4)
session = Session(weights=weights, rng=rng, seed=1, samples_per_step=4)
for epoch in session.epochs(100_000):
    for _ in session.batches(range(10)):
        weights += rng.normal(size=4)
        time.sleep(0.02)
        session.report(rate=time.time())
"""


def rehearsed(site: Site, text: str) -> list[Finding]:
    script = site.path / "train.py"
    script.write_text(text)
    command = [sys.executable, str(script)]
    return found(site, {"name": "one", "command": command, "env": {"OMP_NUM_THREADS": "1"}})


def test_a_training_that_goes_on_as_the_same_one_is_approved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "TRAIN_S", 1.0)
    findings = rehearsed(site, SCRIPT.replace("GIVEN", ALL))
    assert {each.verdict for each in findings} == {"ok"}, findings
    assert findings[-1].says.endswith(
        "state as before, and the next 3 losses as without a suspension"
    )
    assert "no step is lost" in findings[-2].says


@pytest.mark.slow
def test_one_that_reports_no_loss_is_judged_by_its_weights(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "TRAIN_S", 1.0)
    findings = rehearsed(site, ARRAYS)
    assert {each.verdict for each in findings} == {"ok"}, findings
    assert "and 3 steps later as without a suspension" in findings[-1].says


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        pytest.param(
            "optimizer=optimizer, schedule=schedule, unsaved=True",
            "weights",
            marks=pytest.mark.slow,
        ),
        ("model=model, schedule=schedule, unsaved=True", "optimizer"),
        pytest.param(
            "model=model, optimizer=optimizer, unsaved=True", "schedule", marks=pytest.mark.slow
        ),
    ],
)
def test_one_that_forgets_something_is_not_approved(
    site: Site, monkeypatch: pytest.MonkeyPatch, given: str, lost: str
) -> None:
    """Though its session has saved and restored all that it was given, at the right step."""
    monkeypatch.setattr(job, "TRAIN_S", 1.0)
    findings = rehearsed(site, SCRIPT.replace("GIVEN", given))
    wrong = [each for each in findings if each.verdict == "wrong"]
    assert wrong
    assert re.search(
        rf"is not the same training after it was resumed: .*\b{lost}\b.* differ", wrong[0].says
    )
    assert wrong[0].do.startswith("give Session(...)")
    if lost == "weights":
        assert re.search(r"loss of step \d+ is .* where the training went on", wrong[1].says)


@pytest.mark.cases(1)
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_doctor_that_is_ended_leaves_nothing_behind(site: Site, signum: signal.Signals) -> None:
    """Its keeper hears of it, whatever it was."""
    site.write_jobs(site.counter("one", steps=100_000, step_s=0.02))
    process = site.start("doctor", "--job", str(site.jobs))
    wait_for(lambda: site.steps("one"), "a step")
    assert not nothing_left(site)
    process.send_signal(signum)
    process.communicate(timeout=500)
    wait_for(lambda: nothing_left(site), "the end of all of it")


def test_one_that_fails(site: Site) -> None:
    text = "import sys; sys.exit('no such data set')"
    (ended,) = found(site, {"name": "one", "command": [sys.executable, "-c", text], "retries": 0})
    assert (ended.verdict, ended.says) == ("wrong", "one failed, exit status 1: no such data set")
    assert (ended.do, ended.why) == ("mend this, and try again", "")


def test_one_that_completes_without_a_session(site: Site) -> None:
    (ended,) = found(site, {"name": "one", "command": "true"})
    assert ended.says == "one completed, exit status 0; it has completed no step"
    assert "if it has no session, add one to its script" in ended.do


def test_one_without_a_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BEGIN_S", 3.0)  # who waits for a real one has three minutes
    (none,) = found(site, {"name": "one", "command": "sleep 600"})
    assert (none.verdict, none.says[:32]) == ("wrong", "one has no session after 3 s, so")


def test_one_for_several_nodes(site: Site) -> None:
    (note,) = found(site, {"name": "one", "command": "true", "nodes": {"min": 2, "max": 2}})
    assert (note.verdict, note.says) == ("note", "one needs 2 nodes")


def test_a_file_that_names_a_measured_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its profile is looked up where a manager finds it."""
    settings = load_settings(environ={"HPCEXT_STATE_DIR": str(tmp_path)})
    path = tmp_path / "jobs.toml"
    path.write_text('[[job]]\nname = "a"\ncommand = "true"\nscaling = "cnn"\n')
    with pytest.raises(InputError, match="no profile 'cnn'"):
        job.jobs_of(path, settings)
    store = profiles_for(tmp_path / "profiles")
    seen = {"at": 1e9, "steps_per_s": 2.0, "seconds": 60, "source": "profile", "gpu": store.gpu}
    store.add("cnn", [Measurement(gpus=1, **seen)])
    (found,) = job.jobs_of(path, settings)
    assert found.profile == "cnn"


def test_no_such_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--job", "none.toml"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


SAVER = """
import os, pathlib, signal, sys, time
count = pathlib.Path(sys.argv[1])
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
step = int(count.read_text()) if count.exists() else 0
while True:
    time.sleep(0.02)
    step += 1
    if asked or EVERY and step % EVERY == 0:
        draft = count.with_suffix(".new")
        draft.write_text(str(step))
        os.replace(draft, count)
        if asked and not DEAF:
            sys.exit(143)
"""


BY_EXIT = {"signal": "SIGUSR1", "after_s": 1, "done": {"exit": [143]}}
PLAIN = {"preset": "plain", "file": "*.txt"}


class Tried(NamedTuple):
    """A command that saves at a signal, or at every so many steps; and what is found of it."""

    checkpoint: object
    verdicts: str
    words: str
    every: int = 0
    deaf: bool = False


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "tried",
    [
        Tried({**BY_EXIT, "after_s": 60}, "ok ok ok", "lost no work"),
        Tried(PLAIN, "ok ok ok", "lost no work", every=1, deaf=True),
        Tried("plain", "ok note ok", "it is unknown what one lost", deaf=True),
        Tried(BY_EXIT, "wrong", "did not save in 1 s in the way that its checkpoint", deaf=True),
    ],
)
def test_a_command_that_saves_by_its_own_means_is_tried(
    site: Site, monkeypatch: pytest.MonkeyPatch, tried: Tried
) -> None:
    monkeypatch.setattr(job, "TRAIN_S", 1.5)
    script = site.path / "saver.py"
    text = SAVER.replace("EVERY", str(tried.every)).replace("DEAF", str(tried.deaf))
    script.write_text(text)
    command = [sys.executable, str(script), str(site.path / "count.txt")]
    findings = found(site, {"name": "one", "command": command, "checkpoint": tried.checkpoint})
    assert [each.verdict for each in findings] == tried.verdicts.split()
    assert any(tried.words in each.says for each in findings)


def test_the_steps_of_a_rehearsal_are_no_part_of_a_suspension() -> None:
    took = {"agree_s": 2.25, "write_s": 0.25}
    assert job._without(2.0, took) == {"agree_s": 0.25, "write_s": 0.25}
    assert job._without(3.0, took)["agree_s"] == 0.0
    assert job._without(2.0, None) == {}
