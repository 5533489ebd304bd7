"""The unfinished jobs in their order, and the ones among them that need attention.

A queue may be long and a step is about a few of its jobs: what a step costs must not grow with it.
"""

from __future__ import annotations

import bisect
import heapq

from hpcext.core.values import Job

Key = tuple[float, int, str]


class Queue:
    """The unfinished jobs, by priority and order; neither of a job changes."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._jobs: list[Job] = []
        self._all: tuple[Job, ...] | None = None
        self._busy: dict[Key, Job] = {}
        self._few: tuple[Job, ...] | None = None
        self._deadlines: list[tuple[float, str]] = []
        self._waits: list[tuple[float, str]] = []
        self._unchecked: set[str] = set()
        self._unexplained: set[str] = set()

    def put(self, job: Job) -> None:
        """Add a job, or replace it."""
        key = _key(job)
        at = bisect.bisect_left(self._keys, key)
        known = at < len(self._keys) and self._keys[at] == key
        before = self._jobs[at] if known else None
        if known:
            self._jobs[at] = job
        else:
            self._keys.insert(at, key)
            self._jobs.insert(at, job)
        self._all = None
        if job.goal is not None or job.state.active:
            self._busy[key] = job
            self._few = None
        elif self._busy.pop(key, None):
            self._few = None
        if job.deadline_s is not None and (before is None or before.deadline_s != job.deadline_s):
            heapq.heappush(self._deadlines, (job.deadline_s, job.id))
        if job.not_before_s and (before is None or before.not_before_s != job.not_before_s):
            heapq.heappush(self._waits, (job.not_before_s, job.id))
        if job.home_until_s and (before is None or before.home_until_s != job.home_until_s):
            heapq.heappush(self._waits, (job.home_until_s, job.id))
        again_s = job.run.suspend_again_s
        if again_s is not None and (before is None or before.run.suspend_again_s != again_s):
            heapq.heappush(self._waits, (again_s, job.id))
        self.touch(job.id)

    def drop(self, job: Job) -> None:
        """Remove a job."""
        key = _key(job)
        at = bisect.bisect_left(self._keys, key)
        del self._keys[at], self._jobs[at]
        self._all = None
        self._busy.pop(key, None)
        self._few = None
        self._unchecked.discard(job.id)
        self._unexplained.discard(job.id)

    def __len__(self) -> int:
        return len(self._keys)

    def touch(self, job_id: str) -> None:
        """Note that something about a job has changed."""
        self._unchecked.add(job_id)
        self._unexplained.add(job_id)

    def touch_all(self) -> None:
        """Note that something about all jobs has changed."""
        ids = [key[2] for key in self._keys]
        self._unchecked.update(ids)
        self._unexplained.update(ids)

    def jobs(self) -> tuple[Job, ...]:
        """Return all of them."""
        if self._all is None:
            self._all = tuple(self._jobs)
        return self._all

    def busy(self) -> tuple[Job, ...]:
        """Return those that hold or are to have something."""
        if self._few is None:
            self._few = tuple([self._busy[key] for key in sorted(self._busy)])
        return self._few

    def unchecked(self, now_s: float) -> set[str]:
        """Return the jobs that changed since the last call, and those whose wait is over."""
        while self._waits and self._waits[0][0] <= now_s:
            self._unchecked.add(heapq.heappop(self._waits)[1])
        found, self._unchecked = self._unchecked, set()
        return found

    def unexplained(self) -> set[str]:
        """Return the jobs that changed since the last call."""
        found, self._unexplained = self._unexplained, set()
        return found

    def wake_s(self, now_s: float, jobs: dict[str, Job]) -> float | None:
        """Return the first instant at which one of the jobs needs attention, if any.

        Parameters
        ----------
        now_s : float
        jobs : dict of str to Job
            All jobs, by id: of those that have ended nothing is due.
        """
        while self._deadlines and not self._due(jobs.get(self._deadlines[0][1])):
            heapq.heappop(self._deadlines)
        while self._waits and not self._waiting(jobs.get(self._waits[0][1]), now_s):
            self._unchecked.add(heapq.heappop(self._waits)[1])
        return min((heap[0][0] for heap in (self._deadlines, self._waits) if heap), default=None)

    def _due(self, job: Job | None) -> bool:
        """Return whether the first deadline is still a job's."""
        return job is not None and not job.state.final and job.deadline_s == self._deadlines[0][0]

    def _waiting(self, job: Job | None, now_s: float) -> bool:
        """Return whether the first wait is still a job's, and not over."""
        if job is None or job.state.final:
            return False
        at_s = self._waits[0][0]
        times = (job.not_before_s, job.home_until_s, job.run.suspend_again_s)
        return at_s > now_s and at_s in times


def _key(job: Job) -> Key:
    return (-job.priority, job.order, job.id)
