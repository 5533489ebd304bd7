"""What scenarios share: the directory, the hosts and the time of a run, and the batch system."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import documents
from hpcext.acceptance import keeper
from hpcext.acceptance.scenario import FailedError, NotTriedError, StoppedError
from hpcext.acceptance.systems import FINAL, Order, System
from hpcext.allocation import JobId, without_slurm
from hpcext.batch import runner
from hpcext.batch.leasing import WAITING, Idle
from hpcext.batch.lsf.inside import environ_of_others
from hpcext.core.errors import BatchError
from hpcext.text import clean

LOOK_S = 0.5
SETTLED_S = 5.0
"""Seconds for which a requeued job is left alone.

Slurm fails a job that begins again on a node in the second in which it has ended there ("Job
credential revoked").
"""

ANSWER_S = 120.0
"""Seconds to wait for something that a batch system does at once."""


class RunTerms(NamedTuple):
    """The terms of a run, from its command line.

    Attributes
    ----------
    partition, above : str
        The partition of its jobs, and the one whose jobs preempt them; empty if there is none.
    options : tuple of str
        Further options of the command that submits jobs.
    age_s : float
        The age of an old job, in seconds.
    cut_s : float
        The seconds for which the batch system is kept from answering.
    most_s : float
        The limit of the whole run, in seconds.
    """

    partition: str
    above: str
    options: tuple[str, ...]
    age_s: float
    cut_s: float
    most_s: float


class Stage:
    """What the scenarios of one run share.

    Parameters
    ----------
    system : System
    terms : RunTerms
    directory : pathlib.Path
        A directory on a file system that all hosts share; it is removed at the end.
    hosts : tuple of Idle
        The hosts that the run uses.
    flags : str
        Why no flag makes jobs suspendable; empty if one does.
    """

    def __init__(
        self, system: System, terms: RunTerms, directory: Path, hosts: tuple[Idle, ...], flags: str
    ) -> None:
        self.system, self.terms, self.directory = system, terms, directory
        self.hosts = hosts
        self.no_flags = flags
        self.stopped = threading.Event()
        self._until = time.monotonic() + terms.most_s
        self._lock = threading.Lock()
        self._jobs: list[JobId] = []
        self._states: dict[JobId, str] = {}
        self._asked_s = 0.0
        self._push_s: dict[JobId, float] = {}

    def place(self, name: str) -> Path:
        """Create and return a directory for a scenario."""
        path = self.directory / name
        path.mkdir(mode=0o700)
        return path

    def name(self, place: Path) -> str:
        """Return a name for the jobs of a scenario, which no other run has."""
        return f"{self.directory.name}-{place.name}"

    # -- waiting

    def check_time(self) -> None:
        """Raise NotTriedError if the time of the run is over, StoppedError if the run is."""
        if self.stopped.is_set():
            raise StoppedError("ended before it began")
        if time.monotonic() > self._until:
            raise NotTriedError(
                "no time was left: choose scenarios with --only, or try again on an idle system"
            )

    def wait(self, holds: Callable[[], Any], what: str, within_s: float = ANSWER_S) -> Any:
        """Wait until a condition holds; return its value.

        Parameters
        ----------
        holds : callable
            Returns something true once it holds.
        what : str
            What is awaited, for the message.
        within_s : float
            Seconds to wait at most.

        Raises
        ------
        FailedError
            The condition has not come true in that time, or before the time of the run is over.
        StoppedError
            The user has ended the run.
        """
        until = min(time.monotonic() + within_s, self._until)
        began_s = time.monotonic()
        while True:
            try:
                if value := holds():
                    return value
            except BatchError as error:
                # The batch system may be busy; its last error is shown if the wait is in vain.
                last = f" ({error.what})"
            else:
                last = ""
            if time.monotonic() > until:
                waited_s = time.monotonic() - began_s
                over = "" if until < self._until else ", because the time of the run was over"
                raise FailedError(f"waited {waited_s:.0f} s in vain for {what}{last}{over}")
            if self.stopped.wait(LOOK_S):
                raise StoppedError("ended before it was done")

    def pause(self, seconds: float) -> None:
        """Wait for some seconds; raise StoppedError if the user ends the run."""
        if self.stopped.wait(seconds):
            raise StoppedError("ended before it was done")

    # -- the batch system

    def submit(self, order: Order, script: str, environ: Mapping[str, str] | None = None) -> JobId:
        """Submit a job; return its id.

        Parameters
        ----------
        order : Order
        script : str
            Its batch script.
        environ : Mapping of str to str, optional
            Additional variables of its environment.

        Raises
        ------
        FailedError
            The job was refused.
        """
        # Noted first, so that it is removed whatever happens.
        keeper.note(self.directory, keeper.NAME, order.name)
        path = self.directory / f"{order.name}.sh"
        documents.write_file(path, script.encode(), mode=0o700)
        flags = not self.no_flags
        command = [*self.system.words(order, flags=flags), *self.terms.options]
        ours = {**self.environ(), **self.system.variables(order, flags=flags), **(environ or {})}
        try:
            said = runner.run(command, script=path, environ=ours)
        except BatchError as error:
            raise FailedError(f"not submitted: {clean(error.what)}") from None
        job = self.system.job_id(said)
        keeper.note(self.directory, keeper.JOB, job)
        self.follow(job)
        return job

    def follow(self, *jobs: JobId) -> None:
        """Include these jobs in the queries of states."""
        with self._lock:
            self._jobs += jobs
            self._asked_s = 0.0

    def state(self, job: JobId) -> str:
        """Return the state of a job; empty if it is unknown. One query covers all jobs."""
        with self._lock:
            if time.monotonic() - self._asked_s > 2 * LOOK_S:
                self._states = self.system.states(self._jobs)
                self._asked_s = time.monotonic()
            return self._states.get(job, "")

    def waits(self, job: JobId) -> bool:
        """Return whether a job is in the queue."""
        return self.state(job) in WAITING

    def ends(self, job: JobId, within_s: float = ANSWER_S) -> str:
        """Wait for the end of a job; return its final state.

        Parameters
        ----------
        job : JobId
        within_s : float
            Seconds to wait at most.
        """
        return str(
            self.wait(lambda: (said := self.state(job)) in FINAL and said, "its end", within_s)
        )

    def begins(self, job: JobId, what: str) -> None:
        """Wait until a job has left the queue.

        Parameters
        ----------
        job : JobId
        what : str
            What is awaited, for the message.

        Raises
        ------
        NotTriedError
            The site has had no room for it in the time of the run.
        """
        try:
            self.wait(lambda: self.state(job) and not self.waits(job), what, self.terms.most_s)
        except FailedError as error:
            raise NotTriedError(f"no room: {error.what}") from None

    def do(self, verb: str, job: JobId) -> None:
        """Run a command of the batch system on a job of ours.

        Parameters
        ----------
        verb : str
            A key of :attr:`System.verbs`.
        job : JobId

        Raises
        ------
        FailedError
            The command has failed.
        """
        command = [word.replace("JOB", str(job)) for word in self.system.verbs[verb]]
        try:
            runner.run(command, environ=self.environ())
        except BatchError as error:
            raise FailedError(clean(error.what)) from None

    def begin_now(self, job: JobId) -> None:
        """Have a requeued job begin without the usual delay, if the batch system can do that."""
        if "begin" not in self.system.verbs:
            return
        now_s, due_s = time.monotonic(), self._push_s.get(job)
        if due_s is not None and now_s < due_s:
            return
        if not self.waits(job):
            self._push_s.pop(job, None)
        elif due_s is None or now_s > due_s + SETTLED_S:
            self._push_s[job] = now_s + SETTLED_S
        else:
            del self._push_s[job]
            command = [w.replace("JOB", str(job)) for w in self.system.verbs["begin"]]
            runner.everything_said(command)

    # -- our own commands

    def environ(self) -> dict[str, str]:
        """Return the environment for commands: our own, with the state directory of the run."""
        ours = without_slurm() if self.system.key == "slurm" else environ_of_others()
        plain = {name: said for name, said in ours.items() if not name.startswith("HPCEXT_")}
        return {
            **plain,
            "HPCEXT_STATE_DIR": str(self.directory / "state"),
            "HPCEXT_BATCH": self.system.key,
            "HPCEXT_REPORT_INTERVAL_S": "0.5",
            # Otherwise numerical libraries would start a thread for each core of a host.
            "OMP_NUM_THREADS": "1",
        }

    def hpcext(self, *words: str, path: str = "") -> str:
        """Run a command of hpcext; return its output.

        Parameters
        ----------
        *words : str
            Its arguments.
        path : str
            The variable ``PATH``, if it is another one.

        Raises
        ------
        FailedError
            The command has failed.
        """
        environ = self.environ()
        if path:
            environ["PATH"] = path
        ended = subprocess.run(
            [sys.executable, "-m", "hpcext", *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
        said = f"{ended.stdout}{ended.stderr}"
        if ended.returncode:
            raise FailedError(f"hpcext {shlex.join(words[:2])}: {clean(_last_line(said))}")
        return said

    def granted(self, *words: str) -> None:
        """Repeat a command of hpcext until it succeeds, since a manager may have to begin first."""

        def done() -> bool:
            try:
                self.hpcext(*words)
            except FailedError as error:
                said.append(error.what)
                return False
            return True

        said: list[str] = []
        try:
            self.wait(done, f"hpcext {words[0]}", ANSWER_S)
        except FailedError:
            raise FailedError(said[-1] if said else f"hpcext {words[0]} gave no answer") from None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def command(directory: Path, finish: Path, *, torch: bool = False) -> Sequence[str]:
    """Return the command of a training.

    Parameters
    ----------
    directory : pathlib.Path
        The directory of its account.
    finish : pathlib.Path
        The training ends once this file exists.
    torch : bool
        Whether to train with PyTorch.
    """
    from hpcext.acceptance import training  # noqa: PLC0415  (NumPy)

    words = [sys.executable, "-m", training.__name__, *([training.TORCH] if torch else [])]
    return [*words, str(directory), str(finish)]
