"""A package brings a batch system, and a pilot runs by it: the one that docs/extending.md shows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for

ROOT = Path(__file__).parents[2]
COMMANDS = ("tiny-submit", "tiny-show", "tiny-want", "tiny-requeue")

POINTS = """
[hpcext.backends]
tiny = tiny:{kind}
"""

STEPS = 40


def shown() -> str:
    """The backend that the page shows."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# tiny.py\n.*?)^```$", page, re.M | re.S)
    assert found is not None
    return found[1]


def install(place: Path, text: str, kind: str = "Tiny") -> None:
    """Lay the package into a directory as pip does."""
    info = place / "tiny_for_hpcext-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "tiny.py").write_text(text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-for-hpcext\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS.format(kind=kind))


class Tiny:
    """The batch system and its node, and a site whose commands are no others."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.root = site.path / "tiny"
        self.root.mkdir()
        self.plugins = site.path / "plugins"
        place = site.path / "bin"
        place.mkdir()
        program = (Path(__file__).parent / "tiny_system.py").read_text()
        for name in COMMANDS:
            (place / name).write_text(f"#!{sys.executable}\n{program}")
            (place / name).chmod(0o755)
        path = [str(self.plugins), os.environ.get("PYTHONPATH", "")]
        site.environ |= {
            "TINY": str(self.root),
            "PATH": str(place),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
        }

    def facts(self, job: int) -> dict[str, Any]:
        """What the batch system says of a job."""
        found: dict[str, Any] = json.loads((self.root / str(job) / "facts.json").read_text())
        return found

    def do(self, command: str, *words: str) -> None:
        subprocess.run(
            [str(self.site.path / "bin" / command), *words], env=self.site.environ, check=True
        )

    def end(self) -> None:
        """Leave nothing of it; a pid that is on record may be that of another process by now."""
        mark = f"TINY={self.root}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)


@pytest.fixture
def tiny(site: Site) -> Iterator[Tiny]:
    system = Tiny(site)
    yield system
    system.end()


def test_a_pilot_runs_by_a_batch_system_of_another_package(tiny: Tiny) -> None:
    """Its node is wanted back, and all of it goes on in the next run of its job."""
    install(tiny.plugins, shown())
    site = tiny.site
    site.write_jobs(*(site.counter(name, steps=STEPS, gated=True) for name in "ab"))
    said = site.run(
        "pilot", "submit", str(site.jobs), "--gpus-per-node", "2", "--requeue",
        "--lead", "20", "--dir", str(site.pilot), "--", "--note=mine",
    )  # fmt: skip
    assert said.code == 0, said
    assert "job 1 of Tiny" in said.out
    assert tiny.facts(1)["options"] == ["--gpus=2", "--note=mine"]
    for name in "ab":
        wait_for(
            lambda name=name: len(site.steps(name)) == STEPS - 1, f"{name}: all but its last step"
        )  # type: ignore[misc]
    listed = site.run("pilot", "list")
    assert "running" in listed.out, listed
    tiny.do("tiny-want", "1", "60")
    wait_for(lambda: tiny.facts(1)["runs"] == 2, "the next run of the job")
    for name in "ab":
        site.open(name)
    wait_for(lambda: tiny.facts(1)["state"] == "completed", "the end of the job")
    assert tiny.facts(1)["runs"] == 2
    site.check_account({"a": STEPS, "b": STEPS})
    for name in "ab":
        attempts = [step.attempt for step in site.steps(name)]
        assert attempts == [1] * (STEPS - 1) + [2], "it was suspended, and lost no step"


def test_a_pilot_whose_batch_system_is_not_installed_any_more_is_still_shown(tiny: Tiny) -> None:
    install(tiny.plugins, shown())
    site = tiny.site
    site.write_jobs(site.counter("a", gated=True))
    said = site.run(
        "pilot", "submit", str(site.jobs), "--gpus-per-node", "1", "--dir", str(site.pilot)
    )
    assert said.code == 0, said
    wait_for(lambda: len(site.steps("a")) > 1, "its begin")
    site.open("a")
    wait_for(lambda: tiny.facts(1)["state"] == "completed", "the end of the job")
    listed = site.run("pilot", "list")
    assert "completed" in listed.out, listed
    del site.environ["PYTHONPATH"]
    if path := os.environ.get("PYTHONPATH"):
        site.environ["PYTHONPATH"] = path
    listed = site.run("pilot", "list")
    assert listed.code == 0, listed
    assert "not known" in listed.out
    assert "unknown batch system 'tiny'" in listed.err
    status = site.run("status", str(site.pilot))
    assert status.code == 0, status
    assert "completed" in status.out
    again = site.run("pilot", "resubmit", str(site.pilot))
    assert again.code == 2, again
    assert "unknown batch system 'tiny'" in again.err
    assert "slurm, lsf" in again.err


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("Tiny = 3", "Tiny", "not a subclass of hpcext.backends.base.Backend"),
        ("from hpcext.backends.base import Backend as Tiny", "Tiny", "it has no hand_in, jobs"),
        (shown().replace('"tiny", "Tiny"', '"other", "Tiny"'), "Tiny", "its name 'other' is not"),
        ("import no_such_module_of_theirs", "Tiny", "no_such_module_of_theirs"),
    ],
)
def test_an_invalid_backend_is_refused(tiny: Tiny, text: str, kind: str, what: str) -> None:
    install(tiny.plugins, text, kind)
    tiny.site.environ["HPCEXT_BATCH"] = "tiny"
    tiny.site.write_jobs(tiny.site.counter("a"))
    said = tiny.site.run("pilot", "submit", str(tiny.site.jobs), "--gpus-per-node", "1")
    assert said.code == 2, said
    assert "tiny-for-hpcext 1.0" in said.err
    assert what in said.err
    assert "Traceback" not in said.err
    assert not list(tiny.root.iterdir())


def test_a_batch_system_that_nothing_brings_is_refused_with_those_that_there_are(
    tiny: Tiny,
) -> None:
    install(tiny.plugins, shown())
    tiny.site.environ["HPCEXT_BATCH"] = "tinny"
    said = tiny.site.run("pilot", "list")
    assert said.code == 2, said
    assert "unknown batch system 'tinny'" in said.err
    assert "auto, slurm, lsf, tiny" in said.err
    assert "did you mean tiny" in said.err


@pytest.mark.parametrize("command", ["suspendable", "trainer", "harvest"])
def test_missing_features_of_a_batch_system_are_named(tiny: Tiny, command: str) -> None:
    install(tiny.plugins, shown())
    tiny.site.environ |= {"HPCEXT_BATCH": "tiny", "TINY_JOB": "1"}
    words = {
        "suspendable": ["--", "true"],
        "trainer": ["1:2", "true"],
        "harvest": ["holes", "--partition", "p"],
    }[command]
    said = tiny.site.run(command, *words)
    assert said.code == 2, said
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) == 1
