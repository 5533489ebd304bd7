"""``scaling = "NAME"`` in a job file: what a pilot makes of it, with real trainings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from site_of_test import wait_for

from hpcext.core.errors import InputError
from hpcext.jobfile import parse_jobs
from hpcext.jobspec import JobSpec, optimum
from hpcext.profiles import Measurement, Profiles

QUICK = (
    "-c",
    "import hpcext.manager.refine as r; r.SKIP_S, r.ENOUGH_S = 0.5, 1.0; "
    "from hpcext.__main__ import main; raise SystemExit(main())",
)
"""A manager that does not ask for minutes before it learns."""


def store(directory: Path, name: str = "cnn", **more: Any) -> Profiles:
    profiles = Profiles(directory, "slot")
    curve = more.pop("curve", {1: 10.0, 2: 19.0, 3: 26.0, 4: 24.0})
    profiles.add(
        name,
        [
            Measurement(
                at=0, gpus=gpus, steps_per_s=rate, seconds=20, source="profile", gpu="slot", **more
            )
            for gpus, rate in curve.items()
        ],
    )
    return profiles


def read(tmp_path: Path, keys: str, profiles: Profiles | None) -> JobSpec:
    text = f'[[job]]\nname = "a"\ncommand = "true"\nscaling = "cnn"\n{keys}\n'
    return parse_jobs(text, "jobs.toml", tmp_path, profiles=profiles)[0]


def test_a_job_gets_its_curve_and_the_optimum_of_it(tmp_path: Path) -> None:
    profiles = store(tmp_path / "profiles")
    spec = read(tmp_path, "gpus = {max = 6}", profiles)
    assert (spec.scaling, spec.profile) == ({1: 10, 2: 19, 3: 26, 4: 24}, "cnn")
    assert optimum(spec) == 3
    assert optimum(read(tmp_path, "gpus = {max = 2}", profiles)) == 2
    assert optimum(read(tmp_path, "gpus = {max = 6, optimal = 1}", profiles)) == 1


def test_the_unit_is_that_of_the_work(tmp_path: Path) -> None:
    profiles = store(tmp_path / "profiles", samples_per_s=80.0)
    for keys, rate, relative in (
        ("work = {steps = 9}", 10.0, False),
        ("work = {samples = 9}", 80.0, False),
        ("", 80.0, False),
    ):
        spec = read(tmp_path, f"gpus = {{max = 4}}\n{keys}", profiles)
        assert (spec.scaling[1], spec.relative) == (rate, relative)
    steps = store(tmp_path / "other")
    spec = read(tmp_path, "gpus = {max = 4}\nwork = {samples = 9}", steps)
    assert (spec.scaling, spec.relative) == ({1: 1, 2: 1.9, 3: 2.6, 4: 2.4}, True)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("gpus = {min = 5, max = 6}", "profile 'cnn' has no measurement on 5 to 6 GPUs"),
        ("gpus = 8", "profile 'cnn' has no measurement on 8 GPUs"),
    ],
)
def test_gpus_beyond_the_curve_are_refused(tmp_path: Path, keys: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, keys, store(tmp_path / "profiles"))
    assert str(caught.value).startswith(f"jobs.toml: [[job]] 1 (a): scaling: {told}")
    assert "1, 2, 3, 4" in str(caught.value)
    assert "hpcext profile --name cnn --gpus" in str(caught.value)


def test_an_unknown_name_is_refused_with_the_nearest(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = lab.site.write_jobs({"name": "a", "command": "true", "scaling": "resnt50"})
    for name, word in (("", "none is stored"), ("resnet50", "did you mean resnet50?")):
        if name:
            store(lab.profiles, name)
        assert lab.main("run", str(jobs), "--gpus", "2") == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        for part in ("jobs.toml: [[job]] 1 (a): scaling:", "no profile 'resnt50'", word):
            assert part in told
    (lab.profiles / "resnt50.json").write_text("{")
    assert lab.main("run", str(jobs), "--gpus", "2", "--dry-run") == 2
    assert "hpcext profile --remove resnt50" in capsys.readouterr().err
    assert not (lab.site.path / "state" / "hpcext" / "pilots").exists()


def test_a_plan_is_made_by_the_curve(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    store(lab.profiles)
    job = {"command": "true", "gpus": {"max": 6}, "scaling": "cnn"}
    for work, makespan_s in (({"steps": 260}, 10.0), ({"samples": 260}, None)):
        jobs = lab.site.write_jobs({"name": "a", **job, "work": work})
        assert lab.main("run", str(jobs), "--gpus", "6", "--dry-run", "--json") == 0
        plan = json.loads(capsys.readouterr().out)
        assert sum(plan["jobs"][0]["gpus"].values()) == 3
        # The shape of a curve in another unit says nothing of how long it takes.
        assert plan["makespan_s"] == (makespan_s and pytest.approx(makespan_s))


def test_a_pilot_decides_by_a_measured_curve_and_refines_it(lab: Lab) -> None:
    """The whole way: measured, named, run on its best size, and known better afterwards."""
    pace = "0.12,0.02,0.12"
    done = lab.site.run("profile", "--gpus", "3", "--seconds", "1", "--", *lab.command(pace))
    assert done.code == 0, done
    lab.log.unlink()
    job = {
        "name": "train",
        "command": lab.command(pace, "--steps", "250"),
        "gpus": {"max": 3},
        "scaling": "paced",
    }
    lab.site.write_jobs(job)
    done = lab.site.run("run", str(lab.site.jobs), "--gpus", "3", python=QUICK)
    assert done.code == 0, done
    assert list(lab.account()) == [2]  # which is the fastest, by its own account
    learned = Profiles(lab.profiles).load("paced").measurements[-1]
    assert (learned.source, learned.gpus) == ("job", 2)
    slowest, fastest = lab.rates(2)
    assert slowest <= learned.steps_per_s <= fastest


def test_a_profile_that_is_damaged_meanwhile_does_not_disturb_the_run(lab: Lab) -> None:
    profiles = store(lab.profiles)
    path = profiles.directory / "cnn.json"
    damage = f"open({str(path)!r}, 'w').write('half of it')"
    lab.site.write_jobs(
        {
            "name": "train",
            "command": lab.command("0.02", "--steps", "200"),
            "scaling": "cnn",
        },
        {"name": "vandal", "command": [sys.executable, "-c", damage]},
    )
    done = lab.site.run("run", str(lab.site.jobs), "--gpus", "2", python=QUICK)
    assert (done.code, len(lab.account()[1])) == (0, 200)
    assert "profile cnn was not refined" in done.err
    assert done.err.count("\n") == 1
    assert path.read_text() == "half of it"


def test_jobs_that_are_submitted_later_are_resolved_by_the_manager(lab: Lab) -> None:
    store(lab.profiles)
    lab.site.write_jobs(
        {"name": "first", "command": [sys.executable, "-c", "import time; time.sleep(60)"]}
    )
    manager = lab.site.start("run", str(lab.site.jobs), "--gpus", "4", "--dir", str(lab.site.pilot))
    try:
        pilot = str(lab.site.pilot)
        wait_for((lab.site.pilot / "manager.json").exists, "the manager")
        more = {"command": lab.command("0.01,0.01,0.01", "--steps", "20"), "gpus": {"max": 4}}
        lab.site.write_jobs({"name": "more", **more, "scaling": "cnn"})
        lab.site.run_until_done("submit", pilot, str(lab.site.jobs))
        lab.site.write_jobs({"name": "other", **more, "scaling": "cn"})
        refused = lab.site.run("submit", pilot, str(lab.site.jobs))
        assert (refused.code, "did you mean cnn?" in refused.err) == (2, True), refused
        lab.site.run_until_done("cancel", pilot, "first")
    finally:
        manager.communicate()
    assert list(lab.account()) == [3]
