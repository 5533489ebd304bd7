"""GPU indices, with a stand-in for the driver's library."""

from __future__ import annotations

import pytest

from hpcext.executors.gpus import find_gpus


class Nvml:
    """As much of ``pynvml`` as is used."""

    class NVMLError(Exception):
        """Its one base class of errors."""

    def __init__(self, uuids: list[str | bytes] | None, *, broken: bool = False) -> None:
        self.uuids = uuids
        self.broken = broken
        self.open = 0

    def nvmlInit(self) -> None:
        if self.uuids is None:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        assert self.uuids is not None
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.broken:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        assert self.uuids is not None
        return self.uuids[handle]


FOUR = ["GPU-aa11", "GPU-aa22", b"GPU-bb33", "GPU-cc44"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", (2,)),
        ("3,1", (3, 1)),
        (" 0 , 2 ", (0, 2)),
        ("0,9,1", (0,)),
        ("0,0", (0,)),
        ("9" * 5000, ()),
        ("GPU-bb33,GPU-aa2", (2, 1)),
        ("GPU-aa,0", ()),
        ("MIG-1", ()),
    ],
)
def test_indices_that_may_be_used(visible: str | None, expected: tuple[int, ...]) -> None:
    nvml = Nvml(list(FOUR))
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert find_gpus(nvml, environ) == expected
    assert nvml.open == 0


@pytest.mark.parametrize("nvml", [Nvml(None), Nvml([]), Nvml(list(FOUR), broken=True)])
def test_none_without_a_driver_or_a_gpu(nvml: Nvml) -> None:
    assert find_gpus(nvml, {}) == ()
    assert nvml.open == 0


def test_the_real_library_is_found() -> None:
    """Here or not: whatever this machine has, the answer is a tuple of distinct indices."""
    found = find_gpus(environ={})
    assert list(found) == list(range(len(found)))
