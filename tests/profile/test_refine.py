"""What a running job teaches its profile: an engine with a clock of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcext.core import facts as f
from hpcext.core.engine import Engine
from hpcext.core.values import Job, Node
from hpcext.jobspec import JobSpec
from hpcext.manager.refine import ENOUGH_S, SKIP_S, SLOT, STORE_EVERY_S, Refiner, gpu_kind
from hpcext.policies import find_policy
from hpcext.profiles import Measurement, Profiles

LOOK_S = 5.0
LONG_S = SKIP_S + 2 * ENOUGH_S


class Stage:
    """One job that may have 1 to 4 GPUs, and what the observer makes of it."""

    def __init__(
        self, directory: Path, *, profile: str = "cnn", gpu: str = "slot", kind: str = ""
    ) -> None:
        self.profiles = Profiles(directory, gpu, lock_s=1)
        self.profiles.add(
            "cnn", [Measurement(at=0, gpus=1, steps_per_s=1, seconds=1, source="job")]
        )
        spec = JobSpec("job", ("true",), profile=profile)
        self.refine = Refiner(self.profiles, lambda _: spec)
        self.engine = Engine(find_policy("marble"))
        self.now_s, self.op, self.step, self.done = 0.0, 0, 0, 0.0
        job = Job("1", "job", 1, sizes=(1, 2, 3, 4), optimal=2)
        self.tell(f.NodeJoined(Node("n", 4, kind)), f.Submitted(job))
        self.op = self.engine.world.jobs["1"].op
        self.begin("n:0", "n:1")

    def tell(self, *facts: f.Fact) -> None:
        actions, _ = self.engine.step(self.now_s, facts)
        for action in actions:
            self.op = action.op
        self.refine(self.engine, self.now_s)

    def begin(self, *gpus: str) -> None:
        self.tell(f.Started("1", self.op, gpus), f.Registered("1", self.op, self.step))

    def train(
        self, seconds: float, rate: float | None, *, per_step: float = 1.0, look_s: float = LOOK_S
    ) -> None:
        """Let time pass, with a report at each look."""
        for _ in range(round(seconds / look_s)):
            self.now_s += look_s
            steps = round((10 if rate is None else rate / per_step) * look_s)
            self.step += steps
            self.done += steps * per_step
            self.tell(f.Progressed("1", self.op, self.step, 0, self.done, rate))

    def end(self) -> None:
        self.tell(f.Ended("1", self.op, f.Outcome.COMPLETED, 0))

    def learned(self) -> list[tuple[int, float, float | None]]:
        kept = self.profiles.load("cnn").measurements[1:]
        return [(each.gpus, round(each.steps_per_s, 3), each.samples_per_s) for each in kept]


def test_a_job_that_ran_long_enough_is_stored_when_it_ends(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(SKIP_S, 2.0)  # warm-up
    stage.train(2 * ENOUGH_S, 10.0)
    assert stage.learned() == []
    stage.end()
    assert stage.learned() == [(2, 10.0, None)]
    (last,) = stage.profiles.load("cnn").measurements[1:]
    assert (last.source, last.gpu, last.nodes) == ("job", "slot", 1)
    assert last.seconds == pytest.approx(2 * ENOUGH_S)
    assert stage.profiles.curve("cnn", "steps")[0] == {1: 1, 2: pytest.approx(10)}


@pytest.mark.parametrize(
    ("kind", "stored"), [("", "Tesla V100"), ("v100", "Tesla V100"), ("a100", "a100")]
)
def test_a_measurement_is_of_the_kind_of_its_node(tmp_path: Path, kind: str, stored: str) -> None:
    stage = Stage(tmp_path, gpu="Tesla V100", kind=kind)
    stage.train(LONG_S, 10.0)
    stage.end()
    assert stage.profiles.load("cnn").measurements[-1].gpu == stored


def test_samples_are_told_from_steps(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(LONG_S, 80.0, per_step=8.0)
    stage.end()
    assert stage.learned() == [(2, 10.0, 80.0)]


def test_what_was_too_short_or_has_no_rate_is_not_stored(tmp_path: Path) -> None:
    short = Stage(tmp_path / "short")
    short.train(SKIP_S + ENOUGH_S / 2, 10.0)
    short.end()
    assert short.learned() == []
    silent = Stage(tmp_path / "silent")
    silent.train(LONG_S, None)
    silent.end()
    assert silent.learned() == []
    stuck = Stage(tmp_path / "stuck")
    stuck.train(LONG_S, 0.0)
    stuck.end()
    assert stuck.learned() == []


def test_each_size_is_measured_separately(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(LONG_S, 10.0)
    old = stage.op
    stage.tell(f.Resize("1", 4))
    stage.tell(f.Ended("1", old, f.Outcome.SUSPENDED))
    assert stage.op != old
    stage.begin("n:0", "n:1", "n:2", "n:3")
    stage.train(LONG_S, 14.0)
    stage.end()
    assert stage.learned() == [(2, 10.0, None), (4, 14.0, None)]


def test_a_long_job_is_stored_now_and_then(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(2 * STORE_EVERY_S, 10.0)
    assert stage.learned() == [(2, 10.0, None)]
    stage.train(STORE_EVERY_S, 12.0)
    stage.end()
    rates = [rate for _, rate, _ in stage.learned()]
    assert len(rates) == 3
    assert 10 <= rates[0] <= rates[1] <= rates[2] <= 12


class Nvml:
    """As much of ``pynvml`` as is used; two GPUs."""

    class NVMLError(Exception):
        """Its one base class of errors."""

    def __init__(self, name: str | bytes | None) -> None:
        self.name = name
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        if self.name is None:
            raise self.NVMLError("GPU is lost")
        return self.name

    def __getattr__(self, name: str) -> Callable[[int], object]:
        def ask(handle: int) -> object:
            raise self.NVMLError("Not Supported")

        return ask


@pytest.mark.parametrize(
    ("name", "visible", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", None, "NVIDIA A100-SXM4-40GB"),
        (b"Tesla V100", "1", "Tesla V100"),
        ("x" * 200, None, "x" * 100),
        (None, None, "unknown"),
        ("NVIDIA A100-SXM4-40GB", "", SLOT),
    ],
)
def test_the_kind_of_gpu_is_what_the_driver_calls_it(
    name: str | bytes | None, visible: str | None, kind: str
) -> None:
    nvml = Nvml(name)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_kind(nvml, environ) == kind
    assert nvml.open == 0


def test_a_job_without_a_profile_teaches_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, profile="")
    stage.train(LONG_S, 10.0)
    stage.end()
    assert stage.learned() == []


@pytest.mark.parametrize("harm", ["damaged", "removed", "in the way"])
def test_a_profile_that_cannot_be_written_is_one_warning(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path / "profiles")
    path = tmp_path / "profiles" / "cnn.json"
    path.unlink()
    if harm == "damaged":
        path.write_text("{")
    elif harm == "in the way":
        path.mkdir()
    with caplog.at_level(logging.WARNING):
        stage.train(2 * STORE_EVERY_S + LONG_S, 10.0)
        stage.end()
    assert len(caplog.records) == 1
    assert "profile cnn was not refined" in caplog.text
    assert stage.engine.finished
