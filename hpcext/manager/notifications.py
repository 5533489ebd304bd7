"""Notifies a user of jobs that failed for good and of a pilot's end, once each despite restarts.

The manager observes its engine like any other observer; a thread sends the notifications. Each is
recorded in ``notified.json``, beside the pilot's journal, before it is sent: if the manager is
killed in between, a notification may be lost, but is never sent twice.
"""

from __future__ import annotations

import datetime
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcext import documents
from hpcext.core.engine import Engine
from hpcext.core.errors import HpcextError
from hpcext.core.notification_methods import NotificationMethod
from hpcext.core.values import Job, State
from hpcext.manager.directory import host
from hpcext.manager.senders import Notification, send
from hpcext.text import clean, counted

log = logging.getLogger(__name__)

SCHEMA = "hpcext.notification/1"
NOTIFIED = "hpcext.notified/1"
NOTIFIED_FILE = "notified.json"

GATHER_S = 10.0
"""Seconds after a failure within which others go into the same message."""

LOOK_S = 2.0
"""Seconds between two looks for failures: a look is as long as the list of jobs."""

LULL_S = 300.0
"""Seconds between two messages of failures."""

MOST_NAMED = 20
"""The largest number of jobs that a message names; of more it gives the number."""

LAST_S = 30.0
"""Seconds that a message on its way gets when a manager ends."""


class Teller:
    """An observer that notifies a user of what happens in one pilot.

    Parameters
    ----------
    directory : pathlib.Path
        The pilot's.
    id, name : str
        The pilot's.
    method : NotificationMethod
    """

    def __init__(self, directory: Path, id: str, name: str, method: NotificationMethod) -> None:
        self._directory = directory
        self._pilot = {"id": id, "name": name, "directory": str(directory), "host": host()}
        self._method = method
        self._lock = threading.Lock()
        self._told = _read(directory)
        self._final, self._look_s = 0, float("-inf")
        self._untold: list[Job] = []
        self._since_s = 0.0
        self._told_s = float("-inf")
        self._waiting: queue.SimpleQueue[Notification | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, engine: Engine, now_s: float) -> None:
        """Look at what is new, and tell it when it is time."""
        if now_s >= self._look_s:
            self._look(engine, now_s)
        due_s = max(self._since_s + GATHER_S, self._told_s + LULL_S)
        if self._untold and now_s >= due_s:
            self._tell_failures(engine, now_s)

    def ended(self, engine: Engine, now_s: float) -> None:
        """Notify that the manager has ended and will not come back; wait until it is sent."""
        self._look(engine, now_s)
        world = engine.world
        left, jobs = len(world.unfinished()), len(world.jobs)
        if left or self._told.get("ended_jobs") != jobs:
            self._remember(**({} if left else {"ended_jobs": jobs}))
            self._tell("stopped" if left else "ended", engine)
        elif self._untold:
            self._tell_failures(engine, now_s)
        self.close()

    def close(self) -> None:
        """Wait until the notifications are sent, for a limited time."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(LAST_S)
            if self._thread.is_alive():
                self._failed("it took too long")

    def _look(self, engine: Engine, now_s: float) -> None:
        """Find jobs that have failed for good and were not reported yet."""
        world, self._look_s = engine.world, now_s + LOOK_S
        final = len(world.jobs) - len(world.unfinished())
        if final == self._final:
            return
        self._final = final
        until_s = self._told.get("failed_until_s", float("-inf"))
        failed = [job for job in world.jobs.values() if job.state is State.FAILED]
        self._since_s = self._since_s if self._untold else now_s
        self._untold = [job for job in failed if job.since_s > until_s]

    def _tell_failures(self, engine: Engine, now_s: float) -> None:
        self._told_s = now_s
        self._tell("failed", engine)

    def _tell(self, event: str, engine: Engine) -> None:
        failed, self._untold = self._untold, []
        if failed:
            self._remember(failed_until_s=max(job.since_s for job in failed))
        self._waiting.put(self._notification(event, engine, failed))
        if self._thread is None:
            # A daemon thread: not waited for if a manager is killed, or a network does not answer.
            self._thread = threading.Thread(target=self._send_all, daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        while (notification := self._waiting.get()) is not None:
            try:
                send(self._method, notification)
                self._remember(problem="")
            except HpcextError as error:
                self._failed(str(error))
            except Exception as error:  # a fault of ours is not to go unsaid
                self._failed(f"{type(error).__name__}")

    def _failed(self, why: str) -> None:
        problem = f"the notification by {self._method} failed: {clean(why)}"
        self._remember(problem=problem)
        log.warning("%s", problem)

    def _remember(self, **more: Any) -> None:
        with self._lock:
            if all(self._told.get(key) == value for key, value in more.items()):
                return
            self._told.update(more, schema=NOTIFIED)
            try:
                documents.write_json(self._directory / NOTIFIED_FILE, self._told)
            except OSError as error:
                log.warning("%s: %s", NOTIFIED_FILE, error.strerror)

    def _notification(self, event: str, engine: Engine, failed: Sequence[Job]) -> Notification:
        states = Counter(job.state for job in engine.world.jobs.values())
        final = {state.value: states[state] for state in State if state.final}
        total = len(engine.world.jobs)
        jobs = {"total": total, **final, "left": total - sum(final.values())}
        named = [
            {
                "id": job.id,
                "name": job.name,
                "why": job.why,
                "log": str(self._directory / "jobs" / job.id / "log.txt"),
            }
            for job in failed[:MOST_NAMED]
        ]
        more = len(failed) - len(named)
        subject = f"hpcext: {_sentence(event, self._pilot['name'], jobs, failed)}"
        text = _text(subject, self._pilot, jobs, named, more)
        document = {
            "schema": SCHEMA,
            "event": event,
            # By this name chats take it.
            "text": text,
            "pilot": self._pilot,
            "jobs": jobs,
            "failed": named,
            "more_failed": more,
            "at": datetime.datetime.fromtimestamp(time.time(), datetime.timezone.utc).isoformat(),
        }
        return Notification(subject, text, document)


def problem_of(directory: Path) -> str:
    """Return what went wrong when its user was last notified; empty if nothing did."""
    return clean(str(_read(directory).get("problem") or ""))


def _read(directory: Path) -> dict[str, Any]:
    try:
        return documents.read_json(directory / NOTIFIED_FILE, NOTIFIED)
    except (OSError, ValueError):
        return {}


def _sentence(event: str, pilot: str, jobs: dict[str, int], failed: Sequence[Job]) -> str:
    """Return what happened, in a line."""
    if event == "failed":
        what = f"job {failed[0].name}" if len(failed) == 1 else counted(len(failed), "job")
        return f"{what} of pilot {pilot} failed"
    if event == "stopped":
        return f"pilot {pilot} stopped with {counted(jobs['left'], 'job')} left"
    bad = f"{jobs['failed']} of its {jobs['total']} jobs failed"
    return f"pilot {pilot} ended, {bad if jobs['failed'] else 'and no job failed'}"


def _text(
    subject: str,
    pilot: dict[str, str],
    jobs: dict[str, int],
    named: Sequence[dict[str, str]],
    more: int,
) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in jobs.items() if state != "total")
    lines = [subject, f"pilot {pilot['id']} on {pilot['host']}: {counts}"]
    for job in named:
        lines += [f"{job['name']} ({job['id']}): {job['why']}", f"  log: {job['log']}"]
    lines += [f"and {counted(more, 'job')} more that failed"] if more else []
    lines += [f"directory: {pilot['directory']}"]
    if jobs["left"]:
        lines += [f"hpcext status {pilot['id']} shows it"]
    return "\n".join(clean(line) for line in lines)
