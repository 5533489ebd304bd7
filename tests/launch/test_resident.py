"""Commands that save nothing, on a machine without CRIU: they stay in memory while suspended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from as_is import COUNTING, begin, completed, declined, kept, program, steps, wait_steps, write
from counting import digest
from counting_gpu import digest as digest_gpu
from nvidia_machine import GPUS, NAMES, Machine
from stage import Stage, end

from hpcext.launch.transparent import residence

ON_A_GPU = str(Path(__file__).parent / "counting_gpu.py")


def without_criu(stage: Stage) -> str:
    """A PATH whose criu is too old."""
    return program(stage, "#!/bin/sh\n# A stand-in of criu, for tests.\necho Version: 3.17.1\n")


def start(stage: Stage, *words: str, **changes: Any) -> subprocess.Popen[bytes]:
    return begin(stage, *words, path=without_criu(stage), stays=True, **changes)


def suspended(stage: Stage, keeper: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Suspend an attempt whose processes stay; its end."""
    keeper.send_signal(signal.SIGTSTP)
    document: dict[str, Any] = stage.wait_for(lambda: recorded(stage), "the end of the attempt")
    assert document["suspended"]
    assert document["stays"]
    assert kept(document) == {"saved": True, "lost_s": 0.0, "exact": True, "anew": False}
    assert keeper.poll() is None
    return document


def recorded(stage: Stage) -> dict[str, Any] | None:
    return stage.read("exit.json") if (stage.directory / "exit.json").exists() else None


def resume(stage: Stage, attempt: int, *words: str, **changes: Any) -> None:
    """Begin a later attempt, as a manager does."""
    write(stage, *words, attempt=attempt, stays=True, **changes)
    assert residence.hand_over(stage.directory) is not None
    stage.wait_for((stage.directory / "supervisor.json").exists, "its supervisor")


def counting(stage: Stage) -> list[psutil.Process]:
    """The processes of the command."""
    return [each for each in stage.processes() if "supervise.py" not in " ".join(each.cmdline())]


def test_it_stays_stopped_and_goes_on_and_loses_no_step(stage: Stage) -> None:
    keeper = start(stage, "child", "open")
    for attempt in (2, 3):
        wait_steps(stage)
        suspended(stage, keeper)
        assert {each.status() for each in counting(stage)} == {psutil.STATUS_STOPPED}
        stood = steps(stage)
        assert not (stage.directory / "criu-dump.log").exists()
        resume(stage, attempt)
        wait_steps(stage)
        assert steps(stage)[: len(stood)] == stood
        assert stage.read("supervisor.json")["pid"] == keeper.pid
        assert "hpcext: goes on where it was suspended, after " in stage.log.read_text()
    completed(stage, keeper)
    assert stage.read("exit.json")["exit_code"] == 0


# With memory on a GPU.


def test_what_uses_a_gpu_leaves_it_and_comes_back(stage: Stage, machine: Machine) -> None:
    keeper = start(stage, "child", counts=ON_A_GPU)
    for attempt in (2, 3):
        wait_steps(stage)
        assert machine.on_gpus() == ["0"]
        suspended(stage, keeper)
        assert machine.on_gpus() == []
        assert machine.states() == ["2"]  # CHECKPOINTED
        resume(stage, attempt)
        wait_steps(stage)
        assert machine.on_gpus() == ["0"]
    completed(stage, keeper, digest_gpu)


def test_its_memory_may_go_to_another_gpu(stage: Stage, machine: Machine) -> None:
    keeper = start(stage, counts=ON_A_GPU)
    wait_steps(stage)
    suspended(stage, keeper)
    resume(stage, 2, environ=sees(stage, "1"))
    wait_steps(stage)
    assert machine.on_gpus() == ["1"]
    completed(stage, keeper, digest_gpu)


def sees(stage: Stage, devices: str) -> dict[str, str]:
    """The environment of an attempt on other GPUs."""
    return {**stage.read("launch.json")["environ"], "CUDA_VISIBLE_DEVICES": devices}


@pytest.mark.parametrize("how", ["room", "old", "another GPU"])
def test_without_its_gpu_it_waits_and_loses_nothing(
    stage: Stage, machine: Machine, how: str
) -> None:
    words = ["mib=50"] if how != "another GPU" else []
    counts = ON_A_GPU if how != "another GPU" else COUNTING
    keeper = start(stage, *words, counts=counts)
    wait_steps(stage)
    suspended(stage, keeper)
    changes: dict[str, Any] = {}
    if how == "room":
        machine.has(*GPUS, mib=20)
        why = f"{NAMES[0]} has 21 MB of memory free, and 52 MB are needed"
    elif how == "old":
        (machine.path / "version").write_text("12080")
        changes = {"environ": sees(stage, "1")}
        why = "other GPUs are visible than before, and drivers before 580 cannot restore"
    else:
        # It has opened none, and would open that of before.
        changes = {"environ": sees(stage, "1")}
        why = "other GPUs are visible than before, and its processes have those of before"
    environ = stage.read("launch.json")["environ"]
    done = steps(stage)
    resume(stage, 2, **changes)
    document = stage.wait_for(lambda: recorded(stage), "the end of that attempt")
    assert why in document["not_started"]
    assert document["stays"]
    assert steps(stage) == done
    machine.has(*GPUS)
    resume(stage, 3, environ=environ)
    wait_steps(stage)
    completed(stage, keeper, digest_gpu if counts == ON_A_GPU else digest)


@pytest.mark.parametrize(
    ("words", "fault", "why"),
    [
        (["fork"], "", "have a GPU open, and the driver's checkpoint is for one alone"),
        ([], "busy", "its work on GPUs did not end within"),
        ([], "old", "driver 570 or later is needed"),
    ],
)
def test_what_does_not_leave_its_gpu_runs_on(
    stage: Stage, machine: Machine, words: list[str], fault: str, why: str
) -> None:
    keeper = start(stage, *words, counts=ON_A_GPU)
    wait_steps(stage)
    if fault == "old":
        (machine.path / "version").write_text("12040")
    else:
        machine.fault(fault)
    keeper.send_signal(signal.SIGTSTP)
    declined(stage, why)
    machine.fault("")
    wait_steps(stage)
    assert machine.on_gpus() == ["0"]
    completed(stage, keeper, digest_gpu)


def test_what_the_driver_cannot_restore_begins_anew_and_its_loss_is_said(
    stage: Stage, machine: Machine
) -> None:
    keeper = start(stage, counts=ON_A_GPU)
    wait_steps(stage)
    suspended(stage, keeper)
    machine.fault("full")
    resume(stage, 2)
    stage.wait_for(lambda: steps(stage).count(0) == 2, "another beginning")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in lost(stage)
    (stage.path / "stop").touch()
    assert end(keeper) == 0


def lost(stage: Stage) -> str:
    """What is said of the loss of what was suspended."""
    (note,) = stage.read("native.json")["notes"]
    assert note.startswith("cannot go on where it was suspended (")
    assert note.endswith(" s of work are lost, and it begins anew")
    assert f"hpcext: {note}" in stage.log.read_text()
    return str(note)


# What ends while it is suspended.


def test_one_that_is_not_to_go_on_is_ended(stage: Stage) -> None:
    keeper = start(stage, "child")
    wait_steps(stage)
    suspended(stage, keeper)
    # As the manager does once its job is cancelled.
    shutil.rmtree(stage.path / "1" / "images")
    assert end(keeper) == 85
    assert stage.processes() == []


@pytest.mark.parametrize("how", ["told", "killed", "keeper killed", "restart"])
def test_what_is_lost_meanwhile_is_said(stage: Stage, how: str) -> None:
    keeper = start(stage, "child")
    wait_steps(stage)
    suspended(stage, keeper)
    note = stage.path / "1" / "images" / "images.json"
    document = json.loads(note.read_text())
    if how == "told":
        # By its batch system, as its allocation ends.
        keeper.terminate()
        why = "its processes stayed in memory, and were told to end"
    elif how == "killed":
        # By the kernel, as there is no memory left.
        os.kill(document["root"], signal.SIGKILL)
        why = "its processes stayed in memory, and were killed"
    elif how == "keeper killed":
        keeper.kill()
        why = f"its processes stayed in memory, and {keeper.pid}, which kept them, was ended"
    else:
        keeper.kill()
        document["resident"]["boot_id"] = "another"
        note.write_text(json.dumps(document))
        why = "its processes stayed in the memory of this machine, which was restarted"
    end(keeper)
    written = write(stage, "child", attempt=2, path=without_criu(stage), stays=True)
    assert residence.hand_over(stage.directory) is None
    supervisor = subprocess.Popen(
        stage.supervisor_argv(), env=written, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    stage.wait_for(lambda: steps(stage).count(0) == 2, "another beginning")
    assert why in lost(stage)
    # The old ones are gone.
    assert len(counting(stage)) <= 2
    assert document["root"] not in {each.pid for each in counting(stage)}
    (stage.path / "stop").touch()
    assert end(supervisor) == 0


def test_what_leaves_its_machine_does_not_stay(stage: Stage) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    order = {"schema": "hpcext.order/1", "attempt": 1, "op": 7, "order": "leave", "number": 1}
    (stage.directory / "order.json").write_text(json.dumps(order))
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["checkpoint"]["anew"]
    assert document["checkpoint"]["lost_s"] > 0
    assert "stays" not in document
    assert stage.processes() == []
    assert "cannot stay in memory, as its allocation ends" in stage.log.read_text()


def test_another_supervisor_does_not_take_what_is_kept(stage: Stage) -> None:
    keeper = start(stage)
    wait_steps(stage)
    suspended(stage, keeper)
    # It was not told: it begins beside the one that keeps them.
    supervisor = start(stage, attempt=2)
    assert end(supervisor) == 71
    assert "are kept by " in stage.read("exit.json")["not_started"]
    resume(stage, 3)
    wait_steps(stage)
    completed(stage, keeper)


def test_a_hand_over_that_is_repeated_counts_once(stage: Stage) -> None:
    keeper = start(stage)
    wait_steps(stage)
    suspended(stage, keeper)
    resume(stage, 2)
    wait_steps(stage)
    # As a manager does that has died meanwhile.
    assert residence.hand_over(stage.directory) is None
    completed(stage, keeper)


@pytest.mark.parametrize("ordered", [False, True])
def test_only_an_order_suspends_an_attempt_before_it_has_begun(
    stage: Stage, *, ordered: bool
) -> None:
    keeper = start(stage)
    wait_steps(stage)
    suspended(stage, keeper)
    # By its batch system, or by a manager that has just handed the next attempt over.
    keeper.send_signal(signal.SIGTSTP)
    directory = stage.path / "1" / "attempt-0002"
    directory.mkdir()
    if ordered:
        order = {"schema": "hpcext.order/1", "attempt": 2, "op": 8, "order": "suspend"}
        (directory / "order.json").write_text(json.dumps({**order, "number": 1}))
    resume(stage, 2)
    if ordered:
        stage.wait_for(lambda: recorded(stage), "the end of the attempt")
        assert stage.read("exit.json")["stays"]
        resume(stage, 3)
    wait_steps(stage)
    completed(stage, keeper)
