"""As much of NVIDIA's library of the driver as is used, for a machine of ``$FAKE_GPUS`` GPUs."""

from __future__ import annotations

import os
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1


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
    return SimpleNamespace(total=80 << 30, used=0)


def nvmlDeviceGetMigMode(gpu: int) -> list[int]:
    return [int(os.environ.get("FAKE_MIG", "0"))] * 2


def nvmlDeviceGetMaxMigDeviceCount(gpu: int) -> int:
    return 0


def nvmlDeviceGetMPSComputeRunningProcesses(gpu: int) -> list[object]:
    return []


def nvmlDeviceGetComputeRunningProcesses(gpu: int) -> list[object]:
    return []


def nvmlDeviceGetCudaComputeCapability(gpu: int) -> list[int]:
    return [int(os.environ.get("FAKE_CAPABILITY", "9")), 0]
