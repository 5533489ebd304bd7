"""Tickets without a Slurm: what is handed in, under which name, and who is there."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from hpcext.batch import slurm
from hpcext.config import load_settings
from hpcext.containers import Container
from hpcext.core.errors import InputError, NoManagerError
from hpcext.harvest.leases import Terms
from hpcext.jobfile import parse_jobs
from hpcext.manager import locks, spool, tickets
from hpcext.manager import pilot as pilots
from hpcext.manager.submissions import Submissions
from hpcext.manager.tickets import Range, Ticket

ODD = 'a "b"\n\t\\ \x7f \x01 é 😀 {gpu}'
KEY = tickets.key_of(7, ["1:2", "train.sh"])


def ticket(**more: object) -> Ticket:
    return Ticket(
        **{
            "job_id": 7,
            "name": "train",
            "command": ("train.sh", ODD),
            "workdir": "/",
            "nodes": Range(1, 2),
            "gpus": Range(3, 4),
            "scaling": "",
            "environ": {"ODD": ODD, "BASH_FUNC_module%%": "() { :\n}"},
            **more,
        }
    )  # type: ignore[arg-type]


@pytest.fixture
def harvester(tmp_path: Path) -> Path:
    settings = load_settings(
        environ={"HPCEXT_STATE_DIR": str(tmp_path), "HPCEXT_POLICY": "bftrainer"}
    )
    return tickets.open_harvester(settings, "slurm", lambda: Terms(partition="p", gpus=4))


def test_what_a_ticket_says_is_read_as_it_was_meant() -> None:
    (spec,) = parse_jobs(ticket().job_file(), "job 7", Path("/"))
    assert (spec.name, spec.command, spec.retries) == ("train-7", ("train.sh", ODD), 0)
    assert spec.env == ticket().environ
    assert (spec.nodes.min, spec.nodes.max, spec.gpus.min, spec.gpus.max) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "trainer"),
    [("my job/ü", "my_job__-7"), ("", "job-7"), ("...", "job-7"), ("x" * 99, "x" * 62 + "-7")],
)
def test_any_name_of_a_job_makes_one_of_a_trainer(name: str, trainer: str) -> None:
    (spec,) = parse_jobs(ticket(name=name).job_file(), "job 7", Path("/"))
    assert spec.name == trainer


def test_what_is_true_of_the_ticket_alone_is_not_handed_on() -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "0",
        "HPCEXT_TRAINER": "1:2",
        "TMPDIR": "/scratch/7",
        "BYTES": "\udcff",
        "PATH": "/bin",
        "MINE": "7",
    }
    assert tickets.environment(given, 7) == {"PATH": "/bin", "MINE": "7"}
    assert tickets.environment({"TMPDIR": "/tmp"}, 7) == {"TMPDIR": "/tmp"}


def test_a_trainer_does_not_get_the_run_of_the_attempt_that_submitted_its_ticket() -> None:
    run = "a" * 32
    outer = {"HPCEXT_RUN_ID": run, "WANDB_RUN_ID": run, "WANDB_RESUME": "allow"}
    assert tickets.environment(outer, 7) == {}
    assert tickets.environment({**outer, "WANDB_RUN_ID": "mine"}, 7) == {
        "WANDB_RUN_ID": "mine",
        "WANDB_RESUME": "allow",
    }


@pytest.mark.parametrize("wanted", [True, False])
def test_a_ticket_says_whether_its_attempts_continue_one_run(*, wanted: bool) -> None:
    (spec,) = parse_jobs(ticket(trackers=wanted).job_file(), "job 7", Path("/"))
    assert spec.trackers is wanted


def test_a_ticket_states_the_container_of_its_trainer(tmp_path: Path) -> None:
    image = Container(str(tmp_path), ("/data:/in:ro",), "apptainer")
    (spec,) = parse_jobs(ticket(container=image).job_file(), "job 7", Path("/"))
    assert spec.container == image


def test_a_key_says_of_which_job_and_which_command_it_is() -> None:
    assert tickets.key_of(7, ["1:2", "train.sh"]) == KEY
    assert len({KEY, tickets.key_of(8, ["1:2", "train.sh"]), tickets.key_of(7, ["1:2", "a"])}) == 3


def test_the_harvester_is_made_once(tmp_path: Path, harvester: Path) -> None:
    settings = load_settings(environ={"HPCEXT_STATE_DIR": str(tmp_path)})
    again = tickets.open_harvester(settings, "slurm", lambda: pytest.fail("made again"))
    assert again == harvester == pilots.find("trainers", tmp_path)
    # Begun and not ended: it is made anew.
    (harvester / "pilot.json").unlink()
    (harvester / "half").touch()
    (tmp_path / "pilots").joinpath(next((tmp_path / "pilots").iterdir()).name).unlink()
    assert tickets.open_harvester(settings, "slurm", lambda: Terms(partition="p")) == harvester
    assert not (harvester / "half").exists()


def test_who_makes_it_is_waited_for(tmp_path: Path) -> None:
    settings = load_settings(environ={"HPCEXT_STATE_DIR": str(tmp_path)})
    with locks.held(tmp_path / "trainers.lock"), pytest.raises(BlockingIOError):
        tickets.open_harvester(settings, "slurm", lambda: Terms(partition="p"))


def test_a_ticket_is_alive_as_long_as_its_process(harvester: Path) -> None:
    assert not tickets.is_alive(harvester, KEY)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with tickets.alive(harvester, KEY):
            os.write(writing, b"x")
            signal.pause()
    os.read(reading, 1)
    assert tickets.is_alive(harvester, KEY)
    assert tickets.others(harvester, "another")
    assert not tickets.others(harvester, KEY)
    with pytest.raises(NoManagerError, match="already waiting"), tickets.alive(harvester, KEY):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    assert not tickets.is_alive(harvester, KEY)
    assert not tickets.others(harvester, "another")


def test_its_trainer_is_found_by_the_key(harvester: Path) -> None:
    assert tickets.trainer_of(harvester, KEY) is None
    tickets.submit(harvester, KEY, ticket())
    assert tickets.waits(harvester, KEY)
    ((name, request),) = spool.pending(harvester)
    assert isinstance(request, dict)
    assert (name, request["verb"]) == (KEY, "submit")
    stored = Submissions(harvester / "submissions")
    stored.add(KEY, parse_jobs(request["text"], "job 7", Path("/")))
    assert tickets.trainer_of(harvester, KEY) == "1"
    assert tickets.left_alone(harvester, lambda _: True) == {7: "1"}
    assert tickets.left_alone(harvester, lambda _: False) == {}
    with tickets.alive(harvester, KEY):
        assert tickets.left_alone(harvester, lambda _: True) == {}


def test_a_request_that_is_too_large_is_not_written(harvester: Path) -> None:
    with pytest.raises(InputError, match="larger than"):
        tickets.submit(harvester, KEY, ticket(environ={"BIG": "x" * (1 << 20)}))
    assert not tickets.waits(harvester, KEY)


# As scontrol of 22.05 shows a job in the seconds between its SIGTERM and its end.
ENDINGS = {
    "scancel": "JobState=COMPLETING Reason=None Restarts=0 PreemptTime=None",
    "requeued": "JobState=COMPLETING Reason=None Restarts=1",
    "preempted": "JobState=COMPLETING Reason=None Restarts=0 PreemptTime=2026-11-22T23:54:24",
    "limit": "JobState=COMPLETING Reason=TimeLimit Restarts=0 PreemptTime=None",
    "nothing": "JobState=RUNNING Reason=None Restarts=0 PreemptTime=None",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_cancelled_job_is_told_from_others_that_end(how: str) -> None:
    text = f"JobId=7 JobName=x {ENDINGS[how]} EndTime=2026-11-22T23:53:43"
    assert slurm.was_cancelled(text, 0) == (how == "scancel")
    assert not slurm.was_cancelled(text, 1)
    assert slurm.is_running(text) == (how == "nothing")


def test_a_harvester_is_the_only_one_of_its_partitions(tmp_path: Path) -> None:
    with locks.sole_harvester(tmp_path / "one", "a,b", tmp_path):
        for partition in ("a", "b", "c,b"):
            with (
                pytest.raises(
                    NoManagerError, match=f"the harvester in {tmp_path}/one already harvests"
                ),
                locks.sole_harvester(tmp_path / "two", partition, tmp_path),
            ):
                pass
        with locks.sole_harvester(tmp_path / "two", "c", tmp_path):
            pass
    with locks.sole_harvester(tmp_path / "two", "a", tmp_path):
        pass


def test_a_pilot_of_an_older_release_stays_not(harvester: Path) -> None:
    pilot = msgspec.json.decode((harvester / "pilot.json").read_bytes())
    del pilot["stay"]
    (harvester / "pilot.json").write_bytes(msgspec.json.encode(pilot))
    assert pilots.load(harvester).stay is False


def test_a_trainer_that_ended_with_its_ticket_starts_afresh(harvester: Path) -> None:
    words = ["1:2", "train.sh"]
    assert tickets.key_now(harvester, 7, words) == KEY
    tickets.mark(harvester, KEY, "ended")
    again = tickets.key_now(harvester, 7, words)
    assert again != KEY
    assert tickets.key_now(harvester, 7, words) == again
    tickets.mark(harvester, again, "ended")
    assert tickets.key_now(harvester, 7, words) not in {KEY, again}


def test_a_trainer_that_was_held_with_its_ticket_is_let_go_once(harvester: Path) -> None:
    tickets.release(harvester, KEY, "1")
    tickets.mark(harvester, KEY, "held")
    for _ in range(2):
        tickets.release(harvester, KEY, "1")
    (request,) = (harvester / "requests").iterdir()
    assert b'"resume"' in request.read_bytes()


def test_a_harvester_is_of_one_batch_system(harvester: Path) -> None:
    settings = load_settings(environ={"HPCEXT_STATE_DIR": str(harvester.parent)})
    with pytest.raises(InputError, match="of Slurm, but this is a job of LSF"):
        tickets.open_harvester(settings, "lsf", lambda: pytest.fail("made again"))
