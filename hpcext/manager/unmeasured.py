"""Warns once about trials that do not report the metric by which they are to be compared."""

from __future__ import annotations

import logging

from hpcext.core.engine import Engine
from hpcext.core.values import Job, Record
from hpcext.text import listed

log = logging.getLogger(__name__)


def unmeasured(job: Job, record: Record) -> str:
    """Return what is missing from a trial that is beyond its first rung; empty for nothing."""
    trial = job.trial
    if trial is None or trial.first is None or job.step < trial.first:
        return ""
    if record.rungs or trial.metric in record.metrics:
        return ""
    return (
        f"sweep {trial.sweep}: {job.name} is at step {job.step} and has not reported "
        f"{trial.metric} (it reports {listed(record.metrics) or 'no metric'}); "
        "without it no trial is ended"
    )


class Unmeasured:
    """An observer of the trials of an engine that warns once of each sweep."""

    def __init__(self) -> None:
        self._submitted = 0
        self._watched: dict[str, tuple[object, ...]] = {}

    def __call__(self, engine: Engine, _now_s: float) -> None:
        """Check the trials that have not reached a rung yet, after a turn of their driver."""
        jobs, records = engine.world.jobs, engine.world.records
        if len(jobs) != self._submitted:
            # Not in each turn: there may be a hundred thousand of them.
            new = list(jobs.values())[self._submitted :]
            self._submitted = len(jobs)
            self._watched |= {job.id: job.trial.rules for job in new if job.trial is not None}
        for name, rules in list(self._watched.items()):
            if name not in self._watched:
                continue
            if said := unmeasured(jobs[name], records[name]):
                log.warning("%s", said)
                self._watched = {k: v for k, v in self._watched.items() if v != rules}
            elif records[name].rungs or jobs[name].state.final:
                del self._watched[name]
