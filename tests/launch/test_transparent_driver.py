"""What uses a GPU, suspended as it is: with stand-ins of NVIDIA's driver and of NVML.

They follow NVIDIA's documentation, and fail as the real ones are reported to. Nothing here shows
that the real ones do so: that is unverified on a GPU. CRIU is a real one.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from as_is import (
    TRANSPARENT,
    begin,
    completed,
    declined,
    kept,
    needs_criu,
    stand_in,
    steps,
    suspended,
    wait_steps,
)
from counting_gpu import digest
from nvidia_machine import GPUS, NAMES, Machine
from site_of_test import wait_for
from stage import Stage, end

from hpcext import protocol
from hpcext.launch import tree
from hpcext.launch.transparent import driver_helper

COUNTING = str(Path(__file__).parent / "counting_gpu.py")


def start(stage: Stage, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    return begin(stage, *words, counts=COUNTING, **options)


def refused(stage: Stage, supervisor: subprocess.Popen[bytes], why: str) -> None:
    """Ask it to be suspended: it is declined for a reason, and goes on, and loses nothing."""
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, why)
    wait_steps(stage)
    assert not (stage.path / "1" / "images.new").exists()
    completed(stage, supervisor, digest)


# As it should be.


@needs_criu
def test_what_uses_a_gpu_is_suspended_and_loses_no_step(stage: Stage, machine: Machine) -> None:
    supervisor = start(stage, "child")
    wait_steps(stage)
    assert machine.on_gpus() == ["0"]
    document = suspended(stage, supervisor)
    assert kept(document) == {"saved": True, "lost_s": 0.0, "exact": True, "anew": False}
    assert machine.on_gpus() == []
    supervisor = start(stage, "child", attempt=2)
    wait_steps(stage)
    assert machine.on_gpus() == ["0"]
    assert machine.states() == ["0"]
    completed(stage, supervisor, digest)


@needs_criu
@pytest.mark.slow
def test_it_is_suspended_ten_times(stage: Stage, machine: Machine) -> None:
    supervisor = start(stage)
    for attempt in range(2, 12):
        wait_steps(stage)
        assert suspended(stage, supervisor)["checkpoint"]["saved"]
        assert machine.on_gpus() == []
        supervisor = start(stage, attempt=attempt)
    completed(stage, supervisor, digest)


@needs_criu
def test_its_memory_may_go_to_another_gpu(stage: Stage, machine: Machine) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    suspended(stage, supervisor)
    supervisor = start(stage, attempt=2, environ=sees(stage, "1"))
    wait_steps(stage)
    assert machine.on_gpus() == ["1"]
    completed(stage, supervisor, digest)


def sees(stage: Stage, devices: str) -> dict[str, str]:
    """The environment of an attempt on other GPUs."""
    return {**stage.read("launch.json")["environ"], "CUDA_VISIBLE_DEVICES": devices}


# What fails while it is saved.


@pytest.mark.cases(1)
@needs_criu
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("busy", "its work on GPUs did not end within 5 s"),
        ("denied", "CUDA_ERROR_NOT_PERMITTED"),
        pytest.param("keeps", f"on {NAMES[0]}", marks=pytest.mark.slow),
    ],
)
def test_what_the_driver_does_not_save_goes_on(
    stage: Stage, machine: Machine, fault: str, why: str
) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    machine.fault(fault)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, why)
    machine.fault("")
    wait_steps(stage)
    assert machine.states() == ["0"]
    assert machine.on_gpus() == ["0"]
    # What was undone is as it was: it can be done the next time.
    assert suspended(stage, supervisor)["checkpoint"]["saved"]
    supervisor = start(stage, attempt=2)
    wait_steps(stage)
    completed(stage, supervisor, digest)


@needs_criu
@pytest.mark.parametrize(
    ("dump", "why"),
    [
        ('log "Error (criu/x.c:1): A socket: no"; exit 1', "criu dump: A socket: no"),
        pytest.param(
            'REAL "$@"; code=$?; rm "$images"/pagemap-*.img; exit $code',
            "the images are not complete: pagemap-",
            marks=pytest.mark.slow,
        ),
        pytest.param("kill -9 $$", "criu dump: signal 9", marks=pytest.mark.slow),
        pytest.param("sleep 1000", "it was not done in 4 s", marks=pytest.mark.slow),
    ],
)
def test_what_criu_does_not_save_has_its_memory_back(
    stage: Stage, machine: Machine, dump: str, why: str
) -> None:
    limit_s = 8.0 if "sleep" in dump else 120.0
    supervisor = start(stage, path=stand_in(stage, dump=dump), suspend_timeout_s=limit_s)
    wait_steps(stage)
    refused(stage, supervisor, why)
    assert machine.on_gpus() == []


@needs_criu
@pytest.mark.slow
def test_a_checkpoint_without_end_is_given_up_and_undone_once_the_driver_answers(
    stage: Stage, machine: Machine
) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    machine.fault("hangs")
    supervisor.send_signal(signal.SIGTSTP)
    stage.wait_for(lambda: helps(stage, "give-back"), "the end of patience")
    machine.fault("")
    declined(stage, "it was not done in 20 s")
    wait_steps(stage)
    assert machine.on_gpus() == ["0"]
    completed(stage, supervisor, digest)


def helps(stage: Stage, action: str) -> bool:
    """Whether a helper does something at this moment."""
    words = [word for line in stage.command_lines() for word in line]
    return any(f'"action": "{action}"' in word for word in words)


@needs_criu
def test_what_is_stuck_in_the_driver_is_ended_and_its_loss_is_said(
    stage: Stage, machine: Machine
) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    machine.fault("failed")
    document = suspended(stage, supervisor)
    ran_s = document["main_ended_at"] - document["started_at"]
    account = document["checkpoint"]
    assert (account["saved"], account["anew"]) == (False, True)
    # Two clocks, read one after the other.
    assert account["lost_s"] == pytest.approx(ran_s, abs=0.2)
    for said in (stage.log.read_text(), stage.read("native.json")["notes"][-1]):
        assert "CUDA_ERROR_NOT_SUPPORTED" in said
        assert "nor go on (the process is FAILED)" in said
        assert "all of its work is lost, and it begins anew" in said
    supervisor = start(stage, attempt=2)
    stage.wait_for(lambda: steps(stage).count(0) == 2, "another beginning")
    # It is not tried once more.
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, "all of its work was lost by that once: cuCheckpointProcessCheckpoint: ")
    wait_steps(stage)
    (stage.path / "stop").touch()
    assert end(supervisor) == 0


@needs_criu
@pytest.mark.slow
def test_what_dies_in_its_checkpoint_has_failed(stage: Stage, machine: Machine) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    machine.fault("dies")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 128 + signal.SIGKILL
    assert not stage.read("exit.json")["suspended"]
    assert not (stage.path / "1" / "images").exists()


@needs_criu
@pytest.mark.slow
def test_one_that_is_told_to_end_meanwhile_ends(stage: Stage, machine: Machine) -> None:
    supervisor = start(stage, suspend_timeout_s=600.0)
    wait_steps(stage)
    machine.fault("hangs")
    supervisor.send_signal(signal.SIGTSTP)
    stage.wait_for(lambda: "checkpoint" in machine.asked(), "its checkpoint")
    supervisor.terminate()
    end(supervisor)
    document = stage.read("exit.json")
    assert not document["suspended"]
    assert document["checkpoint"]["anew"]


# What is refused.


@needs_criu
@pytest.mark.parametrize(
    ("words", "name", "why"),
    [
        (["fork"], "", "have a GPU open, and the driver's checkpoint is for one alone"),
        ([], "mig", f"{NAMES[0]} is divided by MIG"),
        pytest.param([], "mps", "uses a GPU by MPS", marks=pytest.mark.slow),
        pytest.param(["mps"], "", "uses a GPU by MPS", marks=pytest.mark.slow),
        pytest.param(["idle"], "", "NVML knows nothing that it has there", marks=pytest.mark.slow),
    ],
)
def test_what_the_driver_cannot_save_is_not_touched(
    stage: Stage, machine: Machine, words: list[str], name: str, why: str
) -> None:
    changes: dict[str, Any] = {}
    if words == ["mps"]:
        (stage.path / "control").touch()
        stage.write_launch()
        environ = stage.read("launch.json")["environ"]
        changes = {"environ": {**environ, "CUDA_MPS_PIPE_DIRECTORY": str(stage.path)}}
    supervisor = start(stage, *words, **changes)
    wait_steps(stage)
    if name:
        (machine.path / name).touch()
    refused(stage, supervisor, why)
    # It was never locked: the thread of the driver has been asked for nothing but its state.
    assert machine.asked() <= {"state"}


@needs_criu
@pytest.mark.parametrize("how", ["old", "nvml", "cuda"])
def test_without_a_driver_that_can_do_so_nothing_with_a_gpu_is_suspended(
    stage: Stage, machine: Machine, how: str
) -> None:
    if how == "old":
        (machine.path / "version").write_text("12040")
        why = "driver 570 or later is needed, and this one supports CUDA 12.4 only"
    elif how == "nvml":
        (machine.path / "libnvidia-ml.so.1").unlink()
        why = "NVML: libnvidia-ml.so.1"
    else:
        # The program has the library open already.
        why = "libcuda.so.1"
    supervisor = start(stage, "hidden" if how == "cuda" else "")
    wait_steps(stage)
    refused(stage, supervisor, why)
    if how != "cuda":
        what = "whose memory CRIU does not save, nor does the driver: "
        assert what in stage.read("native.json")["cannot_save"]


# What fails when it is to go on.


@pytest.mark.cases(1)
@needs_criu
@pytest.mark.parametrize("how", ["full", "room"])
def test_without_memory_it_waits_and_loses_nothing(
    stage: Stage, machine: Machine, how: str
) -> None:
    supervisor = start(stage, "mib=50", "child")
    wait_steps(stage)
    suspended(stage, supervisor)
    if how == "full":
        # As if another had taken it just then: this process would be stuck for ever.
        machine.fault("full")
        why = "cuCheckpointProcessRestore: CUDA_ERROR_OUT_OF_MEMORY"
    else:
        machine.has(*GPUS, mib=20)
        why = f"{NAMES[0]} has 21 MB of memory free, and 52 MB are needed"
    done = steps(stage)
    supervisor = start(stage, "mib=50", "child", attempt=2)
    assert end(supervisor) == 71
    assert why in stage.read("exit.json")["not_started"]
    assert stage.processes() == []
    assert steps(stage) == done
    machine.fault("")
    machine.has(*GPUS)
    supervisor = start(stage, "mib=50", "child", attempt=3)
    wait_steps(stage)
    completed(stage, supervisor, digest)


@pytest.mark.parametrize(
    ("fault", "why", "put_off"),
    [
        ("hangs", "NVIDIA's driver: no answer within ", True),
        ("full", "cuCheckpointProcessRestore: CUDA_ERROR_OUT_OF_MEMORY", True),
        ("", "cuCheckpointProcessRestore: CUDA_ERROR_ILLEGAL_STATE", False),
    ],
)
def test_a_failed_return_says_whether_it_may_go_well_later(
    tmp_path: Path, machine: Machine, fault: str, why: str, *, put_off: bool
) -> None:
    """Of a process that was made again and is stopped: the helper alone, without CRIU."""
    driver = ctypes.CDLL(str(machine.path / "libcuda.so.1"))
    words = [sys.executable, COUNTING]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"step 0\n"
            if fault:
                assert driver.cuCheckpointProcessLock(process.pid, None) == 0
                assert driver.cuCheckpointProcessCheckpoint(process.pid, None) == 0
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: tree.still(process.pid), "its stop")
            machine.fault(fault)
            said = tmp_path / "said.json"
            request = {"action": "return", "pid": process.pid, "pairs": [], "said": str(said)}
            text = json.dumps({**request, "limit_s": 5.0})
            helper = [sys.executable, "-I", "-S", str(driver_helper.__file__), text]
            assert subprocess.run(helper, check=False).returncode == 1
            document = json.loads(said.read_text())
            assert document["why"].startswith(why)
            assert document.get("put_off") is put_off
            # Whoever held its threads is dead, and so is it.
            assert process.wait() == -signal.SIGKILL
        finally:
            process.kill()


@needs_criu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("model", "other GPUs are visible than before: a NVIDIA Other in place of a NVIDIA Fake"),
        ("fewer", "other GPUs are visible than before, and not as many"),
        ("old", "other GPUs are visible than before, and drivers before 580 cannot restore"),
        ("driver", "NVIDIA's driver cannot restore what was on a GPU: "),
        ("note", "what was on GPUs is not known"),
    ],
)
def test_what_cannot_go_on_begins_anew_and_what_is_lost_is_said(
    stage: Stage, machine: Machine, how: str, why: str
) -> None:
    supervisor = start(stage)
    wait_steps(stage)
    suspended(stage, supervisor)
    changes: dict[str, Any] = {}
    note = stage.path / "1" / "images" / "images.json"
    document = json.loads(note.read_text())
    assert document["gpu"]["used"] == {NAMES[0]: 32}
    if how == "model":
        machine.has("3" * 32, GPUS[1], model="NVIDIA Other")
    elif how == "fewer":
        machine.has(GPUS[1])
    elif how == "old":
        (machine.path / "version").write_text("12080")
        changes = {"environ": sees(stage, "1")}
    elif how == "driver":
        (machine.path / "version").write_text("12040")
    else:
        note.write_text(json.dumps({**document, "gpu": {"pid": 7}}))
    supervisor = start(stage, attempt=2, **changes)
    stage.wait_for(lambda: steps(stage).count(0) == 2, "another beginning")
    assert f"cannot go on where it was suspended ({why}" in stage.log.read_text()
    assert "of work are lost, and it begins anew" in stage.read("native.json")["notes"][0]
    (stage.path / "stop").touch()
    assert end(supervisor) == 0


@needs_criu
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv of util-linux is not installed")
def test_a_user_whose_criu_has_one_capability_can_do_so(
    tmp_path: Path, stand_ins_of_nvidia: Path
) -> None:
    # Where nobody else could enter, that user could not either.
    place = Path("/tmp") / f"hpcext-{os.getpid()}-{tmp_path.name}"
    stage = Stage(place)
    who = ["--reuid=61001", "--regid=61001", "--clear-groups"]
    rights = ["--inh-caps=+checkpoint_restore", "--ambient-caps=+checkpoint_restore"]
    try:
        shutil.copy(COUNTING, place / "counting_gpu.py")
        shutil.copytree(stand_ins_of_nvidia, place / "driver")
        machine = Machine(place / "driver")
        source = Path(protocol.__file__).parents[1]
        # An interpreter and a supervisor that this user may read.
        shutil.copytree(source / "hpcext", place / "source" / "hpcext", dirs_exist_ok=True)
        for attempt in (1, 2):
            stage.directory = place / "1" / f"attempt-{attempt:04d}"
            stage.directory.mkdir(exist_ok=True, parents=True)
            argv = ["/usr/bin/python3", str(place / "counting_gpu.py"), "child"]
            stage.write_launch(*argv, checkpoint=TRANSPARENT, attempt=attempt, op=attempt)
            subprocess.run(["chown", "-R", "61001:61001", str(place)], check=True)
            program = place / "source" / "hpcext" / "launch" / "supervise.py"
            words = ["/usr/bin/python3", "-I", "-S", str(program), str(stage.directory)]
            # A program with capabilities takes no libraries from the environment.
            libraries = f"LD_LIBRARY_PATH={machine.path}"
            environ = {**os.environ, "HPCEXT_TEST_MARK": str(place)}
            supervisor = subprocess.Popen(
                ["setpriv", *who, *rights, "env", libraries, *words],
                env=environ,
                stderr=subprocess.PIPE,
                cwd="/",
            )
            wait_steps(stage)
            assert machine.on_gpus() == ["0"]
            if attempt == 1:
                document = suspended(stage, supervisor)
                assert document["checkpoint"]["saved"], (document, stage.log.read_text())
        completed(stage, supervisor, digest)
    finally:
        stage.kill_all()
        shutil.rmtree(place, ignore_errors=True)
