"""A step that pyxis begins in a container, its supervisor with it, by what stands for pyxis."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stage import PLAIN, Stage, end

from hpcext.backends.slurm import steps
from hpcext.batch.slurm import pyxis
from hpcext.core.values import Action, Kind
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.launch import container

FAKES = Path(__file__).parents[1] / "fakes" / "containers"
PROGRAMS = {"env": "/usr/bin/env", "python3": os.path.realpath(sys.executable)}
START = Action(kind=Kind.START, job="1", op=7, attempt=1, alloc={"n": 1})


class Step:
    """What the executor of a pilot on Slurm does of a job with an image."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = stage
        monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("PYTHONPATH", raising=False)
        self.image = stage.path / "image.sqsh"
        subprocess.run([FAKES / "apptainer", "build", self.image, "docker://a"], check=True)
        self.files = AttemptFiles(stage.path, START)

    def write(self, *argv: str, runtime: str = "pyxis", **changes: Any) -> None:
        where = {"image": str(self.image), "binds": ["/var/tmp:/in:ro"], "runtime": runtime}
        self.stage.write_launch(*argv, **{"container": where, **changes})

    def start(self) -> subprocess.Popen[bytes]:
        found = steps.in_image(self.files)
        assert found
        options, supervisor = found
        words = [str(FAKES / "srun"), "--jobid=1", *options, *supervisor]
        return subprocess.Popen(
            [*words, str(self.stage.directory)],
            env={**os.environ, **dict([self.stage.mark.split("=", 1)])},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Step:
    return Step(stage, monkeypatch)


def test_a_session_in_it_is_suspended(step: Step) -> None:
    shutil.copy(PLAIN, step.stage.path)
    step.write("python3", str(step.stage.path / "plain.py"), "block")
    supervisor = step.start()
    step.stage.wait_said("ready")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85, step.stage.log.read_text()
    assert step.stage.read("exit.json")["suspended"] is True


def test_what_the_command_has_in_it(step: Step) -> None:
    script = step.stage.path / "show.py"
    script.write_text(
        "import hpcext, json, os\n"
        "json.dump([hpcext.__file__, os.getcwd(), dict(os.environ), os.listdir('/')],"
        " open('said.json', 'w'))\n"
    )
    environ = {"HPCEXT_ATTEMPT": "1", "MINE": "a 'b' $(c)"}
    step.write("python3", str(script), environ=environ)
    supervisor = step.start()
    _, said = supervisor.communicate(timeout=100)
    assert supervisor.returncode == 0, (said, step.stage.log)
    package, cwd, inside, root = json.loads((step.stage.path / "said.json").read_text())
    assert package == str(step.stage.directory / "python" / "hpcext" / "__init__.py")
    assert cwd == str(step.stage.path)
    assert inside["MINE"] == environ["MINE"]
    assert inside["PATH"].split(":")[0] == str(step.stage.directory / "bin")
    assert "in" in root
    assert "work" not in root


def test_an_image_that_is_gone_is_said(step: Step) -> None:
    step.write("true")
    assert steps.in_image(step.files)
    assert not step.stage.log.read_text()
    os.utime(step.image, ns=(1, 1))
    assert steps.in_image(step.files)
    assert "is not the one in which attempt 1 ran" in step.stage.log.read_text()
    step.image.unlink()
    with pytest.raises(OSError, match="no container image") as error:
        steps.in_image(step.files)
    assert "attempt 1 ran in it" in str(error.value.strerror)


def test_a_name_of_an_image_is_enroot_s(step: Step) -> None:
    step.write(
        "true", container={"image": "docker://nvcr.io#nvidia/pytorch:26.01-py3", "runtime": "pyxis"}
    )
    found = steps.in_image(step.files)
    assert found
    assert found[0][0] == "--container-image=nvcr.io#nvidia/pytorch:26.01-py3"


@pytest.mark.parametrize(("programs", "by"), [("both", "apptainer"), ("srun", "pyxis"), ("", "")])
def test_by_itself_it_is_what_is_there(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: str, by: str
) -> None:
    there = tmp_path / "programs"
    there.mkdir()
    for name in {"both": ("srun", "apptainer"), "srun": ("srun",), "": ()}[programs]:
        (there / name).symlink_to(FAKES / name)
    # What the stand-in needs.
    for name in ("env", "python3"):
        (there / name).symlink_to(PROGRAMS[name])
    monkeypatch.setenv("PATH", str(there))
    pyxis.offered.cache_clear()
    try:
        step.write("true", runtime="auto")
        assert (steps.in_image(step.files) is not None) == (by == "pyxis")
        assert bool(container.find("auto", dict(os.environ))) == (by == "apptainer")
    finally:
        pyxis.offered.cache_clear()


def test_elsewhere_there_is_no_pyxis(step: Step) -> None:
    step.write("true")
    assert end(step.stage.supervise()) == 127
    why = "cannot run a container: pyxis begins steps of pilots on Slurm, and nothing else"
    assert step.stage.read("exit.json")["cannot_run"] == why


def test_a_job_without_an_image_begins_as_ever(step: Step) -> None:
    step.write("true", container=None)
    assert steps.in_image(step.files) is None
    step.write("true", runtime="singularity")
    assert steps.in_image(step.files) is None


@pytest.mark.parametrize(
    "words",
    [
        ["--container-name=x", "true"],
        ["--container-mounts=/a", "--container-image=/x", "true"],
        ["--container-image=/x", "--container-image=/y", "true"],
    ],
)
def test_the_stand_in_refuses_what_pyxis_does_not_know(words: list[str], tmp_path: Path) -> None:
    image = tmp_path / "x"
    image.write_text(f"{tmp_path}\n")
    words = [word.replace("/x", str(image)) for word in words]
    done = subprocess.run([FAKES / "srun", *words], capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr
