"""What is said and done of a pilot whose LSF does not answer, has stopped it, or lost its host."""

# ruff: noqa: F811 - a fixture is imported, and then an argument.

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from lsf_tools import command
from site_of_test import wait_for
from test_lsf_pilot import OnLsf, place  # noqa: F401 - a fixture

BROKEN = "#!/bin/sh\necho 'LSF is down. Please wait ...' >&2\nexit 255\n"


@contextlib.contextmanager
def without_answers(place: OnLsf) -> Iterator[None]:
    """LSF's bjobs and bacct fail."""
    bjobs = place.lsf.directory / "bjobs"
    engine = bjobs.readlink()
    bjobs.unlink()
    bjobs.write_text(BROKEN)
    bjobs.chmod(0o755)
    try:
        yield
    finally:
        bjobs.unlink()
        bjobs.symlink_to(engine)


def running(place: OnLsf) -> int:
    """A pilot that runs, seen from another host; its job."""
    place.write_jobs(place.counter("only", gated=True, gpus=6))
    job = place.submit(nodes=1, time="600")
    place.at_the_gate("only")
    place.from_another_host()
    return job


def named_job(place: OnLsf) -> int:
    return int(json.loads((place.pilot / "lsf.json").read_text())["job_id"])


def test_without_an_answer_the_job_does_not_count_as_over(place: OnLsf) -> None:
    job = running(place)
    pilot = str(place.pilot)
    with without_answers(place):
        listed = place.run("pilot", "list")
        assert "not known" in listed.out
        assert "forgotten" not in listed.out
        assert "LSF is down" in listed.err
        for verb in ("status", "why"):
            said = place.run(verb, pilot)
            assert f"it is unknown whether its job {job} runs" in said.out, said
            assert "resubmit" not in said.out
            assert "no manager" not in said.out
        refused = place.run("pilot", "resubmit", pilot)
        assert (refused.code, refused.err.count("\n")) == (3, 1)
        assert f"it is unknown whether its job {job} runs" in refused.err
        assert place.run("pilot", "rm", pilot, "--yes").code == 3
        newest = place.run("drain")
        assert "it is unknown which pilots are running" in newest.err
        # Its manager answers whoever can write into its spool.
        assert place.run("suspend", pilot, "only").code == 0
    assert named_job(place) == job
    assert place.pilot.is_dir()
    assert place.run("cancel", pilot, "only").code == 0
    place.over(job, "EXIT")


@pytest.mark.parametrize(
    ("state", "what", "do"),
    [
        ("USUSP", "is stopped (USUSP)", "bresume"),
        pytest.param("SSUSP", "is stopped (SSUSP)", "LSF resumes it", marks=pytest.mark.slow),
        pytest.param("PSUSP", "is held in the queue (PSUSP)", "bresume", marks=pytest.mark.slow),
        pytest.param(
            "UNKWN", "LSF cannot reach its host (UNKWN)", "ask again later", marks=pytest.mark.slow
        ),
        ("ZOMBI", "LSF has lost contact with its host", "ask again later"),
    ],
)
def test_what_is_stopped_or_held_or_lost_is_not_over(
    place: OnLsf, state: str, what: str, do: str
) -> None:
    job = running(place)
    pilot = str(place.pilot)
    with place.lsf.changed(job) as changed:
        changed.state = state
    for verb in ("status", "why"):
        said = place.run(verb, pilot)
        assert what in said.out, said
        assert do in said.out
        assert "resubmit" not in said.out
    listed = place.run("pilot", "list")
    assert state in listed.out
    assert "forgotten" not in listed.out
    refused = place.run("pilot", "resubmit", pilot)
    assert (refused.code, refused.err.count("\n")) == (3, 1)
    assert what in refused.err
    assert place.run("pilot", "rm", pilot, "--yes").code == 3
    if state in {"USUSP", "SSUSP"}:
        asked = place.run("suspend", pilot, "only")
        assert "so its manager cannot answer" in asked.err
        assert do in asked.err
    if state == "PSUSP":
        asked = place.run("suspend", pilot, "only")
        assert "resume" in asked.err
        assert "resubmit" not in asked.err
    with place.lsf.changed(job) as changed:
        changed.state = "RUN"
    assert named_job(place) == job
    place.open("only")
    place.over(job)


def test_a_pilot_that_runs_or_waits_is_not_submitted_again(place: OnLsf) -> None:
    place.write_jobs(place.counter("only", gated=True, gpus=6))
    job = place.submit(nodes=1, time="600")
    for _ in range(2):
        refused = place.run("pilot", "resubmit", str(place.pilot))
        assert (refused.code, refused.err.count("\n")) == (3, 1), refused
        assert "not submitted again" in refused.err
        place.at_the_gate("only")
    assert named_job(place) == job
    assert command(place.lsf, "bkill", str(job)).returncode == 0
    place.over(job, "EXIT")
    assert "failed, 1 job left" in place.run("pilot", "list").out
    wait_for(lambda: place.run("pilot", "resubmit", str(place.pilot)).code == 0, "resubmission")
    again = named_job(place)
    assert again != job
    place.open("only")
    place.over(again)
