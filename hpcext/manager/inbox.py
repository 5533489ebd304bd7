"""The inbox of a pilot: requests from its spool become facts, and answers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext.apart import check_apart
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError, InputError
from hpcext.core.facts import Fact, Submitted
from hpcext.core.values import Job
from hpcext.executors.seats import memory
from hpcext.jobfile import parse_jobs
from hpcext.jobspec import JobSpec
from hpcext.manager import spool
from hpcext.manager.handles import numbered, refuse_taken
from hpcext.manager.requests import VERBS, Answer
from hpcext.manager.submissions import Submissions, check_fits, check_in_time
from hpcext.profiles import Profiles

if TYPE_CHECKING:
    from hpcext.manager.directory import Pilot

log = logging.getLogger(__name__)


class Inbox:
    """The inbox of a pilot's spool, which turns requests into facts and answers."""

    def __init__(
        self,
        directory: Path,
        pilot: Pilot,
        engine: Engine,
        submissions: Submissions,
        profiles: Profiles,
        *,
        left_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._left_s = left_s
        self._pilot = pilot
        self._engine = engine
        self._submissions = submissions
        self._profiles = profiles
        self._gone = False

    def take(self) -> Iterator[tuple[tuple[Fact, ...], Callable[[], None]]]:
        """Yield each request's facts, and how to answer it once they are written down."""
        before, self._gone = self._gone, spool.is_gone(self._directory)
        if self._gone:
            if not before:
                log.warning(
                    "%s: somebody has deleted this pilot while it runs: nothing that its jobs do "
                    "is saved or told any more; end its manager (kill %d), and begin another",
                    self._directory, os.getpid(),
                )  # fmt: skip
            return
        for name, request in spool.pending(self._directory):
            try:
                if isinstance(request, InputError):
                    raise request
                facts, text = self._handle(name, request)
                ids = [fact.job.id for fact in facts if isinstance(fact, Submitted)]
                document: dict[str, Any] = {"text": text, "jobs": ids}
            except HpcextError as error:
                facts, document = (), error.as_json()
                log.info("request %s refused: %s", name, error)
            yield facts, self._answer(name, document)

    def _answer(self, name: str, document: dict[str, Any]) -> Callable[[], None]:
        return lambda: spool.reply(self._directory, name, document)

    def _handle(self, name: str, request: dict[str, Any]) -> Answer:
        verb = request.get("verb")
        if verb == "submit":
            return self._submit(name, request)
        if not isinstance(verb, str) or verb not in VERBS:
            raise InputError(f"unknown verb {verb!r}", valid=", ".join(["submit", *VERBS]))
        return VERBS[verb](self._engine.world, request)

    def _submit(self, name: str, request: dict[str, Any]) -> Answer:
        if name in self._submissions:
            return (), "submitted already"
        text, where, base = (str(request.get(key, "")) for key in ("text", "where", "base"))
        warnings: list[str] = []
        specs = parse_jobs(
            text,
            where,
            Path(base),
            known=self._submissions.names,
            suspend_timeout_s=self._pilot.suspend_timeout_s,
            container_runtime=self._pilot.container_runtime,
            profiles=self._profiles,
            warnings=warnings,
        )
        specs = self._under_names(specs, where, number=request.get("number") is True)
        unfinished = [self._submissions.spec(job.id) for job in self._engine.world.unfinished()]
        check_apart(specs, where, unfinished)
        offers, most = self._pilot.offers(), memory(self._pilot.shared)
        check_fits(specs, offers, where, self._pilot.nodes, seat_bytes=most)
        if not self._pilot.requeue:
            check_in_time(specs, self._left_s(), where)
        try:
            jobs = self._submissions.add(name, specs)
        except OSError as error:
            raise HpcextError(f"the jobs cannot be stored: {error.strerror}") from None
        told = "".join(f"\nwarning: {warning}" for warning in warnings)
        return tuple(map(Submitted, jobs)), _submitted(jobs) + told

    def _under_names(
        self, specs: tuple[JobSpec, ...], where: str, *, number: bool
    ) -> tuple[JobSpec, ...]:
        """Return the jobs under names that are free; refuse taken ones without `number`."""
        unfinished = self._engine.world.unfinished()
        if number:
            return numbered(specs, unfinished)
        refuse_taken(specs, unfinished, where)
        return specs


def _submitted(jobs: tuple[Job, ...]) -> str:
    listed = ", ".join(f"{job.id} ({job.name})" for job in jobs[:10])
    more = f" and {len(jobs) - 10} more" if len(jobs) > 10 else ""
    return f"submitted {listed}{more}"
