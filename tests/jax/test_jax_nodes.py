"""JAX trainings on several nodes end as on one, whatever number of nodes they resume on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import Started
from jax_nodes import NodesJob, Nurseries
from site_of_test import wait_for
from test_jax import ONE_DEVICE, TWO_DEVICES, check_trained_once, steps
from tf_harness import check_suspended, largest_difference


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    nurseries = Nurseries()
    yield nurseries
    nurseries.close()


def job_of(nurseries: Nurseries, path: Path, *args: str, **environ: str) -> NodesJob:
    return NodesJob(nurseries, path, "--still", *args, **{**ONE_DEVICE, **environ})


def weights(job: NodesJob) -> list[list[str]]:
    """Those that rank 0 had at the end."""
    found = [line[2:] for line in job.said("weight") if line[1] == "0"]
    assert found
    return [list(words) for words in found]


def strangers(job: NodesJob) -> None:
    """Say things to whatever of the training other nodes can reach."""
    place = job.path / f"attempt-{job.attempts:04d}" / "ranks" / "meeting-jax-coordinator"
    port = json.loads(place.read_text())["port"]
    for said in (b"", bytes(200), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", os.urandom(200)):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
            one.sendall(said)
            one.shutdown(socket.SHUT_WR)
            assert len(one.recv(4096)) == 32
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(4096) == b""


@pytest.mark.slow
def test_resumed_on_another_number_of_nodes(nurseries: Nurseries, tmp_path: Path) -> None:
    """Two nodes, one, and two again, always of two devices: the same weights, bit for bit."""
    quick = {"SCRIPT_CACHE": str(tmp_path / "compiled")}
    reference = job_of(nurseries, tmp_path / "reference", "--epochs=2", **quick, **TWO_DEVICES)
    assert reference.on_nodes(1).code == 0
    job = job_of(nurseries, tmp_path / "job", "--epochs=2", **quick)
    check_suspended(job.on_nodes(2, "--ask=step:4@1"), 2)
    assert job.codes == [0, 0]
    names = {path.name for path in job.checkpoints[-1].iterdir()}
    assert {"pieces-00000.npz", "pieces-00001.npz"} < names
    job.environ.update(TWO_DEVICES)
    check_suspended(job.on_nodes(1, "--ask=step:11"), 1, launched=True)
    job.environ.update(ONE_DEVICE)
    job._size = 2
    last = job.run_held(15, lambda _: strangers(job))
    assert job.codes == [0, 0], last.output
    assert last.report["world_size"] == 2
    assert steps(job) == list(range(20))
    assert [sorted(rows) for rows in job.seen().values()] == [list(range(120))] * 2
    assert weights(job) == weights(reference)
    assert last.output.count("did not prove that it has this job's key") == 1, last.output
    # Sockets have no names that would stay.
    assert not [*job.temporary.iterdir(), *reference.temporary.iterdir()]


@pytest.mark.slow
def test_nodes_of_several_ranks(nurseries: Nurseries, tmp_path: Path) -> None:
    """Two nodes of two, three of one, one of two: each sample once in each epoch."""
    reference = job_of(nurseries, tmp_path / "reference")
    assert reference.on_nodes(1).code == 0
    job = job_of(nurseries, tmp_path / "job")
    check_suspended(job.on_nodes(2, "--ask=step:4@3", workers=2), 4)
    check_suspended(job.on_nodes(3, "--ask=step:13@2"), 3)
    last = job.on_nodes(1, workers=2)
    assert last.code == 0, last.output
    check_trained_once(job)
    assert largest_difference(job, reference) < 1e-4


@pytest.mark.slow
def test_a_lost_node_costs_the_steps_since_the_last_checkpoint(
    nurseries: Nurseries, tmp_path: Path
) -> None:
    def lose(_: Started) -> None:
        saved = "step-000000010"
        wait_for(lambda: any(path.name.startswith(saved) for path in job.checkpoints), saved)
        launcher = psutil.Process(job.nodes[1].pid)
        for each in (*launcher.children(recursive=True), launcher):
            each.kill()
        job.nodes[1].wait()

    job = job_of(nurseries, tmp_path / "job", "--every=5")
    job._size = 2
    run = job.run_held(13, lose)
    assert job.codes[1] == -signal.SIGKILL
    assert job.codes[0] not in (0, None)
    assert run.suspended is None
    before = len(job.log)
    last = job.on_nodes(1)
    assert last.code == 0, last.output
    again = [int(line[3]) for line in job.log[before:] if line[2] == "step"]
    assert again == list(range(10, 30))
    kept = [line for line in job.said("step") if line[0] == "2" or int(line[2]) < 10]
    rows = sorted(int(row) for line in kept for row in line[4].split(","))
    assert rows == sorted([*range(120)] * 3)


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_job_on_all_nodes(nurseries: Nurseries, tmp_path: Path) -> None:
    job = job_of(nurseries, tmp_path / "job", "--fail=6@1")
    run = job.on_nodes(2)
    assert job.codes[1] == 1, run.output
    assert job.codes[0] not in (0, None)
    # By what rank 0 noticed first: the other's end, or that its sum does not come.
    assert "ArithmeticError: it fails" in run.output
