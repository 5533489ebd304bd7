"""The end of an attempt, from what its supervisors and its training wrote."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcext import documents, protocol
from hpcext.core.facts import Ended, Outcome
from hpcext.core.values import Action
from hpcext.executors.attempt.last_step import LastStep
from hpcext.executors.attempt.own_documents import OwnDocuments
from hpcext.executors.attempt.readings import instant, number, spans
from hpcext.executors.attempt.verdict import (
    broken_gpus,
    exit_code,
    failed_by_itself,
    how_it_failed,
)
from hpcext.launch import ending
from hpcext.text import clean, shown

SUPERVISOR_LOG = "supervisor.log"

_WHY_CHARS = 200


class Ends:
    """How one attempt ended, on each of its nodes and as a whole.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    action : Action
        Any action on the attempt.
    own : OwnDocuments
        The documents in its directory.
    last_step : LastStep

    Attributes
    ----------
    nodes : dict of int to str
        Its nodes, by their indices. Others may come, and some go.
    """

    def __init__(
        self, directory: Path, action: Action, own: OwnDocuments, last_step: LastStep
    ) -> None:
        self._directory = directory
        self._job = action.job
        self._op = action.op
        self.nodes = dict(enumerate(action.alloc))
        self._documents = own
        self._last_step = last_step

    @property
    def others(self) -> tuple[int, ...]:
        """The indices of its nodes beside the first."""
        return tuple([index for index in self.nodes if index])

    def ended(self) -> Ended | None:
        """Return how the attempt ended; None if no file says that it has."""
        ended = self._ended()
        if ended is None:
            return None
        own = _own_account(self._documents.own(protocol.EXIT_FILE, protocol.EXIT) or {})
        broken = self._broken_gpus() if ended.outcome is Outcome.FAILED else {}
        return msgspec.structs.replace(
            ended, step=self._last_step.read(), broken_gpus=broken, **own
        )

    def stays(self) -> bool:
        """Return whether it has ended, while its processes and their supervisor stay in memory."""
        document = self._documents.own(protocol.EXIT_FILE, protocol.EXIT) or {}
        return document.get("stays") is True

    def _ended(self) -> Ended | None:
        document = self._documents.own(protocol.EXIT_FILE, protocol.EXIT)
        code = None if document is None else self._code(document)
        if document is None or code is None:
            return None
        if why := _not_started(document):
            return Ended(self._job, self._op, Outcome.EVICTED, why=why, never_ran=True)
        if document.get("suspended") is True and self._suspended_elsewhere(document):
            parts = self._suspend_parts(document)
            return Ended(self._job, self._op, Outcome.SUSPENDED, code, suspend_s=parts)
        if code == 0 and document.get("kill_asked_at") is None:
            return self._elsewhere() or Ended(self._job, self._op, Outcome.COMPLETED, code)
        went_on = document.get("went_on") is True
        if went_on or document.get("notice_at") is not None:
            # Whatever became of it then is no fault of its own.
            why = ending.WENT_ON if went_on else "the batch system told it to end"
            return Ended(self._job, self._op, Outcome.EVICTED, code, why=why)
        # Many programs answer SIGTERM by a clean exit; their work is not done for that.
        why = "ended with exit code 0 after SIGTERM"
        ended = (
            self._first_failure() if code else Ended(self._job, self._op, Outcome.FAILED, why=why)
        )
        return msgspec.structs.replace(ended, exit_code=code)

    def _suspended_elsewhere(self, document: Mapping[str, Any]) -> bool:
        """Return whether what the first node says of a suspension holds for the others.

        A session acknowledges for all of them; of a command that saves by its own means each
        supervisor judges for itself.
        """
        if "checkpoint" not in document:
            return True
        ends = (self._exit(at) for at in self.others)
        return all(end.get("suspended") is True for end in ends)

    def _code(self, document: Mapping[str, Any]) -> int | None:
        code = exit_code(document)
        if code is None:
            said = shown(document.get("exit_code"))
            self._documents.warn(f"{protocol.EXIT_FILE}: exit_code is {said}")
        return code

    def _elsewhere(self) -> Ended | None:
        """Return what went wrong on another node, if all went well on the first."""
        if failed := self.failed_elsewhere():
            return failed
        for index in self.others:
            if not self.ended_on(index):
                why = f"it is unknown how it ended on its node {index}"
                return Ended(self._job, self._op, Outcome.LOST, why=why)
        return None

    def failed_elsewhere(self) -> Ended | None:
        """Return how it failed on a node other than the first; None if it did not."""
        for index in self.others:
            if why := _not_started(self._exit(index)):
                why = f"{why}, on its node {index}"
                return Ended(self._job, self._op, Outcome.EVICTED, why=why, never_ran=True)
        if not any(self._failed_on(index) for index in self.others):
            return None
        return self._first_failure()

    def failed_by_itself(self) -> Ended | None:
        """Return how it failed on one of several nodes before it was to suspend or end; or None."""
        indices = (0, *self.others)
        ends = [self._exit(at) for at in indices]
        at = failed_by_itself(ends) if self.others else None
        if at is None:
            return None
        why = f"on its node {indices[at]}: {how_it_failed(ends[at], self._supervisor_log())}"
        return Ended(
            self._job, self._op, Outcome.FAILED, exit_code(ends[at]), why=why,
            step=self._last_step.read(),
        )  # fmt: skip

    def _exit(self, index: int) -> dict[str, Any]:
        """Return the ``exit.json`` of a node; empty if there is none."""
        return self._documents.of_node(index, protocol.EXIT_FILE, protocol.EXIT) or {}

    def _failed_on(self, index: int) -> dict[str, Any]:
        """Return the end on a node, if that was a failure."""
        document = self._exit(index)
        return document if document.get("exit_code", 0) != 0 else {}

    def _first_failure(self) -> Ended:
        """Return the first failure, which has caused the others."""
        failures = [(at, found) for at in (0, *self.others) if (found := self._failed_on(at))]
        index, first = min(failures, key=lambda each: instant(each[1], "main_ended_at") or math.inf)
        why = how_it_failed(first, self._supervisor_log())
        why = f"on its node {index}: {why}" if self.others else why
        away = first.get("no_directory") is True
        code = exit_code(first)
        return Ended(self._job, self._op, Outcome.FAILED, code, why=why, never_ran=away)

    def _broken_gpus(self) -> dict[str, str]:
        """Return what is wrong with GPUs of the nodes where it failed, by node."""
        ends = ((name, self._exit(at)) for at, name in self.nodes.items())
        said = ((name, broken_gpus(end)) for name, end in ends if end.get("exit_code") != 0)
        return {name: words for name, words in said if words}

    def completed_on(self, index: int) -> bool:
        """Return whether all went well on a node."""
        return self._exit(index).get("exit_code") == 0

    def ended_on(self, index: int) -> bool:
        """Return whether a node's supervisor has recorded that no process of it is left there."""
        return self._documents.of_node(index, protocol.EXIT_FILE, protocol.EXIT) is not None

    def noticed(self) -> bool:
        """Return whether the batch system told the attempt to end."""
        document = self._documents.own(protocol.EXIT_FILE, protocol.EXIT) or {}
        return document.get("notice_at") is not None

    def lost(self, why: str, outcome: Outcome = Outcome.LOST, *, never_ran: bool = False) -> Ended:
        """Return the end of an attempt without ``exit.json`` whose processes are gone.

        The file of a suspension and the empty tree acknowledge it, so the attempt counts as
        suspended even if the supervisor could not record its end.

        Parameters
        ----------
        why : str
        outcome : Outcome
        never_ran : bool
            Whether no supervisor has begun it.
        """
        if self._suspended():
            parts = self._suspend_parts({})
            return Ended(self._job, self._op, Outcome.SUSPENDED, suspend_s=parts, why=why)
        return Ended(
            self._job, self._op, outcome, why=why, step=self._last_step.read(), never_ran=never_ran
        )

    def _suspended(self) -> dict[str, Any]:
        """Return the acknowledgement of this attempt's suspension; empty for none."""
        return self._documents.own(protocol.SUSPENDED_FILE, protocol.SUSPENDED) or {}

    def _suspend_parts(self, ended: Mapping[str, Any]) -> dict[str, float]:
        said = self._suspended()
        return spans(
            ("", instant(ended, "suspend_asked_at")),
            ("agree_s", instant(said, "agreed_at")),
            ("write_s", instant(said, "written_at")),
            ("acknowledge_s", instant(said, "acknowledged_at")),
            ("teardown_s", instant(ended, "ended_at")),
        )

    def supervisor_said(self) -> str:
        """Return the last line of the supervisor's own log: why nothing was run."""
        lines = self._supervisor_log().split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "")
        return clean(said.strip())[:_WHY_CHARS].removeprefix("hpcext: ")

    def _supervisor_log(self) -> str:
        try:
            data = documents.read_untrusted(self._directory / SUPERVISOR_LOG)
        except (OSError, ValueError):
            return ""
        return data.decode(errors="replace")


def _own_account(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a supervisor says of the checkpoints of a command that saves by its own means."""
    said = document.get("checkpoint")
    if not isinstance(said, dict):
        return {}
    try:
        lost_s = number(said, "lost_s")
    except ValueError:
        return {}
    exact, saved, anew = (said.get(key) is True for key in ("exact", "saved", "anew"))
    found = {"lost_s": lost_s, "lost_exact": exact, "saved": saved, "anew": anew}
    with contextlib.suppress(ValueError):
        found["kept_s"] = number(said, "kept_s") if "kept_s" in said else 0.0
    return found


def _not_started(document: Mapping[str, Any]) -> str:
    """Return why the command was never begun, which is not its fault; empty if it was."""
    why = document.get("not_started")
    return f"could not be started: {clean(why)[:_WHY_CHARS]}" if isinstance(why, str) else ""
