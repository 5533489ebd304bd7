"""What processes have open that is in no image, as ``/proc`` tells."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from hpcext.launch import tree
from hpcext.process import Process

_GPUS = re.compile(
    r".*/dev/(?:nvidia(?:[0-9]+|ctl|-modeset|-uvm|-uvm-tools|-caps/.*|-nvlink|-nvswitch.*)"
    r"|kfd|dri/renderD[0-9]+)"
)
"""Devices of GPUs; those of a container may be below another root."""

_NVIDIA = re.compile(r".*/dev/nvidia.*")
_IO_URING = "anon_inode:[io_uring]"


def astray(root: Process, processes: Sequence[Process]) -> str:
    """Return which process CRIU cannot write into the images of a tree; empty if it can.

    Parameters
    ----------
    root : Process
        The root of the tree.
    processes : sequence of Process
        Those that are to be in the images.
    """
    inside = {root, *tree.descendants(root.pid)}
    for process in processes:
        if process not in inside and process.alive():
            return f"process {process.pid} has left the tree of the command"
        if _IO_URING in _files(process.pid):
            what = "uses io_uring, which CRIU does not save"
            return f"process {process.pid} {what}"
    return ""


def gpu(pid: int) -> str:
    """Return a device of a GPU that a process has open; empty if it has none."""
    return next((path for path in _files(pid) if is_gpu(path)), "")


def is_gpu(path: str) -> bool:
    """Return whether a path is that of a device of a GPU."""
    return _GPUS.fullmatch(path) is not None


def is_nvidia(device: str) -> bool:
    """Return whether a device is of NVIDIA."""
    return _NVIDIA.fullmatch(device) is not None


def _files(pid: int) -> Iterator[str]:
    """Yield the paths of what a process has open."""
    own = f"/proc/{pid}/fd"
    try:
        names = os.listdir(own)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{own}/{name}")
        except OSError:
            continue
