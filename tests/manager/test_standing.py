"""What is known of a pilot's manager by what the batch system answers, and what advice follows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcext import backends, documents
from hpcext.backends.lsf import job as lsf_job
from hpcext.backends.slurm import job as slurm_job
from hpcext.batch.jobs import Seen
from hpcext.batch.standing import Is
from hpcext.config import Settings
from hpcext.core.errors import BatchError, HpcextError, NoManagerError
from hpcext.manager import choosing, spool, standing
from hpcext.manager import pilot as pilots

Says = Callable[[dict[int, str] | BatchError], None]


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """Have a Slurm say this of jobs, or nothing."""

    def say(said: dict[int, str] | BatchError) -> None:
        class Batch:
            def seen(self, ids: list[int]) -> dict[int, Seen]:
                if isinstance(said, BatchError):
                    raise said
                return {each: Seen(said[each]) for each in ids if each in said}

        for name in backends.BUILT_IN:
            monkeypatch.setattr(backends.find(name), "jobs", Batch)

    return say


@pytest.fixture
def pilot(tmp_path: Path) -> Path:
    """A pilot whose last manager was in job 6, and that was submitted again as job 7."""
    path = pilots.create(
        [],
        pilots.NewPilot(
            name="batch",
            gpus=range(2),
            logical=False,
            batch="slurm",
        ),
        settings=Settings(state_dir=tmp_path / "state"),
        where="",
    )
    slurm_job.SUBMITTED.write(path, 7, ["--nodes=1"])
    facts = {"pid": 1, "start": 1, "host": "far", "boot_id": "another"}
    facts |= {"batch": "slurm", "batch_job": 6}
    documents.write_json(path / spool.MANAGER_FILE, {"schema": spool.MANAGER, **facts})
    return path


NO_ANSWER = BatchError("squeue gave no answer within 60 s")


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({6: "timeout", 7: "running"}, Is.RUNS),
        ({6: "running", 7: "pending"}, Is.RUNS),
        ({6: "timeout", 7: "pending"}, Is.WAITS),
        ({7: "requeue_hold"}, Is.HELD),
        ({6: "completing"}, Is.ENDS),
        ({6: "suspended", 7: "pending"}, Is.STOPPED),
        ({6: "unknown", 7: "cancelled"}, Is.UNKNOWN),
        (NO_ANSWER, Is.UNKNOWN),
        ({6: "timeout", 7: "cancelled"}, Is.OVER),
        ({}, Is.FORGOTTEN),
    ],
)
def test_the_advice_comes_only_where_it_would_work(
    pilot: Path, says: Says, said: dict[int, str] | BatchError, state: Is
) -> None:
    says(said)
    found = standing.of_pilot(pilot)
    # Of two that have ended it is the same, which of them nobody knows.
    assert found.state is state or {found.state, state} == {Is.OVER, Is.FORGOTTEN}
    advised = found.do == f"hpcext pilot resubmit {pilots.load(pilot).id} starts one"
    assert advised == found.state.ended
    if found.state.ended:
        standing.refuse_resubmission(pilot)
    else:
        with pytest.raises(NoManagerError, match="not submitted again"):
            standing.refuse_resubmission(pilot)


def test_a_job_of_lsf_that_goes_back_into_the_queue_is_not_over(
    says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LSF says EXIT of it for some seconds first."""
    pilot = pilots.create(
        [],
        pilots.NewPilot(
            name="batch",
            gpus=range(2),
            logical=False,
            batch="lsf",
        ),
        settings=Settings(state_dir=tmp_path / "state"),
        where="",
    )
    lsf_job.SUBMITTED.write(pilot, 7, ["-n", "1"])
    waited: list[float] = []
    sleep, here = time.sleep, threading.get_ident()

    def wait(pause_s: float) -> None:
        if threading.get_ident() != here:
            # Of another test, which has left a thread.
            sleep(pause_s)
            return
        waited.append(pause_s)
        says({7: "pending"})

    monkeypatch.setattr(standing.time, "sleep", wait)
    says({7: "failed"})
    with pytest.raises(NoManagerError, match="not submitted again"):
        standing.refuse_resubmission(pilot)
    # Longer than the two to four seconds that were recorded.
    assert waited[0] > 4


def test_a_script_that_is_suspendable_is_not_resubmitted(pilot: Path, says: Says) -> None:
    says({})
    slurm_job.SUBMITTED.write(pilot, 7, None)
    assert standing.of_pilot(pilot).do == "submit its script again, with sbatch"


def test_a_manager_of_which_nothing_is_known_may_be_there(pilot: Path, says: Says) -> None:
    says(NO_ANSWER)
    manager = spool.manager_of(pilot)
    assert manager is not None
    assert spool.doubt_of(manager).state is Is.UNKNOWN
    says({6: "running"})
    manager = spool.manager_of(pilot)
    assert spool.doubt_of(manager).what == ""
    says({6: "failed"})
    assert spool.manager_of(pilot) is None


def test_who_is_stopped_is_not_waited_for(pilot: Path, says: Says) -> None:
    says({6: "stopped"})
    with pytest.raises(HpcextError, match="so its manager cannot answer") as refused:
        spool.ask(pilot, "drain", timeout_s=60)
    assert "scancel --signal=CONT 6" in refused.value.do
    assert not list((pilot / "requests").glob("*.json"))


def test_which_pilots_run_may_not_be_known(pilot: Path, says: Says, tmp_path: Path) -> None:
    says({6: "suspended"})
    assert choosing.running(tmp_path / "state") == [pilot]
    says({6: "completed"})
    assert choosing.running(tmp_path / "state") == []
    # It has no jobs: nothing of it could be changed.
    says(NO_ANSWER)
    assert choosing.running(tmp_path / "state") == []


@pytest.mark.parametrize(
    ("options", "do"), [(["--nodes=1"], "hpcext pilot resubmit"), ([], "submit its script again")]
)
def test_what_the_last_release_noted_of_a_job_is_read(
    pilot: Path, options: list[str], do: str
) -> None:
    """It did not say who had submitted it: hpcext, if there were options."""
    noted = {"schema": "hpcext.slurm-job/1", "job_id": 7, "options": options}
    documents.write_json(pilot / "slurm.json", noted)
    assert slurm_job.SUBMITTED.job_of(pilot) == 7
    assert do in standing.how_to_go_on(pilot)
