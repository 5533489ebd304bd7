"""The scenario of a training that is preempted by a job of a higher partition."""

from __future__ import annotations

import shlex
import time

from hpcext.acceptance.scenario import FailedError, NotTriedError, Passed, Scenario
from hpcext.acceptance.stage import Stage
from hpcext.acceptance.systems import Order
from hpcext.acceptance.trial import Suspendable
from hpcext.acceptance.verbs import GOES_ON
from hpcext.batch.leasing import Idle

MOST_WAIT_S = 90.0
"""The longest time that a main job may wait for a host that is given up, in seconds.

It is enough for a cycle of the scheduler and for a checkpoint, but not for a whole grace period.
"""

WAIT_S = 300.0
MAIN_S = 5


def main_job(stage: Stage, name: str, host: Idle) -> float:
    """Submit a job for a whole host to the partition above; return how long it has waited.

    Parameters
    ----------
    stage : Stage
    name : str
        The name of its directory.
    host : Idle
        One that a job of ours has to itself, so that no job of another user has to make room.

    Returns
    -------
    float
        In seconds.

    Raises
    ------
    FailedError
        The job did not begin in time.
    NotTriedError
        The job was refused.
    """
    place = stage.place(name)
    began = place / "began"
    order = Order(
        name=stage.name(place),
        partition=stage.terms.above,
        hosts=(host.name,),
        output=place / "output.txt",
        minutes=2,
        slots=max(1, host.cpus),
        gpus=host.gpus,
    )
    try:
        job = stage.submit(
            order, f"#!/bin/sh\ntouch {shlex.quote(str(began))}\nexec sleep {MAIN_S}\n"
        )
    except FailedError as error:
        raise NotTriedError(f"the job above: {error.what}") from None
    asked_s = time.monotonic()
    stage.wait(began.exists, f"job {job} above to have {host.name}", WAIT_S)
    waited_s = time.monotonic() - asked_s
    stage.ends(job)
    return waited_s


def waited(seen: Passed, waited_s: float) -> Passed:
    """Add the wait of the main job to a result.

    Parameters
    ----------
    seen : Passed
    waited_s : float
        In seconds.

    Raises
    ------
    FailedError
        The wait was too long.
    """
    if waited_s > MOST_WAIT_S:
        raise FailedError(f"the job above waited {waited_s:.0f} s; {seen.says}")
    return seen._replace(
        says=f"{seen.says}; the job above waited {waited_s:.1f} s", waited_s=waited_s
    )


def preempt(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a suspendable job leaves its host, and goes on when it has it again."""
    it = Suspendable(stage, scenario, whole=True)
    it.runs()
    waited_s = main_job(stage, f"{scenario.name}-above", stage.hosts[-1])
    it.again()
    it.ends()
    return waited(it.judged("it went on in its second run"), waited_s)


def scenarios(above: str) -> list[Scenario]:
    """Return the scenario.

    Parameters
    ----------
    above : str
        The partition whose jobs preempt the training; empty if there is none.
    """
    tried = f"a job of {above} wants its host" if above else "a job above wants its host"
    expected = f"{GOES_ON}; the job above waits {MOST_WAIT_S:g} s at most"
    lacks = "" if above else "no --above"
    return [Scenario("preemption", tried, expected, preempt, lacks, hosts=1)]
