"""Simulations of users who share nodes, in a form that can be sent to another process."""

from __future__ import annotations

import functools
import heapq
import zlib
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from hpcext.broker.settings import Settings, read
from hpcext.broker.simulated.account import Account
from hpcext.broker.simulated.policy import ByWeights
from hpcext.core.engine import Policy
from hpcext.core.values import Job
from hpcext.jobspec import JobSpec
from hpcext.sim.evaluate.users import ALONE, EQUAL, WEIGHTS
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.sources import Source
from hpcext.sim.replay.tasks import Task
from hpcext.sim.workloads.find import find_workload
from hpcext.sim.workloads.workload import Jobs, Workload, of_user, user_of
from hpcext.text import counted

SAID = {ALONE: "one user", EQUAL: "equal parts", WEIGHTS: "by weights"}

MOST_NAMED = 3
"""The most workloads that a report names."""


class UsersTask(Task, frozen=True):
    """One run of the jobs of several users to simulate.

    Attributes
    ----------
    users : str
        The file of a broker, with the users' weights and limits.
    division : str
        How nodes are divided among users: by the file; in equal parts, as without a broker; or not
        at all, as if all jobs were one user's.
    owned : tuple of (str, str)
        Workloads with the user whose jobs they have; with an empty one, jobs name their users.
    zero_at : float
        The beginning, in seconds since the epoch, by which reservations hold.
    """

    users: str = ""
    division: str = WEIGHTS
    owned: tuple[tuple[str, str], ...] = ()
    zero_at: float = 0.0

    def jobs(self, source: Source) -> Workload:
        """Return the workloads of all users as one."""
        own = [(user, self._workload(user, text, source)) for user, text in self.owned]
        reports = [each.report_s for _, each in own if each.report_s is not None]
        files = dict.fromkeys((Path(self.users), *(file for _, each in own for file in each.files)))
        return Workload(
            _named(own),
            functools.partial(_merged, own),
            tuple(files),
            min(reports, default=None),
            any(each.measured for _, each in own),
        )

    def specs(self) -> tuple[JobSpec, ...]:
        """Return the jobs of all job files."""
        texts = dict.fromkeys(text for _, text in self.owned)
        return tuple(spec for text in texts for spec in replace(self._plain, workload=text).specs())

    def decider(self) -> Policy:
        """Return the policy: for all jobs, or by way of a division among users."""
        policy = super().decider()
        if self.division == ALONE:
            return policy
        settings = self.settings()
        if self.division == EQUAL:
            settings = Settings(settings.partition)
        return ByWeights(settings, policy, self.zero_at)

    def observer(self, source: Source) -> Account:
        """Return the account of what users have."""
        return Account(self.settings(), self.names(source), self.zero_at, self.division)

    def settings(self) -> Settings:
        """Return what the file says."""
        return read(Path(self.users))

    def names(self, source: Source) -> list[str]:
        """Return the users who have jobs, in order; reads all jobs."""
        return sorted({user_of(job.id) for job, _ in self.jobs(source).jobs(self.seed)})

    @property
    def label(self) -> str:
        """The name that distinguishes its runs: policy, its knowledge, and the division."""
        return f"{super().label}, {SAID[self.division]}"

    @property
    def _plain(self) -> Task:
        """The same without users."""
        return Task(**{field: getattr(self, field) for field in Task.__struct_fields__})

    def _workload(self, user: str, text: str, source: Source) -> Workload:
        setting = self.setting(source)._replace(users=not user)
        return find_workload(text, setting)


def _named(own: list[tuple[str, Workload]]) -> str:
    """Return the name of some workloads together."""
    names = [f"{user}={each.text}" if user else each.text for user, each in own]
    more = len(names) - MOST_NAMED
    if more > 0:
        names[MOST_NAMED:] = [f"those of {counted(more, 'more user')}"]
    return ", ".join(names)


def _merged(own: list[tuple[str, Workload]], seed: int) -> Jobs:
    """Yield the jobs of all users in the order of their submission."""
    streams = [_of_user(user, each, seed) for user, each in own]
    merged = heapq.merge(*streams, key=lambda each: each[0].submitted_s)
    for order, (job, physics) in enumerate(merged):
        yield replace(job, order=order), physics


def _of_user(user: str, workload: Workload, seed: int) -> Iterator[tuple[Job, Physics]]:
    if not user:
        yield from workload.jobs(seed)
        return
    # What is drawn at random is drawn for each user anew.
    for job, physics in workload.jobs(zlib.crc32(f"{seed}/{user}".encode())):
        after = tuple(of_user(user, need) for need in job.after)
        trial = job.trial and replace(job.trial, sweep=of_user(user, job.trial.sweep))
        yield replace(job, id=of_user(user, job.id), after=after, trial=trial), physics
