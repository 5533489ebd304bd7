"""Runs a TensorFlow script as a supervisor would, alone or as several workers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness import Job, Run, Started
from nursery import Nursery

from hpcext.protocol import EXIT_SUSPENDED

HERE = Path(__file__).parent
SCRIPTS = HERE.parent / "training"


class TensorFlowJob(Job):
    """A job whose number of workers may be another one in each attempt.

    Its attempts are forks of a nursery; without one, processes of their own, of one worker.
    """

    def __init__(
        self, nursery: Nursery | None, path: Path, script: str, *args: str, **environ: str
    ) -> None:
        super().__init__(path, str(HERE / script), *args)
        self.workers = 1
        self.temporary = path / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        mine = {"PYTHONPATH": str(SCRIPTS), "TMPDIR": str(self.temporary)}
        self.environ.update(mine, TF_CPP_MIN_LOG_LEVEL="3", **environ)
        self._nursery = nursery

    def start(self, *args: str, attempt: int | None = None, **environ: str) -> Started:
        if self._nursery is None:
            assert self.workers == 1
            return super().start(*args, attempt=attempt, **environ)
        told = self.begin(attempt)
        return self._nursery.start(
            [str(self.script), *self.args, *args],
            {**self.environ, **told.environ(), **environ},
            told.report_dir / "output",
            ranks=self.workers,
            launcher=self.workers > 1,
        )

    def on(self, workers: int, *args: str) -> Run:
        """Run an attempt on so many workers."""
        self.workers = workers
        return self.run(*args)

    def said(self, word: str) -> list[Sequence[str]]:
        """Lines of the script's own account that begin with a word: attempt, rank, the rest."""
        return [(line[0], line[1], *line[3:]) for line in self.log if line[2] == word]

    def last(self, word: str, rank: str = "0") -> str:
        """The last such line of a rank."""
        return [line[2] for line in self.said(word) if line[1] == rank][-1]

    def seen(self) -> dict[int, list[int]]:
        """Sample numbers by epoch, as all workers together used them."""
        epochs: dict[int, list[int]] = {}
        for _, _, _, epoch, rows in self.said("step"):
            epochs.setdefault(int(epoch), []).extend(map(int, rows.split(",")))
        return epochs

    def copy(self, path: Path) -> TensorFlowJob:
        """The same job in another directory, to do something else with."""
        # Not the FIFOs.
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("here", "go"))
        job = TensorFlowJob(self._nursery, path, str(self.script), *self.args)
        job.attempts = self.attempts
        return job


def check_suspended(run: Run, workers: int = 1, *, launched: bool = False) -> None:
    # One process alone has no launcher that would end the others for it.
    assert run.code == (0 if launched or workers > 1 else EXIT_SUSPENDED), run.output
    record = run.suspended
    assert record is not None, run.output
    assert Path(record["manifest"]).exists()
    assert run.report["world_size"] == workers
    assert run.report["step"] == record["step"]


def largest_difference(one: TensorFlowJob, other: TensorFlowJob) -> float:
    """Of any weight that rank 0 held at the end, by the scripts' own account."""
    pairs = zip(*(_weights(job) for job in (one, other)), strict=True)
    return max(abs(a - b) for a, b in pairs)


def _weights(job: TensorFlowJob) -> list[float]:
    lines = [line for line in job.said("weight") if line[1] == "0"]
    values = [float(word) for line in lines for word in line[3:]]
    assert values
    return values
