"""A machine with GPUs of NVIDIA, by the stand-ins of its driver and of NVML (``fakes/nvidia``)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil

SOURCES = Path(__file__).parent / "fakes" / "nvidia"
MIB = 1 << 20
GPUS = ("00000000000000000000000000000001", "00000000000000000000000000000002")
NAMES = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in (1, 2))


def build(place: Path) -> Path:
    """Build the stand-ins in a directory; the same directory."""
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
        """The allocations of processes that live, by the numbers of their GPUs."""
        found = [name.split(".") for name in os.listdir(self.path / "memory")]
        return sorted(gpu for gpu, pid, _ in found if _lives(int(pid)))

    def asked(self) -> set[str]:
        """What drivers' threads have been asked for."""
        path = self.path / "asked"
        return set(path.read_text().split()) if path.exists() else set()

    def states(self) -> list[str]:
        """The states of the processes in the driver."""
        return [path.read_text().split()[0] for path in (self.path / "process").iterdir()]


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
