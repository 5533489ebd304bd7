"""Where ``torch.compile`` keeps what it makes: real compilations, looked for on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))

from stage import Stage, end

SCRIPT = str(Path(__file__).with_name("train_compiled.py"))
FEW = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def made(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_an_attempts_is_beside_its_checkpoints_and_goes_when_it_has_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    stage = Stage(tmp_path)
    for name, value in FEW.items():
        monkeypatch.setenv(name, value)
    # What fails after it has compiled is tried again, and finds it.
    failing = f"{sys.executable} {SCRIPT} '' compile && exit 3"
    assert end(stage.run("sh", "-c", failing)) == 3
    compiled = tmp_path / "1" / "compiled"
    assert f"{compiled}/inductor {compiled}/triton" in stage.log.read_text()
    assert made(compiled / "inductor")
    assert not list((tmp_path / "1" / "checkpoint").rglob("*.so"))
    assert compiled.stat().st_mode & 0o777 == 0o700
    (stage.directory / "supervisor.json").unlink()
    assert end(stage.run("true")) == 0
    assert not compiled.exists()


def test_what_the_user_says_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    stage = Stage(tmp_path)
    assert end(stage.run("sh", "-c", "echo $TORCHINDUCTOR_CACHE_DIR")) == 0
    assert f"\n{tmp_path / 'mine'}\n" in stage.log.read_text()


@pytest.mark.parametrize(
    "words", [(), pytest.param(("compile",), marks=pytest.mark.slow)], ids=["told", "compiled"]
)
def test_outside_a_manager_what_somebody_prepared_is_not_used(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """TMPDIR stands for /tmp here: who came first is another user, or left it open to others."""
    temporary = tmp_path / "tmp"
    prepared = temporary / "torchinductor_victim"
    prepared.mkdir(parents=True)
    prepared.chmod(0o777)
    environ = {key: value for key, value in os.environ.items() if "INDUCTOR" not in key}
    ended = subprocess.run(
        [sys.executable, SCRIPT, str(tmp_path / "checkpoint"), *words],
        env={**environ, **FEW, "TMPDIR": str(temporary), "USER": "victim", "LOGNAME": "victim"},
        capture_output=True,
        text=True,
        check=True,
    )
    used = Path(ended.stdout.split()[0])
    assert used.parent.parent == temporary
    assert used.parent.name.startswith("hpcext-compiled-")
    assert "other users could change" in ended.stderr
    assert not list(prepared.iterdir())
    assert not used.exists(), "it goes with the process"
