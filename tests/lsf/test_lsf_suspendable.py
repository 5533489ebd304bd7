"""bsub -a "hpcext(suspendable)": a training that outlives bstop, preemption, -W and lost hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lsf_site import Job, Queue, Site
from lsf_tools import MakeSite, command, put_in_place

COUNTER = Path(__file__).parents[1] / "faults" / "counter.py"
PATIENCE_S = 120.0
SUSPENDABLE = ("-a", "hpcext(suspendable,lead=50)")


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Cluster:
    """A site with our scripts, and a training that counts to 40 and keeps the account of it."""

    def __init__(self, site: Site, top: Path) -> None:
        self.site = site
        self.top = top
        self.gate = top / "gate"
        self.log = top / "steps"
        self.environ = {
            "COUNTER_LOG": str(self.log),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": f"{site.directory}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(top / "state"),
            "XDG_CONFIG_HOME": str(top / "config"),
        }
        self.counter = f"{sys.executable} {COUNTER} 40 0.02 5 --gate {self.gate}"

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return command(self.site, *words, **self.environ)

    def submit(self, *options: str, text: str = "", how: tuple[str, ...] = SUSPENDABLE) -> int:
        said = self.run("bsub", *how, "-o", "out", *options, text or self.counter)
        assert said.returncode == 0, said
        return int(said.stdout.split(b"<")[1].split(b">")[0])

    def job(self, job_id: int) -> Job:
        return self.site.job(job_id)

    def wait_state(self, job_id: int, *states: str) -> None:
        wait_for(lambda: self.job(job_id).state in states, f"{states}: {self.output()}")

    def steps(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()] if self.began() else []

    def began(self) -> bool:
        return self.log.exists()

    def at_gate(self, attempt: int = 1) -> None:
        """All steps but the last one are done, the last ones of them by this attempt."""

        def there() -> bool:
            report = list((self.top / "state").glob(f"**/attempt-{attempt:04d}/report.json"))
            return bool(report) and len(self.steps()) >= 39

        wait_for(there, "the gate")

    def ends(self, job_id: int) -> None:
        """The training goes on to its end, and has done each step once."""
        self.gate.touch()
        self.wait_state(job_id, "DONE", "EXIT")
        assert self.job(job_id).state == "DONE", self.output()
        assert [int(line[1]) for line in self.steps()] == list(range(1, 41))

    def output(self) -> str:
        path = self.site.directory / "out"
        return path.read_text() if path.exists() else ""

    def trainings(self) -> list[int]:
        """Processes of trainings that are left."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    str(self.log).encode() in (path / "environ").read_bytes()
                    and b"counter.py" in (path / "cmdline").read_bytes()
                ):
                    found.append(int(path.name))
            except OSError:
                continue
        return found


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(make_site: MakeSite, tmp_path: Path) -> MakeCluster:
    """A cluster whose default queue has our starter; gives settings and quirks of the site on."""

    def made(*quirks: str, queue: dict[str, object] | None = None, **settings: object) -> Cluster:
        starter = put_in_place(tmp_path / "lsf")
        queues = settings.pop("queues", {})
        mine = Queue(job_starter=f"command . {starter}; %USRCMD", **(queue or {}))
        site = make_site(*quirks, queues={"normal": mine, **queues}, **settings)
        return Cluster(site, tmp_path)

    return made


@pytest.mark.parametrize("quirks", [(), ("starter_gets_text",)])
def test_preempted_it_goes_on_where_it_was(make_cluster: MakeCluster, quirks: list[str]) -> None:
    """USR2 is what hpcext-job-control sends, and bsub -wa USR2."""
    cluster = make_cluster(*quirks, queue={"requeue_exit_values": (85,)})
    job = cluster.submit()
    cluster.at_gate()
    cluster.run("bkill", "-s", "USR2", str(job))
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    cluster.ends(job)
    assert {line[0] for line in cluster.steps()} == {"1", "2"}
    assert cluster.output().count("goes back into the queue") == 1
    assert cluster.trainings() == []
