"""The directory of an attempt, as a manager writes and reads it; every executor uses it.

What a job wrote is hostile: none of it raises an error out of here, and what does not make sense is
left out with one warning per attempt.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcext import documents, private, protocol
from hpcext.core.facts import Ended, Fact, Outcome, Registered
from hpcext.core.values import Action, Alloc
from hpcext.executors.attempt.placeholders import fill, fill_shell
from hpcext.executors.attempt.readings import MAX_STEPS, count, instant, number, spans
from hpcext.executors.attempt.reports import Reports
from hpcext.executors.attempt.sizes import Sizes
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.executors.attempt.verdict import exit_code, failed_by_itself, how_it_failed
from hpcext.jobspec import JobSpec
from hpcext.launch.tree import boot_id
from hpcext.numerals import whole
from hpcext.process import Process
from hpcext.text import clean, shown

log = logging.getLogger(__name__)

KEEP_ATTEMPTS = 8
"""The number of a job's last attempts whose directories stay; the journal has all attempts."""

ATTEMPTS, CHECKPOINT = "attempt-*", "checkpoint"
"""In the directory of a job: the directories of its attempts, and that of its checkpoints."""

KILL_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL, when a job is told to die."""

SUPERVISOR_LOG = "supervisor.log"

_WHY_CHARS = 200


class AttemptFiles:
    """One attempt's directory, ``JOBS/JOB/attempt-0001``.

    Parameters
    ----------
    jobs : pathlib.Path
        Absolute.
    action : Action
        Any action on the attempt.

    Attributes
    ----------
    directory : pathlib.Path
    job : str
    op, attempt : int
    others : tuple of int
        Indices of its nodes beside the first.
    """

    def __init__(self, jobs: Path, action: Action) -> None:
        self.job = action.job
        self.op = action.op
        self.attempt = action.attempt
        self.directory = jobs / action.job / _directory(action.attempt)
        self.others = tuple(range(1, len(action.alloc)))
        self.sizes = Sizes(self.directory, action, self._own)
        self._reports = Reports(self.directory, action, self._read, self._warn)
        self._registered = self._warned = False
        self._saves: Any = None
        self._stood_at: int | None = None

    # Writing.

    def write_launch(self, spec: JobSpec, alloc: Alloc, where: Surroundings | None = None) -> None:
        """Make the directory, and write the launch file.

        Parameters
        ----------
        spec : JobSpec
        alloc : Alloc
            GPUs per node, equally many on each.
        where : Surroundings, optional
            The executor's knowledge of the place; by default none.

        Raises
        ------
        OSError
            Nothing can be run from this directory.
        """
        where = where or Surroundings()
        home = self.directory.parent
        checkpoints = home / CHECKPOINT
        for path in (self.directory, checkpoints):
            private.make(path)
        # A job that is preempted for weeks has thousands.
        old = home / _directory(self.attempt - KEEP_ATTEMPTS)
        shutil.rmtree(old, ignore_errors=True)
        trial = spec.trial
        told = protocol.Attempt(
            job_id=self.job,
            attempt=self.attempt,
            op=self.op,
            checkpoint_dir=checkpoints,
            report_dir=self.directory,
            num_gpus=max(alloc.values()),
            num_nodes=len(alloc),
            notices=where.notices,
            rendezvous=where.rendezvous,
            rungs=(trial.first, trial.factor) if trial and trial.first else None,
        )
        argv, filled = _filled(spec, told)
        document = {
            "schema": protocol.LAUNCH,
            "job": self.job,
            "attempt": self.attempt,
            "op": self.op,
            "argv": argv,
            "cwd": spec.workdir,
            "environ": {**spec.env, **where.environ, **told.environ(), **filled},
            "log": str(home / "log.txt"),
            "gpus": list(where.gpus),
            "kill_grace_s": KILL_GRACE_S,
            "suspend_timeout_s": spec.suspend_timeout_s,
            "manager": str(where.manager) if where.manager else None,
            "notices": where.notices,
            "allocation": where.allocation,
            "leader": str(where.leader) if where.leader else "none",
            "nodes": list(where.nodes),
            "mps": dict(where.mps) if where.mps else None,
            **_saves(spec, told),
        }
        documents.write_json(self.directory / protocol.LAUNCH_FILE, document)

    def begun_in(self) -> str:
        """Return the allocation in which it began; empty if there was none or it is unknown."""
        document = self._read(protocol.LAUNCH_FILE, protocol.LAUNCH) or {}
        return str(document.get("allocation", ""))

    def order(self, what: str) -> None:
        """Write down what the supervisor, which may be on another node, is to do.

        Parameters
        ----------
        what : {"suspend", "end", "stacks"}

        Raises
        ------
        OSError
            It was not ordered.
        """
        last = (self._own(protocol.ORDER_FILE, protocol.ORDER) or {}).get("number", 0)
        document = {
            "schema": protocol.ORDER,
            "attempt": self.attempt,
            "op": self.op,
            "order": what,
            # The same thing ordered again is another order: the first may have been declined.
            "number": last + 1 if type(last) is int else 1,
        }
        documents.write_json(self.directory / protocol.ORDER_FILE, document)

    # Reading what the manager and the supervisor wrote.

    def launch(self) -> dict[str, Any] | None:
        """Return what was to be run; None if nothing was."""
        return self._read(protocol.LAUNCH_FILE, protocol.LAUNCH)

    def claimed(self) -> bool:
        """Return whether a supervisor ever took this attempt."""
        return os.path.lexists(self.directory / protocol.SUPERVISOR_FILE)

    def step_gpus(self) -> tuple[str, ...]:
        """Return ``NODE:INDEX`` of the GPUs that Slurm gave the step, once all nodes are up."""
        found: list[str] = []
        for index in (0, *self.others):
            document = self._of_node(index, protocol.SUPERVISOR_FILE, protocol.SUPERVISOR) or {}
            gpus = document.get("gpus")
            if not isinstance(gpus, list):
                return ()
            found += map(str, gpus)
        return tuple(found)

    def begun(self) -> bool:
        """Return whether a supervisor took this attempt on each of its nodes."""
        own = (protocol.node_directory(self.directory, at) for at in (0, *self.others))
        return all(os.path.lexists(each / protocol.SUPERVISOR_FILE) for each in own)

    def supervisor(self) -> Process | None:
        """Return the process that took this attempt, unless the machine has restarted since."""
        return self.process(protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)

    def machine_restarted(self) -> bool:
        """Return whether the machine has restarted since a supervisor took this attempt."""
        document = self._read(protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)
        # One that was barred has none.
        return document is not None and document.get("boot_id") not in {"", boot_id()}

    def process(self, name: str, schema: str) -> Process | None:
        """Return a process that a file names; None if it is of another machine, or another boot."""
        document = self._read(name, schema)
        if document is None or document.get("boot_id") != boot_id():
            return None
        try:
            return Process(count(document, "pid"), count(document, "start"))
        except ValueError as error:
            self._warn(str(error))
            return None

    def supervisor_said(self) -> str:
        """Return the last line of the supervisor's own log: why nothing was run."""
        lines = self._supervisor_log().split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "")
        return clean(said.strip())[:_WHY_CHARS].removeprefix("hpcext: ")

    def _supervisor_log(self) -> str:
        try:
            data = documents.read_untrusted(self.directory / SUPERVISOR_LOG)
        except (OSError, ValueError):
            return ""
        return data.decode(errors="replace")

    # Reading its outcome.

    def ended(self) -> Ended | None:
        """Return how the attempt ended; None if no file says that it has."""
        ended = self._ended()
        if ended is None:
            return None
        own = _own_account(self._own(protocol.EXIT_FILE, protocol.EXIT) or {})
        return msgspec.structs.replace(ended, step=self._last_step(), **own)

    def stands_still(self) -> bool:
        """Return whether it has done no step since its last report, or since the last call.

        Reports come once a second, so there may be steps after the last one. One that writes a
        checkpoint or validates does not stand still.
        """
        before = self._stood_at
        self._stood_at, pauses = self._count()
        known = {self._reports.step, before}
        return not pauses and self._stood_at is not None and self._stood_at in known

    def _last_step(self) -> int | None:
        """Return the last step that it did, if it keeps count."""
        return self._count()[0]

    def _count(self) -> tuple[int | None, bool]:
        """Return the last step that it did, if it keeps count; and whether it pauses after it."""
        try:
            text = documents.read_untrusted(self.directory / protocol.LAST_STEP)
        except (OSError, ValueError):
            return None, False
        step = whole(text.decode(errors="replace").strip())
        valid = step is not None and 0 <= step <= MAX_STEPS
        return (step if valid else None), text.endswith(b"\t")

    def _ended(self) -> Ended | None:
        document = self._own(protocol.EXIT_FILE, protocol.EXIT)
        code = None if document is None else self._code(document)
        if document is None or code is None:
            return None
        if why := _not_started(document):
            return Ended(self.job, self.op, Outcome.EVICTED, why=why)
        if document.get("suspended") is True and self._suspended_elsewhere(document):
            parts = self._suspend_parts(document)
            return Ended(self.job, self.op, Outcome.SUSPENDED, code, suspend_s=parts)
        if code == 0 and document.get("kill_asked_at") is None:
            return self._elsewhere() or Ended(self.job, self.op, Outcome.COMPLETED, code)
        if document.get("notice_at") is not None:
            # Whatever became of it then is no fault of its own.
            why = "the batch system told it to end"
            return Ended(self.job, self.op, Outcome.EVICTED, code, why=why)
        # Many programs answer SIGTERM by a clean exit; their work is not done for that.
        why = "ended with exit code 0 after SIGTERM" if code == 0 else self._first_failure()[1]
        return Ended(self.job, self.op, Outcome.FAILED, code, why=why)

    def _suspended_elsewhere(self, document: Mapping[str, Any]) -> bool:
        """Return whether what the first node says of a suspension holds for the others.

        A session acknowledges for all of them; of a command that saves by its own means each
        supervisor judges for itself.
        """
        if "checkpoint" not in document:
            return True
        ends = (self._of_node(at, protocol.EXIT_FILE, protocol.EXIT) or {} for at in self.others)
        return all(end.get("suspended") is True for end in ends)

    def _code(self, document: Mapping[str, Any]) -> int | None:
        code = exit_code(document)
        if code is None:
            self._warn(f"{protocol.EXIT_FILE}: exit_code is {shown(document.get('exit_code'))}")
        return code

    def _elsewhere(self) -> Ended | None:
        """Return what went wrong on another node, if all went well on the first."""
        if failed := self.failed_elsewhere():
            return failed
        for index in self.others:
            if not self.ended_on(index):
                why = f"it is unknown how it ended on its node {index}"
                return Ended(self.job, self.op, Outcome.LOST, why=why)
        return None

    def failed_elsewhere(self) -> Ended | None:
        """Return how it failed on a node other than the first; None if it did not."""
        for index in self.others:
            if why := _not_started(self._of_node(index, protocol.EXIT_FILE, protocol.EXIT) or {}):
                return Ended(self.job, self.op, Outcome.EVICTED, why=f"{why}, on its node {index}")
        if not any(self._failed_on(index) for index in self.others):
            return None
        code, why = self._first_failure()
        return Ended(self.job, self.op, Outcome.FAILED, code, why=why)

    def failed_by_itself(self) -> Ended | None:
        """Return how it failed on one of several nodes before it was to suspend or end; or None."""
        nodes = (0, *self.others)
        ends = [self._of_node(at, protocol.EXIT_FILE, protocol.EXIT) or {} for at in nodes]
        index = failed_by_itself(ends) if self.others else None
        if index is None:
            return None
        why = f"on its node {index}: {how_it_failed(ends[index], self._supervisor_log())}"
        return Ended(
            self.job, self.op, Outcome.FAILED, exit_code(ends[index]), why=why,
            step=self._last_step(),
        )  # fmt: skip

    def _failed_on(self, index: int) -> dict[str, Any]:
        """Return the end on a node, if that was a failure."""
        document = self._of_node(index, protocol.EXIT_FILE, protocol.EXIT) or {}
        return document if document.get("exit_code", 0) != 0 else {}

    def _first_failure(self) -> tuple[int | None, str]:
        """Return exit code and words of the first failure, which has caused the others."""
        failures = [(at, found) for at in (0, *self.others) if (found := self._failed_on(at))]
        index, first = min(failures, key=lambda each: instant(each[1], "main_ended_at") or math.inf)
        why = how_it_failed(first, self._supervisor_log())
        return exit_code(first), f"on its node {index}: {why}" if self.others else why

    def completed_on(self, index: int) -> bool:
        """Return whether all went well on a node."""
        document = self._of_node(index, protocol.EXIT_FILE, protocol.EXIT)
        return document is not None and document.get("exit_code") == 0

    def _of_node(self, index: int, name: str, schema: str) -> dict[str, Any] | None:
        directory = protocol.node_directory(self.directory, index)
        return self._read(str((directory / name).relative_to(self.directory)), schema)

    def ended_on(self, index: int) -> bool:
        """Return whether a node's supervisor has recorded that no process of it is left there."""
        return self._of_node(index, protocol.EXIT_FILE, protocol.EXIT) is not None

    def noticed(self) -> bool:
        """Return whether the batch system told the attempt to end."""
        document = self._own(protocol.EXIT_FILE, protocol.EXIT) or {}
        return document.get("notice_at") is not None

    def lost(self, why: str, outcome: Outcome = Outcome.LOST) -> Ended:
        """Return the end of an attempt without ``exit.json`` whose processes are gone.

        The file of a suspension and the empty tree acknowledge it, so the attempt counts as
        suspended even if the supervisor could not record its end.
        """
        if self._suspended():
            parts = self._suspend_parts({})
            return Ended(self.job, self.op, Outcome.SUSPENDED, suspend_s=parts, why=why)
        return Ended(self.job, self.op, outcome, why=why, step=self._last_step())

    def _suspended(self) -> dict[str, Any]:
        """Return the acknowledgement of this attempt's suspension; empty for none."""
        document = self._read(protocol.SUSPENDED_FILE, protocol.SUSPENDED)
        return document if document is not None and self._ours(document) else {}

    def _suspend_parts(self, ended: Mapping[str, Any]) -> dict[str, float]:
        said = self._suspended()
        return spans(
            ("", instant(ended, "suspend_asked_at")),
            ("agree_s", instant(said, "agreed_at")),
            ("write_s", instant(said, "written_at")),
            ("acknowledge_s", instant(said, "acknowledged_at")),
            ("teardown_s", instant(ended, "ended_at")),
        )

    def news(self) -> list[Fact]:
        """Return what was reported since the last call: changes of size, and progress."""
        rescaled = self.sizes.news()
        reported = self._reports.news()
        return [*self._native(), *([rescaled] if rescaled else ()), *reported]

    def _native(self) -> list[Fact]:
        """Return, once, that it can be suspended by its own means; and what became of that."""
        if not self._registered and self.claimed():
            self._registered = True
            self._saves = (self.launch() or {}).get("checkpoint")
            if self._saves is not None:
                return [Registered(self.job, self.op, 0, native=True), *self._reports.native()]
        transparent = isinstance(self._saves, dict) and self._saves.get("transparent")
        return self._reports.native() if transparent else []

    # Small parts.

    def _ours(self, document: Mapping[str, Any]) -> bool:
        return (document.get("attempt"), document.get("op")) == (self.attempt, self.op)

    def _own(self, name: str, schema: str) -> dict[str, Any] | None:
        document = self._read(name, schema)
        return document if document is not None and self._ours(document) else None

    def _read(self, name: str, schema: str) -> dict[str, Any] | None:
        try:
            return documents.read_json(self.directory / name, schema)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{name}: {error.strerror}")
        except ValueError as error:
            self._warn(str(error))
        return None

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("job %s, attempt %d: %s", clean(self.job), self.attempt, clean(what))


def left_on(jobs: Path, job: str, attempt: int, node: str) -> bool:
    """Return whether an attempt has begun on a node, and may have left something there."""
    directory = jobs / job / _directory(attempt)
    for own in (directory, *directory.glob("node-*")):
        try:
            taken = documents.read_json(own / protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)
        except (OSError, ValueError):
            continue
        if taken.get("node") == node:
            return not os.path.lexists(own / protocol.EXIT_FILE)
    return False


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
    return {"lost_s": lost_s, "lost_exact": exact, "saved": saved, "anew": anew}


def _not_started(document: Mapping[str, Any]) -> str:
    """Return why the command was never begun, which is not its fault; empty if it was."""
    why = document.get("not_started")
    return f"could not be started: {clean(why)[:_WHY_CHARS]}" if isinstance(why, str) else ""


def _saves(spec: JobSpec, told: protocol.Attempt) -> dict[str, Any]:
    """Return how a command saves by its own means, for ``launch.json``."""
    if spec.checkpoint is None:
        return {}
    document = msgspec.to_builtins(spec.checkpoint)
    if spec.checkpoint.file:
        document["file"] = fill([spec.checkpoint.file], _values(spec, told))[0]
    return {"checkpoint": document}


def _filled(spec: JobSpec, told: protocol.Attempt) -> tuple[list[str], dict[str, str]]:
    """Return a command with its placeholders filled, and the variables that its shell needs."""
    values = _values(spec, told)
    if not spec.shell:
        return fill(spec.command, values), {}
    text, filled = fill_shell(spec.command[-1], values)
    return [*spec.command[:-1], text], filled


def _values(spec: JobSpec, told: protocol.Attempt) -> dict[str, str]:
    return {
        "gpus": str(told.num_gpus),
        "nodes": str(told.num_nodes),
        "checkpoint_dir": str(told.checkpoint_dir),
        "name": spec.name,
        # On one node any port will do; torchrun finds it.
        "rendezvous": told.rendezvous if told.num_nodes > 1 else "localhost:0",
    }


def _directory(attempt: int) -> str:
    return f"attempt-{attempt:04d}"
