"""Pilots: where they are, who may manage them, and what is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcext.config import Settings
from hpcext.core.errors import InputError, NoManagerError
from hpcext.jobspec import JobSpec
from hpcext.manager import pilot as pilots
from hpcext.manager import spool

SPECS = (JobSpec("only", ("true",)),)


def create(root: Path, name: str = "try", directory: Path | None = None) -> Path:
    settings = Settings(state_dir=root / "state")
    return pilots.create(
        SPECS,
        pilots.NewPilot(
            name=name,
            gpus=(0, 1),
            logical=True,
        ),
        settings=settings,
        where="jobs.toml",
        directory=directory,
    )


def test_a_pilot_is_found_by_directory_id_and_name(tmp_path: Path) -> None:
    path = create(tmp_path, directory=tmp_path / "here")
    state = tmp_path / "state"
    pilot = pilots.load(path)
    assert path.stat().st_mode & 0o777 == 0o700
    for handle in (str(path), pilot.id, "try"):
        assert pilots.find(handle, state) == path
    newer = create(tmp_path)
    assert pilots.find("try", state) == newer
    for handle in ("", "tr", "..", "try/..", "a" * 500, "x\0y"):
        with pytest.raises(NoManagerError, match="no pilot"):
            pilots.find(handle, state)


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 65, "\x1b[2J", "x\n"])
def test_invalid_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="is not a valid name"):
        create(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_exists_is_left_alone(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(InputError, match="exists"):
        create(tmp_path, directory=taken)
    assert not list(taken.iterdir())


def test_one_manager_at_a_time_and_the_next_when_it_was_killed(tmp_path: Path) -> None:
    path = create(tmp_path)
    hold = (
        "import sys,time;from pathlib import Path;from hpcext.manager.pilot import sole_manager\n"
        "with sole_manager(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, path], stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(NoManagerError, match=f"pid {other.pid}"), pilots.sole_manager(path):
            pass
        other.kill()
        other.wait()
    with pilots.sole_manager(path):
        me = spool.manager_of(path)
    assert me is not None


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """filelock would fall back to a mere marker file, which two machines can both believe in."""
    path = create(tmp_path)

    def flock(fd: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(NoManagerError, match="does not support locks"), pilots.sole_manager(path):
        pass
    assert not (path / spool.MANAGER_FILE).exists()


def test_a_pilot_of_an_older_release_says_in_another_way_that_it_is_for_slurm(
    tmp_path: Path,
) -> None:
    path = create(tmp_path)
    document = json.loads((path / "pilot.json").read_text())
    del document["batch"], document["launcher"]
    for slurm, batch in ((True, "slurm"), (False, "")):
        (path / "pilot.json").write_text(json.dumps({**document, "slurm": slurm}))
        assert pilots.load(path).batch == batch
