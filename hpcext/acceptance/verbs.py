"""The scenarios of commands of the batch system, or of hpcext, on one suspendable job."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex

from hpcext.acceptance.scenario import FailedError, Passed, Scenario
from hpcext.acceptance.stage import Stage
from hpcext.acceptance.systems import FINAL, System
from hpcext.acceptance.trial import AGAIN_S, JOB, LEAD_S, STILL_S, Suspendable

LIMIT_MINUTES = 2


def suspend(stage: Stage, scenario: Scenario) -> Passed:
    """Suspend and resume with hpcext; check that the job keeps its host."""
    torch = importlib.util.find_spec("torch") is not None
    it = Suspendable(stage, scenario, torch=torch)
    it.runs()
    stage.granted("suspend", it.pilot, JOB)
    it.stands_still()
    if stage.state(it.job) != "running":
        raise FailedError(f"its job is {stage.state(it.job) or 'gone'} while it is suspended")
    stage.granted("resume", it.pilot, JOB)
    it.began(2)
    it.ends()
    return it.judged("PyTorch went on" if torch else "it went on")


def requeue(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a training goes on after its job was requeued, migrated, or given notice."""
    it = Suspendable(stage, scenario)
    it.runs()
    stage.do(scenario.name, it.job)
    it.again()
    it.ends()
    return it.judged("it went on in its second run")


def stop(stage: Stage, scenario: Scenario) -> Passed:
    """Stop a job by the batch system; check that it stands still if it should, and goes on."""
    it = Suspendable(stage, scenario)
    it.runs()
    stage.do("stop", it.job)
    if stage.system.stop_frees:
        it.stands_still()
        before = it.step()
        stage.pause(3 * STILL_S)
        if it.step() != before:
            raise FailedError("it went on while it should have been stopped")
    else:
        stage.pause(3 * STILL_S)
        before = it.step()
    stage.do("go", it.job)

    def on() -> bool:
        stage.begin_now(it.job)
        return it.step() > before

    stage.wait(on, "it to go on", AGAIN_S)
    it.ends()
    return it.judged("it stopped, and went on" if stage.system.stop_frees else "it went on")


def kill(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a killed job ends for good."""
    it = Suspendable(stage, scenario)
    it.runs()
    stage.do("kill", it.job)
    state = stage.ends(it.job)
    it.stands_still()
    before = it.step()
    stage.pause(3 * STILL_S)
    if it.step() != before or stage.state(it.job) not in {*FINAL, ""}:
        raise FailedError(f"it came back: its job is {stage.state(it.job)}")
    return it.judged(f"its job is {state}, and nothing came back")


def limit(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a training outlives its time limit."""
    it = Suspendable(stage, scenario, minutes=LIMIT_MINUTES)
    it.runs()
    it.again()
    it.ends()
    return it.judged("it went on in its second run")


GOES_ON = "it goes on where it was; no step is lost"

_WITHOUT = {
    "migrate": "Slurm has no such command",
    "notice": "Slurm sends one only before a time limit and at a preemption",
}


def scenarios(system: System) -> list[Scenario]:
    """Return the scenarios of a batch system; there are two of each if the age of a job matters."""

    def how(*verbs: str) -> str:
        return ", ".join(shlex.join(system.verbs.get(verb, (verb,))) for verb in verbs)

    def lacks(verb: str) -> str:
        return "" if verb in system.verbs else _WITHOUT[verb]

    stopped = f"it stops; {GOES_ON}" if system.stop_frees else GOES_ON
    told = [
        Scenario("requeue", how("requeue"), GOES_ON, requeue),
        Scenario("migrate", how("migrate"), GOES_ON, requeue, lacks("migrate")),
        Scenario("notice", how("notice"), GOES_ON, requeue, lacks("notice")),
        Scenario("stop", how("stop", "go"), stopped, stop),
        Scenario("kill", how("kill"), "it ends for good, and does not come back", kill),
    ]
    old = [dataclasses.replace(each, old=True) for each in told] if system.ages else []
    by_limit = f"a time limit of {LIMIT_MINUTES} min, suspended {LEAD_S} s before it"
    return [
        # The longest one comes first.
        Scenario("time limit", by_limit, GOES_ON, limit),
        *old,
        *told,
        Scenario("suspend", "hpcext suspend, hpcext resume", GOES_ON, suspend),
    ]
