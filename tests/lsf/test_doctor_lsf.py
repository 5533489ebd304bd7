"""What hpcext doctor says of an LSF, of the contract engine with what an engine may lack."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lsf_site import LEAN, Host, Queue, Site
from lsf_tools import SOURCED, MakeSite, command

from hpcext import __version__, config
from hpcext.admin import manifest
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import LsfEngine, LsfRelease
from hpcext.batch.lsf.probe import TrialJob
from hpcext.batch.lsf.queues import LsfQueue
from hpcext.cli import admin, doctor
from hpcext.cli import main as cli
from hpcext.core.errors import BatchError
from hpcext.doctor import lsf, lsf_abilities, lsf_queues
from hpcext.doctor.checkup import CheckOptions, Finding

QUEUE = Queue(SOURCED, requeue_exit_values=(85,))
WARNS = LsfEngine(
    LsfRelease("LSF", "10.1.0", "c"), frozenset({"bsub"}), {"bsub": frozenset({"-wa", "-wt"})}
)


@pytest.fixture
def use(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Site]:
    """Make a site with our scripts installed, whose commands this process finds first."""

    def used(*quirks: str, **settings: object) -> Site:
        settings = {"queues": {"q": QUEUE}, "hosts": (Host("a", 4, 2),), **settings}
        site = make_site(*quirks, minute_s=1.0, **settings)
        (site.serverdir / "esub.hpcext").unlink()
        site.serverdir.chmod(0o755)
        assert admin.main(["install", "lsf", "--serverdir", str(site.serverdir)]) == 0
        capsys.readouterr()
        programs = site.directory / "bin"
        programs.mkdir()
        # Without what this machine may have of Slurm.
        (programs / "sleep").symlink_to(shutil.which("sleep") or "sleep")
        monkeypatch.setenv("PATH", f"{site.directory}:{programs}")
        monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
        monkeypatch.setenv("LSF_SERVERDIR", str(site.serverdir))
        monkeypatch.setenv("HPCEXT_STATE_DIR", str(site.directory / "state"))
        monkeypatch.setenv("HPCEXT_GPUS", "1")  # must not be taken for what an esub has set
        return site

    return used


def found(
    check: Callable[[CheckOptions], object] = lsf.check, *, submit: bool = False
) -> list[Finding]:
    return list(check(CheckOptions(config.load_settings(), submit)))  # type: ignore[call-overload]


def said(findings: list[Finding], verdict: str) -> str:
    return "\n".join(each.says for each in findings if each.verdict == verdict)


def test_all_is_there(use: Callable[..., Site]) -> None:
    use()
    findings = found()
    assert not said(findings, "wrong")
    fine = said(findings, "ok")
    assert "LSF 10.1.0, cluster lsf" in fine
    for row in lsf_abilities.TABLE:
        assert f"{row.name}: " in fine + said(findings, "note")
    assert "by another way" not in fine.replace("past jobs on long lines: by another way", "")
    assert "jobs of several hosts: blaunch" in fine
    assert "hpcext-starter in q" in fine
    assert "exit value 85 requeues in q" in fine
    assert "a job is requeued 3 times at most" in fine
    assert f"esub and starter of hpcext {__version__}" in fine
    assert "only a job can tell" in said(findings, "note")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("quirk", "notes"),
    [
        (
            "no_gpus",
            [
                "GPUs of jobs: by another way: only slots are requested (no bsub -gpu)",
                "GPUs of hosts: not here (no bhosts -gpu)",
            ],
        ),
        (
            "no_json",
            [
                "jobs: by another way: bjobs -w and bjobs -l (no bjobs -o -json)",
                "hosts: by another way: bhosts -w (no bhosts -o -json)",
            ],
        ),
        ("no_bslots", ["backfill windows: not here (no bslots)", "reservations: not here"]),
    ],
)
def test_what_an_engine_lacks(use: Callable[..., Site], quirk: str, notes: list[str]) -> None:
    site = use(quirk, queues={"q": Queue()})
    if quirk == "no_bslots":
        for name in ("bslots", "brsvs"):
            (site.directory / name).unlink()
    findings = found()
    assert not said(findings, "wrong")
    for note in (*notes, "no queue has hpcext-starter"):
        assert note in said(findings, "note") + said(findings, "ok")


def test_a_lean_engine_in_one_table(use: Callable[..., Site]) -> None:
    """What volclava 2.2 was recorded without, each with the way that is taken instead."""
    site = use(*LEAN)
    command(site, "bsub", "sleep 60")
    findings = found()
    assert not said(findings, "wrong")
    fine = said(findings, "ok")
    for part in (
        "fields of jobs: by another way: bjobs -l (bjobs -o has no job_description, pend_reason, "
        "run_time, runtimelimit, time_left)",
        "jobs: bjobs -o -json",
        "hosts: by another way: bhosts -w",
        "parameters of the site: by another way: bparams -l",
        "a job is requeued 3 times at most",
        "GPUs of jobs: by another way",
        "exit values that requeue: by another way: brequeue",
        "jobs of several hosts: by another way: lsrun -m (no blaunch)",
    ):
        assert part in fine


@pytest.mark.slow
def test_what_a_job_has_found_out_is_in_the_table(use: Callable[..., Site]) -> None:
    use("starter_gets_text", "no_esub_arguments")
    assert "only a job can tell" in said(found(), "note")
    lsf_probe.learn(lsf_probe.known(), arguments=False)
    assert "settings by arguments: by another way: variables" in said(found(), "ok")
    lsf_probe.learn(lsf_probe.known(), arguments=True)
    assert 'settings by arguments: arguments of -a "hpcext(...)"' in said(found(), "ok")


LENT = LsfQueue("lent", "Open:Active", math.inf, (), backfill=False, priority=10)
MAIN = LENT._replace(name="main", priority=40)


@pytest.mark.parametrize(
    ("lent", "main", "rule", "verdict", "part"),
    [
        ({}, {}, lsf_queues.preemption, "note", "no queue preempts its jobs"),
        ({"preemption": "PREEMPTABLE"}, {}, lsf_queues.preemption, "ok", "jobs of main preempt"),
        ({"preemption": "PREEMPTABLE[other]"}, {}, lsf_queues.preemption, "note", "no queue"),
        ({}, {"preemption": "PREEMPTIVE[lent+1]"}, lsf_queues.preemption, "ok", "jobs of main"),
        ({}, {"preemption": "PREEMPTIVE", "priority": 5}, lsf_queues.preemption, "note", "no "),
        ({}, {}, lsf_queues.suspension, "note", "no JOB_CONTROLS"),
        ({"controls": {"SUSPEND": "SIGTSTP"}}, {}, lsf_queues.suspension, "ok", "jobs get"),
        (
            {"controls": {"SUSPEND": "/x stop"}},
            {},
            lsf_queues.suspension,
            "note",
            "not that of hpcext",
        ),
        ({"terminate_when": "PREEMPT"}, {}, lsf_queues.suspension, "ok", "TERMINATE_WHEN"),
        ({"rerunnable": True}, {}, lsf_queues.rerunnable, "ok", "RERUNNABLE"),
        ({}, {}, lsf_queues.rerunnable, "note", "not RERUNNABLE"),
        ({"requeue": "85"}, {}, lsf_queues.exit_values, "ok", "85 requeues"),
        ({}, {}, lsf_queues.exit_values, "ok", "does not requeue"),
        ({"requeue": "0 85"}, {}, lsf_queues.exit_values, "wrong", "restarts finished jobs"),
    ],
)
def test_a_queue_is_judged(
    lent: dict[str, Any], main: dict[str, Any], rule: Any, verdict: str, part: str
) -> None:
    queue = LENT._replace(**lent)
    (finding,) = rule(queue, [queue, MAIN._replace(**main)])
    assert (finding.verdict, part in finding.says) == (verdict, True), finding


def test_the_queue_of_leases_is_judged(
    use: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    use()
    assert "not set" in said(found(), "note")
    monkeypatch.setenv("HPCEXT_HARVEST_PARTITION", "q")
    assert "'q': according to bqueues, no queue preempts its jobs" in said(found(), "note")
    monkeypatch.setenv("HPCEXT_HARVEST_PARTITION", "nosuch")
    assert "'nosuch' is not a queue here" in said(found(), "wrong")


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("LSB_USE_SEQUENTIAL_SIGNAL=Y\n", "ok"),
        ('LSF_X=1\n  LSB_USE_SEQUENTIAL_SIGNAL = "y"  # parallel jobs\n', "ok"),
        ("# LSB_USE_SEQUENTIAL_SIGNAL=Y\n", "note"),
        ("LSB_USE_SEQUENTIAL_SIGNAL=N\n", "note"),
    ],
)
def test_jobs_of_several_slots_must_be_told(
    use: Callable[..., Site], text: str, verdict: str
) -> None:
    site = use()
    (site.directory / "lsf.conf").write_text(text)
    (finding,) = [each for each in found() if each.name == "lsf.conf"]
    assert finding.verdict == verdict
    if verdict == "note":
        assert "get SIGKILL only" in finding.says
        assert f"LSB_USE_SEQUENTIAL_SIGNAL=Y to {site.directory}/lsf.conf" in finding.do


def test_an_unreadable_lsf_conf_is_reported(use: Callable[..., Site]) -> None:
    use()
    (finding,) = [each for each in found() if each.name == "lsf.conf"]
    assert (finding.verdict, "was not checked" in finding.says) == ("note", True)


@pytest.mark.slow
def test_launchers(use: Callable[..., Site]) -> None:
    site = use()
    (site.directory / "blaunch").unlink()
    (note,) = [each for each in found() if "no blaunch" in each.says]
    assert (note.verdict, note.do) == ("note", "set lsf_launcher to jsrun")
    (site.directory / "jsrun").unlink()
    (note,) = [each for each in found() if "no blaunch" in each.says]
    assert (note.verdict, note.do) == ("note", "")


@pytest.mark.slow
def test_commands_that_are_missing(use: Callable[..., Site]) -> None:
    site = use()
    (site.directory / "bjobs").unlink()
    assert "commands are missing: bjobs" in said(found(), "wrong")


def test_an_lsf_that_does_not_answer(use: Callable[..., Site]) -> None:
    site = use()
    lsid = site.directory / "lsid"
    lsid.unlink()
    lsid.write_text("#!/bin/sh\necho 'ls_getmastername: LIM is down; try later' >&2; exit 255\n")
    lsid.chmod(0o755)
    with pytest.raises(BatchError, match="LIM is down"):
        found()


def test_scripts(use: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    site = use()
    esub = site.serverdir / "esub.hpcext"
    text = esub.read_text()
    esub.write_text(f"{text}#\n")
    assert said(found(), "wrong") == f"{esub} is not what was installed"
    esub.unlink()
    assert said(found(), "wrong") == f"{esub} is not there"
    esub.write_text(text)
    home = site.serverdir / "hpcext"
    installed = manifest.load(home)
    assert installed is not None
    manifest.save(home, manifest.Manifest(hpcext="0.0.9", files=installed.files))
    assert said(found(), "wrong") == f"it is of hpcext 0.0.9, this is {__version__}"
    (home / manifest.NAME).unlink()
    assert "the esub of hpcext is not installed" in said(found(), "note")
    monkeypatch.delenv("LSF_SERVERDIR")
    assert "LSF_SERVERDIR is not set" in said(found(), "note")


def test_a_job_finds_out(use: Callable[..., Site], capsys: pytest.CaptureFixture[str]) -> None:
    site = use("starter_gets_text")
    assert found(lsf.job) == []
    findings = found(lsf.job, submit=True)
    assert not said(findings, "wrong")
    fine = said(findings, "ok")
    assert "commands arrive as they were written" in fine
    assert "arguments of -a arrive" in fine
    assert [job.name for job in site.jobs()] == ["hpcext-doctor"]
    assert list((site.directory / "state").iterdir()) == []


def test_a_job_that_a_starter_breaks(use: Callable[..., Site]) -> None:
    use("starter_gets_text", queues={"q": Queue('sh -c "%USRCMD"')})
    findings = found(lsf.job, submit=True)
    assert "did not arrive as written" in said(findings, "wrong")


def test_a_job_without_an_esub(use: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    use()
    monkeypatch.delenv("LSF_SERVERDIR")
    assert "were not tried" in said(found(lsf.job, submit=True), "note")


def test_as_a_user_calls_it(
    use: Callable[..., Site],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of these it is tested elsewhere, and they take long.
    checks = [each for each in doctor.CHECKS if each.name not in {"torch", "tensorflow"}]
    monkeypatch.setattr(doctor, "CHECKS", checks)
    use("starter_gets_text", "no_gpus")
    assert cli.main(["doctor", "--submit", "--queue", "q", "--json"]) == 0, capsys.readouterr()
    document = json.loads(capsys.readouterr().out)
    assert document["works"]
    assert {"lsf", "lsf queues", "lsf scripts", "lsf job"} <= {
        each["name"] for each in document["findings"]
    }


@pytest.mark.parametrize(("signal", "warned"), [("URG", True), ("USR2", False)])
def test_the_job_tells_the_warning_from_the_end(tmp_path: Path, signal: str, warned: bool) -> None:
    """SIGUSR2 is that of -W itself."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", lsf_probe.trial_script(110)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    subprocess.run(["kill", f"-{signal}", str(process.pid)], check=True)
    text = first + process.communicate(timeout=500)[0]
    assert lsf_probe.parse_trial(text, WARNS) == TrialJob(esub=False, intact=True, warned=warned)
    assert text.splitlines()[-1] == lsf_probe.TRIAL_ENDS


def test_a_warning_is_asked_for_where_bsub_has_it() -> None:
    words = lsf_probe.trial_command(WARNS, "out", "q", esub=True)
    assert words[words.index("-wa") :][:4] == ["-wa", "URG", "-wt", "1"]
    assert words[words.index("-a") + 1] == "hpcext(gpus=1)"
    none = LsfEngine(WARNS.release, WARNS.commands, {})
    words = lsf_probe.trial_command(none, "out", "", esub=False)
    assert not {"-wa", "-a", "-q"} & set(words)
    assert lsf_probe.parse_trial("a  b\nesub=\n", none) == TrialJob(False, True, None)
