"""Jobs that a command line states become the jobs that a job file would have stated."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from hpcext.cli import commands
from hpcext.cli import main as cli
from hpcext.core.errors import InputError
from hpcext.jobfile import COMMAND_LINE, JobSpec, parse_jobs


def specs(*words: str, warnings: list[str] | None = None) -> tuple[JobSpec, ...]:
    """The jobs of a command line of ``hpcext run``."""
    written = commands.read(cli.parse(["run", *words]))
    assert written is not None
    return parse_jobs(written.text, COMMAND_LINE, Path.cwd(), warnings=warnings)


def typed(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def refused(*words: str) -> str:
    with pytest.raises(InputError) as caught:
        commands.read(cli.parse([*words]))
    return str(caught.value)


def test_it_is_the_job_of_a_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    text = """
        [[job]]
        name = "cnn"
        command = ["python", "train.py", "--lr", "0.1", "two words", "{gpus}", ""]
        gpus = {min = 1, max = 4}
        workdir = "here"
        env = {SEED = "1", EMPTY = "", PAIR = "a=b"}
        retries = 0
        checkpoint = "plain"
        trackers = false
        """
    said = ["--gpus-per-job", "1:4", "--workdir", "here", "--retries", "0", "--name", "cnn"]
    said += ["--checkpoint", "plain", "--no-trackers"]
    said += ["--env", "SEED=1", "--env", "EMPTY=", "--env=PAIR=a=b", "--gpus", "8"]
    words = ["python", "train.py", "--lr", "0.1", "two words", "{gpus}", ""]
    assert specs(*said, "--", *words) == parse_jobs(text, "jobs.toml", tmp_path)


def test_gpus_may_be_multiples() -> None:
    (spec,) = specs("--gpus-per-job", "2:8:2", "--", "train")
    assert tuple(spec.gpus.sizes) == (2, 4, 6, 8)


def test_what_follows_the_dashes_is_the_commands_own() -> None:
    for words in (["--name", "x"], ["-q"], ["--json", "--", "--help"], ["a b", "'"]):
        (spec,) = specs("--", *words)
        assert spec.command == tuple(words)


def test_a_shell_runs_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = specs("--shell", "--", "python train.py | tee out.txt")
    assert (spec.command[-1], spec.shell) == ("python train.py | tee out.txt", True)
    assert refused("run", "--shell", "--", "python", "train.py") == (
        "--: 2 words, and --shell takes one; quote the command, as in "
        "--shell -- 'python train.py | tee out.txt'"
    )
    typed(monkeypatch, "echo 'one\nls *\n")
    assert [spec.command[-1] for spec in specs("--shell", "--commands", "-")] == [
        "echo 'one",
        "ls *",
    ]


def test_each_line_is_a_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "# a sweep\r\n\npython train.py --lr 0.1\n  python train.py 'a b' # 2\n\teval -x"
    expected = [
        ("train-1", ("python", "train.py", "--lr", "0.1")),
        ("train-2", ("python", "train.py", "a b", "#", "2")),
        ("eval", ("eval", "-x")),
    ]
    typed(monkeypatch, text)
    assert [(spec.name, spec.command) for spec in specs("--commands", "-")] == expected
    (tmp_path / "list").write_text(text)
    found = specs("--commands", str(tmp_path / "list"), "--gpus-per-job", "2")
    assert [(spec.name, spec.command) for spec in found] == expected
    assert {spec.gpus.max for spec in found} == {2}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 0.1", "train"),
        ("./run/Train.SH", "Train"),
        ("torchrun --nproc-per-node {gpus} ../cnn.py data.csv", "cnn"),
        ("python3 -m package.train", "package.train"),
        ("/usr/bin/env -i ./solve", "env"),
        ("--odd", "job"),
        ("./42", "job-42"),
        ("größe.py", "gr__e"),
        ("'a b'", "a_b"),
        (f"{'x' * 80}.py", "x" * 64),
    ],
)
def test_a_job_is_called_after_its_script(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, f"{command}\n")
    (spec,) = specs("--commands", "-")
    assert spec.name == name


def test_names_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "y" * 64
    typed(monkeypatch, f"./a\n./a-1\n./a\n{long}\n{long}\n")
    names = [spec.name for spec in specs("--commands", "-")]
    assert names == ["a-2", "a-1", "a-3", f"{long[:62]}-1", f"{long[:62]}-2"]
    typed(monkeypatch, "./a\n./b\n")
    assert [spec.name for spec in specs("--commands", "-", "--name", "n")] == ["n-1", "n-2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("true\n\n# c\necho 'one\ntrue", 'line 4: "echo \'one": no closing quotation'),
        ("true\n''", 'line 2: empty (valid: what to run, as in "python train.py")'),
        ("a\0b", "line 1: 'a\\x00b'"),
        ("# nothing\n\n", "standard input: no command in it (valid: a command in each line)"),
        (b"true\n\xff", "standard input: not UTF-8: byte 0xff at offset 5"),
    ],
)
def test_a_bad_line_is_named(text: str | bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, text)
    assert said in refused("run", "--commands", "-")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "jobs.toml", "--", "true"], "--: cannot be given with the job file 'jobs.toml'"),
        (["run", "--commands", "-", "--", "true"], "--: cannot be given with --commands"),
        (["run", "jobs.toml", "--retries", "0"], "--retries: states jobs without a job file"),
        (["run", "jobs.toml", "--shell"], "--shell: states jobs without a job file, and there is"),
        (["run", "--env", "A=1"], "--env: states jobs without a job file, and there is no command"),
        (["submit", "p", "j.toml", "--after", "a"], "--after: states jobs without a job file"),
        (["run", "--gpus-per-job", "x", "--", "a"], "--gpus-per-job: 'x' (valid: N, MIN:MAX"),
        (["run", "--gpus-per-job", "3:", "--", "a"], "--gpus-per-job: '3:' (valid: N, MIN:MAX"),
        (["run", "--gpus-per-job", "2:8:3", "--", "a"], "--gpus-per-job: max: 8 is no multiple of"),
        (["run", "--gpus-per-job", "2:8:", "--", "a"], "--gpus-per-job: '2:8:' (valid: N, MIN:MAX"),
        (["run", "--gpus-per-job", "2:4:2:2", "--", "a"], "--gpus-per-job: '2:4:2:2' (valid: N,"),
        (["run", "--gpus-per-job", "2:8:0", "--", "a"], "multiple: 0 (valid: an integer, 1"),
        (["run", "--gpus-per-job", "3:2", "--", "a"], "--gpus-per-job: '3:2' (valid: N, MIN:MAX"),
        (
            ["run", "--gpus-per-job", "0", "--", "a"],
            "--gpus-per-job: '0' (valid: N, MIN:MAX or MIN:MAX:MULTIPLE, 1 to 1024)",
        ),
        (["run", "--env", "A", "--", "a"], "--env: 'A' (valid: KEY=VALUE)"),
        (["run", "--env", "HPCEXT_A=1", "--", "a"], "--env: 'HPCEXT_A' is set by hpcext itself"),
        (["run", "--workdir", "/none", "--", "a"], "--workdir: no directory '/none'"),
        (["run", "--retries", "-1", "--", "a"], "--retries: -1 (valid: an integer, 0 to 1000)"),
        (["run", "--checkpoint", "x", "--", "a"], "--checkpoint: unknown preset 'x' (valid: "),
        (["run", "--", ""], '--: empty (valid: what to run, as in "python train.py")'),
        (["run", "--commands", "/none"], "/none: no such file"),
    ],
)
def test_a_bad_command_line_is_refused(words: list[str], said: str) -> None:
    assert said in refused(*words)


def test_messages_say_what_to_write_on_a_command_line() -> None:
    warnings: list[str] = []
    specs("--", "python", "train.py", "|", "tee", warnings=warnings)
    specs("--shell", "--", "python train.py | tee", warnings=warnings)
    assert [warning.partition(";")[2] for warning in warnings] == [
        " to run it in a shell, give --shell",
        " put the training last, or give bash -o pipefail -c '...' as the command",
    ]
    with pytest.raises(InputError, match=r"^command line: job a/b: name: "):
        specs("--name", "a/b", "--", "true")
