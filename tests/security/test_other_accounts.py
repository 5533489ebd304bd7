"""What a member of the group, and a stranger, can do to another user's jobs: real uids."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import MEMBER, STRANGER, VICTIM, Account, home_of

from hpcext import documents, private, protocol, state
from hpcext.config import Settings
from hpcext.core.values import Action, Kind
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.jobspec import Gpus, JobSpec
from hpcext.launch.compiled import Compiled
from hpcext.launch.launch_file import read
from hpcext.launch.supervisor import Supervisor
from hpcext.manager import pilot as pilots
from hpcext.manager.submissions import Submissions
from hpcext.training.torch import compiled

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")

UMASKS = [0o002, 0, 0o022]
OTHERS = [pytest.param(MEMBER, id="member"), pytest.param(STRANGER, id="stranger")]
START = Action(Kind.START, "1", 1, 1, {"n": 1})


@pytest.fixture
def place() -> Iterator[Path]:
    """Where all can go, as pytest's own directories cannot be."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def created(root: Path, directory: Path | None = None) -> None:
    """A pilot, and the first attempt of its job."""
    spec = JobSpec("one", ("true",), gpus=Gpus(min=1, max=1), workdir="/")
    path = pilots.create(
        [spec],
        pilots.NewPilot(
            name="try",
            gpus=(0,),
            logical=True,
        ),
        settings=Settings(state_dir=root / "state" / "hpcext"),
        where="jobs.toml",
        directory=directory,
    )
    AttemptFiles(path / "jobs", START).write_launch(spec, {"n": 1})
    shared = [each for each in path.rglob("*") if each.lstat().st_mode & 0o077]
    assert not shared or all(each.is_symlink() for each in shared)


def one_below(path: Path) -> Path:
    (found,) = (each for each in path.iterdir() if not each.name.startswith("."))
    return found


def swapped(directory: Path) -> None:
    """Put a copy of it with another command in its place."""
    directory.rename(directory.with_name("away"))
    shutil.copytree(directory.with_name("away"), directory)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("umask", UMASKS)
def test_what_is_made_in_a_home_belongs_to_its_user_alone(
    place: Path, umask: int, other: Account
) -> None:
    home = home_of(VICTIM, place / "home", 0o755)
    assert VICTIM.does(lambda: created(home), umask=umask) == ""
    for path in (home / "state", home / "state" / "hpcext"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert "PermissionError" in other.does(lambda: swapped(home / "state" / "hpcext" / "pilots"))


@pytest.mark.cases(5)
@pytest.mark.parametrize("umask", UMASKS)
@pytest.mark.parametrize("mode", [0o2770, 0o2775, 0o777])
def test_what_a_member_puts_in_the_place_of_a_pilot_is_not_obeyed(
    place: Path, mode: int, umask: int
) -> None:
    """In a folder that a group may write to, our directory can be renamed, and no more."""
    project = home_of(VICTIM, place / "project", mode)
    assert VICTIM.does(lambda: created(project, project / "run"), umask=umask) == ""
    attempt = project / "run" / "jobs" / "1" / "attempt-0001"
    assert VICTIM.does(lambda: read(attempt)) == ""
    launch = json.loads((attempt / "launch.json").read_bytes())
    submission = next((project / "run" / "submissions").iterdir()).read_bytes()
    pilot = (project / "run" / "pilot.json").read_bytes()

    def plant() -> None:
        (project / "run").rename(project / "away")
        attempt.mkdir(parents=True)
        (project / "run" / "submissions").mkdir()
        for path in (project / "run", attempt):
            path.chmod(0o777)
        text = json.dumps({**launch, "argv": ["touch", "/tmp/planted"]})
        (attempt / "launch.json").write_text(text)
        (project / "run" / "submissions" / "first.json").write_bytes(submission)
        (project / "run" / "pilot.json").write_bytes(pilot)
        (project / "run" / "jobs" / "1" / "log.txt").symlink_to(project / "victims")

    assert MEMBER.does(plant, umask=0) == ""
    run = project / "run"
    uid = MEMBER.uid
    assert f"belongs to uid {uid}" in VICTIM.does(lambda: read(attempt))
    assert "owned by uid" in VICTIM.does(
        lambda: documents.read_json(attempt / "launch.json", protocol.LAUNCH)
    )
    assert "owned by uid" in VICTIM.does(lambda: pilots.load(run))
    assert "owned by uid" in VICTIM.does(lambda: Submissions(run / "submissions"))
    assert "is a link of uid" in VICTIM.does(lambda: private.open_log(run / "jobs/1/log.txt"))
    assert f"belongs to uid {uid}" in VICTIM.does(
        lambda: AttemptFiles(run / "jobs", START).write_launch(JobSpec("one", ("true",)), {"n": 1})
    )
    assert "belongs to uid" in VICTIM.does(lambda: pilots.run(run, lambda *_: None))
    assert not (project / "victims").exists()


def test_programs_are_not_run_from_where_others_may_put_some(place: Path) -> None:
    project = home_of(VICTIM, place / "project", 0o2775)
    refused = VICTIM.does(lambda: state.check_safe(project / "state"))
    assert refused.startswith(f"InputError: {project}: others can write to it (mode 2775)")
    assert "set another state_dir" in refused
    project.chmod(0o3775)
    assert VICTIM.does(lambda: state.check_safe(project / "state")) == ""


def test_what_an_older_release_left_open_is_closed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(VICTIM, place / "home", 0o755)
    monkeypatch.setenv("HOME", str(home))
    old = home / ".local" / "state" / "hpcext"
    assert VICTIM.does(lambda: old.mkdir(parents=True), umask=0o002) == ""
    assert VICTIM.does(lambda: state.check_safe(state.make(old))) == ""
    modes = [path.stat().st_mode & 0o777 for path in (old, old.parent, old.parent.parent)]
    assert modes == [0o700, 0o755, 0o755]


@pytest.mark.parametrize("other", OTHERS)
def test_a_state_directory_of_another_user_is_refused(place: Path, other: Account) -> None:
    common = home_of(STRANGER, place / "common", 0o1777)
    theirs = common / "hpcext"
    assert other.does(lambda: theirs.mkdir(mode=0o777)) == ""
    assert f"belongs to uid {other.uid}" in VICTIM.does(lambda: state.make(theirs))


def test_a_group_of_ones_own_may_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sites give one to each user, with a umask of 002."""
    home = home_of(VICTIM, place / "home", 0o775)
    group = grp_of("victim", [])
    monkeypatch.setattr("pwd.getpwuid", lambda uid: pwd_of("victim"))
    monkeypatch.setattr("grp.getgrgid", lambda gid: group)
    assert VICTIM.does(lambda: state.check_safe(home)) == ""
    group.gr_mem.append("member")
    assert "others can write to it" in VICTIM.does(lambda: state.check_safe(home))


class grp_of:
    def __init__(self, name: str, members: list[str]) -> None:
        self.gr_name, self.gr_mem = name, members


class pwd_of:
    def __init__(self, name: str) -> None:
        self.pw_name = name


def said_of_compiled(environ: dict[str, str], wanted: Path) -> None:
    found = Compiled(environ)
    assert found.variables()["TORCHINDUCTOR_CACHE_DIR"] == str(wanted)


def test_the_compile_cache_is_where_nobody_else_can_write(place: Path) -> None:
    """Beside the checkpoints; where others could take that away, in a new place that goes again."""
    home = home_of(VICTIM, place / "home", 0o755)
    environ = {"HPCEXT_CHECKPOINT_DIR": str(home / "job" / "checkpoint")}
    inductor = home / "job" / "compiled" / "inductor"
    assert VICTIM.does(lambda: said_of_compiled(environ, inductor), umask=0) == ""
    assert (home / "job" / "compiled").stat().st_mode & 0o777 == 0o700
    project = home_of(VICTIM, place / "project", 0o2775)
    environ = {"HPCEXT_CHECKPOINT_DIR": str(project / "job" / "checkpoint")}

    def elsewhere() -> None:
        found = Compiled(environ)
        path = Path(found.variables()["TORCHINDUCTOR_CACHE_DIR"]).parent
        assert private.is_safe(path)
        assert path.stat().st_mode & 0o777 == 0o700
        found.end(completed=False)
        assert not path.exists()

    assert VICTIM.does(elsewhere) == ""


@pytest.mark.parametrize("kind", ["theirs", "a link", "open to the group", "missing"])
def test_a_place_that_somebody_has_prepared_is_not_compiled_into(place: Path, kind: str) -> None:
    """Of a session that no supervisor started: /tmp/torchinductor_USER of somebody else."""
    common = home_of(STRANGER, place / "tmp", 0o1777)
    os.chown(common, 0, 0)
    prepared = common / "torchinductor_victim"
    if kind == "theirs":
        assert MEMBER.does(lambda: prepared.mkdir(mode=0o777), umask=0) == ""
    elif kind == "a link":
        assert MEMBER.does(lambda: prepared.symlink_to("/var/tmp")) == ""
    elif kind == "open to the group":
        assert VICTIM.does(lambda: prepared.mkdir(mode=0o775), umask=0) == ""
    used = kind == "missing"
    assert VICTIM.does(lambda: _check(compiled._is_private(prepared), used), umask=0) == ""
    assert not used or prepared.stat().st_mode & 0o777 == 0o700


def _check(found: bool, wanted: bool) -> None:
    assert found is wanted


def test_a_supervisor_does_not_take_over_what_is_not_its_users(place: Path) -> None:
    home = home_of(MEMBER, place / "theirs", 0o755)
    assert MEMBER.does(lambda: created(home, home / "run")) == ""
    for path in (home / "run", home / "run/jobs", home / "run/jobs/1"):
        path.chmod(0o755)
    attempt = home / "run" / "jobs" / "1" / "attempt-0001"
    attempt.chmod(0o755)
    (attempt / "launch.json").chmod(0o644)
    assert "belongs to uid" in VICTIM.does(lambda: Supervisor(attempt, read(attempt)))
