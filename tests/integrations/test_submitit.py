"""Functions that submitit submits run in a real pilot, and what they return comes back."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import submitit
from site_of_test import Site, wait_for
from submitit.core import core, utils
from submitit.helpers import Checkpointable, DelayedSubmission
from submitit.local import test_local

from hpcext.core.errors import HpcextError, InputError, NoManagerError
from hpcext.integrations.submitit import HpcextExecutor, HpcextJob, HpcextJobEnvironment
from hpcext.integrations.submitit import executor as module_of_executor

EXAMPLE = Path(__file__).parents[2] / "examples" / "hydra"


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site in whose directory and state this process submits, too."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, site.environ[name])
    monkeypatch.chdir(site.path)
    monkeypatch.setattr(HpcextJob, "watcher", type(HpcextJob.watcher)(delay_s=2))
    # No job could import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield site
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def pilot(here: Site) -> Site:
    """A pilot with two slots that waits for jobs."""
    begin(here, "--stay", "--name", "my_pool", "--gpus", "2")
    return here


def begin(site: Site, *args: str) -> None:
    begun = site.run("run", *args, "--dir", str(site.pilot), "--detach")
    assert begun.code == 0, begun
    site.started.append(_Manager(site))


class _Manager:
    """A manager in the background, for what ends managers after a test."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(json.loads((self._site.pilot / "manager.json").read_text())["pid"])

    def kill(self) -> None:
        try:
            self.process.kill()
        except (psutil.NoSuchProcess, FileNotFoundError):
            return

    def wait(self) -> None:
        try:
            self.process.wait(60)
        except (psutil.NoSuchProcess, FileNotFoundError):
            return


def executor(**parameters: Any) -> submitit.AutoExecutor:
    found = submitit.AutoExecutor(folder="log", cluster="hpcext")
    found.update_parameters(**parameters)
    return found


def add(one: int, other: int) -> int:
    print(f"{one} and {other}")
    return one + other


def fail(why: str) -> None:
    raise ValueError(why)


def wait_until(path: Path) -> str:
    while not path.exists():
        time.sleep(0.05)
    return path.read_text()


class Count(Checkpointable):
    """A counter that keeps what it has counted, and notes who counted it."""

    def __init__(self) -> None:
        self.counted: list[int] = []

    def __call__(self, notes: Path, gate: Path) -> list[int]:
        while not gate.exists():
            time.sleep(0.02)
            self.counted.append(os.getpid())
            fresh = notes.with_name("fresh")
            fresh.write_text(f"{len(self.counted)}")
            fresh.replace(notes)
        return self.counted


def wait_for_more(notes: Path, counted: int) -> None:
    wait_for(lambda: int(notes.read_text()) > counted, "another count")


def test_it_is_there_by_its_name() -> None:
    assert submitit.core.plugins.get_executors()["hpcext"] is HpcextExecutor
    environments = submitit.core.plugins.get_job_environments()
    assert isinstance(environments["hpcext"], HpcextJobEnvironment)
    # Nobody is given it who has not asked for it, nor are parameters of others that have no prefix.
    assert submitit.AutoExecutor.which() != "hpcext"
    for name, other in submitit.core.plugins.get_executors().items():
        if name != "hpcext":
            ours = HpcextExecutor._valid_parameters() - submitit.AutoExecutor._valid_parameters()
            assert not ours & other._valid_parameters()


def test_functions_return_and_raise(pilot: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a thousand would be, in several requests.
    monkeypatch.setattr(module_of_executor, "MOST_AT_ONCE", 2)
    sums = executor(name="sum").map_array(add, [1, 2, 3], [10, 20, 30])
    assert [job.result() for job in sums] == [11, 22, 33]
    assert "1 and 10" in str(sums[0].stdout())
    failed = executor(name="bad").submit(fail, "no such luck")
    error = failed.exception()
    assert isinstance(error, utils.FailedJobError)
    assert "no such luck" in str(error)
    with pytest.raises(utils.FailedJobError, match="no such luck"):
        failed.result()
    # Both know the same job: a function that raises is not tried again.
    jobs = {job["name"]: job for job in pilot.document("status", "my_pool")["jobs"]}
    assert list(jobs) == ["sum-1", "sum-2", "sum-3", "bad"]
    wait_for(lambda: failed.get_info()["State"] == "FAILED", "its end")
    (failure,) = pilot.document("status", "my_pool", "bad")["jobs"]
    assert (failure["attempts"], failure["state"]) == (1, "failed")
    # Nothing but what submitit knows is left of it.
    assert not [path for path in Path("log").iterdir() if "my_pool" not in path.name]


def test_a_batch_is_one_request_and_a_pickled_job_the_same_job(pilot: Site) -> None:
    several = executor(name="several")
    with several.batch():
        jobs = [several.submit(add, number, 1) for number in range(2)]
    assert [job.result() for job in jobs] == [1, 2]
    assert len(list((pilot.pilot / "submissions").iterdir())) == 1
    again = pickle.loads(pickle.dumps(jobs[1]))
    assert again.result() == 2
    by_id: core.Job[int] = HpcextJob("log", jobs[0].job_id)
    assert by_id.result() == 1
    wait_for(lambda: by_id.get_info()["State"] == "COMPLETED", "its end")


def test_a_job_knows_itself_and_its_parameters_are_keys(pilot: Site) -> None:
    def told() -> tuple[str, int, str]:
        environment = submitit.JobEnvironment()
        return environment.job_id, environment.num_tasks, os.environ["SEED"]

    with pytest.warns(UserWarning, match="mem_gb: ignored"):
        wide = executor(
            gpus_per_node=2, nodes=1, tasks_per_node=1, timeout_min=3, mem_gb=4,
            hpcext_priority=5, hpcext_env={"SEED": "7"}, hpcext_pilot="my_pool",
        )  # fmt: skip
    job = wide.submit(told)
    assert job.result() == (job.job_id, 1, "7")
    (stored,) = (pilot.pilot / "submissions").iterdir()
    (spec,) = json.loads(stored.read_text())["jobs"]
    assert (spec["gpus"]["min"], spec["gpus"]["max"]) == (2, 2)
    assert (spec["walltime_s"], spec["priority"]) == (180, 5)


def test_a_suspended_callable_goes_on_with_its_state(pilot: Site) -> None:
    notes, gate = pilot.path / "notes", pilot.path / "gate"
    job = executor(name="count").submit(Count(), notes, gate)
    for _ in range(4):
        # More often than submitit lets a job time out.
        wait_for(lambda: notes.exists() and int(notes.read_text()), "a count")
        suspended = pilot.run("suspend", "my_pool", "count", "--wait")
        assert suspended.code == 0, suspended
        wait_for(lambda: job.get_info()["State"] == "SUSPENDED", "its state")
        assert not job.done(force_check=True)
        counted = int(notes.read_text())
        assert pilot.run("resume", "my_pool", "count").code == 0
        wait_for_more(notes, counted)
    gate.touch()
    pids = job.result()
    # It has done each count once, in five processes one after the other.
    assert len(pids) == int(notes.read_text())
    assert len(dict.fromkeys(pids)) == 5
    wait_for(lambda: job.get_info()["State"] == "COMPLETED", "its end")


def test_a_function_that_cannot_save_begins_anew(pilot: Site) -> None:
    began, gate = pilot.path / "began", pilot.path / "gate"

    def begin_and_wait() -> int:
        with began.open("a") as file:
            file.write("x")
        return len(wait_until(gate)) + len(began.read_text())

    job = executor(name="plain").submit(begin_and_wait)
    wait_for(began.exists, "its beginning")
    assert pilot.run("suspend", "my_pool", "plain", "--wait").code == 0
    assert pilot.run("resume", "my_pool", "plain").code == 0
    wait_for(lambda: began.read_text() == "xx", "its second beginning")
    gate.touch()
    assert job.result() == 2


def test_the_policy_chooses_among_sizes(pilot: Site) -> None:
    job = executor(hpcext_gpus={"min": 1, "max": 2}).submit(os.getenv, "HPCEXT_NUM_GPUS")
    assert job.result() == "2"


def test_one_that_is_killed_is_tried_again_if_that_is_stated(
    pilot: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HpcextJob, "_results_timeout_s", 1)

    def die_once() -> str:
        paths = submitit.JobEnvironment().paths
        begun = paths.folder / f"{paths.job_id}.begun"
        if begun.exists():
            return "done"
        # Killed while it writes, it leaves what submitit would stumble over.
        begun.touch()
        paths.result_pickle.with_suffix(".pkl.save_tmp").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    assert executor(hpcext_retries=1).submit(die_once).result() == "done"
    with pytest.raises(utils.UncompletedJobError, match="FAILED"):
        executor().submit(die_once).result()


SUBMITITS_OWN = (
    "test_local_map_array",
    "test_local_submit_array",
    "test_local_error",
    "test_pickle_output_from_main",
    "test_load_submission",
)
"""Its tests of its local executor, but those of several processes, of timeouts, and of a pid."""

WEIRD = ("a_0", "a 0", 'a"=0"', "a'; echo foo", r"a\=0", "a\n0")
"""The directories of its test of such."""


@pytest.mark.slow
def test_submitits_own_tests_pass(pilot: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_local.local, "LocalExecutor", HpcextExecutor)
    monkeypatch.setattr(test_local.local, "LocalJob", HpcextJob)
    for name in SUBMITITS_OWN:
        getattr(test_local, name)(pilot.path / name)
    for name in WEIRD:
        test_local.test_weird_dir(pilot.path / name)


def test_a_callable_that_gives_up_at_a_suspension_has_failed(pilot: Site) -> None:
    class GivesUp:
        def __call__(self, began: Path) -> None:
            began.touch()
            wait_until(began.with_name("never"))

        def checkpoint(self, began: Path) -> DelayedSubmission | None:
            return None

    began = pilot.path / "began"
    job = executor(name="last").submit(GivesUp(), began)
    wait_for(began.exists, "its beginning")
    pilot.run("suspend", "my_pool", "last")
    wait_for(lambda: job.done(force_check=True), "its end")
    with pytest.raises(utils.UncompletedJobError, match="checkpoint function returned None"):
        job.result()


def test_a_cancelled_job_has_no_result(pilot: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HpcextJob, "_results_timeout_s", 1)
    job = executor(name="long").submit(wait_until, pilot.path / "never")
    wait_for(lambda: job.get_info()["State"] == "RUNNING", "its beginning")
    job.cancel()
    with pytest.raises(utils.UncompletedJobError, match="CANCELLED"):
        job.result()
    job.cancel()  # As often as one likes.
    other = executor(name="forgotten").submit(wait_until, pilot.path / "never")
    other.cancel_at_deletion()
    job_id = other.job_id
    del other
    wait_for(lambda: HpcextJob("log", job_id).get_info()["State"] == "CANCELLED", "its end")


def test_a_pilot_dies_and_comes_back(pilot: Site, caplog: pytest.LogCaptureFixture) -> None:
    notes, gate = pilot.path / "notes", pilot.path / "gate"
    job = executor(name="count").submit(Count(), notes, gate)
    wait_for(lambda: notes.exists() and int(notes.read_text()), "a count")
    manager = _Manager(pilot).process
    manager.send_signal(signal.SIGTERM)
    manager.wait(240)
    counted = int(notes.read_text())
    assert not job.done(force_check=True)
    with pytest.raises(HpcextError, match="no manager runs this pilot"):
        job.cancel()
    with pytest.raises(NoManagerError, match=r"no manager runs this pilot.*--resume"):
        executor(hpcext_pilot="my_pool").submit(add, 1, 2)
    assert pilot.run("run", "--resume", str(pilot.pilot), "--detach").code == 0
    wait_for_more(notes, counted)
    gate.touch()
    assert len(job.result()) == int(notes.read_text())


def test_without_a_pilot_it_says_what_to_do(here: Site) -> None:
    with pytest.raises(NoManagerError) as caught:
        executor().submit(add, 1, 2)
    assert str(caught.value) == (
        "hpcext_pilot: no pilot is running (valid: a directory, an id or a name); "
        "begin one: hpcext run --stay --name NAME --detach"
    )
    with pytest.raises(NoManagerError, match="no pilot 'my_pool'"):
        executor(hpcext_pilot="my_pool").submit(add, 1, 2)
    assert not Path("log").exists()
    with pytest.raises(InputError, match="'7' is no job of a pilot"):
        HpcextJob("log", "7").cancel()


def test_what_cannot_be_pickled_is_not_submitted(pilot: Site) -> None:
    with pytest.raises(TypeError, match="lock"):
        executor().map_array(len, [[1], [threading.Lock()]])
    assert not list(Path("log").iterdir())
    assert pilot.document("status", "my_pool")["jobs"] == []
    # What the manager refuses leaves nothing, either.
    with pytest.raises(InputError, match=r"submitit: .*gpus: needs at least 3 GPUs"):
        executor(gpus_per_node=3).submit(add, 1, 2)
    with pytest.raises(InputError, match=r"submitit: .*nodes: needs at least 2 nodes"):
        executor(nodes=2).submit(add, 1, 2)
    assert not list(Path("log").iterdir())


def test_a_pilot_that_is_gone_ends_the_waiting(
    pilot: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HpcextJob, "_results_timeout_s", 1)
    Path("log").mkdir()
    job: core.Job[int] = HpcextJob("log", "other-20260101-000000-abcd.1")
    with pytest.raises(utils.UncompletedJobError, match="GONE"):
        job.result()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"nodes": 0}, r"^nodes: 0 "),
        ({"tasks_per_node": 4}, r"^tasks_per_node: 4 \(valid: 1: a function is one process on "),
        ({"timeout_min": 0}, r"^timeout_min: 0 "),
        ({"hpcext_env": {"A": Path()}}, r"^env: of type dict \(valid: strings, numbers"),
        ({"hpcext_retries": object()}, r"^retries: of type object "),
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        executor(**parameters)


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(NameError, match="Unknown argument 'prio' for executor 'hpcext'"):
        executor(hpcext_prio=1)
    with pytest.raises(InputError, match=r"unknown parameter 'prioritty'.*priority"):
        HpcextExecutor("log").update_parameters(prioritty=1)
    # What the executor itself states is nobody else's to state.
    with pytest.raises(InputError, match="unknown parameter 'checkpoint'"):
        HpcextExecutor("log").update_parameters(checkpoint="plain")


@pytest.mark.slow
def test_hydra_sweeps_in_a_pilot(pilot: Site) -> None:
    """``make test-slow`` installs Hydra."""
    shutil.copytree(EXAMPLE, pilot.path / "hydra")
    words = ["-m", "rate=0.1,0.2", "hydra/launcher=submitit_hpcext", "hydra.launcher.pilot=my_pool"]
    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=pilot.path / "hydra",
        env=pilot.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    jobs = pilot.document("status", "my_pool")["jobs"]
    assert [(job["name"], job["state"]) for job in jobs] == [
        ("train-1", "completed"),
        ("train-2", "completed"),
    ]
    assert "rate 0.2: " in pilot.run("logs", "my_pool", "2").out
