"""Job arrays: every task is a job of its own, also the one whose number is the array's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from plugin import Plugin
from site_of_test import COUNTER, Site, wait_for
from slurm_cluster import Cluster
from test_pilot_ends import requeued
from test_trainer_ticket import Tickets
from written import whole_lines

SAVES_AT_SIGTERM = Path(__file__).parents[1] / "native" / "programs" / "term.sh"


@pytest.fixture
def tickets(slurm: Cluster, place: Site) -> Tickets:
    return Tickets(slurm, place)


def counter(place: Site) -> Path:
    """Counts to 39, and to 40 when the gate of its task is open."""
    words = place.counter("task", gated=True)["command"]
    assert words[1] == str(COUNTER)
    task = f"{place.path}/task$SLURM_ARRAY_TASK_ID"
    script = place.path / "array.sh"
    command = f"{shlex.join(words[:-1])} {task}.gate"
    script.write_text(f"#!/bin/sh\nCOUNTER_LOG={task}.steps exec {command}\n")
    return script


def submit(slurm: Cluster, place: Site, *words: str) -> int:
    state = str(place.path / "state")
    said = slurm.as_user("sbatch", "--parsable", *words, cwd=place.path, XDG_STATE_HOME=state)
    assert said.returncode == 0, said
    return int(said.stdout)


def listed(place: Site) -> dict[str, str]:
    """Job → state, as hpcext pilot list has them."""
    lines = place.run("pilot", "list").out.splitlines()[1:]
    return {job: state for _, job, state, *_ in map(str.split, lines)}


def test_each_task_of_an_array_is_suspended_and_goes_on_alone(
    slurm: Cluster, place: Site, plugin: Plugin
) -> None:
    """The last one begins when others have ended, and is preempted; its sibling never notices."""
    plugin.use(f"command={slurm.root}/bin/hpcext")
    options = ("--requeue", "--open-mode=append", "--partition=harvest", "--exclusive")
    array = submit(
        slurm, place, "--hpcext-suspendable=20", "--array=0-3%2", *options, str(counter(place))
    )
    after = submit(slurm, place, f"--dependency=afterok:{array}", "--wrap=true")

    def is_(task: int, state: str) -> bool:
        return slurm.job(f"{array}_{task}")["JobState"] == state

    for first in (0, 1):
        place.open(f"task{first}")
        slurm.wait_for(lambda task=first: is_(task, "COMPLETED"), f"task {first}")
    for task in (2, 3):
        wait_for(lambda task=task: place.steps(f"task{task}")[-1:], f"task {task}")
        slurm.wait_for(lambda task=task: place.steps(f"task{task}")[-1].step == 39, "its gate")
    last = slurm.job(f"{array}_3")
    # What this test is about: asked for this number, Slurm answers with the whole array.
    assert last["JobId"] == str(array)
    assert listed(place) == {
        f"{array}_{task}": state
        for task, state in enumerate(("completed", "completed", "running", "running"))
    }
    node = f"--nodelist={last['BatchHost']}"
    slurm.as_user("sbatch", "--partition=urgent", node, "--exclusive", "--wrap=sleep 1")
    requeued(slurm, f"{array}_3")
    for task in (2, 3):
        place.open(f"task{task}")
        slurm.wait_for(lambda task=task: is_(task, "COMPLETED"), f"task {task}")
    slurm.wait_for(lambda: slurm.job(after)["JobState"] == "COMPLETED", "what waits for all")
    restarts = [slurm.job(f"{array}_{task}")["Restarts"] for task in range(4)]
    # From 24.05 on Slurm may requeue it once more: it ended in its grace.
    assert restarts[:3] == ["0", "0", "0"]
    assert restarts[3] != "0"
    for task in range(4):
        assert [step.step for step in place.steps(f"task{task}")] == list(range(1, 41))
    (job,) = place.document("status", f"job-{array}_3")["jobs"]
    assert (job["state"], job["attempts"], job["suspends"]) == ("completed", 2, 1)


@pytest.mark.slow
def test_a_task_that_saves_by_its_own_means_goes_on_alone(
    slurm: Cluster, place: Site, plugin: Plugin
) -> None:
    """The flag says how, for all tasks of the array; each step is done once."""
    plugin.use(f"command={slurm.root}/bin/hpcext")
    tasks = [place.path / f"task{task}" for task in (0, 1)]
    slurm.as_user("mkdir", *map(str, tasks))
    script = place.path / "array.sh"
    first, *rest = SAVES_AT_SIGTERM.read_text().splitlines(keepends=True)
    script.write_text(f"{first}cd {place.path}/task$SLURM_ARRAY_TASK_ID\n{''.join(rest)}")
    flags = ("--hpcext-suspendable=20", "--hpcext-checkpoint=torchrun", "--requeue")
    options = ("--partition=harvest", "--exclusive", "--array=0-1")
    array = submit(slurm, place, *flags, *options, str(script))

    def made(task: Path) -> list[int]:
        path = task / "own.steps"
        return [int(line) for line in whole_lines(path)]

    wait_for(lambda: all(len(made(task)) > 3 for task in tasks), "steps of both")
    node = slurm.job(f"{array}_1")["BatchHost"]
    slurm.as_user(
        "sbatch", "--partition=urgent", f"--nodelist={node}", "--exclusive", "--wrap=sleep 1"
    )
    requeued(slurm, f"{array}_1")
    saved = int((tasks[1] / "saved").read_text())
    wait_for(lambda: made(tasks[1])[-1] > saved + 3, "that it goes on")
    for number, task in enumerate(tasks):
        (task / "gate").touch()
        slurm.wait_for(
            lambda number=number: slurm.job(f"{array}_{number}")["JobState"] == "COMPLETED", "both"
        )
        assert made(task) == list(range(1, made(task)[-1] + 1))
    assert not (tasks[0] / "saved").exists()


@pytest.mark.slow
def test_each_task_of_an_array_is_its_own_ticket(
    slurm: Cluster, place: Site, tickets: Tickets, plugin: Plugin
) -> None:
    """One is cancelled: the one whose number is the array's."""
    tickets.quick()
    plugin.use(f"command={slurm.root}/bin/hpcext")
    script = tickets.script(
        "mine",
        'echo "trains $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MAX"',
        f"test $SLURM_ARRAY_TASK_ID -lt 3 || {{ touch {place.path}/third; sleep 600; }}",
    )
    array = tickets.sbatch("--hpcext-trainer=1:1", "--array=1-3%2", str(script))
    done = tickets.sbatch(f"--dependency=afterok:{array}_1:{array}_2", "--wrap=true")
    tickets.wait_is(done, "COMPLETED")
    wait_for((place.path / "third").exists, "the last task")
    facts = tickets.harvester / "manager.json"
    # Else nobody would be there who cancels its trainer.
    slurm.wait_for(
        lambda: json.loads(facts.read_text())["batch_job"] == f"{array}_3", "it as manager"
    )
    assert slurm.job(f"{array}_3")["JobId"] == str(array)
    assert slurm.as_user("scancel", f"{array}_3").returncode == 0
    tickets.wait_is(f"{array}_3", "CANCELLED")
    for task in (1, 2):
        assert f"trains {task} of 3\n" in tickets.output(f"{array}_{task}")
        assert slurm.job(f"{array}_{task}")["JobState"] == "COMPLETED"

    def states() -> dict[str, str]:
        found = place.document("status", str(tickets.harvester))["jobs"]
        return {job["name"]: job["state"] for job in found}

    whole = {f"mine.sh-{array}_{task}": "completed" for task in (1, 2)}
    wanted = {**whole, f"mine.sh-{array}_3": "cancelled"}
    # Slurm may kill the manager before it has heard that the training has ended.
    asked = {**whole, f"mine.sh-{array}_3": "stopping"}
    tickets.wait(lambda: states() in (wanted, asked), f"{json.dumps(wanted)}")
    wait_for(lambda: not place.left_behind(), "the end of the training")
