"""hpcext-admin: what it puts in place, what it refuses, and that it takes all of it out again."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcext import documents
from hpcext.admin import install as installing
from hpcext.admin import slurm, slurm_conf
from hpcext.batch.slurm.site import signal_at_preemption
from hpcext.cli import admin

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="what is root's is what is tested")


class Target(NamedTuple):
    """Directories of an imaginary machine, and how a command of ours ended there."""

    top: Path
    usr: Path
    conf: Path
    run: Callable[..., tuple[int, str, str]]

    @property
    def home(self) -> Path:
        return self.usr / "lib" / "hpcext" / "slurm"

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.top)): path.read_bytes()
            for path in sorted(self.top.rglob("*"))
            if path.is_file()
        }

    def install(self, *words: str) -> tuple[int, str, str]:
        where = ("--usr", str(self.usr), "--conf-dir", str(self.conf))
        command = ("--hpcext", str(self.top / "hpcext"))
        return self.run("install", "slurm", *where, *command, *words)

    def uninstall(self, *words: str) -> tuple[int, str, str]:
        return self.run("uninstall", "slurm", "--usr", str(self.usr), *words)

    def status(self) -> tuple[int, dict[str, Any]]:
        code, said, _ = self.run("status", "slurm", "--usr", str(self.usr), "--json")
        return code, json.loads(said)


@pytest.fixture
def target(capsys: pytest.CaptureFixture[str]) -> Iterator[Target]:
    # Not tmp_path: everybody must be able to reach hpcext.
    top = Path(tempfile.mkdtemp(prefix="hpcext-install-"))
    top.chmod(0o755)
    for name in ("usr", "etc"):
        (top / name).mkdir(mode=0o755)
    (top / "hpcext").write_text("#!/bin/sh\n")
    (top / "hpcext").chmod(0o755)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = admin.main(words)
        return (code, *capsys.readouterr())

    yield Target(top, top / "usr", top / "etc", run)
    shutil.rmtree(top)


@pytest.fixture(scope="module")
def built() -> dict[str, bytes]:
    """The plugin, compiled once."""
    return slurm._build(ROOT / "spank_hooks", slurm.INCLUDE)


@pytest.fixture
def quick(built: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compiling each time, nor making the manual pages."""
    monkeypatch.setattr(slurm, "_build", lambda hooks, include: built)
    page = Path("share/man/man1/hpcext.1")
    monkeypatch.setattr(
        slurm, "manual_pages", lambda pages, to: [slurm.Piece(to.parents[1] / page, b"a page")]
    )


@pytest.fixture
def _quick(quick: None) -> None:
    """For tests that only need its effect."""


def test_a_dry_run_says_what_is_done_and_does_nothing(target: Target) -> None:
    before = target.files()
    code, said, _ = target.install("--dry-run")
    assert code == 0
    assert target.files() == before
    planned = re.findall(r"^write +(\S+)$", said, re.M)
    code, out, _ = target.install()
    assert code == 0
    assert re.findall(r"^write +(\S+)$", out, re.M) == planned
    new = {str(target.top / name) for name in target.files().keys() - before.keys()}
    assert new == {*planned, str(target.home / "manifest.json")}
    assert planned[-1].endswith("plugstack.conf.d/hpcext.conf")  # all the rest is there by then
    line = (target.conf / "plugstack.conf.d" / "hpcext.conf").read_text()
    assert line == f"optional {target.home}/hpcext.so command={target.top}/hpcext\n"
    for path in map(Path, new):
        facts = path.stat()
        program = path.name in {"50-hpcext", "hpcext-batch"}
        assert facts.st_mode & 0o777 == (0o755 if program else 0o644), path
        assert facts.st_uid == 0
    assert (target.usr / "share/man/man1/hpcext.1").read_text().startswith('.\\"')
    needed = subprocess.run(
        ["nm", "-D", "--undefined-only", target.home / "hpcext.so"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "spank_option_register" in needed.stdout


@pytest.mark.usefixtures("_quick")
def test_twice_is_once_and_uninstall_leaves_nothing(target: Target) -> None:
    before = target.files()
    old = os.umask(0o077)
    try:
        assert target.install()[0] == 0
    finally:
        os.umask(old)
    once = target.files()
    code, said, _ = target.install("--json")
    assert code == 0
    assert {each["do"] for each in json.loads(said)["files"]} == {"keep"}
    assert target.files() == once
    assert all(path.stat().st_mode & 0o055 == 0o055 for path in target.usr.rglob("*/"))
    code, said, _ = target.uninstall("--dry-run")
    assert (code, target.files()) == (0, once)
    assert target.uninstall()[0] == 0
    assert target.files() == before
    assert sorted(target.usr.iterdir()) == sorted(target.conf.iterdir()) == []
    code, _, error = target.uninstall()
    assert code == 2
    assert error == (
        f"hpcext: {target.home}: nothing is installed; give the --usr that was given to install\n"
    )


@pytest.mark.usefixtures("_quick")
def test_a_changed_file_is_neither_replaced_nor_removed(target: Target) -> None:
    target.install()
    changed = target.home / "lua" / "rules.lua"
    changed.write_text("-- ours now\n")
    before = target.files()
    code, _, error = target.install()
    assert code == 2
    assert error == (
        f"hpcext: {changed}: has been changed since it was installed; move it away and try again\n"
    )
    assert target.files() == before
    code, _, error = target.uninstall()
    assert code == 1
    assert f"{changed}: changed since it was installed, so it stays" in error
    left = {"hpcext", "usr/lib/hpcext/slurm/lua/rules.lua", "usr/lib/hpcext/slurm/manifest.json"}
    assert target.files().keys() == left
    changed.unlink()
    assert target.uninstall()[0] == 0
    assert target.files().keys() == {"hpcext"}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_what_is_not_ours_is_left(target: Target, kind: str) -> None:
    there = target.conf / "prolog.d" / "50-hpcext"
    there.parent.mkdir()
    if kind == "file":
        there.write_text("of the site")
    elif kind == "link":
        there.symlink_to(target.top / "hpcext")
    else:
        there.mkdir()
    before = target.files()
    code, _, error = target.install()
    assert code == 2
    assert error.startswith(f"hpcext: {there}: is ")
    assert error.endswith("; move it away and try again\n" if kind == "file" else "move it away\n")
    assert target.files() == before


@pytest.mark.usefixtures("_quick")
def test_an_update_replaces_and_removes_what_is_old(target: Target) -> None:
    target.install()
    path = target.home / "manifest.json"
    document = json.loads(path.read_text())
    rules, old = target.home / "lua" / "rules.lua", target.home / "lua" / "old.lua"
    for each in (rules, old):
        each.write_text("-- of an older version\n")
        document["files"][str(each)] = [hashlib.sha256(each.read_bytes()).hexdigest()]
    path.write_text(json.dumps(document))
    code, said, _ = target.install()
    assert code == 0
    assert f"replace  {rules}" in said
    assert f"remove   {old}" in said
    assert not old.exists()
    assert rules.read_bytes() == (ROOT / "spank_hooks/lua/rules.lua").read_bytes()
    assert target.uninstall()[0] == 0
    assert target.files().keys() == {"hpcext"}


@pytest.mark.usefixtures("_quick")
def test_an_installation_that_is_cut_short_is_found_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of its writes in turn; then it is taken out, or done again."""
    real = documents.write_file
    for most in itertools.count(1):
        count = itertools.count(1)

        def write(*args: object, count: object = count, most: int = most, **more: object) -> None:
            if next(count) > most:  # type: ignore[call-overload]
                raise OSError(28, "No space left on device", str(args[0]))
            real(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(documents, "write_file", write)
        code = target.install()[0]
        monkeypatch.setattr(documents, "write_file", real)
        if code == 0:
            break
        assert code == 1
        if most % 2:
            assert target.install()[0] == 0
        assert target.uninstall()[0] == 0
        assert target.files().keys() == {"hpcext"}
        assert list(target.usr.iterdir()) == []
    assert most > 10  # it was cut short at each file


SOME = {"usr/lib/hpcext/slurm/lua/a.lua": b"one", "etc/prolog.d/50-a": b"two"}
"""Two files say as much as fifteen."""


def kill_before(step: int, top: Path, do: Callable[[], object]) -> bool:
    """Do something in a process that is killed before its n-th change of a file; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = itertools.count(1)

        def hear(event: str, facts: tuple[Any, ...]) -> None:
            if event == "open":
                changes = bool(facts[2] & (os.O_WRONLY | os.O_RDWR)) and str(facts[0]) != "None"
            else:
                changes = event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod"}
            if changes and str(top) in str(facts[0]) and next(left) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hear)
        try:
            do()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def tree(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


@pytest.mark.cases(2)
@pytest.mark.parametrize("then", ["install", "uninstall"])
@pytest.mark.parametrize("killed", ["install", "uninstall"])
def test_what_a_killed_run_has_left_is_cleaned_by_the_next(
    target: Target, killed: str, then: str
) -> None:
    """Killed before each of its changes in turn."""
    (target.usr / "lib").mkdir()
    place = installing.InstallLocation(target.home)
    pieces = [installing.Piece(target.top / name, data) for name, data in SOME.items()]

    def install() -> None:
        installing.apply(place, installing.plan(place, pieces))

    def uninstall() -> None:
        installing.remove(place, installing.plan_removal(place, "--usr"))

    bare = tree(target.top)
    install()
    full = tree(target.top)
    uninstall()
    assert tree(target.top) == bare
    run = {"install": install, "uninstall": uninstall}
    for step in itertools.count(1):
        if killed == "uninstall":
            install()
        if not kill_before(step, target.top, run[killed]):
            break
        if then == "install":
            install()
            assert tree(target.top) == full, step
            uninstall()
        elif tree(target.top) != bare:
            uninstall()
        assert tree(target.top) == bare, step
    assert step > 7


@pytest.mark.usefixtures("_quick")
def test_only_drafts_of_ours_are_removed(target: Target) -> None:
    assert target.install()[0] == 0
    rules = target.home / "lua" / "rules.lua"
    draft = rules.with_name(f".{rules.name}.0123456789ab")
    others = [
        rules.with_name(f".{rules.name}.0123456789ax"),
        rules.with_name(f".{rules.name}.0123456789abc"),
        rules.with_name(".site.lua.0123456789ab"),
    ]
    for path in (draft, *others):
        path.write_text("cut sh")
    target.conf.joinpath("prolog.d", ".50-hpcext.0123456789ab").symlink_to(rules)
    code, said, _ = target.install("--dry-run")
    assert (code, draft.exists()) == (0, True)
    assert re.findall(r"^remove +(\S+)$", said, re.M) == [str(draft)]
    assert target.install()[0] == 0
    assert not draft.exists()
    assert not re.findall(r"^remove ", target.install()[1], re.M)
    draft.write_text("again")
    assert target.uninstall()[0] == 0
    assert sorted(path for path in target.home.rglob("*") if path.is_file()) == sorted(others)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("place", ["usr", "etc", "etc/prolog.d", "hpcext"])
def test_what_others_can_change_is_refused(target: Target, place: str) -> None:
    path = target.top / place
    path.mkdir(exist_ok=True) if place != "hpcext" else None
    path.chmod(0o775)
    code, _, error = target.install()
    assert code == 2
    assert error == (
        f"hpcext: {path}: others can write to it (mode 0775) (valid: owned by root and writable "
        f"by root alone); chmod go-w {path}, or choose another place\n"
    )
    path.chmod(0o755)
    os.chown(path, 65534, 0)
    code, _, error = target.install()
    assert code == 2
    assert f"{path}: belongs to uid 65534" in error
    os.chown(path, 0, 0)
    assert target.install("--dry-run")[0] == 0


@pytest.mark.usefixtures("_quick")
def test_links_are_judged_by_where_they_lead(target: Target) -> None:
    theirs = target.top / "theirs"
    theirs.mkdir()
    shutil.copy(target.top / "hpcext", theirs / "hpcext")
    (target.top / "hpcext").unlink()
    (target.top / "hpcext").symlink_to("theirs/hpcext")
    assert target.install("--dry-run")[0] == 0
    os.chown(theirs, 65534, 65534)
    code, _, error = target.install("--dry-run")
    assert code == 2
    assert f"{theirs}: belongs to uid 65534" in error


@pytest.mark.usefixtures("_quick")
def test_a_command_that_users_cannot_run_is_refused(target: Target) -> None:
    target.top.chmod(0o700)
    code, _, error = target.install()
    assert code == 2
    assert error.startswith(f"hpcext: {target.top}: other users cannot reach it; use a copy")
    target.top.chmod(0o755)
    (target.top / "hpcext").chmod(0o644)
    assert target.install()[0] == 2
    (target.top / "hpcext").unlink()
    code, _, error = target.install()
    assert (code, f"{target.top}/hpcext: no such command" in error) == (2, True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["install", "pbs"], "unknown part 'pbs' (valid: slurm, lsf, broker)"),
        (
            ["instal", "slurm"],
            "unknown command 'instal' (valid: install, uninstall, status, accept); did you mean",
        ),
        (["install", "slurm", "--usr", "usr"], "--usr: usr (valid: an absolute path"),
        (["install", "slurm", "--prefix", "/a/../b"], "--prefix: /a/../b (valid: an absolute"),
        (["install", "slurm", "--dryrun"], "did you mean --dry-run?"),
        (["install", "slurm", "--include", "/nonexistent"], "Slurm's headers were not found"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert line in said.err


def test_what_does_not_compile_says_why(target: Target) -> None:
    include = target.top / "include" / "slurm"
    include.mkdir(parents=True)
    (include / "spank.h").write_text("#error a header of another age\n")
    (include / "slurm_version.h").write_text("#define SLURM_VERSION_NUMBER 0x180b05\n")
    code, _, error = target.install("--include", str(include.parent))
    assert code == 1
    assert error.count("\n") == 1
    assert "the plugin does not compile: " in error
    assert "a header of another age" in error
    assert target.files().keys() <= {"hpcext", *(n for n in target.files() if "include" in n)}


@pytest.fixture
def include(target: Target) -> Path:
    """The headers of this Slurm in a place of their own, and one more that they read."""
    include = target.top / "include"
    shutil.copytree(slurm.INCLUDE / "slurm", include / "slurm", symlinks=True)
    (target.top / "more.h").write_text("")
    with open(include / "slurm" / "slurm_errno.h", "a") as file:
        file.write(f'#include "{target.top}/more.h"\n')
    return include


def test_headers_of_another_place_compile_as_they_are(target: Target, include: Path) -> None:
    code, _, error = target.install("--include", str(include))
    assert (code, error) == (0, "")
    assert (target.home / "hpcext.so").read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "place",
    ["include", "include/slurm", "include/slurm/spank.h", "include/slurm/slurm.h", "more.h"],
)
def test_headers_that_others_can_change_are_refused(
    target: Target, include: Path, place: str
) -> None:
    path = target.top / place
    path.chmod(0o775)
    code, _, error = target.install("--include", str(include))
    assert code == 2
    assert error.startswith(f"hpcext: {path}: others can write to it (mode 0775)")
    path.chmod(0o755)
    os.chown(path, 65534, 0)
    assert f"{path}: belongs to uid 65534" in target.install("--include", str(include))[2]
    os.chown(path, 0, 0)
    theirs = target.top / "theirs"
    shutil.move(path, theirs)
    path.symlink_to(theirs)
    os.chown(theirs, 65534, 0)
    assert f"{theirs}: belongs to uid 65534" in target.install("--include", str(include))[2]
    assert not target.home.exists()


def test_a_directory_of_headers_is_one_word(target: Target) -> None:
    code, _, error = target.install("--include", f"{target.top}/a$(touch b)")
    assert (code, error.count("\n")) == (2, 1)
    assert "valid: letters, digits and" in error


def apply_diffs(edits: list[dict[str, Any]]) -> None:
    """As the site does."""
    patch("".join(f"{line}\n" for edit in edits for line in edit["diff"]))


def patch(text: str) -> None:
    words = ["patch", "-p1", "-d", "/"]
    subprocess.run(words, input=text, text=True, check=True, capture_output=True)


@pytest.mark.usefixtures("_quick")
def test_only_lines_that_are_missing_are_asked_for(target: Target) -> None:
    conf = target.conf / "slurm.conf"
    major, minor, *_ = slurm.release(slurm.INCLUDE).split(".")
    parameters, notice = signal_at_preemption((int(major), int(minor)))
    conf.write_text(
        f"Prolog=/site/prolog # ours\nEpilog={target.conf}/epilog.d/*\n"
        f"JobSubmitPlugins=throttle,lua\n#CliFilterPlugins=lua\n\t{parameters.lower()}=theirs"
    )
    (target.conf / "plugstack.conf").write_text(f"include {target.conf}/plugstack.conf.d/*.conf\n")
    (target.conf / "job_submit.lua").write_text(f'loadfile("{target.home}/lua/job_submit.lua")\n')
    _, said, _ = target.install("--json")
    left = json.loads(said)["left"]
    assert [edit["path"] for edit in left] == [
        f"{target.conf}/cli_filter.lua", str(conf),
    ]  # fmt: skip
    assert left[1]["first"] == f"link /site/prolog into {target.conf}/prolog.d"
    # As an administrator does it, with what is on the screen; the last line has no end.
    _, said, _ = target.install("--dry-run")
    patch(said)
    assert conf.read_text() == (
        f"Prolog={target.conf}/prolog.d/* # ours\nEpilog={target.conf}/epilog.d/*\n"
        "JobSubmitPlugins=throttle,lua\n#CliFilterPlugins=lua\n"
        f"\t{parameters.lower()}=theirs,{notice}\nCliFilterPlugins=lua\n"
    )
    assert "slurm_cli_pre_submit" in (target.conf / "cli_filter.lua").read_text()
    _, said, _ = target.install()
    assert "left to you" not in said


@pytest.mark.usefixtures("_quick")
def test_what_is_still_named_is_not_removed(target: Target) -> None:
    """Slurm drains a node whose prolog is gone, and has no jobs whose plugin is."""
    (target.conf / "slurm.conf").write_text("ClusterName=c\n")
    _, said, _ = target.install("--json")
    apply_diffs(json.loads(said)["left"])
    with open(target.conf / "plugstack.conf", "a") as file:
        file.write(f"required {target.home}/hpcext.so # no hpcext.conf\n")
    before = target.files()
    for dry in ((), ("--dry-run",)):
        code, said, error = target.uninstall(*dry)
        assert code == 2
        assert f"\n-required {target.home}/hpcext.so" in said
        assert f"\n-Prolog={target.conf}/prolog.d/*" in said
        assert "still names files that would be removed; remove those lines" in error
        assert error.count("\n") == 1
        assert target.files() == before
    code, said, _ = target.uninstall("--json")
    apply_diffs(json.loads(said)["left"])
    kept = (target.conf / "slurm.conf").read_text()
    assert "JobSubmitPlugins=lua" in kept  # it is the site's own script, too
    assert "log" not in kept
    assert "loadfile" not in (target.conf / "job_submit.lua").read_text()
    # What does no harm stays until all else is gone, and is shown then.
    code, said, _ = target.uninstall("--json")
    assert code == 0
    apply_diffs(json.loads(said)["left"])
    assert (target.conf / "slurm.conf").read_text() == "ClusterName=c\n"
    assert "plugstack.conf.d" not in (target.conf / "plugstack.conf").read_text()


@pytest.mark.usefixtures("_quick")
def test_files_of_the_site_may_be_of_any_owner(target: Target) -> None:
    """slurm.conf often belongs to SlurmUser, or to a group of administrators."""
    conf = target.conf / "slurm.conf"
    conf.write_text("ClusterName=c\n")
    os.chown(conf, 65534, 65534)
    conf.chmod(0o664)
    _, said, _ = target.install("--json")
    left = json.loads(said)["left"]
    assert [line for line in left[-1]["diff"] if line.startswith("---")] == [f"--- a{conf}"]
    apply_diffs(left)
    os.chown(conf, 65534, 65534)
    _, said, _ = target.install()
    assert "left to you" not in said
    assert target.status()[1]["left"] == []
    before = target.files()
    code, said, error = target.uninstall()
    assert code == 2
    assert f"\n-Prolog={target.conf}/prolog.d/*" in said
    assert "still names files that would be removed" in error
    assert target.files() == before
    # What one that cannot be read names is not known.
    conf.write_bytes(b"ClusterName=\xff\n")
    code, _, error = target.uninstall()
    assert (code, target.home.exists()) == (2, True)
    assert f"{conf}: not UTF-8" in error


@pytest.mark.usefixtures("_quick")
def test_a_prolog_of_others_goes_on_after_ours(target: Target) -> None:
    target.install()
    (target.conf / "prolog.d" / "10-site").write_text("#!/bin/sh\n")
    text = f"Prolog={target.conf}/prolog.d/*\n"
    (target.conf / "slurm.conf").write_text(text)
    assert target.uninstall()[0] == 0
    assert (target.conf / "slurm.conf").read_text() == text


@pytest.mark.usefixtures("_quick")
def test_status_says_what_is_not_as_it_was_installed(target: Target) -> None:
    code, found = target.status()
    assert (code, found["hpcext"], found["files"]) == (1, "", [])
    target.install()
    before = target.files()
    code, found = target.status()
    # All files are there, and nothing is in use.
    assert (code, found["whole"], found["complete"]) == (1, True, False)
    assert found["built_for"] == slurm.release(slurm.INCLUDE)
    assert {each["state"] for each in found["files"]} == {"whole"}
    assert [Path(each["path"]).name for each in found["left"]] == [
        "plugstack.conf", "job_submit.lua", "cli_filter.lua", "slurm.conf",
    ]  # fmt: skip
    assert target.files() == before
    # Each line says what it is for.
    added = [line for each in found["left"] for line in each["diff"] if re.match(r"\+\w+=", line)]
    assert {line[1:].partition("=")[0] for line in added} == {
        word.partition(":")[0] for word in found["left"][3]["why"]
    }
    assert all(each["why"] for each in found["left"])
    _, shown, _ = target.run("status", "slurm", "--usr", str(target.usr))
    assert "slurm.conf, Prolog: prepares a node" in shown
    apply_diffs(found["left"])
    assert (target.status()[0], target.status()[1]["complete"]) == (0, True)
    (target.home / "lua" / "stranger.lua").write_text("--")
    assert target.status()[0] == 0
    (target.home / "lua" / "rules.lua").write_text("--")
    (target.home / "hpcext-batch").unlink()
    code, found = target.status()
    states = {Path(each["path"]).name: each["state"] for each in found["files"]}
    assert code == 1
    assert {name: state for name, state in states.items() if state != "whole"} == {
        "stranger.lua": "foreign", "rules.lua": "changed", "hpcext-batch": "missing",
    }  # fmt: skip


@pytest.mark.usefixtures("_quick")
def test_a_plugin_for_another_slurm_is_not_whole(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commands of Slurm say their release only where they find a configuration.
    conf = target.conf / "slurm.conf"
    conf.write_text(
        "ClusterName=c\nSlurmctldHost=nowhere(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=2\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(conf))
    target.install()
    path = target.home / "manifest.json"
    other = json.loads(path.read_text()) | {"built_for": "17.02.1"}
    path.write_text(json.dumps(other))
    code, said, _ = target.run("status", "slurm", "--usr", str(target.usr))
    assert code == 1
    assert (
        "Slurm does not load a plugin that was built for another release: install it again" in said
    )
    assert re.search(r"^slurmctld: not asked, scontrol ", said, re.M)


@pytest.mark.usefixtures("_quick")
def test_a_manifest_of_the_last_release_is_read_and_one_of_a_later_is_not(target: Target) -> None:
    target.install()
    path = target.home / "manifest.json"
    now = json.loads(path.read_text())
    del now["built_for"]
    path.write_text(json.dumps(now | {"schema": "hpcext.installed/1"}))
    assert target.status()[1]["hpcext"] == now["hpcext"]
    path.write_text(json.dumps(now | {"schema": "hpcext.installed/9"}))
    code, _, error = target.uninstall()
    assert code == 2
    assert "hpcext.installed/9" in error


@pytest.mark.usefixtures("_quick")
def test_a_package_is_put_together_under_another_root(target: Target) -> None:
    """Nothing in it names that root, nor the command that is here; others may own what is above."""
    above = target.top / "above"
    above.mkdir()
    os.chown(above, 65534, 65534)
    root = above / "root"
    where = ("slurm", "--prefix", str(root), "--usr", "/usr")
    code, said, _ = target.run("install", *where, "--conf-dir", "/etc/slurm")
    assert code == 0
    assert f"b{root}/etc/slurm/slurm.conf" in said
    files = {f"/{path.relative_to(root)}": path for path in root.rglob("*") if path.is_file()}
    assert not [name for name, path in files.items() if str(above).encode() in path.read_bytes()]
    line = files["/etc/slurm/plugstack.conf.d/hpcext.conf"].read_text()
    assert line == "optional /usr/lib/hpcext/slurm/hpcext.so command=/usr/bin/hpcext\n"
    manifest = json.loads(files.pop("/usr/lib/hpcext/slurm/manifest.json").read_text())
    assert manifest["files"].keys() == files.keys()
    assert target.run("status", *where)[0] == 0
    assert target.run("install", *where, "--conf-dir", "/etc/slurm")[0] == 0
    assert target.run("uninstall", *where)[0] == 0
    assert not root.exists()
    assert target.run("status", *where)[0] == 1


@pytest.mark.usefixtures("_quick")
def test_examples_are_what_the_installer_prints() -> None:
    home = slurm.Site().home
    for name in ("job_submit.lua", "cli_filter.lua"):
        text = (ROOT / "site_configs" / "slurm" / name).read_text()
        assert text.endswith(
            "\n" + "\n".join(slurm_conf.snippet(home, "/usr/local/bin/hpcext", name)) + "\n"
        )


@pytest.mark.usefixtures("_quick")
def test_commands_of_the_manual_work(target: Target) -> None:
    text = (ROOT / "man" / "hpcext-admin.8.rst").read_text()
    shown = [shlex.split(line) for line in re.findall(r"^    \$ hpcext-admin (.*)", text, re.M)]
    # The acceptance run and the broker have tests of their own.
    shown = [words for words in shown if words[0] != "accept" and words[1] != "broker"]
    assert len(shown) == 4
    for words in shown:
        where = ["--usr", str(target.usr)]
        if words[0] == "install":
            where += ["--conf-dir", str(target.conf), "--hpcext", str(target.top / "hpcext")]
        # Nothing of the site's own files was edited, as its status says.
        assert target.run(*words, *where)[0] == (words[0] == "status")
    assert target.files().keys() == {"hpcext"}


@pytest.mark.slow
def test_an_installed_package_has_all_sources(target: Target) -> None:
    """Built as ``pip install .`` does, used from where nobody can write."""
    source = target.top / "source"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", target.top, source]
    subprocess.run(wheel, check=True)
    (built,) = target.top.glob("*.whl")
    inside = {name.partition("/data/")[2] for name in zipfile.ZipFile(built).namelist()}
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", ROOT, "ls-files",
         "spank_hooks", "lsf_scripts", "man", "site_configs/systemd/system"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {f"share/hpcext/{name}" for name in listed.stdout.split()} <= inside
    packages = target.top / "packages"
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, built], check=True)
    shutil.rmtree(source)
    subprocess.run(["chmod", "-R", "a-w", packages], check=True)
    program = "import sys; from hpcext.cli.admin import main; sys.exit(main())"
    words = ["install", "slurm", "--usr", target.usr, "--conf-dir", target.conf]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--hpcext", target.top / "hpcext"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)},
        cwd=target.top, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (target.home / "hpcext.so").read_bytes()[:4] == b"\x7fELF"
