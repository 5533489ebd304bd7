"""A pilot as an object of Python: its methods do what commands do, and say what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from site_of_test import Site, wait_for

from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.notebook import Pilot
from hpcext.notebook.pilot import NOTEBOOK


def state(pilot: Pilot, job: str) -> str:
    (found,) = (each for each in pilot.document()["jobs"] if each["name"] == job)
    return str(found["state"])


def test_a_pilot_of_a_job_file_is_changed_from_cells(here: Site) -> None:
    here.write_jobs(here.counter("a", gated=True), here.counter("b", gated=True))
    pilot = Pilot("jobs.toml", gpus=2, dir=here.pilot, name="night")
    assert pilot.directory == here.pilot
    wait_for(lambda: here.steps("a") and here.steps("b"), "steps of both")
    assert "a is suspended at step" in pilot.suspend("a", wait=True)
    assert "suspended" in pilot.status("a")
    assert "b" not in pilot.status("a").split()
    assert "a runs on" in pilot.resume("a", wait=True)
    assert "running" in repr(pilot)
    assert pilot.why("b").startswith("b is running")
    assert pilot.resize("b", 1, wait=True).endswith("b runs on 1 GPU")
    said = pilot.submit([sys.executable, "-c", "print('one\\ntwo')"], name="c", after=["a", "b"])
    assert said == "submitted 3 (c)"
    with pytest.raises(HpcextError, match="not done after 0 s"):
        pilot.wait("c", timeout_s=0)
    for name in "ab":
        here.open(name)
    assert pilot.wait() == "3 jobs completed"
    assert pilot.logs("c", lines=1) == "two"
    assert pilot.logs("c", lines=None).splitlines()[-2:] == ["one", "two"]
    here.check_account({"a": 40, "b": 40})
    wait_for(lambda: "■ ended" in Pilot.attach("night")._repr_html_(), "the end of the manager")
    with pytest.raises(NoManagerError, match="this pilot is over"):
        pilot.submit("true")


def test_a_pilot_without_jobs_waits_for_them_until_it_is_drained(here: Site) -> None:
    pilot = Pilot(gpus=1)
    assert Pilot.attach(NOTEBOOK).directory == pilot.directory
    for number in (1, 2):
        assert pilot.submit("true") == f"submitted {number} (true)"
        assert pilot.wait("true") == "1 job completed"
    pilot.submit("sleep 1000", name="long", workdir=Path("/"), gpus={"min": 1, "max": 1})
    assert pilot.cancel("long", wait=True).endswith("long is cancelled")
    with pytest.raises(HpcextError, match=r"not completed: 3 \(long\)"):
        pilot.wait()
    pilot.drain()
    wait_for(lambda: "■ ended" in pilot._repr_html_(), "the end of the manager")


def test_jobs_are_stated_with_the_keys_and_the_values_that_python_has(here: Site) -> None:
    job = {
        "name": "a",
        "command": (sys.executable, "-c", "import os; print(os.getcwd(), os.environ['A'])"),
        "workdir": Path("there"),
        "env": {"A": "ä"},
        "scaling": {1: 1.0, 2: 1.9},
        "gpus": None,
    }
    (here.path / "there").mkdir()
    pilot = Pilot([job], gpus=2, name="cells")
    assert pilot.wait() == "1 job completed"
    assert pilot.logs().splitlines()[-1] == f"{here.path / 'there'} ä"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: Pilot("none.toml", gpus=1), "none.toml: "),
        (lambda: Pilot([{"name": "a"}], gpus=1), "notebook: [[job]] 1 (a): command is missing"),
        (lambda: Pilot({"name": "a"}, gpus=1), "notebook: these are no jobs (valid: a job file,"),
        (lambda: Pilot(["python train.py"], gpus=1), "notebook: these are no jobs"),
        (lambda: Pilot(5, gpus=1), "notebook: these are no jobs"),
        (
            lambda: Pilot([{"name": "a", "command": "true", "env": {"A": {1}}}], gpus=1),
            "notebook: env: {1} (valid: text, numbers,",
        ),
        (
            lambda: Pilot([{"name": "a", "command": "true", "weight": float("nan")}], gpus=1),
            "notebook: weight: nan (valid: text, numbers,",
        ),
        (
            lambda: Pilot([{"name": "a", "command": "true", "gpu": 1}], gpus=1),
            "did you mean gpus?",
        ),
        (lambda: Pilot([{"name": "a", "command": "true"}]), "in --gpus 6"),
        (lambda: Pilot(gpus="two"), "--gpus"),
        (lambda: Pilot(gpus=1, policy="marbel"), "did you mean marble?"),
        (lambda: Pilot.attach("night"), "no pilot 'night' (valid: a directory, an id or a name)"),
        (lambda: Pilot.of_cell("--gpus 1 jobs.toml", ""), "the jobs are stated twice"),
        (lambda: Pilot.of_cell("--gpus '1", ""), "no closing quotation"),
        (
            lambda: Pilot.of_cell("--gpus 1 --dry-run", "[[job]]\ncommand = 'true'"),
            "--dry-run: cannot be given for a cell",
        ),
        (lambda: Pilot.of_cell("--gpus 1 --retry a", "[[job]]"), "--retry: cannot be given for a"),
        (lambda: Pilot.of_cell("--gpus 1", ""), "notebook: it has no [[job]]"),
        (lambda: Pilot.of_cell("--gpsu 1", "[[job]]"), "did you mean --gpus?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_nothing_is_begun(here: Site, how, said: str) -> None:
    with pytest.raises(HpcextError) as caught:
        how()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    # What IPython shows in place of a traceback.
    (line,) = caught.value._render_traceback_()  # type: ignore[attr-defined]
    assert line == f"{type(caught.value).__name__}: {caught.value}"
    assert not list(here.path.rglob("pilot.json"))


def test_a_job_that_is_not_there(here: Site) -> None:
    pilot = Pilot(gpus=1)
    pilot.submit("true", name="cnn")
    for verb in (pilot.suspend, pilot.cancel, pilot.logs, pilot.status, pilot.wait):
        with pytest.raises(InputError, match=r"no job 'cnm' in this pilot \(valid: cnn\); did you"):
            verb("cnm")
    with pytest.raises(InputError, match=r"notebook: command: 5 \(valid: a text, or a list of wo"):
        pilot.submit(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown option '--now'"):
        pilot.cancel("--now")


def test_a_pilot_that_was_interrupted_says_how_it_goes_on(here: Site) -> None:
    pilot = Pilot([here.counter("a", gated=True)], gpus=1)
    wait_for(lambda: here.steps("a"), "a step")
    os.kill(json.loads((pilot.directory / "manager.json").read_text())["pid"], signal.SIGTERM)
    with pytest.raises(HpcextError, match="jobs are left: 1 began and is not done; hpcext run --r"):
        pilot.wait()
    assert "unmanaged" in pilot._repr_html_()
    assert "hpcext run --resume" in repr(pilot)
    with pytest.raises(NoManagerError, match="hpcext run --resume"):
        pilot.cancel("a")


WITHOUT = """
import sys
sys.modules["IPython"] = None
from hpcext.notebook import Pilot
pilot = Pilot([{"name": "a", "command": ["echo", "here"]}], gpus=1)
print(pilot.wait())
print(pilot)
print([pilot.logs("a", lines=1)])
"""


def test_it_is_text_where_there_is_no_ipython(here: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    told, name, heads, row, log = done.stdout.splitlines()
    assert (told, log) == ("1 job completed", "[here]")
    assert name.startswith("pilot notebook-")
    assert heads.split()[:3] == ["id", "job", "state"]
    assert row.split()[:3] == ["1", "a", "completed"]
