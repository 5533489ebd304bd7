"""Jobs of submitit in a pilot, as others see them: their states, and how they are cancelled."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from submitit.core import core, logger

from hpcext.core.errors import HpcextError, NoManagerError
from hpcext.core.reasons import reason
from hpcext.core.values import State
from hpcext.integrations.pilots import pilot_of
from hpcext.manager.views.reading import Follower, Reading
from hpcext.manager.views.report import display_state
from hpcext.manager.waiting import asked

R_co = TypeVar("R_co", covariant=True)

LOOK_S = 10
"""The longest time, in seconds, between two looks at a pilot; its result a job finds by itself."""

GONE = "GONE"
"""The state of a job whose pilot is no more."""

FINAL = frozenset({GONE, *(state.value.upper() for state in State if state.final)})


class HpcextInfoWatcher(core.InfoWatcher):
    """What pilots say of their jobs; all jobs of a pilot are looked at together."""

    def __init__(self, delay_s: int = LOOK_S) -> None:
        super().__init__(delay_s)
        self._followers: dict[str, Follower] = {}
        self._told: dict[str, str] = {}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of a job as ``hpcext status`` has it, in capitals."""
        return self.get_info(job_id, mode).get("State", "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether a job has ended, so that nothing more comes of it."""
        return self.get_state(job_id, mode) in FINAL

    def update(self) -> None:
        """Look at the pilots of all jobs that have not ended."""
        self._num_calls += 1
        self._last_status_check = time.time()
        waiting = collections.defaultdict(list)
        for job_id in self._registered - self._finished:
            waiting[job_id.rpartition(".")[0]].append(job_id)
        for pilot, job_ids in waiting.items():
            try:
                self._info_dict.update(self._look(pilot, job_ids))
            except HpcextError as error:
                self._tell(pilot, str(error))
        found = self._info_dict.items()
        self._finished |= {job_id for job_id, info in found if info["State"] in FINAL}

    def _look(self, pilot: str, job_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return what is known of some jobs of one pilot."""
        try:
            directory = pilot_of(job_ids[0])
        except NoManagerError as error:
            return {job_id: {"State": GONE, "Why": str(error)} for job_id in job_ids}
        found = self._followers.setdefault(pilot, Follower(directory)).read()
        if found.standing.what:
            self._tell(pilot, f"{found.standing.what}; {found.standing.do}")
        return dict(_infos(found, job_ids))

    def _tell(self, pilot: str, what: str) -> None:
        """Log what keeps jobs of a pilot from going on, once."""
        if self._told.get(pilot) != what:
            self._told[pilot] = what
            logger.get_logger().warning(f"pilot {pilot}: {what}")


def _infos(found: Reading, job_ids: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for job_id in job_ids:
        # One that was submitted a moment ago may not have been read yet.
        job = found.world.jobs.get(job_id.rpartition(".")[2])
        if job is not None:
            state = display_state(job).upper()
            yield job_id, {"State": state, "Name": job.name, "Why": reason(job)}


class HpcextJob(core.Job[R_co]):
    """A job in a pilot; its id is that of the pilot, a dot, and its id there."""

    watcher = HpcextInfoWatcher()

    def cancel(self, check: bool = True) -> None:
        """Cancel the job; one that has ended stays as it is.

        Parameters
        ----------
        check : bool
            Whether to raise the error if nobody can cancel it now.
        """
        try:
            asked(pilot_of(self.job_id), "cancel", job=self.job_id.rpartition(".")[2])
        except HpcextError:
            if check and not self.watcher.is_done(self.job_id, mode="force"):
                raise
