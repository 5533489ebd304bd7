"""The variable that names the GPUs which a process may use: CUDA's, or ROCm's for AMD.

Slurm sets that of the driver that it found, or all of them if ``gres.conf`` has no ``AutoDetect``
(gres.conf(5), ``Flags=nvidia_gpu_env,amd_gpu_env``). HIP also obeys CUDA's variable, and counts its
indices among the GPUs that ``ROCR_VISIBLE_DEVICES`` leaves (ROCm, "GPU isolation techniques"): two
variables that say the same hide GPUs. So one is set, and no other is passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CUDA = "CUDA_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
NAMES = (CUDA, ROCR, "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")

_ORDER = "CUDA_DEVICE_ORDER"
OF_ATTEMPT = (*NAMES, _ORDER)
"""All variables by which an attempt is told its GPUs."""

_NVIDIA = Path("/dev/nvidiactl")
_AMD = Path("/dev/kfd")


def name() -> str:
    """Return the variable for the GPUs of this machine; CUDA's if it has none."""
    # Some processors have AMD graphics, beside NVIDIA GPUs that are the ones to use.
    return ROCR if _AMD.exists() and not _NVIDIA.exists() else CUDA


def present() -> bool:
    """Return whether this machine has GPUs that a driver offers."""
    return _NVIDIA.exists() or _AMD.exists()


def said(environ: Mapping[str, str]) -> str | None:
    """Return what an environment says of the available GPUs; None if it says nothing.

    Parameters
    ----------
    environ : Mapping[str, str]
    """
    if name() == CUDA:
        return environ.get(CUDA)
    # The batch system decides by ROCR's variable; the others count among what that leaves.
    return next((environ[each] for each in (ROCR, *NAMES) if each in environ), None)


def naming(devices: str) -> dict[str, str]:
    """Return variables that let a process see these GPUs.

    Parameters
    ----------
    devices : str
        As the driver counts them, with commas; ``-1`` for none.
    """
    if name() == CUDA:
        # Indices are those of the driver (nvidia-smi), whose order is not CUDA's by default.
        return {_ORDER: "PCI_BUS_ID", CUDA: devices}
    return {ROCR: devices}


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that name GPUs."""
    return {key: value for key, value in environ.items() if key not in NAMES}
