"""The tab key in real shells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from hpcext.cli import main as cli

WAIT_S = 60

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
        "TERM": "vt100",
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
        # Twice, for a list; the word behind stands for whatever was completed before it.
        self.shell.send(f"{line}\t\t")
        self.shell.send("\x01: \x05 # en''d\r")
        self.shell.expect("en''d")
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|:", " ", str(self.shell.before))
        offered = set(shown.split())
        self.shell.expect("ready> ")
        return offered


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, home: Path) -> Iterator[Complete]:
    shell: str = request.param
    assert shutil.which(shell), f"{shell} is not installed; make test installs it"
    if shell == "fish":
        yield fish(home)
        return
    words = {"bash": ["bash", "--norc"], "zsh": ["zsh", "--no-rcs"]}[shell]
    first = ["bindkey -e; autoload -U compinit && compinit -u -D"] if shell == "zsh" else []
    typed = Typed(home, words, [*first, f"source {code(home, shell)}"])
    yield typed.complete
    typed.shell.close(force=True)


def test_shells_complete_commands_options_pilots_and_jobs(complete: Complete) -> None:
    assert {"status", "submit", "suspend"} <= complete("hpcext s")
    assert {"--policy", "--name"} <= complete("hpcext run --")
    assert "nightly" in complete("hpcext status n")
    assert {"narrow", "wide"} <= complete("hpcext why nightly ")
    assert {"install", "uninstall"} <= complete("hpcext-admin ")
