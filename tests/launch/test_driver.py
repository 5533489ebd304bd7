"""What uses a GPU, suspended as it is: with stand-ins of NVIDIA's driver and of NVML.

They follow NVIDIA's documentation, and fail as the real ones are reported to. Nothing here shows that
the real ones do so: that is unverified on a GPU. CRIU is a real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from as_is import begin, completed, declined, needs_criu, stand_in, steps, suspended, wait_steps
from counting_gpu import digest
from stage import Stage, end

SOURCES = Path(__file__).parents[1] / "fakes" / "nvidia"
COUNTING = str(Path(__file__).parent / "counting_gpu.py")
MIB = 1 << 20
GPUS = ("00000000000000000000000000000001", "00000000000000000000000000000002")
NAMES = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins."""
    place = tmp_path_factory.mktemp("libraries")
    strict = ("-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC")
    for library, source in (("libcuda.so.1", "cuda.c"), ("libnvidia-ml.so.1", "nvml.c")):
        words = ["cc", *strict, "-o", str(place / library), str(SOURCES / source), "-lpthread"]
        subprocess.run(words, check=True)
    return place


class Machine:
    """A machine with GPUs: the account of the stand-ins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("dev", "memory", "process", "request", "answer"):
            (path / name).mkdir()
        self.has(*GPUS)

    def has(self, *gpus: str, mib: int = 100, model: str = "NVIDIA Fake") -> None:
        """Say which GPUs it has."""
        lines = [f"{gpu} {mib * MIB} {model}\n" for gpu in gpus]
        (self.path / "gpus").write_text("".join(lines))

    def fault(self, name: str) -> None:
        """Say what goes wrong."""
        (self.path / "fault").write_text(name)

    def on_gpus(self) -> list[str]:
        """The allocations, by the numbers of their GPUs."""
        return sorted(name.split(".")[0] for name in os.listdir(self.path / "memory"))

    def states(self) -> list[str]:
        """The states of the processes in the driver."""
        return [path.read_text().split()[0] for path in (self.path / "process").iterdir()]


@pytest.fixture
def machine(tmp_path: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One of two GPUs."""
    path = tmp_path / "driver"
    shutil.copytree(libraries, path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return Machine(path)


def start(stage: Stage, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    return begin(stage, *words, counts=COUNTING, **options)


def refused(stage: Stage, supervisor: subprocess.Popen[bytes], why: str) -> None:
    """Ask it to be suspended: it is declined for a reason, and goes on, and loses nothing."""
    supervisor.send_signal(20)
    declined(stage, why)
    wait_steps(stage)
    assert not (stage.path / "1" / "images.new").exists()
    completed(stage, supervisor, digest)


# As it should be.


@needs_criu
def test_what_uses_a_gpu_is_suspended_and_loses_no_step(stage: Stage, machine: Machine) -> None:
    supervisor = start(stage, "child")
    wait_steps(stage)
    assert machine.on_gpus() == ["0"]
    document = suspended(stage, supervisor)
    assert document["checkpoint"] == {"saved": True, "lost_s": 0.0, "exact": True, "anew": False}
    assert machine.on_gpus() == []
    supervisor = start(stage, "child", attempt=2)
    wait_steps(stage)
    assert machine.on_gpus() == ["0"]
    assert machine.states() == ["0"]
    completed(stage, supervisor, digest)
