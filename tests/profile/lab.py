"""Trainings whose speed is known, and what they say of themselves."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from site_of_test import Site
from written import whole_lines

from hpcext.cli import main as cli

PACED = Path(__file__).parent / "paced.py"


class Step(NamedTuple):
    """One line of a training's own account."""

    gpus: int
    step: int
    time_s: float
    resumed: bool
    checkpoints: str


class Lab:
    """A site with paced trainings."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.log = site.path / "paced.log"
        self.profiles = site.path / "state" / "hpcext" / "profiles"
        site.environ |= {"PACED_LOG": str(self.log), "OMP_NUM_THREADS": "1"}

    def command(self, step_s: str, *more: str) -> list[str]:
        return [sys.executable, str(PACED), step_s, *more]

    def account(self) -> dict[int, list[Step]]:
        """What the trainings say that they did, by their GPUs."""
        found = defaultdict(list)
        for line in whole_lines(self.log):
            gpus, step, time_s, resumed, place = line.split(maxsplit=4)
            entry = Step(int(gpus), int(step), float(time_s), resumed == "True", place)
            found[entry.gpus].append(entry)
        return dict(found)

    def main(self, *words: str) -> int:
        """Run a command that starts nothing, in this process: quicker than a new one."""
        return cli.main(words)

    def rates(self, gpus: int) -> tuple[float, float]:
        """Steps per second where it was slowest and fastest for a quarter of a run, by its account.

        On a busy machine, no stretch of it need be as fast as another.
        """
        times = [step.time_s for step in self.account()[gpus]]
        steps = len(times) // 4
        spans = [later - at for at, later in zip(times, times[steps:], strict=False)]
        return 0.9 * steps / max(spans), 1.1 * steps / min(spans)
