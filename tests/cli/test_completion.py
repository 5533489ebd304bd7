"""The tab key in real shells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from hpcext.cli import completion
from hpcext.cli import main as cli

WAIT_S = 240

JOBS = """
[[job]]
name = "narrow"
command = "true"
[[job]]
name = "wide"
command = "true"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user with a pilot, and hpcext on the path."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "jobs.toml").write_text(JOBS)
    for program in ("hpcext", "hpcext-admin"):
        module = {"hpcext": "main", "hpcext-admin": "admin"}[program]
        path = folder / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"#!{sys.executable}\nfrom hpcext.cli.{module} import main\nraise SystemExit(main())\n"
        )
        path.chmod(0o755)
    words = ["hpcext", "-q", "run", "jobs.toml", "--gpus", "1", "--name", "nightly"]
    subprocess.run(words, env=environ(folder), cwd=folder, check=True)
    return folder


def environ(home: Path) -> dict[str, str]:
    package = Path(cli.__file__).parents[2]
    return {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(package),
        "CUDA_VISIBLE_DEVICES": "",
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }


def code(home: Path, shell: str) -> str:
    """A file with what ``hpcext completion`` prints."""
    done = subprocess.run(
        ["hpcext", "completion", shell],
        env=environ(home),
        capture_output=True,
        text=True,
        check=True,
    )
    path = home / f"_hpcext.{shell}"
    path.write_text(done.stdout)
    return str(path)


Complete = Callable[[str], set[str]]
"""A line as it is typed → the words that the shell offers."""


def fish(home: Path) -> Complete:
    path = code(home, "fish")

    def complete(line: str) -> set[str]:
        script = f"source {path}; complete --do-complete '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            env=environ(home),
            cwd=home,
            capture_output=True,
            text=True,
            check=True,
        )
        return {each.partition("\t")[0] for each in done.stdout.splitlines()}

    return complete


class Typed:
    """A shell on a terminal, in which lines are typed."""

    def __init__(self, home: Path, words: list[str], setup: list[str]) -> None:
        self.shell = pexpect.spawn(
            words[0],
            words[1:],
            env=environ(home),
            cwd=home,
            encoding="utf-8",
            dimensions=(200, 200),
            timeout=WAIT_S,
        )
        for line in setup:
            self.shell.sendline(line)
        self.shell.sendline("PS1='re''ady> '")
        self.shell.expect("ready> ")

    def complete(self, line: str) -> set[str]:
        # Not run, but made an argument of ":".
        self.shell.send(f"{line}\t\x01: \x05 # en''d\r")
        self.shell.expect("en''d")
        shown = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])", " ", str(self.shell.before))
        offered = set(re.findall(r"[\w.-]+", shown))
        self.shell.expect("ready> ")
        return offered


@pytest.fixture(
    params=["bash", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zsh", "fish"))]
)
def complete(request: pytest.FixtureRequest, home: Path) -> Iterator[Complete]:
    shell: str = request.param
    assert shutil.which(shell), f"{shell} is not installed; make test installs it"
    if shell == "fish":
        yield fish(home)
        return
    words, setup = {
        "bash": (["bash", "--norc"], "bind 'set show-all-if-ambiguous on'"),
        "zsh": (["zsh", "--no-rcs"], "bindkey -e; autoload -U compinit && compinit -u -D"),
    }[shell]
    typed = Typed(home, words, [setup, f"source {code(home, shell)}"])
    yield typed.complete
    typed.shell.close(force=True)


def test_shells_complete_commands_options_pilots_and_jobs(complete: Complete) -> None:
    assert {"status", "submit", "suspend"} <= complete("hpcext s")
    assert {"--policy", "--name"} <= complete("hpcext run --")
    assert "nightly" in complete("hpcext status n")
    assert {"narrow", "wide"} <= complete("hpcext why nightly ")
    assert {"install", "uninstall"} <= complete("hpcext-admin ")


def test_values_and_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.toml", "notes.txt"):
        (tmp_path / name).touch()
    actions = {action.dest: action for action in cli.make_parser()[1]["run"]._actions}
    offered = {
        name: set(completion.candidates("", action, Namespace()))
        for name, action in actions.items()
    }
    assert "pollux" in offered["policy"]
    assert offered["jobs"] == {"jobs.toml"}
    assert offered["gpus"] == set()


def test_a_pilot_whose_name_is_complete_goes_on_as_an_id(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(home / ".local/state/hpcext"))
    assert set(completion.pilot_names("ni")) == {"nightly"}
    (pilot,) = completion.pilot_names("nightly-2")
    assert pilot.startswith("nightly-2")
    assert set(completion.job_names(pilot)) == {"narrow", "wide"}
    assert not completion.job_names("elsewhere")


def test_without_argcomplete_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert cli.main(["completion", "bash"]) == 2
    told = capsys.readouterr().err
    assert told == "hpcext: argcomplete is not installed; pip install 'hpcext[completion]'\n"


@pytest.mark.parametrize("shell", completion.PLACES)
def test_what_is_printed_says_where_it_belongs(
    shell: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["completion", shell]) == 0
    last = capfdbinary.readouterr().out.decode().splitlines()[-len(completion.PLACES[shell]) :]
    assert last == [f"# {line}" for line in completion.PLACES[shell]]
    assert f"hpcext completion {shell}" in last[0]
