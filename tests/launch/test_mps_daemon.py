"""NVIDIA's own control daemon, which runs without a GPU as long as nobody computes.

It comes with NVIDIA's driver, and in Debian's non-free as nvidia-cuda-mps:
``pytest -m slow tests/launch/test_mps_daemon.py`` with it in PATH.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpcext.launch.mps import CONTROL, Seat
from hpcext.process import Process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(CONTROL) is None, reason=f"no driver of NVIDIA: {CONTROL}"),
]


@pytest.fixture
def where(tmp_path: Path) -> Iterator[dict[str, str]]:
    pipe = tmp_path / "mps-0" / "pipe"
    yield {"directory": str(tmp_path / "mps-0"), "device": "0"}
    if pipe.exists():
        shutil.rmtree(pipe.read_text(), ignore_errors=True)


def daemons(where: dict[str, str]) -> list[psutil.Process]:
    """Those that serve a GPU."""
    found = []
    for process in psutil.process_iter(["name", "status"]):
        if CONTROL.startswith(process.info["name"] or "?"):
            ours = process.info["status"] != psutil.STATUS_ZOMBIE
            logs = process.environ().get("CUDA_MPS_LOG_DIRECTORY", "") if ours else ""
            if logs.startswith(where["directory"]):
                found.append(process)
    return found


def test_the_first_starts_it_and_the_last_ends_it(where: dict[str, str]) -> None:
    one, other = Seat(where), Seat(where)
    one.take()
    (daemon,) = daemons(where)
    pipe = (Path(where["directory"]) / "pipe").read_text()
    other.take()
    assert daemons(where) == [daemon]
    # Its signals are heard: what starts it has them blocked.
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    assert "SigBlk:\t0000000000000000" in status
    # It has no client; neither has it a server that could be asked.
    one.release([Process.me()])
    one.leave()
    assert daemons(where) == [daemon]
    other.leave()
    assert not daemons(where)
    assert not os.path.exists(pipe), "its sockets go with it"
    log = (Path(where["directory"]) / "log" / "control.log").read_text()
    assert "Exit with status 0" in log
    one.take()
    assert len(daemons(where)) == 1
    one.leave()
    assert not daemons(where)


def test_the_daemon_answers_questions_about_unknown_servers(where: dict[str, str]) -> None:
    """As the stand-in of the other tests does."""
    seat = Seat(where)
    seat.take()
    try:
        assert seat._ask("get_server_list") == ""
        assert (seat._ask("get_client_list 1") or "").strip() == "Server 1 not found"
        assert seat._pids("get_client_list 1") == set()
        assert (seat._ask("terminate_client 1 2") or "").startswith("Server 1 not found")
    finally:
        seat.leave()
