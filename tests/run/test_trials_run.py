"""Sweeps with real processes: sweep, run, trials, as a user has them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
from site_of_test import Finished, Site, wait_for

from hpcext.core.engine import Engine
from hpcext.manager import journal

SCRIPT = Path(__file__).with_name("train_setting.py")


def sweep(site: Site, qualities: str, *words: str, rest: tuple[str, ...] = ()) -> Path:
    """A job file of trials with these qualities."""
    site.environ["SETTING_LOG"] = str(site.path / "settings.log")
    # `hpcext` and `python` are those of the test.
    site.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    out = site.path / "trials.toml"
    grid = f"quality={qualities}"
    made = site.run("sweep", str(SCRIPT), "--grid", grid, *words, "-o", str(out), "--", *rest)
    assert made.code == 0, made
    return out


def trials(site: Site) -> list[dict[str, Any]]:
    document = site.document("trials", str(site.pilot))
    assert document["schema"] == "hpcext.trials/1"
    ((found),) = (each["trials"] for each in document["sweeps"])
    assert isinstance(found, list)
    return found


def by_quality(site: Site) -> dict[str, dict[str, Any]]:
    return {each["settings"]["quality"]: each for each in trials(site)}


def run(site: Site, jobs: Path, gpus: int) -> Finished:
    return site.run("run", str(jobs), "--gpus", str(gpus), "--dir", str(site.pilot))


RULES = ("--metric", "score", "--goal", "max", "--first", "3", "--factor", "3")


def test_trials_that_are_behind_are_ended(site: Site) -> None:
    """One after the other, so that it is known who comes first; the first and the best go on."""
    gate = site.path / "gate-{name}"
    jobs = sweep(site, "0.5,0.2,nan,0.9", *RULES, rest=("--gate", str(gate)))
    for name in ("train_setting-1-quality0.5", "train_setting-4-quality0.9"):
        # The others never end by themselves, however late they are told to.
        Path(str(gate).format(name=name)).touch()
    ran = run(site, jobs, 1)
    assert ran.code == 0, ran
    found = by_quality(site)
    assert [each["settings"]["quality"] for each in trials(site)] == ["0.9", "0.5", "0.2", "nan"]
    assert {name: each["state"] for name, each in found.items()} == {
        "0.5": "completed", "0.2": "ended", "nan": "ended", "0.9": "completed",
    }  # fmt: skip
    assert found["0.2"]["why"] == (
        "behind at step 3 of its sweep: score 0.2; of 2 trials there the best had 0.5"
    )
    assert found["nan"]["why"] == (
        "behind at step 3 of its sweep: score is not a number; of 3 trials there the best had 0.5"
    )
    # Exactly at the rungs, however seldom the manager looks.
    assert found["0.9"]["rungs"] == [{"step": step, "value": 0.9} for step in (3, 9, 27)]
    assert found["nan"]["value"] is None
    # They were told to end, and no attempt followed.
    log = (site.path / "settings.log").read_text().split("\n")
    assert sorted(line for line in log if "began" in line) == [
        "0.2 began 0", "0.5 began 0", "0.9 began 0", "nan began 0",
    ]  # fmt: skip
    table = site.run("trials", str(site.pilot), "--plot", str(site.path / "curves.svg"))
    assert (table.code, table.err) == (0, "")
    assert table.out.splitlines()[1].split() == [
        "id", "state", "quality", "@3", "@9", "@27", "score", "step",
    ]  # fmt: skip
    assert f"best: train_setting-4-quality0.9; its checkpoint is in {site.pilot}" in table.out
    assert Path(table.out.split("checkpoint is in ")[1].strip()).is_dir()
    assert (site.path / "curves.svg").read_text().count("train_setting-4-quality0.9") == 1


def test_a_manager_that_was_killed_decides_alike(site: Site) -> None:
    """What was said at rungs is in the journal; the next trial is compared with it."""
    gate = site.path / "gate"
    jobs = sweep(site, "0.5,0.2", *RULES, rest=("--gate", str(gate)))
    manager = site.start("run", str(jobs), "--gpus", "1", "--dir", str(site.pilot))

    def first_is_at_its_last_step() -> bool:
        asked = site.run("trials", str(site.pilot), "--json")
        return '"step": 27' in asked.out

    wait_for(first_is_at_its_last_step, "the last rung of the first trial")
    os.kill(manager.pid, signal.SIGKILL)
    manager.wait()
    gate.touch()
    ran = site.run("run", "--resume", str(site.pilot))
    assert ran.code == 0, ran
    found = by_quality(site)
    assert (found["0.5"]["state"], found["0.2"]["state"]) == ("completed", "ended")
    assert [each["step"] for each in found["0.5"]["rungs"]] == [3, 9, 27]

    # Told all of it once more, or saved in the middle of it, an engine comes to the same.
    past = journal.read(site.pilot / "journal.jsonl")
    whole = past.replay().world.save()
    engine = past.begin()
    for entry in past.entries:
        engine.step(entry.now_s, entry.facts)
        saved = msgspec.json.encode(engine.world.save())
        engine = Engine(saved=msgspec.json.decode(saved, type=type(whole)))
    assert engine.world.save() == whole


def test_proposals_are_handed_to_a_pilot_that_runs(site: Site) -> None:
    gate = site.path / "gate"
    jobs = sweep(site, "0.5", *RULES[:4], rest=("--gate", str(gate)))
    manager = site.start("run", str(jobs), "--gpus", "2", "--dir", str(site.pilot))
    wait_for(lambda: site.run("status", str(site.pilot)).code == 0, "the pilot")
    words = ["--range", "quality=0:1", *RULES[:4], "--random", "2", "--optuna", str(site.pilot)]
    site.run_until_done("sweep", str(SCRIPT), *words, "--", "--gate", str(gate))
    gate.touch()
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    found = trials(site)
    assert {each["name"].split("-")[1] for each in found} == {"1", "2", "3"}
    assert {each["state"] for each in found} == {"completed"}
    best = [float(each["settings"]["quality"]) for each in found]
    assert best == sorted(best, reverse=True)


def test_a_missing_metric_is_warned_about_once(site: Site) -> None:
    jobs = sweep(site, "1,2", *RULES, rest=("--metric", "loss"))
    ran = run(site, jobs, 2)
    assert ran.code == 0, ran
    warned = [line for line in ran.err.splitlines() if "has not reported score" in line]
    assert len(warned) == 1, ran
    assert "(it reports loss); without it no trial is ended" in warned[0]
    assert {each["state"] for each in trials(site)} == {"completed"}
    assert "has not reported score" in site.run("trials", str(site.pilot)).err


def test_a_pilot_without_trials(site: Site) -> None:
    site.write_jobs(site.counter("one", steps=2))
    assert run(site, site.jobs, 1).code == 0
    asked = site.run("trials", str(site.pilot))
    assert asked.code == 2
    assert "no trials in it" in asked.err
