"""Mixed precision, gradient accumulation, torch.compile and loader workers, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from forked_job import Forked
from harness import WAIT_S, Run
from nursery import Nursery
from torch.utils.data import DataLoader

from hpcext import protocol
from hpcext.process import Process
from hpcext.training.accumulation import accumulated, microbatches, split
from hpcext.training.batching import ElasticBatches
from hpcext.training.data.sampler import ResumableSampler

SCRIPT = "train_features.py"


def words(job: Forked, kind: str) -> list[list[str]]:
    """What the script wrote down of this kind: attempt, rank, and the rest."""
    return [line[:2] + line[3:] for line in job.log if line[2] == kind]


def samples(job: Forked) -> dict[int, list[int]]:
    """The samples of each step over all ranks, sorted."""
    seen: dict[int, list[int]] = {}
    for line in words(job, "step"):
        seen.setdefault(int(line[2]), []).extend(map(int, line[4].split(",")))
    return {step: sorted(indices) for step, indices in seen.items()}


def finals(job: Forked) -> list[list[str]]:
    """What the ranks of the last attempt held at its end."""
    return sorted(line[1:] for line in words(job, "final") if int(line[0]) == job.attempts)


def done(run: Run) -> None:
    assert run.code == 0, run.output
    assert run.suspended is None


def suspended(run: Run) -> None:
    assert run.suspended is not None, run.output
    assert run.code == (85 if run.report["world_size"] == 1 else 0), run.output


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, ("--amp",)),
        # Suspended in the middle of an epoch whose last step has fewer microbatches.
        pytest.param(2, ("--accumulate=3",), marks=pytest.mark.slow),
    ],
)
def test_weights_are_bit_identical(
    nursery: Nursery, tmp_path: Path, ranks: int, options: tuple[str, ...]
) -> None:
    reference = Forked(nursery, tmp_path / "one", SCRIPT, *options, ranks=ranks)
    done(reference.run())
    job = Forked(nursery, tmp_path / "two", SCRIPT, *options, ranks=ranks)
    suspended(job.run("--ask=step:2"))
    suspended(job.run(f"--ask=step:10@{ranks - 1}"))
    done(job.run())
    assert finals(job) == finals(reference)
    assert len(finals(job)) == ranks
    assert samples(job) == samples(reference)
    if ranks == 1:
        # The scale grew every three steps, 17 steps in all.
        assert float(finals(job)[0][2]) > 8.0
    if ranks > 1:
        # One run, by its name on every rank in every attempt that came to its end.
        assert len({line[2] for line in words(job, "run")}) == 1
        assert words(job, "run")[0][2] != words(reference, "run")[0][2]
        # Ranks exchange gradients once in a step, not with each microbatch.
        assert {int(line[2]) for line in words(reference, "exchanges")} == {len(samples(job))}


@pytest.mark.parametrize("options", [("--accumulate=3",), ("--split=5",)])
def test_accumulated_gradients_are_those_of_the_batch(
    nursery: Nursery, tmp_path: Path, options: tuple[str, ...]
) -> None:
    one = Forked(nursery, tmp_path / "one", SCRIPT, "--split=12")
    two = Forked(nursery, tmp_path / "two", SCRIPT, *options)
    for job in (one, two):
        done(job.run())
    assert samples(one) == samples(two)
    assert {line[5] for line in words(one, "step")} == {"1"}
    assert max(int(line[5]) for line in words(two, "step")) == 3
    for a, b in zip(*(torch.load(f"{j.path / 'log'}.final") for j in (one, two)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


COMPILED = ("--epochs=1", "--samples=48")
# One process compiles: it need not start others for so small a graph.
FEW = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


@pytest.fixture(scope="module")
def compiled(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Forked:
    """Compiled once, not interrupted, in a place that the user chose."""
    path = tmp_path_factory.mktemp("compiled")
    job = Forked(nursery, path, SCRIPT, "--compile=outside", *COMPILED)
    job.environ.update(FEW, TORCHINDUCTOR_CACHE_DIR=str(path / "mine"))
    done(job.run())
    assert (path / "mine").exists()
    assert not list((path / "checkpoint").glob("**/*inductor*"))
    return job


@pytest.mark.slow
def test_what_is_compiled_is_found_by_the_next_attempt(nursery: Nursery, tmp_path: Path) -> None:
    resumed_compiled(nursery, tmp_path, "inside")


def resumed_compiled(nursery: Nursery, tmp_path: Path, where: str) -> Forked:
    """A training that was suspended, and did not compile again."""
    job = Forked(nursery, tmp_path, SCRIPT, f"--compile={where}", *COMPILED)
    # As its supervisor says it.
    job.environ.update(FEW, **protocol.compiled(tmp_path / "compiled"))
    suspended(job.run("--ask=step:1"))
    done(job.run())
    (again,) = words(job, "compiled")
    assert int(again[2]) == 0
    assert int(again[3]) > 0
    return job


@pytest.mark.slow
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_compiled_once(nursery: Nursery, tmp_path: Path, compiled: Forked, where: str) -> None:
    """``torch.compile`` around ``session.parallel``, and inside it."""
    job = resumed_compiled(nursery, tmp_path, where)
    assert finals(job)[0][1:] == finals(compiled)[0][1:]
    assert samples(job) == samples(compiled)
    ((*_, fresh, _),) = words(compiled, "compiled")
    assert int(fresh) > 0


def test_an_accumulated_loader() -> None:
    sampler = ResumableSampler(10, shuffle=False)
    loader = accumulated(DataLoader(range(10), batch_size=2, sampler=sampler), 2)
    assert (loader.batch_size, len(loader), loader.sampler) == (4, 3, sampler)
    turns = [[part.tolist() for part in turn] for turn in loader]
    assert turns == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]
    with pytest.raises(ValueError, match=r"accumulated\(count=0\)"):
        accumulated(DataLoader(range(4)), 0)
    whole = ElasticBatches(8, global_batch=4)
    with pytest.raises(ValueError, match=r"divide each of them by split\(batch, size\)"):
        accumulated(DataLoader(range(8), batch_sampler=whole), 2)


def test_a_batch_in_parts() -> None:
    batch = {"x": torch.arange(5), "more": [torch.ones(5, 2), "text"]}
    parts = split(batch, 2)
    assert [part["x"].tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert parts[2]["more"][0].shape == (1, 2)
    assert parts[2]["more"][1] == "text"
    shares = [share for _, share in microbatches(torch.nn.Identity(), parts)]
    assert shares == [0.4, 0.4, 0.2]
    with pytest.raises(ValueError, match="tensors of one length; found: 2, 3"):
        split((torch.ones(2), torch.ones(3)), 1)
    with pytest.raises(ValueError, match=r"split\(size=0\)"):
        split(torch.ones(2), 0)


WORKERS = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset
from hpcext.training.torch import Session

class Numbers(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        # A handler of the parent's must not be here.
        name = "handled" if callable(signal.getsignal(signal.SIGTSTP)) else "plain"
        open(os.path.join(sys.argv[1], f"{name}-{os.getpid()}"), "a").close()
        return index

if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    session = Session(model=model, checkpoint_dir=os.path.join(sys.argv[1], "checkpoint"))
    loader = DataLoader(
        Numbers(), num_workers=2, multiprocessing_context=sys.argv[2], prefetch_factor=1,
        persistent_workers=True,
    )
    for _ in session.epochs(1):
        for number, _ in enumerate(session.batches(loader)):
            if number == 2:
                open(os.path.join(sys.argv[1], "here"), "w").close()
                open(os.path.join(sys.argv[1], "go"), "rb").read(1)
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_without_a_supervisor(tmp_path: Path, method: str) -> None:
    """They run no handler, are not stopped, and end with their parent."""
    script = tmp_path / "train.py"
    script.write_text(WORKERS)
    os.mkfifo(tmp_path / "go")
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), method],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + WAIT_S
    while not (tmp_path / "here").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    workers = {int(path.name.partition("-")[2]) for path in tmp_path.glob("plain-*")}
    assert len(workers) == 2
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGTSTP)
    assert all(psutil.Process(pid).status() != psutil.STATUS_STOPPED for pid in workers)
    with (tmp_path / "go").open("wb") as go:
        go.write(b"1")
    # The output ends when the last process that holds the pipe closes it: workers included.
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 85, output
    # A process closes its files before it is gone.
    while left := [pid for pid in workers if Process.of(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)
    assert not list(tmp_path.glob("handled-*"))
