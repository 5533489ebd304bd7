"""The launcher starts ranks, ends them together, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from hpcext import protocol
from hpcext.launch import ranks

WAIT_S = 240.0

SAY = """
import json, os, signal, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "HPCEXT_RENDEZVOUS", "HPCEXT_RANK", "HPCEXT_JOINS", "OMP_NUM_THREADS")
blocked = [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
facts = {name: os.environ[name] for name in names}
slurm = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
# One write: print makes two of it where PYTHONUNBUFFERED is set, and ranks share their output.
os.write(1, json.dumps({**facts, "blocked": blocked, "slurm": slurm}).encode() + b"\\n")
"""

WAIT_FOR_SUSPENSION = """
import signal, sys, time
from pathlib import Path
import os
Path(f"up-{os.environ['RANK']}").touch()
while signal.SIGTSTP not in signal.sigpending():
    time.sleep(0.01)
sys.exit(85)
"""

ONE_FAILS = """
import os, sys, time
from pathlib import Path
Path(f"up-{os.environ['RANK']}").touch()
while not Path("fail").exists():
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(600)
"""

STUBBORN = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(f"up-{os.environ['RANK']}").touch()
time.sleep(600)
"""


def begin(
    path: Path,
    script: str,
    size: int,
    environ: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:
    launch = [sys.executable, "-m", "hpcext", "launch", "--ranks", str(size), *options]
    return subprocess.Popen(
        [*launch, sys.executable, "-c", script],
        cwd=path,
        env={**os.environ, **(environ or {}), "TMPDIR": str(path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_up(path: Path, size: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(list(path.glob("up-*"))) < size:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end(process: subprocess.Popen[str], path: Path) -> tuple[int, str]:
    """How it ended; nothing of it is there any more."""
    _, err = process.communicate(timeout=WAIT_S)
    assert not list(path.glob("hpcext-ranks-*"))
    mark = f"HPCEXT_RANK={path}"
    for other in psutil.process_iter():
        try:
            assert mark not in Path(f"/proc/{other.pid}/environ").read_text(errors="replace")
        except OSError:
            continue
    return process.returncode, err


def test_the_environment_of_each_rank(tmp_path: Path) -> None:
    out, err = begin(tmp_path, SAY, 3).communicate(timeout=WAIT_S)
    told = sorted((json.loads(line) for line in out.splitlines()), key=lambda it: it["RANK"])
    assert [it["RANK"] for it in told] == [it["LOCAL_RANK"] for it in told] == ["0", "1", "2"], err
    assert {it["WORLD_SIZE"] for it in told} == {it["LOCAL_WORLD_SIZE"] for it in told} == {"3"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "HPCEXT_RENDEZVOUS", "HPCEXT_JOINS"):
        assert len({it[name] for it in told}) == 1
    assert len({it["HPCEXT_RANK"] for it in told}) == 3
    assert {it["OMP_NUM_THREADS"] for it in told} == {os.environ.get("OMP_NUM_THREADS", "1")}
    assert all({signal.SIGTSTP, protocol.NEWS_SIGNAL} <= set(it["blocked"]) for it in told)


def test_a_rank_is_not_a_task_of_slurm(tmp_path: Path) -> None:
    """Lightning, for one, takes what Slurm says of a task for what it says of this rank."""
    told = {"SLURM_JOB_ID": "7", "SLURM_STEP_GPUS": "0,1"}
    task = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_NTASKS_PER_NODE": "1"}
    process = begin(tmp_path, SAY, 2, {**told, **task})
    out, _ = process.communicate(timeout=WAIT_S)
    for line in out.splitlines():
        assert json.loads(line)["slurm"] == told


def test_one_rank_for_each_gpu_of_the_attempt(tmp_path: Path) -> None:
    attempt = protocol.Attempt("1", 1, 1, tmp_path, tmp_path, num_gpus=2)
    process = subprocess.run(
        [sys.executable, "-I", "-S", ranks.__file__, "0", sys.executable, "-c", SAY],
        env={**os.environ, **attempt.environ()},
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    assert len(process.stdout.splitlines()) == 2


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    process = begin(tmp_path, ONE_FAILS, 3)
    wait_until_up(tmp_path, 3)
    (tmp_path / "fail").touch()
    assert end(process, tmp_path)[0] == 7


def test_told_to_end_it_ends_all(tmp_path: Path) -> None:
    process = begin(tmp_path, ONE_FAILS, 2)
    wait_until_up(tmp_path, 2)
    process.terminate()
    assert end(process, tmp_path)[0] == 128 + signal.SIGTERM


def test_stubborn_ranks_are_killed(tmp_path: Path) -> None:
    process = begin(tmp_path, STUBBORN, 2)
    wait_until_up(tmp_path, 2)
    process.terminate()
    assert end(process, tmp_path)[0] == 128 + signal.SIGTERM


def test_killed_itself_it_leaves_no_rank(tmp_path: Path) -> None:
    process = begin(tmp_path, ONE_FAILS, 2)
    wait_until_up(tmp_path, 2)
    children = psutil.Process(process.pid).children()
    process.kill()
    assert len(children) == 2
    assert not psutil.wait_procs(children, timeout=WAIT_S)[1]


def test_by_hand_a_suspension_reaches_every_rank(tmp_path: Path) -> None:
    process = begin(tmp_path, WAIT_FOR_SUSPENSION, 2)
    wait_until_up(tmp_path, 2)
    process.send_signal(signal.SIGTSTP)
    assert end(process, tmp_path)[0] == protocol.EXIT_SUSPENDED


def test_several_nodes_that_do_not_know_where_to_meet_are_refused(tmp_path: Path) -> None:
    attempt = protocol.Attempt("1", 1, 1, tmp_path, tmp_path, num_gpus=2, num_nodes=2)
    code, err = end(begin(tmp_path, SAY, 2, attempt.environ()), tmp_path)
    assert code == 2
    assert "2 nodes" in err
    assert "HPCEXT_RENDEZVOUS" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["--ranks", "0", "true"], "valid: 1 to"),
        (["no-such-program"], "command 'no-such-program'"),
    ],
)
def test_wrong_use(words: list[str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "hpcext", "launch", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_rank_whose_step_cannot_be_made_again_is_not_replaced(tmp_path: Path) -> None:
    process = begin(tmp_path, ONE_FAILS, 2, options=("--replace", "1"))
    wait_until_up(tmp_path, 2)
    (tmp_path / "fail").touch()
    code, said = end(process, tmp_path)
    assert code == 7
    why = "rank 1 of 2 ended with exit code 7, and all others are ended"
    assert f"launch: {why}: the training cannot make a step again" in said


@pytest.mark.parametrize("number", ["-1", "101"])
def test_a_number_of_ranks_to_replace_is_refused(tmp_path: Path, number: str) -> None:
    code, said = end(begin(tmp_path, SAY, 2, options=("--replace", number)), tmp_path)
    assert code == 2
    assert said == f"hpcext: --replace: {number} ranks (valid: 0 to 100)\n"
