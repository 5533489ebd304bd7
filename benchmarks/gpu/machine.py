"""The GPU of this machine by NVML, and the stand-ins that take its place in a rehearsal."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from site_of_test import Site

from hpcext.executors.gpus import find_gpus

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes" / "nvidia"

OCCUPIED = "FAKE_GPU_PROCESSES"
"""In a rehearsal, the directory in which processes say that they are on the GPU."""

STRICT = ("-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC")


class Seen(NamedTuple):
    """What NVML says of a GPU at an instant.

    Attributes
    ----------
    at_s : float
        By the monotonic clock.
    used_bytes : int
        Of its memory.
    pids : frozenset of int
        Processes that compute on it.
    """

    at_s: float
    used_bytes: int
    pids: frozenset[int]


class Gpu:
    """The first GPU that we may use.

    Attributes
    ----------
    index : int
        In the driver's order.
    count : int
        How many GPUs we may use.
    """

    def __init__(self) -> None:
        # Perhaps a batch system has given us some of many.
        ours = find_gpus()
        if not ours:
            raise OSError(errno.ENODEV, "NVML shows no GPU that may be used here")
        self.index, self.count = ours[0], len(ours)
        self.nvml: Any = importlib.import_module("pynvml")
        self.nvml.nvmlInit()
        self.handle = self.nvml.nvmlDeviceGetHandleByIndex(self.index)

    def close(self) -> None:
        """Let go of the driver, which a fork is not to inherit."""
        self.nvml.nvmlShutdown()

    @property
    def uuid(self) -> str:
        """Its UUID."""
        said = self.nvml.nvmlDeviceGetUUID(self.handle)
        return said.decode() if isinstance(said, bytes) else str(said)

    @property
    def total_bytes(self) -> int:
        """Its memory."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).total)

    @property
    def used_bytes(self) -> int:
        """How much of its memory is used."""
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used)

    def processes(self) -> dict[int, int | None]:
        """Pid of each process that computes on it, MPS or not → bytes, if NVML says them."""
        found = {}
        for question in ("Compute", "MPSCompute"):
            with contextlib.suppress(self.nvml.NVMLError):
                ask = getattr(self.nvml, f"nvmlDeviceGet{question}RunningProcesses")
                found.update({each.pid: each.usedGpuMemory for each in ask(self.handle)})
        return found

    def seen(self) -> Seen:
        """What is so now."""
        return Seen(time.monotonic(), self.used_bytes, frozenset(self.processes()))

    def freed_s(self, most_bytes: int, timeout_s: float = 10.0) -> float | None:
        """Seconds until no more than so much is used; None: not in this time."""
        began_s = time.monotonic()
        while self.used_bytes > most_bytes:
            if time.monotonic() - began_s > timeout_s:
                return None
            time.sleep(0.005)
        return time.monotonic() - began_s


class Watch(threading.Thread):
    """What NVML says all the time, as a context manager.

    Parameters
    ----------
    gpu : Gpu
    """

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(daemon=True)
        self.seen: list[Seen] = []
        self._gpu, self._done = gpu, threading.Event()

    def run(self) -> None:
        """Ask every hundredth of a second."""
        while not self._done.wait(0.01):
            self.seen.append(self._gpu.seen())

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


def seen() -> dict[str, Any]:
    """Return what NVML says of the first GPU, for an account; nothing without NVML."""
    try:
        now = Gpu().seen()
    except Exception:
        return {}
    return {"used_bytes": now.used_bytes, "on_gpu": sorted(now.pids)}


@contextlib.contextmanager
def occupied(used_bytes: int = 1 << 28) -> Iterator[None]:
    """Be on the GPU of a rehearsal; on a real one CUDA itself says so."""
    place = os.environ.get(OCCUPIED)
    if not place:
        yield
        return
    # Whoever is killed leaves its file; the stand-in counts the living.
    path = Path(place) / str(os.getpid())
    path.write_text(str(used_bytes))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def stand_ins(work: Path, gpus: int = 1) -> dict[str, str]:
    """Build the stand-ins of NVML, CUDA's driver and MPS; return what finds them.

    Parameters
    ----------
    work : pathlib.Path
    gpus : int
        How many GPUs NVML shows.
    """
    libraries, occupied_by, absent = (work / name for name in ("libraries", "occupied", "absent"))
    for each in (libraries, occupied_by, absent):
        each.mkdir(parents=True, exist_ok=True)
    for module in ("tensorflow", "jax"):
        # The doctor would take long to import what no part is about.
        (absent / f"{module}.py").write_text("raise ImportError('not in a rehearsal')\n")
    for source, library in (("nvml.c", "libnvidia-ml.so.1"), ("checkpoints.c", "libcuda.so.1")):
        made = ["cc", *STRICT, "-o", str(libraries / library), str(FAKES / source)]
        subprocess.run(made, check=True)
    return {
        "FAKE_GPUS": str(gpus),
        "FAKE_NVML": "nothing",
        OCCUPIED: str(occupied_by),
        "CLIENT_LOG": os.devnull,
        "LD_LIBRARY_PATH": _before(libraries, "LD_LIBRARY_PATH"),
        "PATH": _before(FAKES, "PATH"),
        "PYTHONPATH": os.pathsep.join([str(absent), _before(FAKES, "PYTHONPATH")]),
    }


def _before(path: Path, variable: str) -> str:
    return os.pathsep.join(filter(None, [str(path), os.environ.get(variable)]))


def site(place: Path) -> Site:
    """Return a place for a pilot.

    Parameters
    ----------
    place : pathlib.Path
        Made if need be.
    """
    place.mkdir(parents=True, exist_ok=True)
    return Site(place)


def left_behind(mark: str) -> list[int]:
    """Return the processes, other than this one, that a run has begun.

    Parameters
    ----------
    mark : str
        The directory of the run: all have it in their variables, the daemon of MPS too, which has
        hardly any.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark.encode() in path.read_bytes():
                found.append(pid)
    return found


def client(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return what goes before a script that is to be a client of MPS: of the stand-in, its library.

    Parameters
    ----------
    environ : Mapping of str to str, optional
        In place of ours.
    """
    rehearsal = OCCUPIED in (os.environ if environ is None else environ)
    return [str(FAKES / "client.py")] if rehearsal else []
