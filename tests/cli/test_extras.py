"""What needs a package that is not installed says so first: one line, and nothing is done."""

from __future__ import annotations

import configparser
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcext.cli import admin
from hpcext.cli import main as cli
from hpcext.core.errors import InputError
from hpcext.extras import EXTRAS, need

ROOT = Path(__file__).parents[2]

JOBS = """
[[job]]
name = "one"
command = "true"
scaling = {1 = 1.0}
work = {steps = 1000}
"""

# Module, the extra that brings it, and a command that is right otherwise; some would take minutes.
COMMANDS = (
    ("matplotlib", "plots", "simulate philly:load=4 --nodes 64x8 --data . --compare --report made"),
    ("matplotlib", "plots", "plan jobs.toml --gpus 8 --nodes 64 --compare --plot made.svg"),
    ("matplotlib", "plots", "report --format html -o made.html"),
    ("matplotlib", "plots", "report -o made.html"),
    ("matplotlib", "plots", "trials none --plot made.svg"),
    ("optuna", "optuna", "sweep train.py --grid a=1 --metric x --optuna none --random 1 -o made"),
    ("prometheus_client", "metrics", "metrics --listen 127.0.0.1:0"),
    ("prometheus_client", "metrics", "metrics --textfile made.prom"),
    ("textual", "top", "top"),
    ("argcomplete", "completion", "completion bash"),
    ("pulp", "milp", "run jobs.toml --gpus 1 --policy bftrainer:solver=milp --dir made"),
    ("pulp", "milp", "run jobs.toml --gpus 1 --dry-run --policy bftrainer:solver=counting"),
    ("pulp", "milp", "plan jobs.toml --gpus 8 --policy bftrainer:solver=milp"),
    ("pulp", "milp", "simulate jobs.toml --nodes 1x1 --policy bftrainer:solver=milp"),
    ("docutils", "admin", "hpcext-admin install slurm --dry-run"),
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.toml").write_text(JOBS)
    (tmp_path / "train.py").touch()
    return tmp_path


def hide(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a package not be there, and no part of it either."""
    parts = [name for name in sys.modules if name.startswith(f"{module}.")]
    for name in (module, *parts):
        monkeypatch.setitem(sys.modules, name, None)


def started(words: Sequence[str]) -> int:
    return admin.main(words[1:]) if words[0] == "hpcext-admin" else cli.main(words)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row[2][:40])
def test_what_is_missing_is_said_before_any_work(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: tuple[str, str, str],
) -> None:
    module, extra, command = row
    hide(module, monkeypatch)
    before = sorted(here.iterdir())
    assert started(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert f"{EXTRAS[module].package} is not installed; pip install 'hpcext[{extra}]'" in line
    assert sorted(here.iterdir()) == before


def test_manual_pages_can_be_left_out(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide("docutils", monkeypatch)
    words = ["install", "slurm", "--dry-run", "--include", str(here)]
    assert admin.main(words) == 2
    assert capsys.readouterr().err.rstrip().endswith("or give --no-man")
    assert admin.main([*words, "--no-man"]) == 2
    assert "Slurm's headers were not found" in capsys.readouterr().err


def test_what_of_a_study_will_be_missing_is_said_before_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def study(name: str, how: object) -> None:
        assert "without one comparison, as PuLP is not installed" in capsys.readouterr().err
        raise InputError("begun")

    hide("pulp", monkeypatch)
    monkeypatch.setattr("hpcext.cli.reproduce.reproduce", study)
    assert cli.main(["reproduce", "bftrainer"]) == 2
    assert capsys.readouterr().err == "hpcext: begun\n"


def test_a_package_that_is_broken_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide("optuna", monkeypatch)
    monkeypatch.delitem(sys.modules, "optuna")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "optuna.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(InputError, match="Optuna cannot be imported: No module named 'nothing_of"):
        need("optuna", "--optuna")


def test_all_is_every_extra_that_commands_use() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    (line,) = extras["all"].split("\n")[1:]
    said = line.removeprefix("hpcext[").removesuffix("]").split(", ")
    assert sorted(said) == sorted({each.name for each in EXTRAS.values()})
    for module, extra in EXTRAS.items():
        assert module in extras[extra.name]
