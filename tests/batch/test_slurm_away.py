"""A slurmctld that does not answer for a while, as in a failover: what is asked is asked again."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcext.backends.base import JobPlace, PilotRun
from hpcext.backends.own_job import Ending
from hpcext.backends.slurm import job as slurm_job
from hpcext.backends.slurm.backend import Slurm
from hpcext.batch import runner
from hpcext.batch.slurm.commands import Commands
from hpcext.cli import ticket as tickets_cli
from hpcext.cli.output import Output
from hpcext.cli.ticket import TicketLoop
from hpcext.core.errors import BatchError
from hpcext.manager.tickets import Ticket

NODES = (
    "NodeName=n1 NodeAddr=10.0.0.1 Gres=gpu:a100:2\nNodeName=n2 NodeAddr=10.0.0.2 Gres=gpu:v:2\n"
)


class Away:
    """Commands of Slurm, of which one fails so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, what: str, times: float) -> None:
        self.calls: list[str] = []
        self.state = "RUNNING"
        self._what, self._times = what, times
        monkeypatch.setattr(runner, "run", self)
        monkeypatch.setattr(runner, "PAUSE_S", 0.0)
        commands = Commands()
        for module in ("hpcext.backends.slurm.job", "hpcext.backends.slurm.backend"):
            monkeypatch.setattr(f"{module}.reads", lambda: commands)

    def __call__(self, argv: Sequence[str], **_: Any) -> str:
        words = " ".join(argv)
        self.calls.append(words)
        if self._what in words and self._times > 0:
            self._times -= 1
            raise BatchError(f"{argv[0]} failed: Unable to contact slurm controller")
        if "hostnames" in argv:
            return "n1\nn2\n"
        if argv[0] == "squeue" and "%N" in words:
            return "7|RUNNING|None|n[1-2]\n"
        if argv[0] == "squeue":
            return f"{self.state}|1795523027|1795443027|UNLIMITED\n"
        return NODES if "node" in argv else ""

    def requeues(self) -> int:
        return self.calls.count("scontrol requeue 7")


@pytest.mark.parametrize("what", ["squeue", "scontrol requeue"])
def test_a_pilot_goes_back_once_slurm_answers(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    slurm = Away(monkeypatch, what, 3)
    slurm_job.requeue_at_last(7)
    assert slurm.requeues() == (1 if what == "squeue" else 4)


def test_a_pilot_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = Away(monkeypatch, "squeue", float("inf"))
    monkeypatch.setattr(slurm_job, "PATIENCE_S", -1.0)
    slurm_job.requeue_at_last(7)
    assert not slurm.requeues()
    assert caplog.messages[-1].startswith("job 7 is not requeued: squeue failed")


def test_what_was_cancelled_meanwhile_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Away(monkeypatch, "squeue", 2)
    slurm.state = "CANCELLED"
    slurm_job.requeue_at_last(7)
    assert not slurm.requeues()


def place(monkeypatch: pytest.MonkeyPatch, directory: Path) -> JobPlace:
    for name, value in {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1",
        "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return Slurm().place(PilotRun("1", "p", directory, "n1", (0, 1)))


def test_a_manager_that_begins_waits_for_the_addresses_of_its_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Away(monkeypatch, "show node", 3)
    found = place(monkeypatch, tmp_path)
    assert [(node.name, node.kind) for node in found.nodes] == [("n1", "a100"), ("n2", "v")]
    executor: Any = found.executor
    assert executor.keywords["addresses"] == {"n1": "10.0.0.1", "n2": "10.0.0.2"}


def test_a_manager_begins_without_the_addresses_of_its_nodes_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Away(monkeypatch, "show node", float("inf"))
    monkeypatch.setattr("hpcext.backends.slurm.backend.HOSTS_PATIENCE_S", -1.0)
    found = place(monkeypatch, tmp_path)
    assert [(node.name, node.kind, node.gpus) for node in found.nodes] == [
        ("n1", "", 2), ("n2", "", 2),
    ]  # fmt: skip
    assert "are taken as usual ones: scontrol failed" in caplog.text


class Here:
    """The job of a ticket, at its time limit, of a Slurm that answers late."""

    system, id, name, numbers, run_of = "slurm", 7, "job", (7,), ""
    ends = leaves = frozenset[Any]()

    def __init__(self) -> None:
        self.ends_s: list[float | None] = [0.0, None, None]
        self.fails = 2
        self.tries = 0

    def keeps_output(self) -> bool:
        return False

    def ending(self) -> Ending:
        return Ending.NONE

    def end_s(self) -> float:
        """Return an end that is near, at first; then there is no answer."""
        end_s = self.ends_s.pop(0) if self.ends_s else None
        if end_s is None:
            raise BatchError("squeue failed")
        return end_s

    def go_back(self) -> int | None:
        self.tries += 1
        if self.tries <= self.fails:
            raise BatchError("squeue failed")
        return None


def test_a_ticket_goes_back_once_slurm_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tickets_cli, "AGAIN_S", 0.0)
    here: Any = Here()
    ticket: Any = Ticket
    loop = TicketLoop(tmp_path, "7", ticket, here, Output())
    for tries in (1, 2, 3, 3, 3):
        assert loop._requeue_in_time() is None
        assert here.tries == tries


def test_what_prints_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As scancel does that waits for an answer on its standard input."""
    monkeypatch.setattr(runner, "MOST_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        for where in ("1", "2"):
            with pytest.raises(BatchError, match="sh printed too much, more than 1 MiB"):
                runner.run(["sh", "-c", f"exec yes >&{where}"])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_an_output_is_read_as_it_is() -> None:
    """Both of them, larger than a pipe; and a carriage return in a name ends no line."""
    script = "printf 'a\\r1|b\\377'; head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2"
    said = runner.everything_said(["sh", "-c", script])
    assert said == "a\r1|b\ufffd" + 600_000 * "\0"
