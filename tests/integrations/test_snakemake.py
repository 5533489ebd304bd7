"""Rules of a real Snakemake run in a real pilot; it has an environment of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from site_of_test import COUNTER, Site, wait_for

from hpcext.core.errors import InputError
from hpcext.integrations.snakemake import keys

ROOT = Path(__file__).parents[2]
Install = Callable[..., Path]
PLUGIN = ROOT / "site_configs" / "packaging" / "snakemake"
FENCE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SUITE = """
from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake_executor_plugin_hpcext import ExecutorSettings

class TestWorkflows(TestWorkflowsLocalStorageBase):
    __test__ = True

    def get_executor(self):
        return "hpcext"

    def get_executor_settings(self):
        return ExecutorSettings(pilot="pool")
"""


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({}, {"gpus": 1}),
        ({"gpu": 2, "mem_mb": 100, "_cores": 1}, {"gpus": 2}),
        ({"gpu": 0, "runtime": 90}, {"gpus": 1, "walltime_s": 5400}),
        ({"hpcext_priority": 5, "hpcext_gpus": "1-4"}, {"gpus": "1-4", "priority": 5}),
        ({"hpcext_checkpoint": "plain"}, {"gpus": 1, "checkpoint": "plain"}),
    ],
)
def test_resources_are_keys(resources: dict[str, Any], found: dict[str, Any]) -> None:
    assert keys.keys_of(resources) == found


@pytest.mark.parametrize("key", ["prioritty", "command", "name", "env", ""])
def test_resources_that_are_no_keys_are_refused(key: str) -> None:
    with pytest.raises(InputError, match=rf"'hpcext_{key}' is no key of a job .valid: hpcext_gpus"):
        keys.keys_of({f"hpcext_{key}": 1})


@pytest.mark.parametrize("resources", [{"gpu": "many"}, {"runtime": "2h"}, {"gpu": -1}])
def test_numbers_that_are_none_are_refused(resources: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"resources: .*valid: a whole number"):
        keys.keys_of(resources)


def test_jobs_have_what_leads_to_their_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/here")
    monkeypatch.setenv("SECRET", "mine")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    found = keys.environment()
    assert found["PATH"] == "/here"
    assert not {"SECRET", "CONDA_PREFIX"} & found.keys()


# The real one.


@pytest.fixture(scope="session")
def programs(install: Install) -> Path:
    return install("snakemake", "snakemake>=9", "pytest", folders=(PLUGIN,))


@pytest.fixture
def place(pool: Callable[[Path], Site], programs: Path, site: Site) -> Site:
    site.environ["COUNTER_LOG"] = str(site.path / "train.steps")
    return pool(programs)


def workflow(place: Site, *words: str, rules: str) -> subprocess.Popen[str]:
    (place.path / "Snakefile").write_text(rules)
    program = ["snakemake", "--executor", "hpcext", "--jobs", "10"]
    process = subprocess.Popen(
        [*program, "--seconds-between-status-checks", "1", *words],
        cwd=place.path,
        env=place.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    place.started.append(process)
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=500)
    return process.returncode, out


def jobs(place: Site) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in place.document("status", "pool")["jobs"]}


def training(place: Site) -> str:
    """A rule whose training is the counter, which waits for a gate before its last step."""
    command = f"{sys.executable} {COUNTER} 40 0.01 5 --gate {place.path}/train.gate"
    return (
        "rule train:\n"
        '    output: "model.txt"\n'
        f'    shell: "{command} && echo trained >> {{output}}"\n'
    )


@pytest.mark.slow
def test_what_the_page_says(place: Site) -> None:
    _, rules, commands = FENCE.findall((ROOT / "docs" / "snakemake.md").read_text())
    _, *lines = re.findall(r"^\$ (.*)", commands, re.M)
    (place.path / "Snakefile").write_text(rules)
    for line in lines:
        done = subprocess.run(
            line, shell=True, cwd=place.path, env=place.environ, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
    assert (place.path / "report.txt").read_text() == "model 1\nmodel 2\nmodel 3\n"


@pytest.mark.slow
def test_a_rule_whose_training_is_suspended_has_not_failed(place: Site) -> None:
    process = workflow(place, rules=training(place))
    wait_for(lambda: len(place.steps("train")) >= 39, "the gate")
    assert place.run("suspend", "pool", "train-0").code == 0
    wait_for(lambda: jobs(place)["train-0"]["suspends"] == 1, "its suspension")
    assert not (place.path / "model.txt").exists()
    assert process.poll() is None
    assert place.run("resume", "pool", "train-0").code == 0
    place.open("train")
    code, out = ended(process)
    assert code == 0, out
    job = jobs(place)["train-0"]
    assert (job["state"], job["attempts"], job["suspends"]) == ("completed", 2, 1)
    place.check_account({"train": 40})
    assert (place.path / "model.txt").read_text() == "trained\n"


@pytest.mark.slow
def test_a_rule_that_fails_is_said_with_its_log(place: Site) -> None:
    rules = 'rule fails:\n    output: "none.txt"\n    shell: "echo what went wrong; exit 3"\n'
    code, out = ended(workflow(place, rules=rules))
    assert code == 1
    (log,) = re.findall(r"Its log is (\S+log\.txt)\.", out)
    assert "what went wrong" in Path(log).read_text()
    assert jobs(place)["fails-0"]["attempts"] == 1


@pytest.mark.slow
def test_a_workflow_that_is_interrupted_cancels_its_jobs(place: Site) -> None:
    process = workflow(place, rules=training(place))
    wait_for(lambda: len(place.steps("train")) >= 39, "the gate")
    process.send_signal(signal.SIGINT)
    ended(process)
    wait_for(lambda: jobs(place)["train-0"]["state"] == "cancelled", "the end of its job")


@pytest.mark.slow
def test_what_is_wrong_is_said_in_a_line(place: Site) -> None:
    rules = (
        'rule all:\n    input: "one", "other"\n'
        'rule one:\n    output: "one"\n    resources: hpcext_prioritty=1\n    shell: "true"\n'
        'rule other:\n    output: "other"\n    shell: "touch {output}"\n'
    )
    code, out = ended(workflow(place, "--keep-going", rules=rules))
    assert code == 1
    assert (place.path / "other").exists(), "a job that was ready at the same time"
    assert "'hpcext_prioritty' is no key of a job" in out
    code, out = ended(workflow(place, "--hpcext-pilot", "other", rules=training(place)))
    assert code == 1
    assert "Traceback" not in out
    assert "other" in out
    place.run("drain", "pool")
    wait_for(lambda: place.run("ls").out.count("running") == 0, "the end of the pilot")
    code, out = ended(workflow(place, rules=training(place)))
    assert code == 1
    assert "Traceback" not in out
    assert "no pilot is running" in out


@pytest.mark.slow
def test_snakemake_s_own_tests_of_executors(place: Site, programs: Path) -> None:
    (place.path / "test_plugin.py").write_text(SUITE)
    done = subprocess.run(
        [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugin.py"],
        cwd=place.path, env=place.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"^[2-9] passed", done.stdout, re.M), done.stdout
