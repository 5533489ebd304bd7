"""Jobs of :mod:`harness` whose attempts are forks of a nursery."""

from __future__ import annotations

from pathlib import Path

from harness import Job, Started
from nursery import Nursery


class Forked(Job):
    """A job whose attempts are forked; with several ranks, their launcher is a simple one."""

    def __init__(self, nursery: Nursery, path: Path, script: str, *args: str, ranks: int = 1):
        super().__init__(path, script, *args, ranks=ranks)
        self._nursery = nursery

    def start(self, *args: str, attempt: int | None = None, **environ: str) -> Started:
        told = self.begin(attempt)
        return self._nursery.start(
            [str(self.script), *self.args, *args],
            {**self.environ, **told.environ(), **environ},
            told.report_dir / "output",
            ranks=self.ranks,
        )
