"""The training of a scenario, which may be a suspendable job."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hpcext.acceptance import account
from hpcext.acceptance.scenario import FailedError, Passed, Scenario
from hpcext.acceptance.stage import ANSWER_S, Stage, command
from hpcext.acceptance.systems import FINAL, Order
from hpcext.allocation import JobId

LEAD_S = 50
"""Seconds before the end of its job at which a training is suspended: its lead."""

JOB = "job"
"""The name of the only job of a suspendable batch job."""

BEGIN_S = 120.0
"""Seconds to wait for the first steps of a training once its job runs."""

AGAIN_S = 300.0
"""Seconds to wait for the next steps after a requeue: LSF dispatches every minute or so."""

OVER_S = 20.0
"""Seconds after which an ended job is final: LSF shows a requeued job as EXIT for a while."""

TORCH_MB = 2000
"""Memory of PyTorch, its libraries and a manager, in MB."""

FIRST_STEPS = 5
STILL_S = 4.0
"""Seconds without a step after which a training stands still; a step takes 0.1 s."""


class Training:
    """A training that writes an account, and ends when it is told to.

    Parameters
    ----------
    stage : Stage
    directory : pathlib.Path
        The directory of its account.
    finish : pathlib.Path
        The file that tells it to end.
    job : int or str or None
        Its batch job, if that may be requeued.
    """

    def __init__(
        self, stage: Stage, directory: Path, finish: Path, job: JobId | None = None
    ) -> None:
        self.job = job
        self._stage = stage
        self._directory = directory
        self._finish = finish

    def lives(self) -> list[account.Life]:
        """Return its processes so far."""
        return account.read(self._directory)

    def step(self) -> int:
        """Return the last step that it did."""
        return account.last_step(self.lives())

    def began(self, life: int = 1, within_s: float = BEGIN_S) -> None:
        """Wait until one of its processes has made some steps.

        Parameters
        ----------
        life : int
            The number of the process, counted from 1.
        within_s : float
            Seconds to wait at most.
        """

        def there() -> bool:
            if self.job is not None:
                self._stage.begin_now(self.job)
            return self._trains(life)

        self._stage.wait(there, "its first steps" if life == 1 else "its next steps", within_s)

    def _trains(self, life: int) -> bool:
        lives = [each for each in self.lives() if each.steps]
        return len(lives) >= life and len(lives[-1].steps) >= FIRST_STEPS

    def goes_on(self, within_s: float = BEGIN_S) -> None:
        """Wait until it has made more steps."""
        before = self.step()
        self._stage.wait(lambda: self.step() >= before + FIRST_STEPS, "its next steps", within_s)

    def stands_still(self, within_s: float = ANSWER_S) -> None:
        """Wait until it makes no more steps."""
        seen = [(self.step(), time.monotonic())]

        def still() -> bool:
            step = self.step()
            if step != seen[-1][0]:
                seen.append((step, time.monotonic()))
            return time.monotonic() - seen[-1][1] > STILL_S

        self._stage.wait(still, "it to stand still", within_s)

    def finish(self) -> None:
        """Tell it to end after its next step."""
        self._finish.touch()

    def judged(self, says: str, *, most_lost: int = 0) -> Passed:
        """Judge its account; return the result.

        Parameters
        ----------
        says : str
            The result in words.
        most_lost : int
            The largest number of lost steps.

        Raises
        ------
        FailedError
            Steps are missing or wrong, or too many were lost.
        """
        found = account.judge(self.lives())
        faults = list(found.faults)
        if found.lost > most_lost and not faults:
            faults.append(f"{found.lost} steps were lost and repeated")
        if faults:
            raise FailedError("; ".join(faults))
        return Passed(
            f"{says}, {found.steps} steps, {found.lost} repeated", found.steps, found.lost
        )


class Suspendable(Training):
    """A training that is a suspendable batch job.

    Parameters
    ----------
    stage : Stage
    scenario : Scenario
    minutes : int
        The time limit of its job.
    whole : bool
        Whether it has the last host to itself.
    torch : bool
        Whether to train with PyTorch.
    environ : Mapping[str, str], optional
        Additional variables of its environment.
    """

    def __init__(
        self,
        stage: Stage,
        scenario: Scenario,
        *,
        minutes: int = 14,
        whole: bool = False,
        torch: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._place = stage.place(scenario.title.replace(", ", "-").replace(" ", "-"))
        super().__init__(stage, self._place / "account", self._place / "finish")
        host = stage.hosts[-1 if whole else 0]
        order = Order(
            name=stage.name(self._place),
            partition=stage.terms.partition,
            hosts=(host.name,),
            output=self._place / "output.txt",
            minutes=minutes,
            slots=max(1, host.cpus) if whole else 0,
            gpus=host.gpus if whole else 0,
            memory_mb=TORCH_MB if torch else Order._field_defaults["memory_mb"],
            lead_s=LEAD_S,
        )
        words = command(self._directory, self._finish, torch=torch)
        self.job: JobId = stage.submit(order, script(stage, shlex.join(words)), environ)
        self._old = scenario.old

    @property
    def pilot(self) -> str:
        """The name by which commands of hpcext know it."""
        return self._stage.system.pilot_of(self.job)

    def runs(self) -> None:
        """Wait until it trains, and is as old as the scenario demands."""
        self._stage.begins(self.job, "its begin")
        began_s = time.monotonic()
        self.began()
        if self._old:
            self._stage.pause(max(0.0, began_s + self._stage.terms.age_s - time.monotonic()))

    def again(self) -> None:
        """Wait until it has been requeued, and goes on."""
        self.began(2, AGAIN_S)

    def began(self, life: int = 1, within_s: float = BEGIN_S) -> None:
        """Wait until one of its processes has made some steps, or until its job is over.

        The parameters are those of :meth:`Training.began`.
        """
        over_s: list[float] = []

        def there() -> bool:
            self._stage.begin_now(self.job)
            if self._stage.state(self.job) not in FINAL:
                over_s.clear()
            elif not over_s:
                over_s.append(time.monotonic())
            elif time.monotonic() - over_s[0] > OVER_S:
                raise FailedError(f"its job is over: {self._stage.state(self.job)}")
            return self._trains(life)

        what = "its first steps" if life == 1 else "it to go on"
        try:
            self._stage.wait(there, what, within_s)
        except FailedError as error:
            raise FailedError(f"{error.what}; it said: {self.said()}") from None

    def ends(self) -> None:
        """Tell it to end, and wait for the end of its job."""
        self.finish()
        state = self._stage.ends(self.job)
        if state != "completed":
            raise FailedError(f"its job ended as {state}; it said: {self.said()}")

    def said(self) -> str:
        """Return the last line that its job printed."""
        try:
            text = (self._place / "output.txt").read_text(errors="replace").strip()
        except OSError:
            # LSF writes this file at the end of the job, Slurm creates it before the job begins.
            if not self.lives() and self._stage.system.key == "slurm":
                return "no output is visible here: state_dir must be on a file system of all hosts"
            text = ""
        return text.splitlines()[-1][:200] if text else "nothing"


def script(stage: Stage, line: str) -> str:
    """Return a batch script that ends in a suspendable command.

    Parameters
    ----------
    stage : Stage
    line : str
        The command.
    """
    if stage.no_flags:
        suspendable = [sys.executable, "-m", "hpcext", "suspendable", "--lead", str(LEAD_S), "--"]
        return f"#!/bin/sh\nexec {shlex.join(suspendable)} {line}\n"
    return f"#!/bin/sh\n{line}\n"
