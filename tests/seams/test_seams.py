"""Packages that are not ours plug in by entry points, and cost nobody else anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HPCEXT = (sys.executable, "-m", "hpcext")

JOBS = """
[[job]]
name = "first"
command = "true"

[[job]]
name = "last"
command = "true"
"""

LAST_FIRST = """
from hpcext.core.values import Grant, Role, Target

def allocate(now):
    busy = [job for job in now.jobs if job.goal]
    for job in [*busy, *reversed(now.jobs)]:
        if job.ready:
            node = next(iter(now.nodes))
            return Target({job.id: Grant({node: 1}, Role.PRIMARY, "is last")})
    return Target()
"""

STUDY = """
from hpcext.papers.study import Row, Study, Table

def study(how):
    rows = (Row("seeds", len(how.seeds)),)
    return Study("theirs", "A paper of theirs", (Table("Table 1", rows),))
"""

PREDICTOR = """
from hpcext.scaling.speed.averages import Memoryless

def make(seed, background):
    return Memoryless()
"""


def install(place: Path, name: str, module: str, text: str, group: str = "hpcext.policies") -> None:
    """Lay a package into a directory as pip does."""
    (place / f"{module}.py").write_text(text)
    info = place / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = {"hpcext.predictors": f"{module}:make"}.get(group, module)
    (info / "entry_points.txt").write_text(f"[{group}]\ntheirs = {points}\n")


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plugins = tmp_path / "plugins"
    plugins.mkdir(exist_ok=True)
    (tmp_path / "jobs.toml").write_text(JOBS)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(plugins), os.environ.get("PYTHONPATH")])
    )
    return subprocess.run(
        words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=500, check=False
    )


def plugins_of(tmp_path: Path) -> Path:
    place = tmp_path / "plugins"
    place.mkdir(exist_ok=True)
    return place


def test_a_pilot_runs_by_a_policy_of_another_package(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "theirs", "last_first", LAST_FIRST)
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "theirs")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert said.index("last: completed") < said.index("first: completed")
    assert "is last" in said


def test_it_stands_among_the_valid_names(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "theirs", "last_first", LAST_FIRST)
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "their")
    assert done.returncode == 2
    assert "theirs" in done.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "broken-one", "broken_one", "import no_such_module_of_theirs")
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "theirs")
    assert done.returncode == 2, done.stderr
    assert "broken-one 1.0" in done.stderr
    assert "no_such_module_of_theirs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_that_is_broken_costs_others_nothing(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "broken-one", "broken_one", "raise SystemExit(3)")
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "marble")
    assert done.returncode == 0, done.stderr


def test_an_invalid_policy_is_refused(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "theirs", "empty_one", "allocate = 3")
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "theirs")
    assert done.returncode == 2, done.stderr
    assert "theirs of theirs 1.0 is not a policy" in done.stderr


def test_two_packages_with_one_name_are_refused_by_their_names(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "one", "one_of_two", LAST_FIRST)
    install(plugins_of(tmp_path), "two", "two_of_two", LAST_FIRST)
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "theirs")
    assert done.returncode == 2, done.stderr
    assert "one 1.0 and two 1.0 both bring theirs" in done.stderr


def test_ours_are_never_replaced(tmp_path: Path) -> None:
    place = plugins_of(tmp_path)
    install(place, "theirs", "last_first", LAST_FIRST)
    points = place / "theirs-1.0.dist-info" / "entry_points.txt"
    points.write_text("[hpcext.policies]\nmarble = last_first\n")
    done = run(tmp_path, *HPCEXT, "run", "jobs.toml", "--gpus", "1", "--policy", "marble")
    assert done.returncode == 0, done.stderr
    assert "is last" not in done.stdout + done.stderr


def test_a_paper_of_another_package_is_reproduced(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "theirs", "their_paper", STUDY, "hpcext.papers")
    done = run(tmp_path, *HPCEXT, "reproduce", "theirs", "--seed", "1", "2")
    assert done.returncode == 0, done.stderr
    assert "A paper of theirs" in done.stdout


def test_a_predictor_of_another_package_predicts(tmp_path: Path) -> None:
    install(plugins_of(tmp_path), "theirs", "their_speed", PREDICTOR, "hpcext.predictors")
    program = (
        "from hpcext.scaling.speed import find_predictor\n"
        "found = find_predictor('theirs')\n"
        "found.observe(3.0, 1.0, 1.0)\n"
        "print(found.predict())\n"
        "try: find_predictor('their')\n"
        "except ValueError as error: print(error)"
    )
    done = run(tmp_path, sys.executable, "-c", program)
    assert done.stdout.startswith("3.0\n"), done.stderr
    assert "theirs" in done.stdout.splitlines()[1]
