"""Commands that save nothing, suspended as they are: by CRIU, and by what fails as it does."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import counting
import pytest
from as_is import (
    COUNTING,
    TRANSPARENT,
    begin,
    completed,
    declined,
    kept,
    needs_criu,
    program,
    real,
    stand_in,
    steps,
    suspended,
    wait_steps,
)
from stage import Stage, end

from hpcext import protocol
from hpcext.launch import sweep
from hpcext.launch.transparent import connections, images, no_io_uring
from hpcext.process import Process

# With a real CRIU.


@needs_criu
def test_what_saves_nothing_is_suspended_as_it_is_and_loses_no_step(stage: Stage) -> None:
    supervisor = begin(stage, "child", "open")
    wait_steps(stage)
    document = suspended(stage, supervisor)
    assert kept(document) == {"saved": True, "lost_s": 0.0, "exact": True, "anew": False}
    found = stage.path / "1" / "images"
    assert found.stat().st_mode & 0o777 == 0o700
    # A process that is killed before it can do anything says no step that is not in the images.
    supervisor = begin(stage, "child", "open", attempt=2)
    wait_steps(stage)
    assert "hpcext: goes on where it was suspended, after " in stage.log.read_text()
    completed(stage, supervisor)


@needs_criu
@pytest.mark.skipif(os.geteuid() != 0, reason="CRIU saves connections only for root")
def test_connections_between_its_processes_are_suspended_with_them(stage: Stage) -> None:
    supervisor = begin(stage, "pair")
    for attempt in (2, 3):
        wait_steps(stage)
        assert suspended(stage, supervisor)["checkpoint"]["saved"]
        supervisor = begin(stage, "pair", attempt=attempt)
    wait_steps(stage)
    completed(stage, supervisor)


@needs_criu
@pytest.mark.skipif(os.geteuid() != 0, reason="CRIU links deleted files only for root")
def test_two_with_semaphores_are_suspended_at_once_and_leave_no_link(stage: Stage) -> None:
    other = Stage(stage.path / "other")
    both = [(each, begin(each, "lock")) for each in (stage, other)]
    for each, supervisor in both:
        wait_steps(each)
        assert suspended(each, supervisor)["checkpoint"]["saved"]
    kept = [link for each, _ in both for link in links_of(each)]
    assert kept
    assert all(link.exists() for link in kept)
    both = [(each, begin(each, "lock", attempt=2)) for each, _ in both]
    for each, supervisor in both:
        wait_steps(each)
        completed(each, supervisor)
    assert not any(link.exists() for link in kept)


@needs_criu
@pytest.mark.skipif(os.geteuid() != 0, reason="CRIU links deleted files only for root")
def test_a_link_whose_name_is_taken_is_waited_for(stage: Stage) -> None:
    supervisor = begin(stage, "lock")
    wait_steps(stage)
    suspended(stage, supervisor)
    (taken, *_) = json.loads((stage.path / "1" / "images" / "images.json").read_text())["links"]
    Path(taken).write_text("somebody else's")
    try:
        supervisor = begin(stage, "lock", attempt=2)
        assert end(supervisor) != 0
        assert (stage.path / "1" / "images").exists()
        assert Path(taken).read_text() == "somebody else's"
        assert all(link.exists() for link in links_of(stage))
    finally:
        Path(taken).unlink()
    supervisor = begin(stage, "lock", attempt=3)
    wait_steps(stage)
    completed(stage, supervisor)


@needs_criu
@pytest.mark.skipif(os.geteuid() != 0, reason="CRIU links deleted files only for root")
def test_a_dump_that_fails_leaves_no_link(stage: Stage) -> None:
    # It does all of its work, and then says that it has failed.
    path = stand_in(stage, dump='REAL "$@"; exit 1', restore='exec REAL "$@"')
    before = set(Path("/dev/shm").glob("*link_remap*"))
    supervisor = begin(stage, "lock", path=path)
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, "exit code 1")
    wait_steps(stage)
    assert set(Path("/dev/shm").glob("*link_remap*")) <= before
    completed(stage, supervisor)


def links_of(stage: Stage) -> list[Path]:
    """Where the links of its images are kept."""
    document = json.loads((stage.path / "1" / "images" / "images.json").read_text())
    return [Path(kept) for kept, *_ in document["links"].values()]


@needs_criu
def test_a_connection_to_others_is_a_reason_not_to_suspend_it(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        supervisor = begin(stage, "child", str(port))
        wait_steps(stage)
        supervisor.send_signal(signal.SIGTSTP)
        to = f"to 127.0.0.1:{port}, not in its job" if os.geteuid() == 0 else "only for root"
        declined(stage, to)
        wait_steps(stage)
        completed(stage, supervisor)


def test_connections_are_those_of_ipv6_too() -> None:
    me = Process.me()
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(server.getsockname()[:2]) as six,
        server.accept()[0] as other_six,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as four,
        server.accept()[0] as other_four,
    ):
        ours = {six, other_six, four, other_four}
        ports = {each.getsockname()[1] for each in ours}
        seen = connections.connections([me])
        assert {int(each.local.partition(":")[2], 16) for each in seen} >= ports
        assert connections.outside([me]) == ""
        # Whoever has one of two ends is connected to somebody else.
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            other_six.close()
            other_four.close()
            port = server.getsockname()[1]
            assert re.search(rf"to \S+:{port}, not in its job", connections.outside([me]))
            assert connections.outside([me, Process(child, 0)]) == ""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


# io_uring, which no checkpoint has.

has_io_uring = pytest.mark.skipif(
    counting.ring() < 0, reason="the kernel of this machine has io_uring switched off"
)


@needs_criu
@has_io_uring
def test_what_would_use_io_uring_does_without_it(stage: Stage) -> None:
    supervisor = begin(stage, "ring")
    wait_steps(stage)
    assert "no ring" in stage.log.read_text().splitlines()
    assert suspended(stage, supervisor)["checkpoint"]["saved"]
    supervisor = begin(stage, "ring", attempt=2)
    wait_steps(stage)
    completed(stage, supervisor)


@needs_criu
@has_io_uring
def test_without_a_compiler_it_has_io_uring_and_is_not_suspended(stage: Stage) -> None:
    path = program(stage, f'#!/bin/sh\nexec {real()} "$@"\n')
    (stage.path / "programs" / "cc").write_text("#!/bin/sh\nexit 1\n")
    (stage.path / "programs" / "cc").chmod(0o755)
    supervisor = begin(stage, "ring", path=path)
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, "uses io_uring, which CRIU does not save")
    completed(stage, supervisor)


def test_its_library_is_compiled_once_and_leaves_what_is_preloaded(tmp_path: Path) -> None:
    environ = {**os.environ, "LD_PRELOAD": "/nowhere/other.so"}
    said = no_io_uring.variables(environ, tmp_path)
    (library,) = tmp_path.iterdir()
    assert said == {"LD_PRELOAD": f"{library}:/nowhere/other.so"}
    made = library.stat()
    assert no_io_uring.variables({}, tmp_path) == {"LD_PRELOAD": str(library)}
    assert library.stat() == made
    blank = tmp_path / "a b"
    blank.mkdir()
    assert no_io_uring.variables(os.environ, blank) == {}


def test_its_source_has_no_warning(tmp_path: Path) -> None:
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
    words = ["cc", *warnings, "-O2", "-c", "-o", str(tmp_path / "o"), str(no_io_uring.SOURCE)]
    subprocess.run(words, check=True)


@needs_criu
@pytest.mark.slow
def test_it_is_suspended_thirty_times_at_any_instant(stage: Stage) -> None:
    chance = random.Random(1)
    supervisor = begin(stage, "child")
    for attempt in range(2, 32):
        wait_steps(stage, chance.randrange(1, 30))
        document = suspended(stage, supervisor)
        assert document["checkpoint"]["saved"], document
        supervisor = begin(stage, "child", attempt=attempt)
    completed(stage, supervisor)


@needs_criu
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv of util-linux is not installed")
def test_a_user_whose_criu_has_one_capability_can_do_so(tmp_path: Path) -> None:
    # Where nobody else could enter, that user could not either.
    place = Path("/tmp") / f"hpcext-{os.getpid()}-{tmp_path.name}"
    stage = Stage(place)
    who = ["--reuid=61001", "--regid=61001", "--clear-groups"]
    rights = ["--inh-caps=+checkpoint_restore", "--ambient-caps=+checkpoint_restore"]
    try:
        shutil.copy(COUNTING, place / "counting.py")
        source = Path(protocol.__file__).parents[1]
        # An interpreter and a supervisor that this user may read.
        shutil.copytree(source / "hpcext", place / "source" / "hpcext", dirs_exist_ok=True)
        for attempt in (1, 2):
            stage.directory = place / "1" / f"attempt-{attempt:04d}"
            stage.directory.mkdir(exist_ok=True, parents=True)
            argv = ["/usr/bin/python3", str(place / "counting.py"), "child"]
            stage.write_launch(*argv, checkpoint=TRANSPARENT, attempt=attempt, op=attempt)
            subprocess.run(["chown", "-R", "61001:61001", str(place)], check=True)
            program_ = place / "source" / "hpcext" / "launch" / "supervise.py"
            words = ["/usr/bin/python3", "-I", "-S", str(program_), str(stage.directory)]
            environ = {**os.environ, "HPCEXT_TEST_MARK": str(place)}
            supervisor = subprocess.Popen(
                ["setpriv", *who, *rights, *words], env=environ, stderr=subprocess.PIPE, cwd="/"
            )
            wait_steps(stage)
            if attempt == 1:
                document = suspended(stage, supervisor)
                assert document["checkpoint"]["saved"], (document, stage.log.read_text())
        completed(stage, supervisor)
    finally:
        stage.kill_all()
        shutil.rmtree(place, ignore_errors=True)


@needs_criu
@pytest.mark.slow
def test_what_is_left_of_it_is_found_although_it_began_in_an_earlier_attempt(stage: Stage) -> None:
    supervisor = begin(stage, "child")
    wait_steps(stage)
    suspended(stage, supervisor)
    supervisor = begin(stage, "child", attempt=2)
    wait_steps(stage)
    supervisor.kill()
    end(supervisor)
    # The command is killed with its supervisor, its child is not.
    stage.wait_for(lambda: len(stage.processes()) == 1, "the end of the command")
    sweep.sweep(stage.directory, 0, "nonce")
    assert stage.processes() == []


@needs_criu
@pytest.mark.slow
def test_images_that_are_not_complete_are_not_believed_and_it_goes_on(stage: Stage) -> None:
    path = stand_in(stage, dump='REAL "$@"; code=$?; rm "$images"/pagemap-*.img; exit $code')
    supervisor = begin(stage, path=path)
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, "the images are not complete: pagemap-")
    wait_steps(stage)
    assert not (stage.path / "1" / "images").exists()
    completed(stage, supervisor)


@needs_criu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("file", "data, which they had open, has changed"),
        ("image", "is missing, or not as it was written"),
        ("others", "the images are not private: others may use it"),
        ("node", "another machine"),
        ("note", "images.json"),
        ("devices", "other GPUs are visible"),
        ("restore", "criu restore: pie: 7: Restorer fails"),
        ("slow", "criu"),
    ],
)
def test_what_cannot_go_on_begins_anew_and_what_is_lost_is_said(
    stage: Stage, how: str, why: str
) -> None:
    supervisor = begin(stage, "open")
    wait_steps(stage)
    suspended(stage, supervisor)
    place, path, changes = stage.path / "1" / "images", "", dict[str, Any]()
    document = json.loads((place / "images.json").read_text())
    if how == "file":
        (stage.path / "data").write_text("changed")
    elif how == "image":
        next(place.glob("core-*.img")).unlink()
    elif how == "others":
        place.chmod(0o750)
    elif how == "node":
        (place / "images.json").write_text(json.dumps({**document, "node": "elsewhere"}))
    elif how == "note":
        (place / "images.json").write_text('{"schema": "hpcext.im')
    elif how == "devices":
        environ = {**stage.read("launch.json")["environ"], "CUDA_VISIBLE_DEVICES": "3"}
        changes = {"environ": environ}
    elif how == "restore":
        path = stand_in(stage, restore='log "Error (criu/x.c:1): pie: 7: Restorer fails"; exit 1')
    else:
        # It has left something behind, although it fails.
        path = stand_in(stage, restore='REAL "$@"; exit 1')
    supervisor = begin(stage, "open", attempt=2, path=path, **changes)
    stage.wait_for(lambda: steps(stage).count(0) == 2, "another beginning")
    said = stage.log.read_text()
    assert "cannot go on where it was suspended" in said
    assert why in said
    lost = "all of its work is lost" if how == "note" else "of work are lost"
    assert f"{lost}, and it begins anew" in said
    assert lost in stage.read("native.json")["notes"][0]
    assert not place.exists()
    assert len(stage.processes()) == 2  # the supervisor and the command
    (stage.path / "stop").touch()
    assert end(supervisor) == 0


@needs_criu
@pytest.mark.slow
def test_it_waits_for_its_process_ids_and_loses_nothing_meanwhile(stage: Stage) -> None:
    supervisor = begin(stage)
    wait_steps(stage)
    suspended(stage, supervisor)
    core = stage.path / "1" / "images" / "pstree.img"
    whole = core.read_bytes()
    # As if this very process had taken the id of one of them.
    process = _varint(os.getpid())
    message = b"\x08" + process + b"\x10\x00\x18" + process + b"\x20" + process + b"\x28" + process
    core.write_bytes(whole[:8] + len(message).to_bytes(4, "little") + message)
    document = json.loads((core.parent / "images.json").read_text())
    document["images"]["pstree.img"] = core.stat().st_size
    (core.parent / "images.json").write_text(json.dumps(document))
    supervisor = begin(stage, attempt=2)
    assert end(supervisor) == 71
    assert "belongs to another process" in stage.read("exit.json")["not_started"]
    core.write_bytes(whole)
    document["images"]["pstree.img"] = core.stat().st_size
    (core.parent / "images.json").write_text(json.dumps(document))
    completed(stage, begin(stage, attempt=3))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def test_no_process_of_another_job_is_taken_for_a_remainder(stage: Stage) -> None:
    elsewhere = stage.path / "2" / "attempt-0001"
    document = {"schema": protocol.NATIVE, "began_as": str(elsewhere)}
    (stage.directory / "native.json").write_text(json.dumps(document))
    assert sweep.marks_of(stage.directory) == [f"HPCEXT_REPORT_DIR={stage.directory}"]


# Without one that works.

FAILED = 'log "Error (criu/x.c:1): A socket: no"; log "Error (criu/y.c:2): Dumping FAILED."; exit 1'
SUCCESS = 'log "Dumping finished successfully"'


@pytest.mark.parametrize(
    ("dump", "why"),
    [
        (FAILED, "criu dump: A socket: no"),
        pytest.param("exit 3", "criu dump: exit code 3", marks=pytest.mark.slow),
        pytest.param("exit 0", "does not end with success", marks=pytest.mark.slow),
        pytest.param(f"{SUCCESS}; exit 0", "the images are not complete", marks=pytest.mark.slow),
        pytest.param("kill -9 $$", "criu dump: signal 9", marks=pytest.mark.slow),
    ],
)
def test_a_suspension_that_fails_is_declined_and_it_goes_on(
    stage: Stage, dump: str, why: str
) -> None:
    supervisor = begin(stage, "child", path=stand_in(stage, dump=dump))
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, why)
    wait_steps(stage)
    assert not (stage.path / "1" / "images.new").exists()
    completed(stage, supervisor)


@pytest.mark.slow
def test_one_that_takes_too_long_is_given_up_even_if_it_has_stopped_everything(
    stage: Stage,
) -> None:
    dump = 'kill -STOP "$3"; sleep 1000'
    supervisor = begin(stage, path=stand_in(stage, dump=dump), suspend_timeout_s=2.0)
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, "it was not done in 2 s")
    wait_steps(stage)
    completed(stage, supervisor)


@pytest.mark.slow
def test_one_that_is_told_to_end_meanwhile_ends(stage: Stage) -> None:
    supervisor = begin(
        stage, "term", path=stand_in(stage, dump='touch "$work/asked"; exec sleep 1000')
    )
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    stage.wait_for((stage.directory / "asked").exists, "the helper")
    supervisor.terminate()
    end(supervisor)
    document = stage.read("exit.json")
    assert not document["suspended"]
    assert "told to end" in stage.log.read_text()
    assert document["checkpoint"]["anew"]
    assert document["checkpoint"]["lost_s"] > 0


@pytest.mark.slow
def test_what_has_left_its_tree_is_not_suspended(stage: Stage) -> None:
    supervisor = begin(stage, "gone", path=stand_in(stage))
    wait_steps(stage)
    supervisor.send_signal(signal.SIGTSTP)
    declined(stage, "has left the tree of the command")
    completed(stage, supervisor)


def test_where_no_way_works_it_is_ended_and_begins_anew_and_that_is_said(stage: Stage) -> None:
    path = program(stage, "#!/bin/sh\n# A stand-in of criu, for tests.\necho Version: 3.17.1\n")
    supervisor = begin(stage, path=path)
    wait_steps(stage)
    said = stage.log.read_text()
    assert "cannot be suspended as it is (CRIU: " in said
    assert "is 3.17.1; 4 or later is needed" in said
    assert "all of its work is lost" in stage.read("native.json")["notes"][0]
    document = suspended(stage, supervisor)
    assert document["checkpoint"]["anew"]
    ran_s = document["main_ended_at"] - document["started_at"]
    assert document["checkpoint"]["lost_s"] == pytest.approx(ran_s, abs=0.2)
    supervisor = begin(stage, attempt=2, path=path)
    stage.wait_for(lambda: steps(stage).count(0) == 2, "another beginning")
    (stage.path / "stop").touch()
    assert end(supervisor) == 0


# Its images.


def test_an_image_that_makes_no_sense_is_not_complete(tmp_path: Path) -> None:
    tree = tmp_path / "pstree.img"
    assert "not complete" in images.missing(tmp_path, 7)
    for data in (b"", b"1" * 8, b"1" * 8 + b"\xff\xff\xff\x7f", b"1" * 8 + b"\2\0\0\0\x08\x87"):
        tree.write_bytes(data)
        assert "not complete" in images.missing(tmp_path, 7)
    tree.write_bytes(b"1" * 8 + b"\4\0\0\0" + b"\x08\x07\x28\x07")
    assert images.processes(tmp_path) == {7: [7]}
    (tmp_path / "files.img").write_bytes(b"1" * 8)
    assert "inventory.img is missing" in images.missing(tmp_path, 7)
    assert "process 8 is not in them" in images.missing(tmp_path, 8)
    for name in ("inventory", "core-7", "mm-7", "pagemap-7"):
        (tmp_path / f"{name}.img").write_bytes(b"1" * 8)
    assert images.missing(tmp_path, 7) == ""
    (tmp_path / "mm-7.img").write_bytes(b"1")
    assert "mm-7.img is missing or empty" in images.missing(tmp_path, 7)
