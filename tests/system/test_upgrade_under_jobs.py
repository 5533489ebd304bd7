"""hpcext is replaced by its next release while jobs of every kind run: no step of any is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
from pathlib import Path

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import REPOSITORY, Cluster
from test_harvest import leases, main_job
from test_pilot import begun, manager, over, submit
from test_pilot_ends import requeued
from test_suspendable import Batch
from test_trainer_ticket import Tickets

from hpcext import __version__
from hpcext.cli import admin

EVERY_STEP = list(range(1, 41))
AFTER = f"{__version__}.post1"
"""The release that replaces this one."""


class Installed:
    """The package where a site has it, and the plugin."""

    def __init__(self, slurm: Cluster) -> None:
        self.slurm = slurm
        self.site = slurm.root / "site"
        self.site.mkdir()
        self.path = f"{self.site}:{sysconfig.get_path('purelib')}"

    def put(self, version: str) -> None:
        """As pip and packages do: what was there is gone."""
        package, new, old = (self.site / name for name in ("hpcext", "new", "old"))
        shutil.copytree(REPOSITORY / "hpcext", new, ignore=shutil.ignore_patterns("__pycache__"))
        first = new / "__init__.py"
        text = first.read_text()
        assert text.count(f'__version__ = "{__version__}"') == 1
        first.write_text(text.replace(f'"{__version__}"', f'"{version}"'))
        if package.exists():
            package.rename(old)
        new.rename(package)
        shutil.rmtree(old, ignore_errors=True)
        command = self.slurm.root / "bin" / f"hpcext-{version}"
        exported = f"export PYTHONPATH={self.path}"
        command.write_text(f'#!/bin/sh\n{exported}\nexec {self.slurm.root}/bin/hpcext "$@"\n')
        command.chmod(0o755)
        where = ("--usr", str(self.site / "usr"), "--conf-dir", str(self.site / "etc"))
        assert admin.main(["-q", "install", "slurm", *where, "--hpcext", str(command)]) == 0

    def use(self) -> None:
        conf = self.slurm.root / "etc" / "plugstack.conf"
        conf.write_text(f"include {self.site}/etc/plugstack.conf.d/*.conf\n")


def flagged(slurm: Cluster, place: Site, path: str) -> Batch:
    """A suspendable job on n2, by the flag."""
    batch = Batch(slurm, place)
    script = place.path / "job.sh"
    script.write_text(f"#!/bin/sh\n{' '.join(place.counter('only', gated=True)['command'])}\n")
    said = slurm.as_user(
        "sbatch", "--parsable", "--requeue", "--open-mode=append", "--hpcext-suspendable=50",
        "--signal=B:USR2@50", "--partition=harvest", "--nodelist=n2", "--gres=gpu:1", str(script),
        cwd=place.path, XDG_STATE_HOME=str(place.path / "state"), PYTHONPATH=path,
        COUNTER_LOG=str(place.path / "only.steps"),
    )  # fmt: skip
    assert said.returncode == 0, said
    batch.id = int(said.stdout)
    return batch


def preempt_ticket(slurm: Cluster, place: Site, tickets: Tickets) -> None:
    """Somebody wants the node that its trainer has; it goes on on another one."""
    (node,) = leases(slurm).keys() - {"n2"}
    main_job(slurm, 1, "sleep", "1", on=node)
    (name,) = tickets.trainers()
    wait_for(lambda: tickets.trainers()[name]["attempts"] == 2, "its next lease")


@pytest.mark.slow
def test_an_upgrade_under_running_jobs(slurm: Cluster, place: Site) -> None:
    installed = Installed(slurm)
    installed.put(__version__)
    installed.use()
    try:
        place.environ["PYTHONPATH"] = installed.path
        place.write_jobs(
            place.counter("one", gated=True, gpus=3),
            place.counter("later", gpus=6, after=["one"]),
        )
        pilot = submit(place, "--nodelist=n1", nodes=1)
        batch = flagged(slurm, place, installed.path)
        tickets = Tickets(slurm, place)
        tickets.environ["PYTHONPATH"] = installed.path
        tickets.quick()
        ticket = tickets.submit(tickets.counter("ticket"), "--nodelist=n1")
        begun(place, "one", "only", "ticket")
        for name in ("one", "only", "ticket"):
            wait_for(lambda name=name: tickets.counted(name)[-1:] == [39], f"all steps of {name}")
        installed.put(AFTER)
        preempt_ticket(slurm, place, tickets)
        batch.preempt("n2")
        requeued(slurm, batch.id)
        first = manager(place)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: manager(place) != first, "the next manager")
        for name in ("one", "only", "ticket"):
            place.open(name)
        jobs = over(slurm, place, pilot)
        batch.wait_is("COMPLETED")
        tickets.wait_is(ticket, "COMPLETED")
    finally:
        (slurm.root / "etc" / "plugstack.conf").write_text("")
    assert {each["state"] for each in jobs.values()} == {"completed"}
    assert jobs["one"]["attempts"] == 1
    for name in ("one", "later", "only", "ticket"):
        assert tickets.counted(name) == EVERY_STEP, name
    logs: list[Path] = [*place.path.rglob("*.log"), *place.path.rglob("slurm-*.out")]
    assert not [path for path in logs if "Traceback" in path.read_text(errors="replace")]
