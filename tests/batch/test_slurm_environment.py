"""The environment of Slurm's commands: whatever a user has set, each sees one cluster."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcext.allocation import Allocation
from hpcext.backends.base import PilotOrder
from hpcext.backends.slurm import job as slurm_job
from hpcext.backends.slurm.backend import Slurm
from hpcext.backends.slurm.ticket import SlurmTicket
from hpcext.batch import runner, slurm
from hpcext.batch.leasing import Idle, LeaseSubmission
from hpcext.batch.slurm import requeued
from hpcext.batch.slurm.commands import Commands
from hpcext.batch.slurm.leasing import SlurmLeasing
from hpcext.core.errors import BatchError, InputError

CONNECTION = {"SLURM_CONF": "/site/slurm.conf", "SLURM_CONF_SERVER": "ctl:6817",
              "SLURM_JWT": "a token", "SLURM_SACK_SOCKET": "/run/sack"}  # fmt: skip
CHARGED = {"SBATCH_ACCOUNT": "physics", "SBATCH_WCKEY": "k"}
PLACED = {"SBATCH_PARTITION": "a100", "SBATCH_QOS": "high", "SBATCH_TIMELIMIT": "60"}
OF_USERS = {
    "SLURM_CLUSTERS": "a", "SBATCH_CLUSTERS": "a,b", "SBATCH_ARRAY_INX": "0-3", "SBATCH_WAIT": "1",
    "SQUEUE_PARTITION": "gpu", "SQUEUE_USERS": "me", "SQUEUE_STATES": "RUNNING",
    "SQUEUE_FORMAT": "%j", "SQUEUE_FEDERATION": "1", "SINFO_PARTITION": "gpu",
    "SINFO_FEDERATION": "1", "SCONTROL_FEDERATION": "1", "SCANCEL_INTERACTIVE": "true",
    "SCANCEL_STATE": "PENDING", "SACCT_FORMAT": "jobid", "SACCT_FEDERATION": "1",
    "SSHARE_FORMAT": "user", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_BITSTR_LEN": "8",
    "SRUN_CONTAINER": "x", "_SLURM_SPANK_OPTION_hpcext_hpcext_gpus": "2",
}  # fmt: skip
NAMES = ("sbatch", "squeue", "sinfo", "scancel", "scontrol", "sacct", "sshare")
ANSWERS = {"sbatch": "41", "squeue": "41|RUNNING|None|n1", "scontrol": "ClusterName = a"}


class Fakes:
    """Commands of Slurm that write down their environment."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        code = "import json,os,sys; json.dump([sys.argv[1:], dict(os.environ)], sys.stdout)"
        for name in NAMES:
            path = directory / name
            path.write_text(
                f'#!/bin/sh\n{sys.executable} -c {shlex.quote(code)} {name} "$@"'
                f" >>{directory}/said\necho >>{directory}/said\necho '{ANSWERS.get(name, '')}'\n"
            )
            path.chmod(0o755)

    def said(self) -> list[tuple[list[str], dict[str, str]]]:
        lines = (self._directory / "said").read_text().splitlines()
        return [(words, environ) for words, environ in map(json.loads, lines)]


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    for name, value in (CONNECTION | CHARGED | PLACED | OF_USERS).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return Fakes(tmp_path)


def lease(directory: Path) -> LeaseSubmission:
    return LeaseSubmission(
        name="h", number=3, partition="p", options=(), gpus=0, minutes=5, directory=directory,
        node=Idle("n1", True, False, 0, "", 8, 100), anywhere=False,
    )  # fmt: skip


ASKS: dict[str, Callable[[], object]] = {
    "what became of jobs": lambda: Commands().seen([41, 42]),
    "their end": lambda: Commands().end(41),
    "a preemption": lambda: Commands().preempted(41),
    "steps": lambda: Commands().steps(41),
    "nodes of a job": lambda: Commands().nodes_of(41),
    "addresses of nodes": lambda: Commands().hosts(["n1", "n2"]),
    "idle nodes": lambda: SlurmLeasing().idle("p"),
    "plans": lambda: SlurmLeasing().ends(),
    "jobs that wait": lambda: SlurmLeasing().due(),
    "our leases": lambda: SlurmLeasing().held("h"),
    "leases of others": lambda: SlurmLeasing().others("p", "h"),
    "fair shares": lambda: SlurmLeasing().associations(),
    "the end of a lease": lambda: SlurmLeasing().cancel(41),
    "the end of those that wait": lambda: SlurmLeasing().withdraw("h", 5.0),
    "a signal": lambda: Slurm().send(41, signal.SIGUSR1),
    "a begin": lambda: requeued.begin_requeued(list),
    "a requeue": lambda: runner.run(slurm.requeue_command(41)),
    "a help text": lambda: runner.everything_said(["sbatch", "--help"]),
}


@pytest.mark.parametrize("what", ASKS)
def test_each_command_sees_one_cluster_and_all_of_its_jobs(fakes: Fakes, what: str) -> None:
    requeued._requeue_delay_s.cache_clear()
    with contextlib.suppress(BatchError):  # answers are not what is tested
        ASKS[what]()
    requeued._requeue_delay_s.cache_clear()
    assert fakes.said()
    for words, environ in fakes.said():
        told = OF_USERS.keys() | CHARGED.keys() | PLACED.keys()
        assert not environ.keys() & told, words
        assert {name: environ.get(name) for name in CONNECTION} == CONNECTION
        if words[0] in {"squeue", "sinfo", "scontrol", "sacct"}:
            assert environ[f"{words[0].upper()}_LOCAL"] == "1"


def test_a_pilot_has_the_defaults_of_its_user(fakes: Fakes, tmp_path: Path) -> None:
    """Those that say who is charged and where it runs; others would make another job of it."""
    (tmp_path / "batch.sh").write_text("#!/bin/sh\n")
    assert slurm_job.hand_in(tmp_path, ["--nodes=2"]) == 41
    words, environ = fakes.said()[-1]
    assert words == ["sbatch", "--parsable", "--nodes=2"]
    assert (CHARGED | PLACED | CONNECTION).items() <= environ.items()
    assert not environ.keys() & {name for name in OF_USERS if name.startswith(("SBATCH", "SLURM"))}
    # These are the job's.
    assert environ["SQUEUE_FORMAT"] == "%j"
    assert "SQUEUE_LOCAL" not in environ


def test_a_lease_is_charged_as_its_user_wants_and_placed_as_its_harvester_wants(
    fakes: Fakes, tmp_path: Path
) -> None:
    (tmp_path / "lease.sh").write_text("#!/bin/sh\n")
    assert SlurmLeasing().submit(lease(tmp_path), tmp_path / "lease.sh") == 41
    _, environ = fakes.said()[-1]
    assert CHARGED.items() <= environ.items()
    assert not environ.keys() & PLACED.keys()


@pytest.mark.parametrize("variable", ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"])
def test_a_pilot_for_another_cluster_is_not_submitted_to_this_one(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "batch.sh").write_text("#!/bin/sh\n")
    monkeypatch.delenv("SBATCH_CLUSTERS")
    for names in ("a", "b, A", "all"):
        monkeypatch.setenv(variable, names)
        assert slurm_job.hand_in(tmp_path, []) == 41
    submitted = len(fakes.said())
    monkeypatch.setenv(variable, "b,c")
    with pytest.raises(BatchError, match=rf"^{variable}='b,c': all commands .* which is a;"):
        slurm_job.hand_in(tmp_path, [])
    assert [words[0] for words, _ in fakes.said()[submitted:]] == ["scontrol"]


@pytest.mark.parametrize("options", [("--clusters=b",), ("-M", "b"), ("-Mb",), ("--clusters", "b")])
def test_options_for_another_cluster_are_refused(
    fakes: Fakes, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match="one cluster of this host"):
        Slurm().check(PilotOrder(nodes=1, gpus=1, options=options))
    # From a setting, or of a pilot of an older release.
    with pytest.raises(BatchError, match="one cluster of this host"):
        slurm_job.hand_in(tmp_path, options)
    with pytest.raises(BatchError, match="one cluster of this host"):
        SlurmLeasing().submit(lease(tmp_path)._replace(options=options), tmp_path)
    assert "sbatch" not in {words[0] for words, _ in fakes.said()}


def test_a_trainer_keeps_no_token_that_expires(fakes: Fakes) -> None:
    here = Allocation(7, "", "n1", "n1", "8", 0, ())
    environ = SlurmTicket(here).environ()
    assert "SLURM_JWT" not in environ
    assert environ["SLURM_CONF"] == CONNECTION["SLURM_CONF"]
