"""On an engine that has what volclava 2.2 has, and no more: tables, few fields, few options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lsf_site import LEAN, Host, Queue, Site
from lsf_tools import MakeSite, command
from site_of_test import wait_for

from hpcext.batch import lsf
from hpcext.batch.lsf import jobs as lsf_jobs
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.leasing import LsfLeasing
from hpcext.cli import main as cli


@pytest.fixture
def lean(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Site]:
    """Make a lean site, whose commands this process finds."""

    def made(**settings: object) -> Site:
        site = make_site(*LEAN, **settings)
        programs = site.directory / "bin"
        programs.mkdir()
        for name in ("sh", "sleep"):
            (programs / name).symlink_to(f"/bin/{name}")
        monkeypatch.setenv("PATH", f"{site.directory}:{programs}")
        monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr(lsf_probe, "_memory", None)
        return site

    return made


def test_what_is_asked_of_jobs_and_hosts(lean: Callable[..., Site]) -> None:
    site = lean(hosts=(Host("h1", 4), Host("h2", 4)), minute_s=30.0)
    engine = lsf_probe.known()
    assert engine.lacks("bsub", "-gpu")
    assert not {"blaunch", "bslots"} & engine.commands
    assert lsf.Commands().states([1]) == {}
    for words in (["-W", "20", "-Jd", "7", "-J", "a"], ["-n", "9"]):
        assert command(site, "bsub", *words, "sleep 60").returncode == 0
    jobs = lsf.Commands()
    wait_for(lambda: jobs.states([1])[1] == "running", "the first job to begin")
    # Nobody had a job before, and so no field was refused.
    assert "run_time" not in lsf_probe.known().refused
    end = jobs.end(1)
    assert "run_time" in lsf_probe.known().refused
    assert end.end_s == pytest.approx(site.job(1).started_at + 600, abs=3)
    assert jobs.states([1, 2, 99]) == {1: "running", 2: "pending"}
    (held,) = LsfLeasing().held("a")
    assert (held.comment, held.state, held.node) == ("7", "running", "h1")
    assert lsf_jobs.ask(["jobid", "pend_reason"], ["2"])[2]["PEND_REASON"]
    assert LsfLeasing().held("no such name") == ()
    assert jobs.gone(["h1", "h2"]) == []


def test_parameters_by_their_long_form(lean: Callable[..., Site]) -> None:
    lean(queues={"q": Queue()})
    assert lsf_probe.parameters()["MAX_JOB_REQUEUE"] == "3"


def test_a_pilot_without_gpus_says_so(
    lean: Callable[..., Site],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = lean(hosts=(Host("h1", 4),))
    monkeypatch.setenv("HPCEXT_BATCH", "lsf")
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "mine"))
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nname = "one"\ncommand = ["true"]\ngpus = 1\n')
    words = ["pilot", "submit", str(jobs), "--nodes", "2", "--gpus-per-node", "4", "--requeue"]
    # It asks for more hosts than there are.
    assert cli.main([*words, "--time", "9"]) == 0
    assert "bsub has no option -gpu here" in capsys.readouterr().err
    (job,) = site.jobs()
    assert (job.gpus_wanted, job.requeue_exit_values, job.rerunnable) == (0, [], True)
    assert 'brequeue "$LSB_JOBID"' in job.text
