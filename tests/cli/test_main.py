"""The command line as a whole: errors, exit statuses, and what reaches a terminal."""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import manual
import pytest

from hpcext import __version__
from hpcext.cli import admin, output
from hpcext.cli import main as cli
from hpcext.core.errors import InputError, NoManagerError

HPCEXT = [sys.executable, "-m", "hpcext"]


PARSERS = {
    parser.prog: (parser, parse)
    for make, parse in ((cli.make_parser, cli.parse), (admin.make_parser, admin.parse))
    for parser in manual.parsers(make)
}
"""Those of both programs, their commands and what is below."""


@pytest.mark.parametrize("prog", PARSERS)
def test_help_ends_with_an_example_that_is_taken(prog: str) -> None:
    parser, parse = PARSERS[prog]
    last = parser.format_help().splitlines()[-1]
    assert f"{last} ".startswith(f"example: {prog} "), "epilog=, on one line"
    words = shlex.split(last.removeprefix("example: "))
    found = parse(words[1:])
    assert callable(found.run)
    assert found.parser.prog.startswith(prog)


@pytest.mark.parametrize("prog", PARSERS)
def test_the_nearest_command_or_option_is_named(prog: str) -> None:
    parser, parse = PARSERS[prog]
    begin = prog.split()[1:]
    for action in parser._actions:
        for name in action.choices or ():
            with pytest.raises(InputError, match=f"'{name}x' .*; did you mean {name}[?]"):
                parse([*begin, *action.option_strings[-1:], f"{name}x"])
    if parser.get_default("run"):
        # What comes first is found first: the rest of the line is right.
        rest = shlex.split(str(parser.epilog).removeprefix("example: "))[len(prog.split()) :]
        for action in manual.options(parser):
            name = action.option_strings[-1]
            value = [] if action.nargs == 0 else ["1"]
            with pytest.raises(InputError, match=f"'{name}x'.*; did you mean {name}[?]"):
                parse([*begin, f"{name}x", *value, *rest])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"hpcext {__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "arguments are required: COMMAND"),
        (["confg"], "did you mean config?"),
        (["-q", "confg"], "unknown command 'confg'"),
        (["\x1b[31m"], r"unknown command '\x1b[31m'"),
        (["config"], "arguments are required: ACTION"),
        (["config", "chekc"], "unknown action 'chekc' (valid: check, show); did you mean check?"),
        (["config", "show", "--orign"], "unknown option '--orign'"),
        (["config", "show", "more"], "too many arguments: 'more'"),
        (
            ["run", "python", "x.py", "--lr", "1"],
            "'x.py'; put -- before a command, as in",
        ),
        (
            ["submit", "p", "python", "x.py"],
            "before a command, as in hpcext submit -- python",
        ),
        (["suspendable", "python", "x.py"], "put -- before a command, as in hpcext suspendable --"),
        (["--quite", "config", "show"], "unknown option '--quite'"),
        (["config", "show", "--or"], "unknown option '--or'"),
        (["trace", "stat", "x", "--nodes", "many"], "--nodes: 'many' (valid: an integer)"),
        (["resize", "jobs", "cnn", "more"], "GPUS: 'more' (valid: an integer, or auto)"),
        (["launch", "--ranks", "9" * 99_999, "x"], "--ranks: '" + "9" * 60 + "'... (valid:"),
        (["pilot", "submit", "x", "--log-format", "x"], "--log-format: unknown log-format 'x'"),
    ],
)
def test_usage_errors_are_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"hpcext: [^\n]+\n", err)
    assert expected in err
    assert err[:-1].isprintable()


@pytest.mark.parametrize("prog", PARSERS)
def test_two_dashes_are_not_a_value(prog: str) -> None:
    parser, parse = PARSERS[prog]
    for action in manual.options(parser):
        if action.nargs is None:
            name = action.option_strings[-1]
            with pytest.raises(InputError, match=f"{name}: expected one argument"):
                parse([*prog.split()[1:], f"{name}=--"])


def test_another_path_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ["trace", "generate", "summit", "--hours", "1", "--nodes", "3", "--output"]
    long = tmp_path / ("x" * 300)
    for path, what in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "x.csv", "No such file or directory"),
        (long, "File name too long"),
    ):
        assert cli.main([*trace, str(path)]) == 2
        assert capsys.readouterr().err == f"hpcext: {path}: {what}\n"


@pytest.mark.parametrize("program", ["main", "admin"])
def test_an_interrupt_while_it_is_imported(program: str) -> None:
    script = f"""
import signal, sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Slow())
import hpcext.__main__
sys.exit(hpcext.__main__.{program}())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_without_standard_streams(tmp_path: Path) -> None:
    """Nothing that is opened gets their numbers: a job would write into it."""
    held = tmp_path / "held"
    script = f"""
import os, sys
from hpcext.cli import main
assert main.main(["config", "show"]) == 0
file = open({str(held)!r}, "w")
assert file.fileno() > 2
os.write(1, b"not there")
"""
    command = f"{shlex.join([sys.executable, '-c', script])} <&- >&- 2>&-"
    ended = subprocess.run(["sh", "-c", command], check=False)
    assert (ended.returncode, held.read_text()) == (0, "")


def test_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load_settings() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")

    monkeypatch.setattr("hpcext.cli.config.config.load_settings", load_settings)
    assert cli.main(["config", "show"]) == 1
    expected = "hpcext: /somewhere: No space left on device; free some space and try again\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("error", [InputError, NoManagerError])
def test_errors_become_one_line_or_a_document(
    error: type[InputError] | type[NoManagerError],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(args: argparse.Namespace, out: output.Output) -> int:
        raise error("bad \x1b]0;x\a", where="a\nb", valid="good", do="mend it")

    monkeypatch.setattr("hpcext.cli.config.config.load_settings", lambda: run(None, None))
    assert cli.main(["config", "show"]) == error.exit_status
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hpcext: a b: bad \\x1b]0;x\\x07 (valid: good); mend it\n")
    assert cli.main(["config", "show", "--json"]) == error.exit_status
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "error": {"what": "bad \x1b]0;x\a", "where": "a\nb", "valid": "good", "do": "mend it"}
    }
    assert "\x1b" not in out
    assert cli.main(["-q", "config", "show"]) == error.exit_status
    assert capsys.readouterr().err.startswith("hpcext: a b: bad")


def test_a_usage_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["confg", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["do"] == "did you mean config?"


def test_a_script_in_the_place_of_a_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, do in [
        ("my train.py", "is it a script? hpcext run -- python 'my train.py'"),
        ("go.sh", "hpcext run -- bash go.sh"),
        ("a.toml", ""),
    ]:
        (tmp_path / name).write_text("import torch\n")
        assert cli.main(["run", name, "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["what"].startswith("not TOML")
        assert do in error.get("do", "")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--name=x/y", "is not a valid name"),
        ("--dir=/proc/foo", "/proc/foo cannot be made"),
        ("--dir=there", "exists; choose another\n"),
        ("--dir=there/pilot", "exists; choose another, or hpcext run --resume"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(
    option: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there/pilot").mkdir(parents=True)
    (tmp_path / "there/pilot/pilot.json").touch()
    (tmp_path / "a.toml").write_text('[[job]]\nname = "a"\ncommand = "true"\n')
    words = ["run", "--gpus", "1", option, "a.toml"]
    refused = []
    for more in [[], ["--dry-run"]]:
        assert cli.main([*words[:3], *more, *words[3:]]) == 2
        refused.append(capsys.readouterr().err)
    assert refused[0] == refused[1]
    assert says in refused[0]


def test_a_dry_run_warns_of_a_program_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, warned in [(["pyton", "x.py"], True), (["./x"], True), (["true"], False)]:
        assert cli.main(["run", "--gpus", "1", "--dry-run", "--", *command]) == 0
        assert ("there is no program" in capsys.readouterr().err) == warned
    assert cli.main(["run", "--gpus", "1", "--dry-run", "--shell", "--", "pyton x.py"]) == 0
    assert "there is no program" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--policy", "exclusive"]])
def test_a_bad_job_file_starts_nothing(
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    jobs = tmp_path / "jobs.toml"
    mark = tmp_path / "ran"
    good = f'[[job]]\nname = "good"\ncommand = ["touch", "{mark}"]\n'
    jobs.write_text(good + good.replace("good", "bad") + "gpus = {min = 2, max = 1}\n")
    assert cli.main(["run", str(jobs), "--gpus", "2", *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"hpcext: {jobs}: [[job]] 2 (bad): gpus: min 2 is more than max 1 "
        "(valid: a min from 1 to 1)\n"
    )
    assert list(tmp_path.iterdir()) == [jobs]


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--quiet", "config", "show"]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcext.cli.config.config.load_settings", interrupted)
    assert cli.main(["config", "show"]) == 130


def test_a_reader_that_leaves_is_not_an_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [*HPCEXT, "config", "show"], stdout=write, stderr=subprocess.PIPE, env=env, check=False
    )
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*HPCEXT, "config", "show"], stdout=full, stderr=subprocess.PIPE, env=env, check=False
        )
    assert done.stderr == b"hpcext: No space left on device; free some space and try again\n"
    assert done.returncode == 1


def test_a_locale_without_the_characters_is_not_an_error(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "XDG_CONFIG_HOME": str(tmp_path)}
    env["HPCEXT_POLICY"] = "märble"
    done = subprocess.run([*HPCEXT, "config", "show"], capture_output=True, env=env, check=False)
    assert done.returncode == 2
    assert rb"unknown policy 'm\xe4rble'" in done.stderr


def test_a_table_on_a_pipe_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output().table(("id", "job"), [("1", "cnn"), ("10", "x\x1b[2Jy\n")])
    assert capsys.readouterr().out == "id  job\n1   cnn\n10  x\\x1b[2Jy\\n\n"


def test_a_table_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output().table(("id", "job"), [])
    assert capsys.readouterr().out == "id  job\n"


def test_documents_are_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.JsonOutput().document({"loss": float("nan"), "name": "\u009b31m\u202e"})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {"loss": None, "name": "\u009b31m\u202e"}


def test_no_live_table_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for out in (output.Output(), output.JsonOutput(), output.QuietOutput()):
        with out.live(("id",)) as show:
            assert show is None
    assert capsys.readouterr().out == ""


def test_raw_bytes_pass_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.Output().raw(b"50%\r100%\xff\n")
    assert capfdbinary.readouterr().out == b"50%\r100%\xff\n"


def test_on_a_terminal_nothing_from_outside_moves_the_cursor() -> None:
    script = """
from hpcext.cli import output
out = output.Output()
hostile = "evil\\x1b[2J\\x1b]0;title\\x07[bold]"
out.table(("id", hostile), [("1", hostile)])
with out.live(("id", "job")) as screen:
    screen.show([("1", hostile)], hostile)
    out.line(hostile)
out.line(hostile)
"""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150"}
    child = subprocess.Popen([sys.executable, "-c", script], stdout=slave, stderr=slave, env=env)
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # EIO: the other end was closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
    assert child.wait() == 0
    seen = b"".join(chunks)
    assert b"\x1b[2J" not in seen
    assert b"\x1b]0;" not in seen
    # Twice in the first table, then live, above it, and after it; a live table is drawn again.
    assert seen.count(rb"evil\x1b[2J\x1b]0;title\x07[bold]") >= 5


@pytest.mark.parametrize("module", cli.COMMANDS)
def test_a_command_is_found_in_its_module(module: str) -> None:
    parser = cli.Parser(prog="hpcext")
    commands = parser.add_subparsers(dest="command")
    importlib.import_module(f"hpcext.cli.{module}").add(commands)
    assert tuple(commands.choices) == cli.COMMANDS[module]
    for command in cli.COMMANDS[module]:
        assert set(cli.make_parser(("-q", command))[1]) == set(cli.COMMANDS[module])
    assert len(cli.make_parser(("what-is-no-command",))[1]) > 20


def test_a_command_imports_no_other_ones() -> None:
    """``hpcext launch`` stands before each rank of a training."""
    code = (
        "import sys; from hpcext.cli import main; main.make_parser(['launch', '--', 'true']);"
        "print([m for m in ('numpy', 'hpcext.manager', 'hpcext.sim') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_slow_to_import_is_left_to_who_needs_it() -> None:
    """Every command pays for what all of them import; SciPy alone takes a second."""
    slow = ("scipy", "matplotlib", "torch", "pulp", "highspy")
    code = (
        "import sys; from hpcext.cli import main; main.make_parser();"
        f"print([m for m in {slow} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
