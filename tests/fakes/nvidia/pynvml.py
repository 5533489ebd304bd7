"""As much of NVIDIA's library of the driver as is used, for a machine of ``$FAKE_GPUS`` GPUs.

Which processes compute on the first one says ``$FAKE_GPU_PROCESSES``, a directory: a file for each,
by its pid, with the bytes that it has there and perhaps its state (``checkpoints.c``).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1
_CHECKPOINTED = "2"


class NVMLError(Exception):
    """Its one base class of errors."""


def nvmlInit() -> None:
    if not os.environ.get("FAKE_GPUS"):
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return int(os.environ["FAKE_GPUS"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(gpu: int) -> str:
    return f"GPU-{gpu:04}"


def nvmlDeviceGetName(gpu: int) -> str:
    return "NVIDIA Fake"


def nvmlDeviceGetUtilizationRates(gpu: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=50, memory=10)


def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:
    used = sum(each.usedGpuMemory for each in nvmlDeviceGetComputeRunningProcesses(gpu))
    return SimpleNamespace(total=80 << 30, used=used)


def nvmlSystemGetDriverVersion() -> str:
    return "fake"


def nvmlDeviceGetMigMode(gpu: int) -> list[int]:
    return [int(os.environ.get("FAKE_MIG", "0"))] * 2


def nvmlDeviceGetMaxMigDeviceCount(gpu: int) -> int:
    return 0


def nvmlDeviceGetMPSComputeRunningProcesses(gpu: int) -> list[object]:
    return []


def nvmlDeviceGetComputeRunningProcesses(gpu: int) -> list[SimpleNamespace]:
    place = os.environ.get("FAKE_GPU_PROCESSES")
    found = []
    for path in Path(place).iterdir() if place and gpu == 0 else ():
        try:
            words = path.read_text().split()
        except OSError:
            continue
        # One that was killed leaves its file; a checkpointed one has nothing on the GPU.
        if words and words[1:] != [_CHECKPOINTED] and os.path.exists(f"/proc/{path.name}"):
            found.append(SimpleNamespace(pid=int(path.name), usedGpuMemory=int(words[0])))
    return found


def nvmlDeviceGetCudaComputeCapability(gpu: int) -> list[int]:
    return [int(os.environ.get("FAKE_CAPABILITY", "9")), 0]
