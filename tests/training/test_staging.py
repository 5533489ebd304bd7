"""Checkpoints that a thread writes beside the training."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import time
import weakref
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Job, Started

from hpcext.training.checkpoint import CheckpointError, FencedError, Store, staging
from hpcext.training.checkpoint.hashing import HashingFile
from hpcext.training.checkpoint.keeper import Keeper
from hpcext.training.checkpoint.staging import Copier, Writer, room_bytes
from hpcext.training.checkpoint.state import TrainingState, Tree
from hpcext.training.ranks import Ranks
from hpcext.training.torch.state import TorchCopier, TorchState

WAIT_S = 60.0


class SlowState(TrainingState):
    """A state whose file is written when the test says so."""

    def __init__(self, objects: dict[str, Any]) -> None:
        super().__init__(objects)
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, file: HashingFile, tree: Tree) -> None:
        self.begun.set()
        assert self.go.wait(WAIT_S)
        super().write(file, tree)


def keeper_of(path: Path, state: TrainingState, attempt: int = 1) -> Keeper:
    keeper = Keeper(Store(path, attempt=attempt), state, Ranks)
    keeper.find()
    return keeper


def stage(keeper: Keeper, step: int) -> list[int]:
    """Stage a checkpoint; the list gets the step when it is committed."""
    done: list[int] = []
    failed = functools.partial(keeper.store.warn_not_written, step)
    keeper.stage(step, {}, {}, lambda: done.append(step), failed)
    return done


def saved(path: Path) -> dict[int, float]:
    """What the committed checkpoints hold, by step."""
    found = {}
    for each in path.glob("step-*"):
        tree = TrainingState({}).read(each / "state.npz")
        found[int(each.name[5:14])] = float(tree["objects"]["w"][0])
    return found


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    w = np.full(1000, 1.0)
    state = SlowState({"w": w})
    keeper = keeper_of(tmp_path, state)
    done = stage(keeper, 10)
    assert state.begun.wait(WAIT_S)
    # The next step has begun: it must not be seen in the checkpoint of this one.
    w += 1
    keeper.look()
    assert not done
    assert saved(tmp_path) == {}
    state.go.set()
    keeper.wait()
    assert done == [10]
    assert saved(tmp_path) == {10: 1.0}


def test_one_at_a_time_and_a_suspension_waits(tmp_path: Path) -> None:
    w = np.full(10, 1.0)
    state = SlowState({"w": w})
    keeper = keeper_of(tmp_path, state)
    order = stage(keeper, 10)
    w += 1
    begun = threading.Event()

    def next_ones() -> None:
        begun.set()
        stage(keeper, 20)
        order.append(20)
        keeper.write(25, {}, {})
        order.append(25)

    other = threading.Thread(target=next_ones)
    other.start()
    assert begun.wait(WAIT_S)
    assert order == []
    state.go.set()
    other.join(WAIT_S)
    assert order == [10, 20, 25]
    assert saved(tmp_path) == {10: 1.0, 20: 2.0, 25: 2.0}


def test_a_copy_takes_the_memory_of_the_one_before() -> None:
    tree = {"a": np.arange(6.0).reshape(2, 3), "n": 1, "list": [np.ones(4), {7: np.zeros(2)}]}
    copier = Copier()
    first = copier.copy(tree)
    tree["a"] += 1
    assert first["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    second = copier.copy(tree)
    assert second["a"] is first["a"]
    assert second["list"][1][7] is first["list"][1][7]
    assert second["a"].tolist() == [[1, 2, 3], [4, 5, 6]]
    tree["a"] = np.zeros(9)
    assert copier.copy(tree)["a"].shape == (9,)


def test_a_copy_of_tensors() -> None:
    shared = torch.arange(5.0)
    tree = OrderedDict(
        one=shared,
        same=shared.detach(),
        part=shared[1:3],
        transposed=torch.arange(6.0).reshape(2, 3).t(),
        sparse=torch.eye(3).to_sparse(),
        whole=torch.tensor(3, dtype=torch.int64),
        array=np.arange(3),
        count=Counter("aab"),
        text=("x", None, {1, 2}),
    )
    tree._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]
    copy = TorchCopier().copy(tree)
    expected = {name: value.clone() for name, value in tree.items() if torch.is_tensor(value)}
    shared += 7
    tree["array"] += 7
    for name, value in expected.items():
        assert torch.equal(copy[name].to_dense(), value.to_dense()), name
    # One tensor under two names is written once, and a piece does not bring the rest along.
    assert copy["one"] is copy["same"]
    assert copy["part"].untyped_storage().nbytes() == 8
    assert copy["transposed"].stride() == tree["transposed"].stride()
    assert copy["array"].tolist() == [0, 1, 2]
    assert type(copy["count"]) is Counter
    assert copy["text"] == ("x", None, {1, 2})
    assert copy._metadata == {"": {"version": 2}}


def test_module_and_optimizer_come_back_from_a_copy(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    # Tied: one tensor in two places.
    model.append(torch.nn.Linear(3, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(model[:2](torch.ones(2, 3)).sum())
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    keeper = keeper_of(tmp_path, TorchState({"model": model, "optimizer": optimizer}))
    keeper.stage(1, {}, TorchState({}).random(), lambda: None, lambda error: None)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    keeper.wait()
    later = keeper_of(tmp_path, TorchState({"model": model, "optimizer": optimizer}), attempt=2)
    found = later.find()
    assert found is not None
    later.load(found)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model[2].weight is model[0].weight


def test_an_attempt_that_is_fenced_off_learns_of_it(tmp_path: Path) -> None:
    state = SlowState({"w": np.zeros(3)})
    keeper = keeper_of(tmp_path, state)
    stage(keeper, 10)
    Store(tmp_path, attempt=2).open()
    state.go.set()
    with pytest.raises(FencedError, match="attempt 2 of this job has begun"):
        stage(keeper, 20)
    with pytest.raises(FencedError):
        keeper.write(30, {}, {})
    assert saved(tmp_path) == {}


def test_errors_other_than_a_full_disk_are_raised(tmp_path: Path) -> None:
    w: dict[str, Any] = {"w": np.zeros(3)}
    keeper = keeper_of(tmp_path, TrainingState({"w": w}))
    w["function"] = len
    stage(keeper, 10)
    with pytest.raises(TypeError, match="builtin_function_or_method cannot be saved"):
        keeper.wait()


def test_where_there_is_no_room_it_is_written_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(staging, "room_bytes", lambda: 1 << 20)
    w = np.full(1000, 1.0)
    keeper = keeper_of(tmp_path, TrainingState({"w": w}))
    for step in (10, 20):
        # Done when it returns.
        assert stage(keeper, step) == [step]
        w += 1
    assert saved(tmp_path) == {10: 1.0, 20: 2.0}
    assert capsys.readouterr().err.count("written between the steps") == 1


def test_memory_that_cannot_be_had_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that no control group has: ulimit -v, VSizeFactor of Slurm, strict overcommitment."""
    monkeypatch.setattr(staging, "room_bytes", lambda: 1 << 62)
    # Its copy is more than a process can address, and its content one number.
    large = torch.ones(1).expand(1 << 46)
    keeper = keeper_of(tmp_path, TorchState({"small": torch.ones(3), "large": large}))
    for step in (10, 20):
        assert stage(keeper, step) == [step]
    assert len(list(tmp_path.glob("step-*"))) == 2
    said = capsys.readouterr().err
    assert said.count("written between the steps") == 1
    assert "can't allocate memory" in said


def test_what_was_copied_before_memory_ran_out_is_freed() -> None:
    made: list[weakref.ref[Any]] = []

    class Crowded(Copier):
        def fresh(self, array: Any) -> Any:
            if made:
                raise MemoryError("no more")
            copy = super().fresh(array)
            made.append(weakref.ref(copy))
            return copy

    copier = Crowded()
    with pytest.raises(MemoryError):
        copier.copy({"one": np.ones(3), "two": np.ones(4)})
    copier.forget()
    gc.collect()
    assert made[0]() is None


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def test_pinned_memory_comes_in_powers_of_two_and_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a copy that fits takes up to twice of what there is, and keeps it."""
    sizes = [TorchCopier().size(torch.ones(n).as_subclass(OnGpu)) for n in (0, 1, 1024, 1025)]
    assert sizes == [0, 4, 4096, 8192]
    assert TorchCopier().size(torch.ones(1025)) == 4100
    emptied: list[bool] = []
    monkeypatch.setattr(
        torch.accelerator, "empty_host_cache", lambda: emptied.append(True), raising=False
    )
    empty_like = torch.empty_like
    monkeypatch.setattr(
        torch, "empty_like", lambda each, pin_memory, **more: empty_like(each, **more)
    )
    copier = TorchCopier()
    copier.fresh(torch.ones(3))
    copier.forget()
    assert not emptied
    copier.fresh(torch.ones(3).as_subclass(OnGpu))
    copier.forget()
    assert emptied == [True]


def test_room() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < room_bytes() < total


def is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_a_fork_meanwhile(tmp_path: Path) -> None:
    """Loader workers are forked whenever an epoch begins."""
    state = SlowState({"w": np.full(3, 1.0)})
    keeper = keeper_of(tmp_path, state)
    stage(keeper, 10)
    assert state.begun.wait(WAIT_S)
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    child = os.fork()
    if child == 0:
        # What it inherited is not its own: nothing waits for a thread that is not there.
        keeper.wait()
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 100) if is_open(fd)]
        os._exit(0 if not any(str(tmp_path) in path for path in held) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    state.go.set()
    keeper.wait()
    assert saved(tmp_path) == {10: 1.0}


def test_an_error_is_raised_once() -> None:
    writer = Writer()
    writer.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    writer.wait()
    assert not writer.ended()


def test_killed_while_the_thread_writes(tmp_path: Path) -> None:
    job = Job(tmp_path, "train_numpy.py", "--every=10", f"--big={100 << 20}")

    def kill(process: Started) -> None:
        end = time.monotonic() + WAIT_S
        while not list(tmp_path.glob("checkpoint/.draft-step-000000010*/state.npz")):
            assert time.monotonic() < end
        process.kill()

    assert job.run_held(10, kill).code == -signal.SIGKILL
    assert not job.checkpoints
    assert job.run().code == 0
    taken = [int(line[3]) for line in job.log if line[2] == "step"]
    assert taken == [*range(10), *range(40)]
    assert not list(tmp_path.glob("checkpoint/.draft*"))


def test_a_run_keeps_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def name(path: Path) -> str:
        keeper = Keeper(Store(path), TrainingState({"w": np.zeros(2)}), Ranks)
        keeper.find()
        if not list(path.glob("step-*")):
            keeper.write(1, {}, {})
        return keeper.run_id

    first = name(tmp_path / "one")
    assert len(first) == 32
    assert int(first, 16)
    assert name(tmp_path / "one") == first
    assert name(tmp_path / "two") != first
    # The checkpoints know it, too; what somebody else wrote there is not taken.
    (tmp_path / "one" / "run-id").write_text("../../etc\n")
    assert name(tmp_path / "one") == first
    (tmp_path / "one" / "run-id").unlink()
    assert name(tmp_path / "one") == first
    assert capsys.readouterr().err == ""


def test_a_checkpoint_of_another_format_is_reported(tmp_path: Path) -> None:
    keeper_of(tmp_path, TrainingState({"w": np.zeros(2)})).write(1, {}, {})
    with pytest.raises(CheckpointError, match="has format numpy/1"):
        keeper_of(tmp_path, TorchState({"w": torch.zeros(2)}), attempt=2)
