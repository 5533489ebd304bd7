"""What the suspension of GPU memory is made of: threads that are held, room, and places of GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_of_test import wait_for

from hpcext.launch import apart, tree
from hpcext.launch.transparent import gpus, opened, placement, room, threads
from hpcext.launch.transparent.gpus import Gpu

# Threads that are held.

COUNTS = """
import os, sys, threading, time
def count(name):
    number = 0
    open(f"{name}.tid", "w").write(str(threading.get_native_id()))
    while True:
        number += 1
        with open(name, "w") as file: file.write(str(number))
        time.sleep(0.001)
for name in ("first", "second", "third"):
    threading.Thread(target=count, args=(name,), daemon=True).start()
time.sleep(1000)
"""

HOLDS = """
import sys, time
from hpcext.launch.transparent import threads
held = threads.Held(int(sys.argv[1]), int(sys.argv[2]))
print("held", flush=True)
sys.stdin.readline()
held.stop()
print("stopped", flush=True)
"""


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with three threads that count, stopped."""
    process = subprocess.Popen([sys.executable, "-c", COUNTS], cwd=tmp_path)
    try:
        wait_for(lambda: all(moves(tmp_path, name) for name in NAMES), "its threads")
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: tree.still(process.pid), "its stop")
        yield process
    finally:
        process.kill()
        process.wait()


NAMES = ("first", "second", "third")


def number(path: Path, name: str) -> int:
    try:
        # It may be written at this moment.
        return int((path / name).read_text() or 0)
    except FileNotFoundError:
        return 0


def moves(path: Path, name: str, times: int = 20) -> bool:
    """Whether a thread counts."""
    before = number(path, name)
    pause = threading.Event()
    for _ in range(times):
        if number(path, name) > max(1, before):
            return True
        pause.wait(0.01)
    return False


def hold(process: subprocess.Popen[bytes], thread: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLDS, str(process.pid), thread]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_one_thread_runs_while_the_others_are_held_and_then_none(
    tmp_path: Path, counting: subprocess.Popen[bytes]
) -> None:
    holder = hold(counting, (tmp_path / "second.tid").read_text())
    wait_for(lambda: moves(tmp_path, "second"), "the thread that may run")
    assert not moves(tmp_path, "first")
    assert not moves(tmp_path, "third")
    said, _ = holder.communicate("\n")
    assert said == "stopped\n"
    assert not any(moves(tmp_path, name) for name in NAMES)
    assert psutil.Process(counting.pid).status() == psutil.STATUS_STOPPED
    counting.send_signal(signal.SIGCONT)
    wait_for(lambda: all(moves(tmp_path, name) for name in NAMES), "all of its threads")


def test_what_is_held_dies_with_whoever_holds_it(
    tmp_path: Path, counting: subprocess.Popen[bytes]
) -> None:
    before = number(tmp_path, "first")
    holder = hold(counting, (tmp_path / "second.tid").read_text())
    holder.kill()
    holder.communicate()
    assert counting.wait() == -signal.SIGKILL
    assert number(tmp_path, "first") == before


def test_what_runs_cannot_be_held() -> None:
    with pytest.raises(OSError, match="is not stopped"):
        threads.Held(os.getpid(), 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_that_threads_may_not_be_held_is_known_before() -> None:
    assert threads.refused(os.getpid()) == ""
    text = (
        "import os, sys\n"
        "from hpcext.launch.transparent import threads\n"
        "os.setuid(61001)\n"
        f"print(threads.refused({os.getpid()}))"
    )
    words = [sys.executable, "-c", text]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"ptrace of process {os.getpid()} is refused (Permission denied)")


# Questions that may hang.


def test_an_answer_is_given_or_it_is_said_why_not() -> None:
    assert apart.answer(lambda: [1, "two"], 60.0) == [1, "two"]
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        apart.answer(threading.Event().wait, 0.05)
    with pytest.raises(OSError, match="has died"):
        apart.answer(lambda: os.kill(os.getpid(), signal.SIGKILL), 60.0)


# Room.


def cgroup(root: Path, name: str, **files: str) -> None:
    group = root / name
    group.mkdir(parents=True)
    for file, text in files.items():
        (group / file.replace("_", ".", 1)).write_text(text)


def test_the_memory_left_without_a_limit_is_that_of_the_machine(tmp_path: Path) -> None:
    machine = room.host_memory(os.getpid(), tmp_path)
    assert machine == pytest.approx(psutil.virtual_memory().available, rel=0.5)


def test_a_cgroup_above_counts_and_its_cache_does_not(tmp_path: Path) -> None:
    cgroup(tmp_path, "job", memory_max="5000000", memory_current="3000000")
    (tmp_path / "job" / "memory.stat").write_text("anon 7\ninactive_file 1000000\n")
    cgroup(tmp_path, "job/step", memory_max="max", memory_current="3000000")
    cgroup(tmp_path, "memory/old", memory_limit_in_bytes="4000", memory_usage_in_bytes="1000")
    assert list(room.left("0::/job/step\n", tmp_path)) == [3000000]
    assert list(room.left("3:cpu,memory:/old\n2:pids:/x\n", tmp_path)) == [3000]


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    me = os.getpid()
    assert room.lacking(me, 1000, tmp_path, [me]) == ""
    assert "do not fit into" in room.lacking(me, 10**18, tmp_path, [me])


# Devices.


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidiactl", True),
        ("/dev/nvidia-uvm", True),
        ("/rootfs/dev/nvidia12", True),
        ("/dev/kfd", True),
        ("/dev/dri/renderD128", True),
        ("/home/me/dev/nvidia-smi.log", False),
        ("/home/me/dev/nvidia/data", False),
        ("/dev/null", False),
    ],
)
def test_devices_of_gpus_are_known(tmp_path: Path, path: str, device: bool) -> None:
    assert (opened.is_gpu(path)) is device


# Places.

OLD = placement.Saved(7, {"a": "X", "b": "X", "c": "Y"}, ["a", "b"], {"b": 5})


def now(*uuids: str, **models: str) -> list[Gpu]:
    return [Gpu(each, models.get(each, "X"), 9, 9, False, {}, []) for each in uuids]


def test_the_same_gpus_need_no_other_places() -> None:
    assert placement.pairs(OLD, now("a", "b", "c"), "0,1") == []
    # It has nothing on the first one.
    assert placement.pairs(OLD, now("d", "b", "c"), "1") == []


def test_another_gpu_takes_the_place_and_each_has_one() -> None:
    found = placement.pairs(OLD, now("a", "b", "c", c="X"), "0,2")
    assert dict(found) == {"a": "a", "b": "c", "c": "b"}


@given(st.permutations("abcdef"), st.integers(1, 6), st.data())
def test_places_are_one_for_each(uuids: list[str], count: int, data: st.DataObject) -> None:
    before = data.draw(st.permutations("abcdefgh"))[:6]
    saved = placement.Saved(7, dict.fromkeys(before, "X"), before[:count], {before[0]: 1})
    seen = ",".join(map(str, data.draw(st.permutations(range(6)))[:count]))
    found = placement.pairs(saved, now(*uuids), seen)
    if not found:
        assert before[0] in {gpu.uuid for gpu in gpus.visible(now(*uuids), seen)}
        return
    assert sorted(old for old, _ in found) == sorted(before)
    assert sorted(new for _, new in found) == sorted(uuids)
    visible = [gpu.uuid for gpu in gpus.visible(now(*uuids), seen)]
    assert [dict(found)[old] for old in before[:count]] == visible


@pytest.mark.parametrize(
    ("gpus_", "devices", "why"),
    [
        (now("a", "d"), None, "and not as many"),
        (now("a", "d", "e"), "0", "and not as many"),
        (now("a", "d", "e", d="Z"), "0,1", "a Z in place of a X"),
    ],
)
def test_what_cannot_take_the_place_is_said(gpus_: list[Gpu], devices: str, why: str) -> None:
    with pytest.raises(OSError, match=why):
        placement.pairs(OLD, gpus_, devices)


@pytest.mark.parametrize(
    "document", [None, {}, {**OLD.document(), "pid": "7"}, {**OLD.document(), "used": {"a": True}}]
)
def test_what_is_noted_of_gpus_makes_sense_or_is_not_believed(document: object) -> None:
    with pytest.raises(ValueError, match="not known"):
        placement.Saved.parse(document)
    assert placement.Saved.parse(OLD.document()) == OLD


def test_visible_gpus_are_those_that_are_named() -> None:
    all_ = now("GPU-1a", "GPU-1b", "GPU-2")
    assert [gpu.uuid for gpu in gpus.visible(all_, "2,0")] == ["GPU-2", "GPU-1a"]
    assert [gpu.uuid for gpu in gpus.visible(all_, "GPU-2, 7")] == ["GPU-2"]
    assert gpus.visible(all_, None) == all_
    assert gpus.visible(all_, "-1") == gpus.visible(all_, "") == []
