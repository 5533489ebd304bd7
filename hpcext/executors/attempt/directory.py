"""The directory of an attempt, as a manager writes and reads it; every executor uses it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hpcext import documents, private, protocol
from hpcext.core.facts import Fact, Noted, Registered
from hpcext.core.values import Action, Alloc
from hpcext.executors.attempt import learned, run_ids
from hpcext.executors.attempt.ends import Ends
from hpcext.executors.attempt.last_step import LastStep
from hpcext.executors.attempt.launch_file import CHECKPOINT, launch_document
from hpcext.executors.attempt.own_documents import OwnDocuments
from hpcext.executors.attempt.readings import count
from hpcext.executors.attempt.reports import Reports
from hpcext.executors.attempt.sizes import Sizes, gpu_names
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.jobspec import JobSpec
from hpcext.launch.tree import boot_id
from hpcext.process import Process

KEEP_ATTEMPTS = 8
"""The number of a job's last attempts whose directories stay; the journal has all attempts."""

ATTEMPTS = "attempt-*"
"""In the directory of a job: the directories of its attempts."""


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
    ends : Ends
        How it ended.
    sizes : Sizes
        The GPUs that it has and is to have.
    """

    def __init__(self, jobs: Path, action: Action) -> None:
        self.job = action.job
        self.op = action.op
        self.attempt = action.attempt
        self.directory = jobs / action.job / directory_name(action.attempt)
        self._action = action
        self._documents = OwnDocuments(self.directory, action)
        self._last_step = LastStep(self.directory)
        self.ends = Ends(self.directory, action, self._documents, self._last_step)
        self.sizes = Sizes(self.directory, action, self._documents.own)
        self._reports = Reports(self.directory, action, self._documents.read, self._documents.warn)
        self._registered = False
        self._saves: Any = None

    # Writing.

    def write_launch(
        self,
        spec: JobSpec,
        alloc: Alloc,
        where: Surroundings | None = None,
        *,
        spare: Collection[int] = (),
    ) -> None:
        """Make the directory, and write the launch file.

        Parameters
        ----------
        spec : JobSpec
        alloc : Alloc
            GPUs per node, equally many on each.
        where : Surroundings, optional
            The executor's knowledge of the place; by default none.
        spare : collection of int
            Attempts of the job that may still run somewhere, and write into their directories.

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
        old = self.attempt - KEEP_ATTEMPTS
        if old not in spare:
            shutil.rmtree(home / directory_name(old), ignore_errors=True)
        run_id = run_ids.of_job(home)
        document = launch_document(self.directory, self._action, spec, alloc, where, run_id=run_id)
        if spec.learns and not spec.preload and where.beside and self.attempt > 1:
            last = home / directory_name(self.attempt - 1)
            document |= learned.of_last(last, spec).launch()
        documents.write_json(self.directory / protocol.LAUNCH_FILE, document)

    def begun_in(self) -> str:
        """Return the allocation in which it began; empty if there was none or it is unknown."""
        document = self._documents.read(protocol.LAUNCH_FILE, protocol.LAUNCH) or {}
        return str(document.get("allocation", ""))

    def order(self, what: str) -> None:
        """Write down what the supervisor, which may be on another node, is to do.

        Parameters
        ----------
        what : {"suspend", "leave", "end", "stacks"}

        Raises
        ------
        OSError
            It was not ordered.
        """
        last = (self._documents.own(protocol.ORDER_FILE, protocol.ORDER) or {}).get("number", 0)
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
        return self._documents.read(protocol.LAUNCH_FILE, protocol.LAUNCH)

    def asked_by(self) -> str:
        """Return the name of the signal that asks its command to save; empty if none does."""
        saves = (self.launch() or {}).get("checkpoint")
        return str(saves.get("signal", "")) if isinstance(saves, dict) else ""

    def claimed(self) -> bool:
        """Return whether a supervisor ever took this attempt."""
        return os.path.lexists(self.directory / protocol.SUPERVISOR_FILE)

    def step_gpus(self) -> tuple[str, ...]:
        """Return ``NODE:INDEX`` of the GPUs that Slurm gave the step, once all nodes are up."""
        found: list[str] = []
        for index in (0, *self.ends.others):
            document = (
                self._documents.of_node(index, protocol.SUPERVISOR_FILE, protocol.SUPERVISOR) or {}
            )
            gpus = document.get("gpus")
            if not isinstance(gpus, list):
                return ()
            found += gpu_names(gpus)
        return tuple(found)

    def look_anew(self) -> None:
        """Have files be seen that its other nodes have just written."""
        for index in (0, *self.ends.others):
            documents.look_anew(protocol.node_directory(self.directory, index))

    def begun(self) -> bool:
        """Return whether a supervisor took this attempt on each of its nodes."""
        return all(self.begun_on(at) for at in (0, *self.ends.others))

    def begun_on(self, index: int) -> bool:
        """Return whether a supervisor took this attempt on a node."""
        own = protocol.node_directory(self.directory, index)
        return os.path.lexists(own / protocol.SUPERVISOR_FILE)

    def supervisor(self) -> Process | None:
        """Return the process that took this attempt, unless the machine has restarted since."""
        return self.process(protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)

    def machine_restarted(self) -> bool:
        """Return whether the machine has restarted since a supervisor took this attempt."""
        document = self._documents.read(protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)
        # One that was barred has none.
        return document is not None and document.get("boot_id") not in {"", boot_id()}

    def process(self, name: str, schema: str) -> Process | None:
        """Return a process that a file names; None if it is of another machine, or another boot."""
        document = self._documents.read(name, schema)
        if document is None or document.get("boot_id") != boot_id():
            return None
        try:
            return Process(count(document, "pid"), count(document, "start"))
        except ValueError as error:
            self._documents.warn(str(error))
            return None

    def unpreloaded(self) -> str:
        """Return why an agent forks no supervisors of this job, in its words; empty if it does."""
        document = self._documents.read(protocol.UNPRELOADED_FILE, protocol.UNPRELOADED)
        return "" if document is None else str(document.get("why"))

    def stands_still(self) -> bool:
        """Return whether it has done no step since its last report, or since the last call."""
        return self._last_step.stands_still(self._reports.step)

    def news(self) -> list[Fact]:
        """Return what was reported since the last call: changes of size, and progress."""
        rescaled = self.sizes.news()
        reported = self._reports.news()
        return [*self._native(), *([rescaled] if rescaled else ()), *reported]

    def note(self, said: str) -> Noted:
        """Have its user told, beside what it says itself.

        Parameters
        ----------
        said : str
            A sentence on one line.
        """
        return self._reports.note(said)

    def _native(self) -> list[Fact]:
        """Return, once, that it can be suspended by its own means; and what became of that."""
        if not self._registered and self.claimed():
            self._registered = True
            self._saves = (self.launch() or {}).get("checkpoint")
            if self._saves is not None:
                return [Registered(self.job, self.op, 0, native=True), *self._reports.native()]
        transparent = isinstance(self._saves, dict) and self._saves.get("transparent")
        return self._reports.native() if transparent else []


def left_on(jobs: Path, job: str, attempt: int, node: str) -> bool:
    """Return whether an attempt may have left something on a node, for all that is known.

    It has not if its end there is recorded, or if it never began there.

    Parameters
    ----------
    jobs : pathlib.Path
        The directory of all jobs.
    job : str
        Its id.
    attempt : int
    node : str
        The name of the node.
    """
    directory, unknown = jobs / job / directory_name(attempt), False
    try:
        names = os.listdir(directory)
    except OSError:
        return True
    for own in (directory, *(directory / name for name in names if name.startswith("node-"))):
        try:
            taken = documents.read_json(own / protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            unknown = True
            continue
        if taken.get("node") == node:
            return not os.path.lexists(own / protocol.EXIT_FILE)
    return unknown


def directory_name(attempt: int) -> str:
    """Return the name of an attempt's directory in that of its job."""
    return f"attempt-{attempt:04d}"
