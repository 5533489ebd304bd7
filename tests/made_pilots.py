"""Pilots that never ran: their journals are written by hand, and say what is to be counted."""

from __future__ import annotations

import time
from collections.abc import Sequence

from told_journal import tell

from hpcext.config import Settings, load_settings
from hpcext.core import facts as f
from hpcext.core.values import Node
from hpcext.harvest.leases import Terms
from hpcext.jobspec import Gpus, JobSpec
from hpcext.manager import journal as journals
from hpcext.manager import pilot as pilots
from hpcext.manager.submissions import Submissions

HOUR_S = 3600.0
Story = Sequence[tuple[float, Sequence[f.Fact]]]

STORY: Story = [
    (0.0, [f.NodeJoined(Node("a", 2))]),
    (36.0, [f.Started("1", 1, ("a:0", "a:1")), f.Registered("1", 1, 0)]),
    (72.0, [f.Progressed("1", 1, 1, resume_s={"first_step_s": 36.0})]),
    (HOUR_S, [f.Progressed("1", 1, 980, 980)]),
    # Half of what it has done since is lost with its process.
    (HOUR_S + 360, [f.Progressed("1", 1, 1080, 1030)]),
    (HOUR_S + 360, [f.Ended("1", 1, f.Outcome.FAILED, -9)]),
    (2 * HOUR_S - 36, []),
    (2 * HOUR_S, [f.Started("1", 2, ("a:0", "a:1")), f.Registered("1", 2, 1030)]),
    (2 * HOUR_S, [f.Hold("1")]),
    (2 * HOUR_S + 36, [f.Ended("1", 2, f.Outcome.SUSPENDED, 85)]),
    (3 * HOUR_S, []),
]
"""Three hours of a node of two GPUs: a failure, and a suspension by the user."""


SPEC = JobSpec("one", ("true",), gpus=Gpus(2, 2))


def make(
    name: str,
    story: Story = STORY,
    *,
    ago_s: float = 0.0,
    terms: Terms | None = None,
    gpus: int = 2,
    spec: JobSpec = SPEC,
) -> str:
    """A pilot that is over, with one job of two GPUs; its id."""
    directory = pilots.create(
        [spec],
        pilots.NewPilot(
            name=name,
            gpus=range(gpus),
            logical=True,
            harvest=terms,
        ),
        settings=Settings(policy="equal_share", state_dir=load_settings().state_dir),
        where="jobs.toml",
    )
    header = journals.Header(began_at=time.time() - ago_s, policy="equal_share")
    jobs = map(f.Submitted, Submissions(directory / "submissions").jobs)
    tell(directory / "journal.jsonl", header, (0.0, jobs), *story)
    return directory.name
