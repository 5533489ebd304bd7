"""The executor: jobs of Snakemake become jobs of a pilot, which may suspend and resume them."""

from __future__ import annotations

import collections
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from hpcext.core.errors import HpcextError, NoManagerError
from hpcext.core.reasons import reason
from hpcext.core.values import Job
from hpcext.integrations.pilots import chosen, pilot_of
from hpcext.integrations.snakemake.keys import environment, keys_of
from hpcext.jobtext import allowed_name, job_text
from hpcext.manager import directory as pilots
from hpcext.manager.views.reading import Follower
from hpcext.manager.waiting import asked

NAME = "snakemake"
"""Where jobs come from, for messages."""

MOST_AT_ONCE = 50
"""Jobs in one request to a manager, which is of limited size."""

ANSWER_S = 120.0


class Executor(RemoteExecutor):  # type: ignore[misc]
    """The executor whose jobs run in a pilot.

    A job that is suspended, or whose pilot loses its nodes, is not over: it goes on, or begins
    again, as any job of a pilot does. Snakemake is told of it when it has ended.
    """

    def __post_init__(self) -> None:
        """Find the pilot."""
        self._followers: dict[str, Follower] = {}
        self._told: set[str] = set()
        try:
            settings = self.workflow.executor_settings
            self._directory = chosen(getattr(settings, "pilot", None) or "", "--hpcext-pilot")
            self._pilot = pilots.load(self._directory).id
        except HpcextError as error:
            raise WorkflowError(str(error)) from None

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit jobs that are ready, many in one request."""
        for first in range(0, len(jobs), MOST_AT_ONCE):
            part = jobs[first : first + MOST_AT_ONCE]
            for job in part:
                self.run_job_pre(job)
            self._submit(part)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job."""
        self._submit([job])

    def _submit(self, jobs: Sequence[JobExecutorInterface]) -> None:
        stated: dict[int, dict[str, Any]] = {}
        for place, job in enumerate(jobs):
            try:
                stated[place] = self._keys(job)
            except HpcextError as error:
                self.report_job_error(SubmittedJobInfo(job), msg=f"{error}. ")
        if not stated:
            return
        jobs = [jobs[place] for place in stated]
        try:
            text = job_text(*stated.values())
            words = {"text": text, "where": NAME, "base": str(Path.cwd()), "number": True}
            answer = asked(self._directory, "submit", timeout_s=ANSWER_S, **words)
        except HpcextError as error:
            for job in jobs:
                self.report_job_error(SubmittedJobInfo(job), msg=f"{error}. ")
            return
        for job, within in zip(jobs, answer["jobs"], strict=True):
            self.report_job_submission(SubmittedJobInfo(job, f"{self._pilot}.{within}"))

    def _keys(self, job: JobExecutorInterface) -> dict[str, Any]:
        name = allowed_name(f"{job.name}-{job.jobid}", NAME)
        command = ["sh", "-c", self.format_job_exec(job)]
        # They are not retried: that is Snakemake's to decide.
        keys = {"retries": 0, **keys_of(job.resources)}
        return {**keys, "name": name, "command": command, "env": environment()}

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Tell Snakemake of jobs that have ended, and yield the others."""
        waiting = collections.defaultdict(list)
        for each in active_jobs:
            waiting[str(each.external_jobid).rpartition(".")[0]].append(each)
        for pilot, theirs in waiting.items():
            async with self.status_rate_limiter:
                states = self._look(pilot, theirs)
            for each in theirs:
                within = str(each.external_jobid).rpartition(".")[2]
                if states is None:
                    self.report_job_error(each, msg=f"pilot {pilot} is no more. ")
                elif not self._ended(each, states.get(within)):
                    yield each

    def _look(self, pilot: str, jobs: Sequence[SubmittedJobInfo]) -> dict[str, Job] | None:
        """Return the jobs of a pilot by id; None if it is no more."""
        try:
            directory = pilot_of(str(jobs[0].external_jobid))
            found = self._followers.setdefault(pilot, Follower(directory)).read()
        except NoManagerError:
            return None
        except HpcextError as error:
            self._tell(f"pilot {pilot}: {error}")
            return {}
        if found.standing.what:
            self._tell(f"pilot {pilot}: {found.standing.what}; {found.standing.do}")
        return dict(found.world.jobs)

    def _ended(self, info: SubmittedJobInfo, job: Job | None) -> bool:
        """Tell Snakemake if a job has ended; return whether it has."""
        if job is None or not job.state.final:
            return False
        if job.state.value == "completed":
            self.report_job_success(info)
        else:
            log = self._directory / "jobs" / job.id / "log.txt"
            said = f"{job.state.value}: {reason(job)}. Its log is {log}. "
            self.report_job_error(info, msg=said, aux_logs=[str(log)])
        return True

    def _tell(self, what: str) -> None:
        """Say what keeps jobs from going on, once."""
        if what not in self._told:
            self._told.add(what)
            self.logger.warning(what)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel jobs, when the workflow is."""
        for each in active_jobs:
            ident = str(each.external_jobid)
            try:
                asked(pilot_of(ident), "cancel", job=ident.rpartition(".")[2])
            except HpcextError as error:
                self.logger.warning(f"{ident} is not cancelled: {error}")
