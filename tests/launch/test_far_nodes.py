"""Nodes that no signal of the manager reaches: their supervisors see and look for themselves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from stage import Stage, end, runs

from hpcext.launch import spread, supervise, sweep
from hpcext.process import Process

SHOW = ("sh", "-c", "echo gpus=$CUDA_VISIBLE_DEVICES node=$HPCEXT_NODE_INDEX")


def nodes(*positions: list[int] | None) -> list[dict[str, object]]:
    return [{"name": f"h{index}", "gpus": each} for index, each in enumerate(positions)]


def begin(stage: Stage, index: int, **variables: str) -> subprocess.Popen[bytes]:
    """Start the supervisor of a node."""
    name, _, value = stage.mark.partition("=")
    clean = {key: text for key, text in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervise.__file__, str(stage.directory), str(index)],
        env={**clean, name: value, **variables},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def order(stage: Stage, what: str) -> None:
    document = {"schema": "hpcext.order/1", "attempt": 1, "op": 7, "order": what}
    new = stage.directory / "new"
    new.write_text(json.dumps(document))
    new.rename(stage.directory / "order.json")


@pytest.mark.parametrize(
    ("said", "seen"),
    [("4,7,9", "4,9"), ("GPU-a,GPU-b,GPU-c", "GPU-a,GPU-c"), (None, "0,2")],
    ids=["indices", "names", "nothing"],
)
def test_gpus_are_chosen_from_those_of_the_host(stage: Stage, said: str | None, seen: str) -> None:
    """By position; where nothing says which they are, all that can be seen."""
    stage.write_launch(*SHOW, nodes=nodes([0], [0, 2]), notices=True)
    told = {"CUDA_VISIBLE_DEVICES": said} if said else {}
    assert end(begin(stage, 1, **told)) == 0
    assert f"gpus={seen} node=1" in (stage.path / "1" / "log.node-1.txt").read_text()
    place = json.loads((stage.directory / "node-0001" / "supervisor.json").read_text())
    assert place["node"] == "h1"


def test_a_launcher_that_gives_gpus_itself_is_believed(stage: Stage) -> None:
    stage.write_launch(*SHOW, nodes=nodes(None), notices=True)
    assert end(begin(stage, 0, CUDA_VISIBLE_DEVICES="5")) == 0
    assert "gpus=5 node=0" in stage.log.read_text()


def test_a_host_with_too_few_gpus_runs_nothing(stage: Stage) -> None:
    stage.write_launch(*SHOW, nodes=nodes([0, 2]), notices=True)
    supervisor = begin(stage, 0, CUDA_VISIBLE_DEVICES="4,7")
    _, said = supervisor.communicate(timeout=500)
    assert supervisor.returncode == 71
    assert b"GPU number 2 was requested, but CUDA_VISIBLE_DEVICES lists only 4,7" in said
    assert not (stage.directory / "exit.json").exists()


def test_an_order_is_found_without_a_signal(stage: Stage) -> None:
    stage.write_launch("sleep", "600", nodes=nodes([0]), notices=True)
    supervisor = begin(stage, 0)
    stage.wait_for((stage.directory / "supervisor.json").exists, "the supervisor")
    order(stage, "end")
    end(supervisor)
    assert stage.read("exit.json")["kill_asked_at"] is not None


def swept(stage: Stage, index: int) -> None:
    argv = [sys.executable, "-I", "-S", sweep.__file__, str(stage.directory), str(index), "abc"]
    subprocess.run(argv, check=True, timeout=500)
    own = stage.directory if index == 0 else stage.directory / f"node-{index:04d}"
    assert json.loads((own / "swept.json").read_text())["nonce"] == "abc"


def test_a_sweep_has_the_supervisor_end_what_it_runs(stage: Stage) -> None:
    stage.write_launch("sleep", "600", nodes=nodes([0]), notices=True)
    supervisor = begin(stage, 0)
    stage.wait_for((stage.directory / "supervisor.json").exists, "the supervisor")
    order(stage, "end")
    swept(stage, 0)
    end(supervisor)
    assert stage.read("exit.json")["kill_asked_at"] is not None
    assert not stage.processes()


def test_a_sweep_kills_what_a_dead_supervisor_left(stage: Stage) -> None:
    # A child in another session, which does not hear of its parent's end.
    left = "import os, time; os.fork() or os.setsid(); time.sleep(600)"
    stage.write_launch(sys.executable, "-c", left, nodes=nodes([0]), notices=True)
    supervisor = begin(stage, 0)
    stage.wait_for(lambda: len(stage.processes()) > 2, "the command and its child")
    supervisor.kill()
    swept(stage, 0)
    end(supervisor)
    assert not stage.processes()


def test_a_sweep_kills_what_has_lost_its_environment_below_a_supervisor_that_does_not_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "END_S", 0.0)
    command = "env -i setsid sh -c 'echo pid $$ >>diary; exec sleep 600' & wait"
    stage.write_launch("sh", "-c", command, nodes=nodes([0]), notices=True)
    supervisor = begin(stage, 0)
    ((pid,),) = stage.wait_said("pid")
    supervisor.send_signal(signal.SIGSTOP)
    sweep.sweep(stage.directory, 0, "abc")
    assert not runs(int(pid))
    end(supervisor)
    assert not stage.processes()


def test_after_a_sweep_no_supervisor_begins(stage: Stage) -> None:
    """A launcher may be slow: what it starts late finds the attempt taken."""
    stage.write_launch(*SHOW, nodes=nodes([0], [0]), notices=True)
    swept(stage, 1)
    assert end(begin(stage, 1)) == 75
    assert not (stage.path / "1" / "log.node-1.txt").exists()


def write_launchers(stage: Stage, *launchers: list[str]) -> None:
    document = {"schema": "hpcext.spread/1", "launchers": launchers}
    (stage.directory / "spread.json").write_text(json.dumps(document))


def spread_it(stage: Stage) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-S", spread.__file__, str(stage.directory)]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL)


def supervisor_argv(stage: Stage, index: int) -> list[str]:
    return [sys.executable, "-I", "-S", supervise.__file__, str(stage.directory), str(index)]


def test_a_spread_ends_when_every_node_has(stage: Stage) -> None:
    stage.write_launch(*SHOW, nodes=nodes([0], [1]), notices=True)
    write_launchers(stage, supervisor_argv(stage, 0), supervisor_argv(stage, 1))
    assert end(spread_it(stage)) == 0
    for path in (stage.directory, stage.directory / "node-0001"):
        assert json.loads((path / "exit.json").read_text())["exit_code"] == 0


def test_a_spread_does_not_wait_for_ever_when_one_node_is_lost(stage: Stage) -> None:
    stage.write_launch(*SHOW, nodes=nodes([0], [1]), notices=True)
    gone = stage.path / "gone"
    write_launchers(stage, ["false"], ["sh", "-c", f"sleep 60; touch {gone}"])
    began_s = time.monotonic()
    assert end(spread_it(stage)) == 1
    assert time.monotonic() - began_s >= spread.OTHERS_S
    assert not gone.exists()


def test_a_launcher_that_hangs_delays_no_job(stage: Stage) -> None:
    """What it started has said that all is over."""
    stage.write_launch(*SHOW, nodes=nodes([0]), notices=True)
    argv = shlex.join(supervisor_argv(stage, 0))
    write_launchers(stage, ["sh", "-c", f"{argv}; exec sleep 600"])
    assert end(spread_it(stage)) == 0


def test_supervisors_elsewhere_do_what_is_done_to_the_leader(stage: Stage) -> None:
    """What has no session is stopped, and goes on, with a leader that they cannot see."""
    leader = subprocess.Popen(["sleep", "600"])
    try:
        stage.write_launch(*stage.plain("wait", "short"), nodes=nodes([0]), notices=True)
        write_launchers(stage, supervisor_argv(stage, 0))
        file = stage.directory / "spread.json"
        process = Process.of(leader.pid)
        file.write_text(json.dumps({**json.loads(file.read_text()), "leader": str(process)}))
        spreading = spread_it(stage)
        [[pid, *_]] = stage.wait_said("importing")
        training = psutil.Process(int(pid))
        leader.send_signal(signal.SIGSTOP)
        stage.wait_for(lambda: training.status() == psutil.STATUS_STOPPED, "its stop")
        leader.send_signal(signal.SIGCONT)
        stage.wait_for(lambda: training.status() != psutil.STATUS_STOPPED, "that it goes on")
        Path(f"{stage.diary}.go").touch()
        assert end(spreading) == 0
    finally:
        leader.kill()
        leader.wait()


def test_a_second_spread_waits_for_the_first(stage: Stage) -> None:
    """Begun by a manager that did not know of the first: the attempt runs once all the same."""
    stage.write_launch("sh", "-c", "echo ran; sleep 2", nodes=nodes([0]), notices=True)
    write_launchers(stage, supervisor_argv(stage, 0))
    first = spread_it(stage)
    stage.wait_for((stage.directory / "supervisor.json").exists, "the supervisor")
    second = spread_it(stage)
    assert (end(first), end(second)) == (0, 0)
    assert stage.log.read_text().count("ran") == 1
