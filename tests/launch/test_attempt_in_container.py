"""Commands in containers, under their supervisor: Apptainer, where it is, and its stand-in."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from stage import PLAIN, Stage, end

import hpcext
from hpcext.launch import container, devices

FAKES = Path(__file__).parents[1] / "fakes" / "containers"
WHO = ["stand-in", *(["apptainer"] if shutil.which("apptainer") else [])]
PYTHON = list(dict.fromkeys(["/usr", sys.prefix, sys.base_prefix]))

SHOW = """
import json, os, signal, subprocess, sys
import hpcext
said = {"cwd": os.getcwd(), "hpcext": hpcext.__file__, "environ": dict(os.environ)}
said["ignored"] = [each for each in (1, 10, 12, 15, 20) if signal.getsignal(each) == signal.SIG_IGN]
said["launcher"] = subprocess.run(["hpcext", "launch", "--ranks", "2", "echo", "rank"],
    capture_output=True, text=True).stdout
said["refused"] = subprocess.run(["hpcext", "run"], capture_output=True, text=True).stderr
open("said.json", "w").write(json.dumps(said))
sys.exit(7)
"""


class Contained:
    """An image, and what runs it."""

    def __init__(self, stage: Stage, who: str) -> None:
        self.stage = stage
        self.who = who
        self.image = stage.path / "image"
        for name in ("etc", "proc", "sys", "dev", "tmp", "var/tmp", "root", "usr"):
            (self.image / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (self.image / name).symlink_to(f"usr/{name}")
        own = self.image / ".singularity.d" / "env" / "90-environment.sh"
        own.parent.mkdir(parents=True)
        own.write_text("export HPCEXT_ATTEMPT=77 MINE=of-the-image ITS=own\n")

    def file(self) -> Path:
        """The same image as a file, which is mounted as long as another process runs."""
        path = self.stage.path / "image.sif"
        if self.who == "stand-in":
            path.write_text(f"{self.image}\n")
        else:
            words = ["apptainer", "--quiet", "build", str(path), str(self.image)]
            subprocess.run(words, check=True, capture_output=True)
        return path

    def run(self, *argv: str, image: Path | None = None, **changes: Any) -> subprocess.Popen[bytes]:
        where = {"image": str(image or self.image), "binds": PYTHON, "runtime": "apptainer"}
        return self.stage.run(*argv, **{"container": where, **changes})

    def plain(self, *words: str) -> list[str]:
        """A training that speaks the protocol, of which the image has no file."""
        shutil.copy(PLAIN, self.stage.path)
        return [sys.executable, str(self.stage.path / "plain.py"), *words]

    def log(self) -> str:
        return self.stage.log.read_text() if self.stage.log.exists() else ""


@pytest.fixture(params=WHO)
def contained(
    request: pytest.FixtureRequest, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> Contained:
    if request.param == "stand-in":
        monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    # pytest-cov and others would be imported by each Python of the image.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return Contained(stage, request.param)


def test_what_the_command_has_in_it(contained: Contained) -> None:
    """Its variables to the letter, its directory, hpcext, the signals; its status comes out."""
    stage = contained.stage
    stage.write_launch()
    environ = stage.read("launch.json")["environ"]
    hostile = "a 'b' \"$(touch /tmp/x)\" `id` \\ $HOME\nsecond, line"
    mine = {"MINE": hostile, "not-a-name": "1", devices.CUDA: "3"}
    script = stage.path / "show.py"
    script.write_text(SHOW)
    supervisor = contained.run(
        sys.executable, str(script), "a b", "$(id)", environ={**environ, **mine}, notices=True
    )
    assert end(supervisor) == 7, contained.log()
    said = json.loads((stage.path / "said.json").read_text())
    inside = said["environ"]
    assert inside["MINE"] == hostile
    assert inside["HPCEXT_ATTEMPT"] == "1"
    assert inside["ITS"] == "own"
    assert inside[devices.CUDA] == "3"
    assert inside["HPCEXT_NOTIFY"]
    assert said["cwd"] == str(stage.path)
    assert said["hpcext"] == str(stage.directory / "python" / "hpcext" / "__init__.py")
    assert inside["PATH"].split(":")[0] == str(stage.directory / "bin")
    # Of the node; the image has its own.
    assert str(FAKES) not in inside["PATH"]
    assert said["ignored"] == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP]
    assert said["launcher"].count("rank") == 2
    assert "only: hpcext launch" in said["refused"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_it_is_suspended_and_only_it_hears_of_it(contained: Contained, kind: str) -> None:
    """Apptainer's first process would stop itself, and its mount would go."""
    image = contained.file() if kind == "file" else contained.image
    supervisor = contained.run(*contained.plain("block"), image=image)
    contained.stage.wait_said("ready")
    own = [
        each
        for each in psutil.Process(supervisor.pid).children(recursive=True)
        if each.name() in {"starter", "squashfuse_ll"}
    ]
    assert len(own) == (2 if kind == "file" else 1)
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85, contained.log()
    assert contained.stage.read("exit.json")["suspended"] is True
    # It ended by itself: nobody had to end it, as one that has stopped itself.
    assert contained.stage.read("exit.json")["exit_code"] == 0
    assert not any(each.is_running() for each in own)


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_told_to_end_it_may_still_read_its_image(contained: Contained, kind: str) -> None:
    image = contained.file() if kind == "file" else contained.image
    script = contained.stage.path / "train.sh"
    script.write_text(
        "trap 'cat /.singularity.d/env/90-environment.sh && echo saved; exit 3' TERM\n"
        "echo ready; while :; do sleep 0.1; done\n"
    )
    supervisor = contained.run("sh", str(script), image=image, kill_grace_s=60)
    contained.stage.wait_for(lambda: "ready" in contained.log(), "its beginning")
    supervisor.send_signal(signal.SIGTERM)
    assert end(supervisor) == 3
    assert "of-the-image" in contained.log()
    assert "saved" in contained.log()


def test_one_that_does_not_end_is_killed_with_all_that_made_it(contained: Contained) -> None:
    supervisor = contained.run(*contained.plain("stubborn"), image=contained.file())
    contained.stage.wait_said("ready")
    supervisor.send_signal(signal.SIGTERM)
    assert end(supervisor) == 137
    assert contained.stage.read("exit.json")["kill_asked_at"]


def test_what_is_left_when_its_first_process_is_killed_is_ended_too(contained: Contained) -> None:
    supervisor = contained.run(*contained.plain(), image=contained.file())
    contained.stage.wait_said("ready")
    below = psutil.Process(supervisor.pid).children()
    (starter,) = [each for each in below if each.name() == "starter"]
    starter.kill()
    assert end(supervisor) == 137


def test_a_command_that_the_image_does_not_have(contained: Contained) -> None:
    supervisor = contained.run("no-such-program")
    assert end(supervisor) == 127
    assert "no-such-program" in contained.stage.read("exit.json")["last_line"]


def test_an_image_that_is_another_one_is_noticed_and_one_that_is_gone(
    contained: Contained,
) -> None:
    image = contained.file()
    stage = contained.stage
    assert end(contained.run("true", image=image)) == 0
    assert "not the one" not in contained.log()

    def again() -> subprocess.Popen[bytes]:
        for name in ("supervisor.json", "exit.json", "inside.sh"):
            (stage.directory / name).unlink(missing_ok=True)
        return contained.run("true", image=image)

    assert end(again()) == 0
    assert "not the one" not in contained.log()
    os.utime(image, ns=(1, 1))
    assert end(again()) == 0
    told = f"hpcext: the container image {image} is not the one in which attempt 1 ran"
    assert contained.log().count(told) == 1
    image.unlink()
    assert end(again()) == 127
    why = f"no container image {str(image)!r}: No such file or directory; attempt 1 ran in it"
    assert stage.read("exit.json")["cannot_run"].startswith(why)


def test_a_directory_that_no_bind_can_name(contained: Contained) -> None:
    cwd = contained.stage.path / "a,b"
    cwd.mkdir()
    assert end(contained.run("true", cwd=str(cwd))) == 126
    assert "has a ','" in contained.stage.read("exit.json")["cannot_run"]


def test_where_nothing_runs_containers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(stage.path))
    assert end(stage.run("true", container={"image": str(stage.path)})) == 127
    why = "cannot run a container: neither apptainer nor singularity is in PATH here"
    assert stage.read("exit.json")["cannot_run"] == why
    (stage.directory / "supervisor.json").unlink()
    where = {"image": str(stage.path), "runtime": "singularity"}
    assert end(stage.run("true", container=where)) == 127
    why = "cannot run a container: no singularity is in PATH here"
    assert stage.read("exit.json")["cannot_run"] == why


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "attempt-0001").mkdir()
    place = container.Container(
        {"image": "docker://python:3.12"}, tmp_path / "attempt-0001", "/", attempt=1
    )
    return place.begin(["true"], dict(os.environ), {}, (), print)


def test_an_image_that_is_fetched_and_no_directory_but_the_job_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "present", lambda: False)
    package = Path(hpcext.__file__).parent
    attempt = tmp_path / "attempt-0001"
    assert begun(tmp_path, monkeypatch)[1:] == [
        "exec",
        f"--bind={tmp_path}",
        f"--bind={package}:{attempt}/python/hpcext:ro",
        "--pwd=/",
        "docker://python:3.12",
        "/bin/sh",
        f"{attempt}/inside.sh",
        "true",
    ]


@pytest.mark.parametrize(("variable", "option"), [(devices.CUDA, "--nv"), (devices.ROCR, "--rocm")])
def test_the_gpus_of_the_machine_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, option: str
) -> None:
    monkeypatch.setattr(devices, "present", lambda: True)
    monkeypatch.setattr(devices, "name", lambda: variable)
    assert begun(tmp_path, monkeypatch)[2] == option


@pytest.mark.parametrize("words", [["--bogus", "x", "true"], ["--cleanenv", "x", "true"]])
def test_the_stand_in_refuses_what_it_does_not_know(words: list[str]) -> None:
    done = subprocess.run([FAKES / "apptainer", "exec", *words], capture_output=True, check=False)
    assert done.returncode == 255
    assert b"unknown" in done.stderr


def test_nodes_of_an_attempt_do_not_write_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    image, attempt = tmp_path / "image", tmp_path / "attempt-0001"
    for directory in (image, attempt, attempt / "node-0001"):
        directory.mkdir()
    for index, own in ((1, attempt / "node-0001"), (0, attempt)):
        place = container.Container({"image": str(image)}, attempt, "/", attempt=1, index=index)
        words = place.begin(["true"], dict(os.environ), {"NODE": str(index)}, (), print)
        assert words[-2:] == [str(own / "inside.sh"), "true"]
        assert f"export NODE={index}\n" in (own / "inside.sh").read_text()
        assert (tmp_path / "image.json").exists() == (index == 0)
    assert "export NODE=1\n" in (attempt / "node-0001" / "inside.sh").read_text()


@pytest.mark.parametrize("signum", [signal.SIGTSTP, signal.SIGTERM])
def test_while_its_image_is_fetched_it_can_be_ended_and_is_asked_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    """What passes signals on would pass one on to a command that does not handle it yet."""
    monkeypatch.setenv("FAKE_APPTAINER_FETCHED", str(stage.path / "fetched"))
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    place = Contained(stage, "stand-in")
    script = stage.path / "train.sh"
    script.write_text("trap 'exit 143' USR1; echo ready; while :; do sleep 0.1; done\n")
    saves = {"signal": "SIGUSR1", "exits": [143]}
    supervisor = place.run("sh", str(script), checkpoint=saves, kill_grace_s=60)
    fetching = stage.wait_for(lambda: stage.named("apptainer"), "its start")
    supervisor.send_signal(signum)
    if signum == signal.SIGTERM:
        assert end(supervisor) == 143
        assert stage.read("exit.json")["suspended"] is False
        return
    # The request has been looked at.
    stage.wait_for(lambda: not has(supervisor.pid, signum), "the request")
    assert fetching[0].is_running()
    (stage.path / "fetched").touch()
    assert end(supervisor) == 85, place.log()
    assert "ready" in place.log()


def has(pid: int, signum: signal.Signals) -> bool:
    """Whether a signal is pending; proc(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.M)
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in masks)
