"""``hpcext simulate`` as real processes that are interrupted or killed half-way."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from site_of_test import Site, wait_for

TRAINERS = """\
name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2,rate_4
a,0,1,4,10,5,1e6,1,1.9,3.6
b,0,1,2,10,5,1e6,2,3.6,7
"""
SEEDS = 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "group", "workers"),
    [
        (signal.SIGINT, True, 2),
        pytest.param(signal.SIGINT, False, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, 2, marks=pytest.mark.slow),
    ],
    ids=["ctrl-c", "interrupt", "kill"],
)
def test_what_was_ready_stays_and_the_same_command_goes_on(
    site: Site, signum: signal.Signals, group: bool, workers: int
) -> None:
    (site.path / "t.csv").write_text(TRAINERS)
    words = ["simulate", "t.csv", "--idle", "summit:hours=20", "--hours", "20"]
    words += ["--policy", "equal_share", "--report", "out", "--workers", str(workers)]
    words += [f"--seed={seed}" for seed in range(SEEDS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcext", *words],
        cwd=site.path,
        env=site.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background may have had it ignored.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    site.started.append(process)
    runs = site.path / "out" / "runs"
    wait_for(lambda: runs.is_dir() and any(runs.glob("*.json")), "the first run")
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= workers if workers > 1 else not family
    (os.killpg if group else os.kill)(process.pid, signum)
    out, err = process.communicate(timeout=500)
    assert process.returncode == (130 if signum == signal.SIGINT else -signum), err
    assert out == ""
    assert "Traceback" not in err
    assert ("the same command continues" in err) == (signum == signal.SIGINT)
    assert psutil.wait_procs(family, timeout=30)[1] == []

    ready = sorted(runs.glob("*.json"))
    assert 1 <= len(ready) < SEEDS
    before = {path: path.read_bytes() for path in ready}
    for data in before.values():
        assert json.loads(data)["schema"] == "hpcext.simulate/1"
    again = site.run(*words)
    # The trainers cannot be done in twenty hours.
    assert again.code == 1, again
    assert f"{len(ready)} of {SEEDS} runs already exist" in again.err
    assert len(list(runs.glob("*.json"))) == SEEDS
    assert {path: path.read_bytes() for path in ready} == before
    assert (site.path / "out" / "report.html").exists()


def test_a_worker_that_is_killed_is_one_line(site: Site) -> None:
    (site.path / "t.csv").write_text(TRAINERS)
    words = ("simulate", "t.csv", "--idle", "summit:hours=100", "--hours", "100")
    process = site.start(*words, "--seed", "1", "--seed", "2", "--workers", "2")
    parent = psutil.Process(process.pid)

    def workers() -> list[psutil.Process]:
        found = [child for child in parent.children() if "spawn_main" in " ".join(child.cmdline())]
        return found if len(found) == 2 else []

    wait_for(workers, "both workers")[0].kill()
    _, err = process.communicate(timeout=500)
    assert process.returncode == 1
    assert err == (
        "hpcext: a simulation process was killed; if it ran out of memory, use fewer --workers\n"
    )
