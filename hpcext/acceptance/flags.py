"""The scenario of the flags that hpcext-admin installs: they reach the job or are refused."""

from __future__ import annotations

import shlex

from hpcext.acceptance.scenario import FailedError, Passed, Scenario
from hpcext.acceptance.stage import Stage
from hpcext.acceptance.systems import Order, System
from hpcext.text import clean

PROFILE = "accepted"


def flags(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a setting arrives in a job, and that an invalid one is refused."""
    place = stage.place(scenario.name)
    order = Order(
        name=stage.name(place),
        partition=stage.terms.partition,
        hosts=(stage.hosts[0].name,),
        output=place / "output.txt",
        minutes=2,
    )
    seen = place / "seen"
    text = f'#!/bin/sh\necho "$HPCEXT_SCALING" >{shlex.quote(str(seen))}\n'
    try:
        job = stage.submit(order._replace(setting=stage.system.bad_setting), text)
    except FailedError as error:
        if "hpcext" not in error.what:
            raise
        refused = error.what
    else:
        raise FailedError(f"{stage.system.bad_setting} was taken: job {job}")
    job = stage.submit(order._replace(setting=f"scaling={PROFILE}"), text)
    stage.begins(job, "its begin")
    stage.ends(job)
    found = stage.wait(lambda: seen.exists() and seen.read_text().strip(), "its variable", 30)
    if found != PROFILE:
        raise FailedError(f"HPCEXT_SCALING is {clean(str(found))[:60]} in the job")
    return Passed(f"the variable arrived; refused: {clean(refused)[:80]}")


def scenarios(system: System, lacks: str) -> list[Scenario]:
    """Return the scenario.

    Parameters
    ----------
    system : System
    lacks : str
        Why the flags cannot be tried; empty if they can.
    """
    tried = f"{system.bad_setting}, and scaling={PROFILE}"
    expected = "the first is refused, the second reaches the job"
    return [Scenario("flags", tried, expected, flags, lacks)]
