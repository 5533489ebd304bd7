"""hpcext-admin install lsf: what it puts in place works there, and all of it goes again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from lsf_site import Queue
from lsf_tools import SCRIPTS, MakeSite, command, output

from hpcext.admin import lsf
from hpcext.cli import admin

NAMES = lsf.SCRIPTS


@pytest.fixture
def serverdir(make_site: MakeSite) -> Path:
    """Of an LSF that has an esub of its own, and none of ours."""
    found = make_site().serverdir
    (found / "esub.hpcext").unlink()
    (found / "esub.site").write_text("#!/bin/sh\n")
    found.chmod(0o755)
    return found


def files(serverdir: Path) -> set[str]:
    return {str(path.relative_to(serverdir)) for path in serverdir.rglob("*")}


def run(verb: str, serverdir: Path, *words: str) -> int:
    # One that all users can run, as those below a directory of pytest are not.
    command = ("--hpcext", "/usr/bin/true") if verb == "install" else ()
    return admin.main([verb, "lsf", "--serverdir", str(serverdir), *command, *words])


def test_what_is_installed_works(
    make_site: MakeSite, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serverdir = make_site(name="other").serverdir
    (serverdir / "esub.hpcext").unlink()
    assert run("install", serverdir, "--json") == 0
    left = json.loads(capsys.readouterr().out)["left"]
    starter = left[1].strip().removeprefix("JOB_STARTER = ")
    site = make_site("starter_gets_text", name="lsf", queues={"q": Queue(starter)})
    (site.serverdir / "esub.hpcext").write_bytes((serverdir / "esub.hpcext").read_bytes())
    text = 'echo "a  $HPCEXT_GPUS"; echo b'
    assert output(site, "-a", "hpcext(gpus=2)", text) == b"a  2\nb\n"
    # The command, here /usr/bin/true, was asked to make a ticket; it has written no batch.sh.
    asked = command(site, "bsub", "-K", "-o", "out", "echo not this", HPCEXT_TRAINER="1:2")
    assert asked.returncode != 0
    said = (site.directory / "out").read_bytes()
    assert b"batch.sh" in said
    assert b"not this" not in said


def test_no_job_has_a_longer_lead_than_the_site_allows(serverdir: Path) -> None:
    assert run("install", serverdir, "--max-lead", "300") == 0
    assert "MAX_LEAD_S=300\n" in (serverdir / "hpcext-job-control").read_text()
    assert run("install", serverdir) == 0
    for lead, code in ((600, 0), (601, 97)):
        environ = {"LSB_SUB_MODIFY_ENVFILE": f"{serverdir}/env"}
        words = [serverdir / "esub.hpcext", "suspendable", f"lead={lead}"]
        ended = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode == code
    assert ended.stderr == "hpcext: lead: '601' (valid: whole seconds, 10 to 600)\n"


def test_a_dry_run_does_nothing(serverdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(serverdir)
    assert run("install", serverdir, "--dry-run") == 0
    assert files(serverdir) == before
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines() if line.startswith("write")] == [
        ["write", str(serverdir / name)] for name in NAMES
    ]


def test_twice_is_once_and_uninstall_leaves_nothing(
    serverdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(serverdir)
    assert run("install", serverdir) == 0
    assert files(serverdir) == before | {*NAMES, "hpcext", "hpcext/manifest.json"}
    for name in NAMES:
        script = (SCRIPTS / name).read_bytes().replace(b"@HPCEXT@", b"/usr/bin/true")
        assert (serverdir / name).read_bytes() == script.replace(b"@MAX_LEAD_S@", b"600")
        assert (serverdir / name).stat().st_mode & 0o777 == 0o755
    capsys.readouterr()
    assert run("install", serverdir, "--json") == 0
    done = json.loads(capsys.readouterr().out)["files"]
    assert {each["do"] for each in done} == {"keep"}
    assert run("uninstall", serverdir, "--dry-run") == 0
    assert files(serverdir) > before
    assert run("uninstall", serverdir) == 0
    assert files(serverdir) == before


def test_what_is_not_ours_stays(serverdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = serverdir / "esub.hpcext"
    theirs.write_text("theirs\n")
    assert run("install", serverdir) == 2
    assert "is in the way: hpcext-admin did not install it" in capsys.readouterr().err
    theirs.unlink()
    assert run("install", serverdir) == 0
    theirs.write_text("changed\n")
    assert run("uninstall", serverdir) == 1
    assert theirs.read_text() == "changed\n"
    assert not (serverdir / "hpcext-starter").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install", "lsf"], "required: --serverdir"),
        (["install", "lsf", "--serverdir", "etc"], "--serverdir: etc (valid: an absolute path"),
        (
            ["install", "lsf", "--serverdir", "/nowhere"],
            "/nowhere: no such directory (valid: LSF_S",
        ),
        (["install", "lsf", "--serverdir", "{top}/a b"], "a b (valid: letters, digits and"),
        (
            ["install", "lsf", "--serverdir", "{top}", "--max-lead", "9"],
            "--max-lead: 9 (valid: 10 to 86400)",
        ),
        (["install", "lsf", "--serverdir", "/", "--usr", "/"], "unknown option '--usr'"),
        (["uninstall", "lsf", "--serverdir", "{top}"], "give the --serverdir that was given"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a b").mkdir()
    assert admin.main([word.format(top=tmp_path) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_what_others_can_change_is_refused(
    serverdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serverdir.chmod(0o777)
    assert run("install", serverdir) == 2
    assert f"{serverdir}: others can write to it (mode 0777)" in capsys.readouterr().err


def test_what_queues_name_is_not_removed(
    serverdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queues = tmp_path / "lsb.queues"
    here = "Begin Queue\nQUEUE_NAME = q\nEnd Queue\n"
    starter = f"JOB_STARTER = command . {serverdir}/hpcext-starter; %USRCMD\n"
    queues.write_text(here.replace("End", f"{starter}End"))
    if os.getuid() == 0:
        # It belongs to the administrator of LSF.
        os.chown(queues, 65534, 65534)
    queues.chmod(0o664)
    assert run("install", serverdir) == 0
    before = files(serverdir)
    capsys.readouterr()
    assert run("uninstall", serverdir, "--conf-dir", str(tmp_path)) == 2
    said = capsys.readouterr()
    assert f"\n-{starter}" in said.out
    assert f"{queues}: still names files that would be removed" in said.err
    assert files(serverdir) == before
    queues.write_text(here)
    assert run("uninstall", serverdir, "--conf-dir", str(tmp_path)) == 0


def test_status_looks_at_files_and_queues(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serverdir = make_site(name="other").serverdir
    (serverdir / "esub.hpcext").unlink()
    starter = f"command . {serverdir}/hpcext-starter; %USRCMD"
    for queue, steps in ((Queue(), ["mbatchd"]), (Queue(starter), [])):
        site = make_site(name=f"lsf-{len(steps)}", queues={"q": queue})
        monkeypatch.setenv("PATH", str(site.directory), prepend=os.pathsep)
        monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
        assert run("install", serverdir) == 0
        capsys.readouterr()
        assert run("status", serverdir, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert [step["daemon"] for step in found["daemons"]] == steps
        assert {each["state"] for each in found["files"]} == {"whole"}
    (serverdir / "hpcext-starter").write_text("another\n")
    assert run("status", serverdir) == 1
    assert f"changed  {serverdir}/hpcext-starter" in capsys.readouterr().out
