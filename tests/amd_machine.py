"""A machine with ROCm's driver: files after the kernel's sources, a library after its reference."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

IDS = {2: 51002, 3: 51003, 4: 51004, 5: 51005}
"""Node of the driver → its number for the GPU there."""

GIB = 1 << 30


def make_nodes(nodes: Path) -> None:
    """Two processors and four GPUs, as an MI250X has two: one GPU more is not ours to read."""
    for number in range(7):
        node = nodes / str(number)
        node.mkdir(parents=True)
        if number == 6:
            continue
        is_gpu = number in IDS
        (node / "gpu_id").write_text(f"{IDS.get(number, 0)}\n")
        facts = f"cpu_cores_count {0 if is_gpu else 64}\nsimd_count {440 if is_gpu else 0}\n"
        (node / "properties").write_text(f"{facts}unique_id {0xAB00 + number if is_gpu else 0}\n")


class Amdsmi:
    """As much of ``amdsmi`` as is used, written after the reference and the source of its 7.0.2.

    No GPU of AMD has been asked. It lists GPUs by their places on the bus, which is not the
    driver's order, and one that cgroups keep from us too. The driver's second one says nothing that
    it need not, in each of the ways in which things are not said.
    """

    class AmdSmiException(Exception):
        """Its one base class of errors."""

    class AmdSmiLibraryException(AmdSmiException):
        """Of the library in C: not supported, not permitted, ..."""

    AmdSmiMemoryType = types.SimpleNamespace(VRAM=0)

    def __init__(self, *, driver: bool = True, lost: int | None = None, mode: str = "SPX") -> None:
        self.driver = driver
        self.lost = lost
        self.mode = mode
        self.open = 0

    def amdsmi_init(self) -> None:
        if not self.driver:
            raise self.AmdSmiLibraryException("AMDSMI_STATUS_DRIVER_NOT_LOADED")
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [51004, 51003, 51006, 51002, 51005]

    def amdsmi_get_gpu_kfd_info(self, gpu: int) -> dict[str, Any]:
        if gpu == self.lost:
            raise self.AmdSmiLibraryException("AMDSMI_STATUS_NOT_FOUND")
        return {"kfd_id": gpu, "node_id": gpu - 51000, "current_partition_id": 0}

    def amdsmi_get_gpu_asic_info(self, gpu: int) -> dict[str, Any]:
        name = "N/A" if gpu == 51003 else "AMD Instinct MI300X"
        return {"market_name": name, "vendor_id": "0x1002", "target_graphics_version": "gfx942"}

    def amdsmi_get_gpu_activity(self, gpu: int) -> dict[str, Any]:
        busy = "N/A" if gpu == 51003 else gpu - 51000
        return {"gfx_activity": busy, "umc_activity": 1, "mm_activity": "N/A"}

    def amdsmi_get_gpu_memory_total(self, gpu: int, kind: int) -> int:
        return self._memory(gpu, kind, 192 * GIB)

    def amdsmi_get_gpu_memory_usage(self, gpu: int, kind: int) -> int:
        return self._memory(gpu, kind, (gpu - 51000) * GIB)

    def _memory(self, gpu: int, kind: int, said: int) -> int:
        assert kind == self.AmdSmiMemoryType.VRAM
        if gpu == 51003:
            raise self.AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")
        return said

    def amdsmi_get_gpu_process_list(self, gpu: int) -> list[dict[str, Any]]:
        if gpu == 51003:
            raise self.AmdSmiLibraryException("AMDSMI_STATUS_NO_PERM")
        return [{"name": "python3", "pid": 7, "mem": GIB}] if gpu == 51004 else []

    def amdsmi_get_gpu_compute_partition(self, gpu: int) -> str:
        if gpu == 51003:
            raise self.AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED")
        return self.mode
