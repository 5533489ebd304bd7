"""A pilot with a real training on a disk that is full and has room again; of test_full_disk.py.

``full.py DIRECTORY RANKS`` with a tmpfs at ``DIRECTORY/disk``; it exits 0 if all is as it should.
Everything is judged by what the training itself wrote down, outside that disk.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from site_of_test import Site, wait_for
from written import whole_lines

ROOM = 200_000
"""What is left on the full disk: enough for reports, not for a checkpoint."""

site = Site(Path(sys.argv[1]))
site.pilot = site.path / "disk" / "pilot"
ballast = site.path / "disk" / "ballast"
script = Path(__file__).with_name("train_ballast.py")


def fill() -> None:
    """Leave no more than that, whatever is written there meanwhile."""
    with contextlib.suppress(OSError):
        ballast.write_bytes(bytes(free()))
    os.truncate(ballast, ballast.stat().st_size - max(0, ROOM - free()))


def free() -> int:
    room = os.statvfs(site.path / "disk")
    return room.f_bavail * room.f_bsize


def job() -> dict[str, Any]:
    (found,) = site.document("status", str(site.pilot))["jobs"]
    return dict(found)


def steps() -> list[tuple[int, int]]:
    """Attempt and number of every step that rank 0 says it did."""
    log = site.path / "steps"
    return [tuple(map(int, line.split())) for line in whole_lines(log)]


def goes_on() -> None:
    before = len(steps())
    wait_for(lambda: len(steps()) > before + 5, "more steps")


def attempt() -> dict[str, Any]:
    reports = sorted(site.pilot.glob("jobs/*/attempt-*/report.json"))
    return json.loads(reports[-1].read_text()) if reports else {}


def why() -> str:
    return site.run("why", str(site.pilot), "a").out


def main() -> None:
    ranks = int(sys.argv[2])
    command = [sys.executable, "-m", "hpcext", "launch", "--", sys.executable, str(script)]
    environ = {"SCRIPT_LOG": str(site.path / "steps"), "SCRIPT_END": str(site.path / "end")}
    site.write_jobs({"name": "a", "command": command, "gpus": ranks, "env": environ})
    manager = site.start("run", str(site.jobs), "--gpus", str(ranks), "--dir", str(site.pilot))
    wait_for(lambda: attempt().get("saved_step", 0) > 0, "a checkpoint")
    fill()

    # A periodic one that fails is told.
    wait_for(lambda: "cannot save: disk full; newest checkpoint step" in why(), "the reason")
    assert "goes on training" in why(), why()
    shown = site.run("status", str(site.pilot)).out
    assert "a cannot save: disk full; newest checkpoint step" in shown, shown
    assert "running, cannot save" in shown, shown

    # Killed there: what is lost is said, and is as much as is done again.
    os.kill(attempt()["pid"], signal.SIGKILL)
    wait_for(lambda: steps()[-1][0] == 2, "the second attempt")
    wait_for(lambda: attempt().get("attempt") == 2 and job()["attempts"] == 2, "its report")
    found = wait_for(lambda: (each := job())["lost_steps"] and each, "what was lost")
    last = max(step for number, step in steps() if number == 1)
    begun = min(step for number, step in steps() if number == 2)
    # Killed between its account of a step and the end of that: one less.
    assert 0 <= last - begun + 1 - found["lost_steps"] <= 1, (last, begun, found)
    assert found["lost_steps_exact"] is True
    assert f"{found['lost_steps']} steps are lost (cannot save: disk full)" in why(), why()

    # A wish: it goes on training on all ranks, and says why.
    assert site.run("suspend", str(site.pilot), "a").code == 0
    wait_for(lambda: attempt().get("declined", 0) >= 1, "the answer")
    wait_for(lambda: "to be suspended when it may have room" in why(), "the pause")
    goes_on()
    found = job()
    assert (found["state"], found["suspends"], found["attempts"]) == ("running", 0, 2), found
    assert found["cannot_save"].startswith("cannot save: disk full; newest checkpoint step"), found
    assert attempt()["declined"] < 5, "it is asked again and again"
    goes_on()

    # Room: the suspension happens by itself, and no step is lost.
    ballast.unlink()
    wait_for(lambda: job()["suspends"] == 1, "the suspension")
    stopped = steps()[-1]
    assert job()["cannot_save"] is None
    (site.path / "end").touch()
    assert site.run("resume", str(site.pilot), "a").code == 0
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    assert "cannot save: disk full" in out, out
    assert "steps are lost (cannot save: disk full)" in out, out
    assert next(step for number, step in steps() if number == 3) == stopped[1] + 1
    twice = collections.Counter(step for _, step in steps() if step >= begun)
    assert all(count == 1 for step, count in twice.items() if step > last)


try:
    main()
except BaseException:
    for log in sorted(site.pilot.glob("jobs/*/log*.txt")):
        sys.stderr.write(log.read_text()[-4000:])
    sys.stderr.write(why() + site.run("status", str(site.pilot)).out)
    raise
