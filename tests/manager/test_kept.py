"""What stays on disk of jobs that are complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcext.core import facts as f
from hpcext.core.engine import Engine
from hpcext.core.values import Job, Node
from hpcext.manager import kept
from hpcext.policies import find_policy


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEEP_COMPLETED", 2)


class EndingJobs:
    """An engine whose jobs run one after the other, and their directories."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.path, self.engine, self.now_s = path, Engine(find_policy("marble")), 0.0
        queue = [Job(str(i), f"j{i}", i, (1,), 1, nodes=(1, 1), retries=0) for i in range(jobs)]
        self.engine.step(0.0, [f.NodeJoined(Node("n", 1)), *map(f.Submitted, queue)])
        for job in queue:
            attempt = path / job.id / "attempt-0001"
            attempt.mkdir(parents=True)
            (attempt / "exit.json").write_text("{}")
            (path / job.id / "checkpoint").mkdir()
            (path / job.id / "log.txt").write_text("said\n")

    def end(self, outcome: f.Outcome = f.Outcome.COMPLETED) -> None:
        (job,) = (each for each in self.engine.world.queue.busy() if each.state.active)
        self.now_s += 1.0
        self.engine.step(self.now_s, [f.Started(job.id, job.op, ("n:0",))])
        self.engine.step(self.now_s, [f.Ended(job.id, job.op, outcome, 0)])

    def attempts(self) -> list[int]:
        return sorted(int(each.parent.name) for each in self.path.glob("*/attempt-*"))


def test_of_jobs_that_completed_before_the_last_ones_the_logs_stay(tmp_path: Path) -> None:
    place = EndingJobs(tmp_path, 8)
    look = kept.Kept(tmp_path)
    (tmp_path / "1" / "checkpoint" / "model").write_text("weights")
    for outcome in [f.Outcome.COMPLETED] * 3 + [f.Outcome.FAILED] + [f.Outcome.COMPLETED] * 3:
        place.end(outcome)
        look(place.engine, place.now_s)
    # Of the one that failed it all stays, and of the one that has not begun.
    assert place.attempts() == [3, 5, 6, 7]
    assert [int(each.name) for each in sorted(tmp_path.iterdir())] == list(range(8))
    assert (tmp_path / "0" / "log.txt").read_text() == "said\n"
    assert not (tmp_path / "0" / "checkpoint").exists()
    assert (tmp_path / "1" / "checkpoint" / "model").read_text() == "weights"


def test_the_next_manager_goes_on_with_it(tmp_path: Path) -> None:
    place = EndingJobs(tmp_path, 6)
    for _ in range(5):
        place.end()
    look = kept.Kept(tmp_path)
    look(place.engine, 9.0)
    # It looks at as many again as it keeps, not at all that ever ended.
    assert place.attempts() == [0, 3, 4, 5]


def test_it_follows_no_link_that_a_job_has_left(tmp_path: Path) -> None:
    place = EndingJobs(tmp_path / "jobs", 4)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    os.symlink(outside, place.path / "0" / "attempt-0001" / "link")
    os.symlink(outside, place.path / "0" / "attempt-0002")
    look = kept.Kept(place.path)
    for _ in range(3):
        place.end()
        look(place.engine, place.now_s)
    assert not (place.path / "0" / "attempt-0001").exists()
    assert (outside / "precious").read_text() == "mine"


def test_images_of_a_job_that_is_over_go_and_no_others(tmp_path: Path) -> None:
    place = EndingJobs(tmp_path, 3)
    for name in "012":
        (tmp_path / name / "images").mkdir()
    look = kept.Kept(tmp_path)
    place.end()
    place.engine.step(place.now_s, [f.Cancel("2")])
    look(place.engine, place.now_s)
    assert [(tmp_path / name / "images").exists() for name in "012"] == [False, True, False]


def test_what_may_still_run_on_a_lost_node_stays(tmp_path: Path) -> None:
    """Else nobody would ever learn that it has ended."""
    place = EndingJobs(tmp_path, 4)
    look = kept.Kept(tmp_path)
    (job,) = (each for each in place.engine.world.queue.busy() if each.state.active)
    (tmp_path / job.id / "attempt-0002").mkdir()
    place.engine.step(0.1, [f.Started(job.id, job.op, ("n:0",)), f.NodeLost("n", gone=True)])
    place.engine.step(0.2, [f.NodeJoined(Node("m", 1))])
    for _ in range(4):
        place.end()
        look(place.engine, place.now_s)
    assert sorted(each.name for each in (tmp_path / job.id).glob("attempt-*")) == ["attempt-0001"]
    assert place.attempts() == sorted([int(job.id), 2, 3])
