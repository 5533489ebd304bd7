"""``hpcext simulate`` on the log of a batch system, whose jobs are rigid and state their limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import simulate

from hpcext.sim.traces.swf import SwfJob, write_swf
from hpcext.sim.workloads.find import find_workload
from hpcext.sim.workloads.workload import Setting

JOBS = [
    SwfJob(1, 0, -1, 100, 3, 3, 120), SwfJob(2, 10, -1, 90, 2, 2, 90),
    SwfJob(3, 20, -1, 100, 4, 4, 100), SwfJob(4, 30, -1, 900, 1, 1, 990),
    SwfJob(5, 40, -1, 50, 1, 1, -1),
]  # fmt: skip
"""On four nodes. 4 leaves 2 what it needs, but not 3; 5 states no limit."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "home" / kind))
    write_swf(tmp_path / "log.swf", JOBS, {"MaxNodes": 4})
    return tmp_path / "log.swf"


def waits(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, float]:
    found: dict[str, Any] = json.loads(simulate(capsys, *words, "--json")[0])
    return {each["label"]: each["figures"]["wait_mean_s"]["mean"] for each in found["policies"]}


def test_policies_are_told_limits_and_not_how_long_jobs_run(log: Path) -> None:
    jobs = [each for each, _ in find_workload(str(log), Setting()).jobs(0)]
    assert [each.walltime_s for each in jobs] == [120, 90, 100, 990, None]


def test_a_batch_system_with_backfill(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    policies = ("exclusive", "easy", "conservative")
    words = [word for policy in policies for word in ("--policy", policy)]
    found = waits(capsys, log, "--nodes", "4x1", *words)
    # By hand: in turn 1, 2, 3, 4 and 5 begin at 0, 100, 190, 290 and 290 s.
    assert found["exclusive"] == (0 + 90 + 170 + 260 + 250) / 5
    # 4 begins at 30 s beside 1, and 2 at 100 s, when 1 has ended early; 3 at 930 s, after 4. By its
    # limit 4 ends at 1,020 s, and nobody knows that 5 would end before.
    assert found["easy"] == (0 + 90 + 910 + 0 + 990) / 5
    # 3 is to begin at 210 s, and does when 2 has ended; 4 and 5 would delay it.
    assert found["conservative"] == (0 + 90 + 170 + 260 + 250) / 5


def test_the_main_queue_backfills_as_it_is_told(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    (log.parent / "t.csv").write_text(
        "name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1\na,0,1,1,0,0,40,1\n"
    )
    words = ("t.csv", "--main", log, "--main-nodes", "4", "--policy", "equal_share", "--json")
    # Job 4 takes the hole beside job 1 at 30 s, and the trainer cannot end; or it does not.
    easy = json.loads(simulate(capsys, *words, status=1)[0])
    told = json.loads(simulate(capsys, *words, "--main-backfill", "conservative")[0])
    assert easy["policies"][0]["source"] == f"holes of {log} on 4 nodes"
    assert told["policies"][0]["source"] == f"holes of {log} on 4 nodes by conservative backfill"
    _, err = simulate(capsys, log, "--nodes", "4x1", "--main-backfill", "easy", status=2)
    assert err == ("hpcext: --main-backfill: has no meaning without --main; leave it out\n")
