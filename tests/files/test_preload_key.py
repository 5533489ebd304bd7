"""The job key ``preload``: what is accepted, and what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.core.errors import InputError
from hpcext.jobfile import parse_jobs
from hpcext.jobspec import JobSpec
from hpcext.launch.words import Ranks, interpreter, launched


def job(tmp_path: Path, command: str, lines: str) -> JobSpec:
    text = f'[[job]]\nname = "a"\ncommand = "{command}"\n{lines}\n'
    return parse_jobs(text, "jobs.toml", tmp_path)[0]


@pytest.mark.parametrize(
    ("lines", "modules"),
    [
        ("", ()),
        ("preload = []", ()),
        ('preload = "torch"', ("torch",)),
        (
            'preload = ["torch", "hpcext.training.torch", "torch"]',
            ("torch", "hpcext.training.torch"),
        ),
    ],
)
def test_modules(tmp_path: Path, lines: str, modules: tuple[str, ...]) -> None:
    assert job(tmp_path, "python train.py", lines).preload == modules


def test_ranks_whose_number_is_filled_in_later(tmp_path: Path) -> None:
    command = "hpcext launch --ranks {gpus} python train.py"
    assert job(tmp_path, command, 'preload = "torch"').preload == ("torch",)


@pytest.mark.parametrize(
    ("command", "lines", "said"),
    [
        ("python train.py", "preload = true", "true is a boolean (valid: an array of names"),
        ("python train.py", "preload = [1]", "1 is an integer (valid: an array of names of"),
        ("python train.py", 'preload = ["os; x"]', "'os; x' is not the name of a module"),
        ("python train.py", 'preload = "a..b"', "'a..b' is not the name of a module"),
        ("python train.py", 'preload = ["-m"]', "'-m' is not the name of a module"),
        ("torchrun train.py", 'preload = "torch"', "the command is 'torchrun train.py'"),
        ("python -c pass", 'preload = "torch"', "the command is 'python -c pass'"),
        ("hpcext launch true", 'preload = "torch"', 'or one of these after "hpcext launch"'),
        ("hpcext launch --all python a.py", 'preload = "torch"', "is 'hpcext launch --all'"),
        (
            "python train.py",
            'preload = "torch"\ncheckpoint = "transparent"',
            "stated beside checkpoint; leave one of them out",
        ),
        (
            "python train.py",
            'preload = "torch"\ncontainer = "docker://image:1"',
            "stated beside container; leave one of them out",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be(tmp_path: Path, command: str, lines: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        job(tmp_path, command, lines)
    text = str(error.value)
    assert "jobs.toml: [[job]] 1 (a): preload" in text
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("hpcext launch python a.py -m", Ranks(("python", "a.py", "-m"))),
        ("/opt/bin/hpcext launch --ranks 2 -- a -- b", Ranks(("a", "--", "b"), ranks=2)),
        ("python3 -m hpcext launch --replace=1 --ranks=3 a", Ranks(("a",), 3, 1)),
        ("hpcext launch", None),
        ("hpcext launch --ranks 2", None),
        ("hpcext launch --ranks two a", None),
        ("hpcext launch --ranks=0 a", None),
        ("hpcext launch --ranks=1025 a", None),
        ("hpcext launch --replace=101 a", None),
        ("hpcext launch -h", None),
        ("hpcext run launch a", None),
        ("python hpcext launch a", None),
        ("", None),
    ],
)
def test_what_is_launched_as_ranks(words: str, found: Ranks | None) -> None:
    assert launched(words.split()) == found


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("python train.py", 1),
        ("/opt/env/bin/python3.12 train.py -u", 1),
        ("python -u -B train.py", 3),
        ("python -W ignore -Xdev train.py", 0),
        ("python -W ignore -X dev -m train", 5),
        ("python -um train", 0),
        ("python", 0),
        ("python -", 0),
        ("python -m", 0),
        ("python -u", 0),
        ("pythonic train.py", 0),
        ("sh -c true", 0),
        ("", 0),
    ],
)
def test_the_interpreter_and_its_options(words: str, count: int) -> None:
    assert interpreter(words.split()) == count
