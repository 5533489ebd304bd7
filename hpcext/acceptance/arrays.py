"""The scenario of a job array, each task of which is a suspendable job."""

from __future__ import annotations

import shlex
import sys

from hpcext.acceptance.scenario import FailedError, NotTriedError, Passed, Scenario
from hpcext.acceptance.stage import Stage
from hpcext.acceptance.systems import Order
from hpcext.acceptance.trial import AGAIN_S, JOB, LEAD_S, Training, script

TASKS = 2


def array(stage: Stage, scenario: Scenario) -> Passed:
    """Suspend, resume and requeue one task; check that the other is not disturbed."""
    from hpcext.acceptance import training  # noqa: PLC0415  (NumPy)

    place = stage.place(scenario.name)
    order = Order(
        name=stage.name(place),
        partition=stage.terms.partition,
        hosts=(stage.hosts[0].name,),
        output=place / "output.txt",
        lead_s=LEAD_S,
        tasks=TASKS,
    )
    module = shlex.join([sys.executable, "-m", training.__name__])
    accounts = f'{shlex.quote(str(place))}/"task-${stage.system.task}"'
    line = f"{module} {accounts} {shlex.quote(str(place / 'finish'))}"
    try:
        job = stage.submit(order, script(stage, line))
    except FailedError as error:
        raise NotTriedError(error.what) from None
    tasks = stage.system.tasks_of(job, TASKS)
    stage.follow(*tasks)
    for task in tasks:
        stage.begins(task, "all tasks to begin")
    its = [
        Training(stage, place / f"task-{number}", place / "finish", task)
        for number, task in zip(stage.system.numbers_of(TASKS), tasks, strict=True)
    ]
    for it in its:
        it.began()
    pilot = stage.system.pilot_of(tasks[-1])
    stage.granted("suspend", pilot, JOB)
    its[-1].stands_still()
    its[0].goes_on()
    stage.granted("resume", pilot, JOB)
    its[-1].began(2)
    stage.do("requeue", tasks[-1])
    its[-1].began(3, AGAIN_S)
    its[0].goes_on()
    its[0].finish()
    for task in tasks:
        if (state := stage.ends(task)) != "completed":
            raise FailedError(f"task {task} ended as {state}")
    if len(its[0].lives()) != 1:
        raise FailedError("the undisturbed task was restarted")
    found = [it.judged("all tasks ended") for it in its]
    steps, lost = (sum(getattr(each, key) for each in found) for key in ("steps", "lost"))
    return Passed(f"all {TASKS} tasks ended, {steps} steps, {lost} repeated", steps, lost)


def scenarios() -> list[Scenario]:
    """Return the scenario."""
    tried = f"an array of {TASKS} tasks, one of them suspended, resumed and requeued"
    expected = "that task goes on where it was, and the other is not disturbed"
    return [Scenario("array", tried, expected, array)]
