"""The job key ``container``: what is accepted, what is refused and how, and where it leads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcext import containers
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.core.values import Action, Kind
from hpcext.executors.attempt.launch_file import launch_document
from hpcext.executors.attempt.surroundings import Surroundings
from hpcext.jobfile import parse_jobs
from hpcext.jobspec import JobSpec
from hpcext.manager import suspendable


def job(tmp_path: Path, lines: str, **options: str) -> JobSpec:
    text = f'[[job]]\nname = "a"\ncommand = "true"\n{lines}\n'
    return parse_jobs(text, "jobs.toml", tmp_path, **options)[0]  # type: ignore[arg-type]


def refused(tmp_path: Path, lines: str) -> str:
    with pytest.raises(InputError) as error:
        job(tmp_path, lines)
    said = str(error.value)
    assert "\n" not in said
    return said


def test_a_path_starts_at_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "train.sif").touch()
    found = job(tmp_path, 'container = "train.sif"').container
    assert found == containers.Container(str(tmp_path / "train.sif"), (), "auto")
    table = (
        'container = {image = "./train.sif", binds = ["/data", "/a:/b:ro"], runtime = "apptainer"}'
    )
    found = job(tmp_path, table, container_runtime="singularity").container
    assert found == containers.Container(
        str(tmp_path / "train.sif"), ("/data", "/a:/b:ro"), "apptainer"
    )
    found = job(tmp_path, 'container = "train.sif"', container_runtime="singularity").container
    assert found is not None
    assert found.runtime == "singularity"
    assert job(tmp_path, "").container is None


@pytest.mark.parametrize("scheme", containers.SCHEMES)
def test_a_uri_stays_as_it_is(tmp_path: Path, scheme: str) -> None:
    uri = f"{scheme}://example.org/a/b:1.0@sha256:0abc"
    found = job(tmp_path, f'container = "{uri}"').container
    assert found is not None
    assert (found.image, found.path) == (uri, "")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('container = ""', "container: empty"),
        ("container = 3", "container: 3 is an integer"),
        ('container = "nowhere.sif"', "container: there is no image"),
        ('container = "dcoker://python"', "'dcoker://python' is no URI of an image"),
        ('container = "docker://py thon"', "is no URI of an image"),
        ('container = "docker://"', "is no URI of an image"),
        ('container = "instance://mine"', "runs already"),
        ('container = {binds = ["/data"]}', "container: image is missing"),
        ('container = {image = ".", bind = "/"}', "unknown key"),
        ('container = {image = ".", binds = ["data"]}', "container: binds: 'data'"),
        ('container = {image = ".", binds = ["/a:b"]}', "container: binds: '/a:b'"),
        ('container = {image = ".", binds = ["/a:/b:exec"]}', "container: binds: '/a:/b:exec'"),
        ('container = {image = ".", binds = ["/a,/b"]}', "has a ','"),
        ('container = {image = ".", binds = [3]}', "binds: 3 is an integer"),
        (
            'container = {image = ".", runtime = "docker"}',
            "valid: auto, apptainer, singularity, pyxis",
        ),
        ('container = {image = ".", runtime = "pyxis"}', "pyxis makes no container of"),
        ('container = {image = "oras://a/b", runtime = "pyxis"}', "pyxis makes no container of"),
        ('container = "."\ncheckpoint = "transparent"', 'stated beside checkpoint = "transparent"'),
        ('container = "."\nworkdir = "a,b"', "workdir: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "a,b").mkdir()
    line = refused(tmp_path, lines)
    assert said in line
    assert line.startswith("jobs.toml: [[job]] 1 (a): ")


def test_the_setting_is_for_all_that_state_none(tmp_path: Path) -> None:
    assert load_settings(environ={}).container_runtime == "auto"
    environ = {"HPCEXT_CONTAINER_RUNTIME": "singularity"}
    assert load_settings(environ=environ).container_runtime == "singularity"
    with pytest.raises(InputError, match=r"HPCEXT_CONTAINER_RUNTIME: 'apptaner'.* did you mean"):
        load_settings(environ={"HPCEXT_CONTAINER_RUNTIME": "apptaner"})


def test_its_supervisor_is_told_all_of_it(tmp_path: Path) -> None:
    spec = job(tmp_path, 'container = {image = ".", binds = ["/data"]}')
    action = Action(kind=Kind.START, op=1, job="1", attempt=1, alloc={"n": 1})
    document = launch_document(
        tmp_path / "attempt-0001", action, spec, action.alloc, Surroundings()
    )
    assert json.loads(json.dumps(document))["container"] == {
        "image": str(tmp_path),
        "binds": ["/data"],
        "runtime": "auto",
    }


def test_a_suspendable_command_has_one_by_its_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sif").touch()
    settings = load_settings(environ={"HPCEXT_CONTAINER_RUNTIME": "singularity"})
    one = suspendable.spec(["true"], 2, 120)
    inside = suspendable.in_container(one, "train.sif", settings)
    assert inside.container == containers.Container(str(tmp_path / "train.sif"), (), "singularity")
    with pytest.raises(InputError, match="--container: there is no image"):
        suspendable.in_container(one, "other.sif", settings)
    saves = suspendable.checkpointer_of("transparent", 120)
    imaged = suspendable.spec(["true"], 2, 120, saves)
    with pytest.raises(InputError, match='--container: stated beside checkpoint = "transparent"'):
        suspendable.in_container(imaged, "train.sif", settings)
