"""Whatever is wrong with hpcext, the script of a flagged job runs, once; its output says why."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin import Plugin
from site_of_test import Site
from slurm_cluster import Cluster

SCRIPT = """#!/bin/sh
echo "ran in $(pwd) with $1, $MINE"
exit 7
"""


@pytest.fixture
def flagged(slurm: Cluster, place: Site, plugin: Plugin) -> Iterator[Flagged]:
    plugin.use(f"command={slurm.root}/bin/hpcext")
    one = Flagged(slurm, place)
    yield one
    for path in one.mounted:
        subprocess.run(["umount", str(path)], check=True)


class Flagged:
    """Suspendable jobs of a user."""

    def __init__(self, slurm: Cluster, place: Site) -> None:
        self.slurm = slurm
        self.place = place
        self.mounted: list[Path] = []

    def run(self, **environ: str) -> list[str]:
        """The lines of its output; it has to fail as its script does."""
        script, out = self.place.path / "job.sh", self.place.path / "out"
        script.write_text(SCRIPT)
        words = ("--parsable", f"--output={out}", "--hpcext-suspendable=20", str(script), "a word")
        state = {"XDG_STATE_HOME": str(self.place.path / "state"), "MINE": "yes"}
        said = self.slurm.as_user("sbatch", *words, cwd=self.place.path, **{**state, **environ})
        assert said.returncode == 0, said
        job = said.stdout.strip()
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
        self.slurm.wait_for(lambda: self.slurm.job(job)["JobState"] in over, "the end")
        text = out.read_text()
        assert self.slurm.job(job)["ExitCode"] == "7:0", text
        lines = text.splitlines()
        assert lines.count(f"ran in {self.place.path} with a word, yes") == 1, text
        return lines

    def small_disk(self) -> Path:
        path = self.place.path / "disk"
        self.slurm.as_user("mkdir", str(path))
        owner = f"uid={path.stat().st_uid},gid={path.stat().st_gid}"
        size = f"size=8k,mode=700,{owner}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(path)], check=True)
        self.mounted.append(path)
        return path


def test_with_a_mistake_in_the_settings(flagged: Flagged) -> None:
    config = flagged.place.path / "config" / "hpcext"
    flagged.slurm.as_user("mkdir", "-p", str(config))
    (config / "hpcext.toml").write_text('polcy = "marble"\n')
    first, _ = flagged.run(XDG_CONFIG_HOME=str(config.parent))
    assert first.startswith(f"hpcext: the job cannot be suspended: {config}/hpcext.toml: ")
    assert first.endswith("did you mean policy?; it runs as usual")


def test_with_a_package_missing(flagged: Flagged) -> None:
    root = Path(__file__).parents[2]
    first, _ = flagged.run(PYTHONPATH=str(root))
    assert first == (
        "hpcext: the job cannot be suspended: ModuleNotFoundError: No module named 'msgspec'; "
        "it runs as usual"
    )


def test_without_hpcext_itself(flagged: Flagged) -> None:
    first, _ = flagged.run(PYTHONPATH="/nowhere")
    assert first.startswith("hpcext: the job cannot be suspended: ")
    assert "No module named hpcext; it runs as usual" in first


def test_with_a_state_directory_that_cannot_be_made_or_is_full(flagged: Flagged) -> None:
    first, _ = flagged.run(HPCEXT_STATE_DIR="/proc/nowhere")
    assert first.startswith("hpcext: the job cannot be suspended: /proc/nowhere")
    disk = flagged.small_disk()
    first, _ = flagged.run(HPCEXT_STATE_DIR=str(disk))
    assert first.startswith(f"hpcext: the job cannot be suspended: {disk}")
    assert first.endswith("No space left on device; it runs as usual")


def test_with_a_manager_that_does_not_come_up(flagged: Flagged) -> None:
    """The script has been started by then."""
    broken = flagged.place.path / "broken"
    flagged.slurm.as_user("mkdir", str(broken))
    # What begins a script does without it, and what manages it does not.
    (broken / "argparse.py").write_text("raise ImportError('broken')\n")
    path = flagged.slurm.user_environ()["PYTHONPATH"]
    lines = flagged.run(PYTHONPATH=f"{broken}:{path}")
    assert "ImportError: broken" in lines
    said = "hpcext: the job cannot be suspended: it has no manager; it runs on as usual"
    assert lines.count(said) == 1
