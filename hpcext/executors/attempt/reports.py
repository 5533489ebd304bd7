"""The reports of a training, as facts; they are hostile input: invalid parts are ignored."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcext import protocol
from hpcext.core.estimate import GoodputReport
from hpcext.core.facts import Fact, Noted, NotSaved, Progressed, Registered
from hpcext.core.values import Action
from hpcext.executors.attempt.readings import (
    MAX_INSTANT_S,
    MAX_NUMBER,
    MAX_STEPS,
    count,
    instant,
    is_number,
    number,
    spans,
)
from hpcext.text import clean, shown

MAX_METRICS = 32
MAX_RUNGS = 64
MAX_NOTES = 8
MAX_NOTE = 500
"""The largest number of characters of a note."""

WHY_CHARS = 120

_STEP = re.compile(r"[1-9][0-9]{0,14}\Z")
_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]{0,63}\Z")


class Reports:
    """The file ``report.json`` of one attempt, which the training replaces again and again.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    action : Action
        Any action on the attempt.
    read : callable
        Name and schema of a file of the attempt → its content, or None.
    warn : callable
        Told what makes no sense.
    """

    def __init__(
        self,
        directory: Path,
        action: Action,
        read: Callable[[str, str], dict[str, Any] | None],
        warn: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._action = action
        self._read = read
        self._warn = warn
        self._seen: tuple[int, ...] = ()
        self._last: Progressed | None = None
        self._noted: Noted | None = None
        self._beside: tuple[str, ...] = ()
        self._in_place = False
        self._resumed = False
        self._rungs_told: set[int] = set()
        self._saves = NotSaved(action.job, action.op, "")

    @property
    def step(self) -> int | None:
        """The last step that it has reported; None for none."""
        return None if self._last is None else self._last.step

    def note(self, said: str) -> Noted:
        """Add to its notes what it does not know itself."""
        noted = self._noted or Noted(self._action.job, self._action.op)
        own = noted.notes[len(self._beside) :]
        self._beside = (*self._beside, clean(said)[:MAX_NOTE])
        self._noted = msgspec.structs.replace(noted, notes=(*self._beside, *own))
        return self._noted

    def news(self) -> list[Fact]:
        """Return the facts reported since the last call; invalid ones are ignored."""
        path = self._directory / protocol.REPORT_FILE
        try:
            status = os.lstat(path)
        except OSError:
            return []
        # A report is replaced as a whole, so a new one has another inode or another time.
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen == self._seen:
            return []
        self._seen = seen
        document = self._read(protocol.REPORT_FILE, protocol.REPORT)
        if document is None:
            return []
        try:
            return self._facts(document)
        except ValueError as error:
            self._warn(f"{protocol.REPORT_FILE}: {error}")
            return []

    def native(self) -> list[Fact]:
        """Return what became of a transparent suspension since the last call."""
        document = self._read(protocol.NATIVE_FILE, protocol.NATIVE)
        same = (self._action.attempt, self._action.op)
        if document is None or (document.get("attempt"), document.get("op")) != same:
            return []
        if self._last is not None:
            # It has a session, which says that itself.
            return []
        facts: list[Fact] = self._news_beside(document, {})
        saves = self._not_saved(document)
        if saves != self._saves:
            facts.append(saves)
            self._saves = saves
        return facts

    def _facts(self, document: Mapping[str, Any]) -> list[Fact]:
        if (document.get("attempt"), document.get("op")) != (self._action.attempt, self._action.op):
            raise ValueError("belongs to another attempt")
        metrics, diverged = self._metrics(document.get("metrics"))
        if document.get("suspendable") is False:
            return self._news_beside(document, metrics)
        resumed_step = count(document, "resumed_step")
        progressed = Progressed(
            self._action.job,
            self._action.op,
            count(document, "step"),
            count(document, "saved_step"),
            number(document, "done"),
            self._rate(document),
            metrics,
            diverged=diverged,
            rungs=self._rungs(document),
            goodput=self._goodput(document),
            step_s=self._step_s(document),
        )
        facts: list[Fact] = []
        in_place = document.get("in_place") is True
        if self._last is None or (in_place and not self._in_place):
            facts.append(Registered(self._action.job, self._action.op, resumed_step, in_place))
            self._in_place = in_place
        facts += self._news_beside(document, {})
        first_step_at = instant(document, "first_step_at")
        if first_step_at is not None and not self._resumed:
            self._resumed = True
            parts = self._resume_parts(document, first_step_at)
            facts.append(msgspec.structs.replace(progressed, resume_s=parts))
        elif progressed != self._last:
            facts.append(progressed)
        self._last = progressed
        saves = self._not_saved(document)
        if saves != self._saves:
            facts.append(saves)
            self._saves = saves
        return facts

    def _not_saved(self, document: Mapping[str, Any]) -> NotSaved:
        """Return whether it can save its checkpoints; empty, as usual, if it can."""
        why = document.get("cannot_save")
        declined = document.get("declined", 0)
        if type(declined) is not int or not 0 <= declined <= MAX_STEPS:
            self._warn(f"{protocol.REPORT_FILE}: declined is {shown(declined)}, not a count")
            declined = 0
        said = clean(why)[:WHY_CHARS].strip() if isinstance(why, str) else ""
        waits = bool(said) and document.get("waits_to_save") is True
        return NotSaved(self._action.job, self._action.op, said, declined, waits)

    def _news_beside(self, document: Mapping[str, Any], metrics: dict[str, float]) -> list[Fact]:
        """Return its new notes and metrics, if there are any."""
        notes = (*self._beside, *self._notes(document))
        noted = Noted(self._action.job, self._action.op, notes, metrics)
        before = self._noted or msgspec.structs.replace(noted, notes=(), metrics={})
        self._noted = noted
        return [noted] if noted != before else []

    def _notes(self, document: Mapping[str, Any]) -> tuple[str, ...]:
        stated = document.get("notes")
        if not isinstance(stated, list):
            return ()
        said = (note for note in stated[:MAX_NOTES] if isinstance(note, str))
        return tuple(clean(note[:MAX_NOTE]) for note in said)

    def _resume_parts(self, document: Mapping[str, Any], first_step_at: float) -> dict[str, float]:
        began = self._read(protocol.SUPERVISOR_FILE, protocol.SUPERVISOR) or {}
        return spans(
            ("", instant(began, "at")),
            ("start_s", instant(document, "registered_at")),
            ("restore_s", instant(document, "restored_at")),
            ("first_step_s", first_step_at),
        )

    def _rate(self, document: Mapping[str, Any]) -> float | None:
        if document.get("rate") is None:
            return None
        try:
            return number(document, "rate")
        except ValueError as error:
            self._warn(f"{protocol.REPORT_FILE}: {error}")
            return None

    def _step_s(self, document: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return how long its steps take, if it says so and that makes sense."""
        said = document.get("step_s")
        if said is None:
            return None
        good = isinstance(said, list) and len(said) == 2 and all(map(is_number, said))
        if not good or not 0 <= said[0] <= said[1] <= MAX_INSTANT_S:
            self._warn(f"{protocol.REPORT_FILE}: step_s is {shown(said)}, not two durations")
            return None
        return float(said[0]), float(said[1])

    def _metrics(self, stated: Any) -> tuple[dict[str, float], tuple[str, ...]]:
        """Return the metrics that make sense, and the names of those that are not numbers."""
        if not isinstance(stated, dict):
            return {}, ()
        metrics: dict[str, float] = {}
        diverged: list[str] = []
        for name in itertools.islice(stated, MAX_METRICS):
            if not _METRIC.match(name):
                self._warn(f"{protocol.REPORT_FILE}: {shown(name)} is not a valid metric name")
                continue
            said = stated[name]
            if said is None or (isinstance(said, float) and not math.isfinite(said)):
                diverged.append(name)
                continue
            try:
                metrics[name] = number(stated, name, -MAX_NUMBER)
            except ValueError as error:
                self._warn(f"{protocol.REPORT_FILE}: {error}")
        if len(stated) > MAX_METRICS:
            self._warn(
                f"{protocol.REPORT_FILE}: {len(stated)} metrics, but at most "
                f"{MAX_METRICS} are allowed"
            )
        return metrics, tuple(diverged)

    def _rungs(self, document: Mapping[str, Any]) -> dict[int, dict[str, float | None]]:
        """Return what a trial had at the rungs that it has reached since the last call."""
        stated = document.get("rungs")
        if not isinstance(stated, dict):
            return {}
        rungs: dict[int, dict[str, float | None]] = {}
        for step, said in itertools.islice(stated.items(), MAX_RUNGS):
            if not _STEP.match(step):
                self._warn(f"{protocol.REPORT_FILE}: rungs: {shown(step)} is not a step")
            elif int(step) not in self._rungs_told:
                metrics, diverged = self._metrics(said)
                rungs[int(step)] = {**metrics, **dict.fromkeys(diverged)}
        self._rungs_told |= rungs.keys()
        return rungs

    def _goodput(self, document: Mapping[str, Any]) -> GoodputReport | None:
        """Return the goodput of the training, if it reports one that makes sense."""
        said = document.get("goodput")
        if said is None:
            return None
        if isinstance(said, dict):
            # Unknown keys may come from a later release.
            said = {name: said[name] for name in GoodputReport.__struct_fields__ if name in said}
        try:
            return msgspec.convert(said, GoodputReport)
        except msgspec.ValidationError as error:
            self._warn(f"{protocol.REPORT_FILE}: goodput: {error}")
            return None
