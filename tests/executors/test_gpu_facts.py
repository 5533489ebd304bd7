"""What is said of GPUs, with a stand-in for the driver's library: of MIG and MPS no GPU is here."""

from __future__ import annotations

import shutil
import subprocess
import types
from pathlib import Path

import psutil
import pynvml
import pytest

from hpcext.executors.gpu_facts import GpuFacts, gpu_facts, mps_runs, sharing


class Nvml:
    """Two GPUs: one shared by two processes, one divided into two of seven instances."""

    class NVMLError(Exception):
        """Its one base class of errors."""

    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *, driver: bool = True, lost: bool = False) -> None:
        self.driver = driver
        self.lost = lost
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.lost and index == 1:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, gpu: int) -> str | bytes:
        return b"NVIDIA H200" if gpu else "NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> types.SimpleNamespace:
        if gpu:
            raise self.NVMLError("Not Supported")
        return types.SimpleNamespace(gpu=25, memory=10)

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=1000, used=100 * gpu)

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:
        # The second one is what it will be after a reset.
        return [gpu, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, place: int) -> str:
        if place not in {0, 3}:
            raise self.NVMLError("Not Found")
        return f"MIG-{place}"

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: int) -> list[int]:
        if gpu:
            raise self.NVMLError("Function Not Found")
        return [11, 12]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[int]:
        return [13] if gpu else []


FOUND = (
    GpuFacts(0, "NVIDIA H100", 0.25, 1000, 0, mps_clients=2),
    GpuFacts(1, "NVIDIA H200", None, 1000, 100, mig=True, instances=2, processes=1),
)


def test_what_gpus_say() -> None:
    nvml = Nvml()
    assert gpu_facts(nvml) == FOUND
    assert nvml.open == 0


def test_the_library_has_what_is_asked_of_it() -> None:
    asked = {name for name in dir(Nvml) if name.lower().startswith("nvml")}
    assert asked <= set(dir(pynvml))
    assert pynvml.NVML_DEVICE_MIG_ENABLE == Nvml.NVML_DEVICE_MIG_ENABLE


@pytest.mark.parametrize(
    ("nvml", "found"), [(Nvml(driver=False), ()), (Nvml(lost=True), FOUND[:1])]
)
def test_without_a_driver_or_with_a_lost_gpu(nvml: Nvml, found: tuple[GpuFacts, ...]) -> None:
    assert gpu_facts(nvml) == found
    assert nvml.open == 0


def test_divided_and_shared_gpus_are_reported() -> None:
    assert sharing(FOUND) == (
        "GPU 0 is shared by 2 processes through MPS; GPU 1 is in MIG mode, 2 instances"
    )
    assert sharing((GpuFacts(0, "NVIDIA H100"),)) == ""


def test_the_daemon_of_mps_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process of that name: the kernel keeps fifteen characters of it."""
    program = tmp_path / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        assert mps_runs()
        process.kill()
    me = psutil.Process()
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: [me])
    me.info = me.as_dict(attrs=["name"])
    assert not mps_runs()
