"""Checks of this machine: Python, packages, GPUs, settings, the state directory."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hpcext
from hpcext import backends, config
from hpcext.core.errors import InputError
from hpcext.doctor.checkup import CheckOptions, Finding, run_python
from hpcext.executors import gpu_facts
from hpcext.executors.gpu_facts import GpuFacts
from hpcext.executors.gpus import find_gpus
from hpcext.launch import devices
from hpcext.manager import cleaning, locks
from hpcext.manager.directory import known
from hpcext.text import clean, counted, sized

PACKAGES = (
    "numpy", "filelock", "msgspec", "psutil", "rich", "scipy", "threadpoolctl", "nvidia-ml-py",
)  # fmt: skip
"""Packages in install_requires of setup.cfg; a test keeps both lists equal."""

IMPORT_S = 100.0
"""Seconds to wait for the import of a framework; a slow file system takes a minute."""

SIZES_S = 20.0
"""The longest time for counting files of pilots; those of 100,000 jobs would take minutes."""

OLD_S = 30 * 86_400.0
"""Seconds without a change after which a pilot is old."""

SHARED = frozenset(
    {
        "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "panfs", "wekafs", "cifs",
        "smb3", "afs", "pvfs2", "ocfs2", "gfs2",
    }
)  # fmt: skip
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs"})

_FRAMEWORKS = {
    "torch": "import torch; print(torch.__version__, torch.cuda.device_count())",
    "tensorflow": "import tensorflow as tf; "
    "print(tf.__version__, len(tf.config.list_physical_devices('GPU')))",
    "jax": "import jax; "
    "print(jax.__version__, sum(each.platform == 'gpu' for each in jax.devices()))",
}
"""Programs that print the version of a framework, and how many GPUs it sees."""

_MIB = 1 << 20

_NO_GPUS = "to run jobs on the CPU, give the number of slots that they share: hpcext run --gpus N"
_AMDSMI = "install amd-smi-lib of ROCm 6.3 or later, and pip install /opt/rocm/share/amd_smi"


def python(asked: CheckOptions) -> Iterator[Finding]:
    """Show the release of hpcext and that of the interpreter."""
    here = Path(hpcext.__file__).parent
    yield Finding("hpcext", "ok", f"{hpcext.__version__} in {clean(str(here))}")
    yield Finding("python", "ok", f"{platform.python_version()}, {clean(sys.executable)}")


def packages(asked: CheckOptions) -> Iterator[Finding]:
    """Check the packages that hpcext needs."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if found:
        yield Finding("packages", "ok", ", ".join(found))
    for name in missing:
        yield Finding("packages", "wrong", f"{name} is not installed", f"pip install {name}")


def torch(asked: CheckOptions) -> Iterator[Finding]:
    """Check that trainings can import PyTorch, and see the GPUs."""
    yield _framework("torch")


def tensorflow(asked: CheckOptions) -> Iterator[Finding]:
    """Check that trainings can import TensorFlow, and see the GPUs."""
    yield _framework("tensorflow")


def jax(asked: CheckOptions) -> Iterator[Finding]:
    """Check JAX, as trainings would import it."""
    yield _framework("jax")


def _framework(name: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(
            name, "note", "not installed", f"pip install 'hpcext[{name}]', if trainings need it"
        )
    try:
        ended = run_python("-c", _FRAMEWORKS[name], within_s=IMPORT_S)
    except subprocess.TimeoutExpired:
        return Finding(name, "note", f"takes more than {IMPORT_S:g} s to import")
    said = ended.stdout.split()[-2:]
    if ended.returncode or len(said) < 2:
        why = clean((ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1])
        return Finding(
            name, "wrong", f"installed, and cannot be imported: {why}", "install it again"
        )
    version, seen = said
    gpus = len(find_gpus())
    if gpus and seen == "0":
        says = f"{version}: sees none of the {gpus} GPUs"
        return Finding(name, "wrong", says, "install a build for the GPUs of this machine")
    return Finding(name, "ok", f"{version}, {counted(int(seen), 'GPU')}" if gpus else version)


def gpus(asked: CheckOptions) -> Iterator[Finding]:
    """Check the GPUs that this process may use."""
    yield from _amds() if devices.name() == devices.ROCR else _nvidias()


def _amds() -> Iterator[Finding]:
    usable = find_gpus()
    if not usable:
        yield Finding("gpus", "note", "no AMD GPU may be used here", _NO_GPUS)
        return
    says = f"{len(usable)} of AMD, by {devices.ROCR}; hpcext has not been tested on AMD GPUs"
    found = gpu_facts.gpu_facts()
    if kinds := ", ".join(sorted({gpu.name for gpu in found if gpu.index in usable})):
        yield Finding("gpus", "ok", clean(f"{kinds}: {says}"))
    else:
        yield Finding("gpus", "ok", f"{says}; amdsmi does not say what they do", _AMDSMI)
    yield from _used(found, usable, "amd-smi process")
    yield from _sharing(found)


def _nvidias() -> Iterator[Finding]:
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        try:
            driver, names = nvml.nvmlSystemGetDriverVersion(), _names(nvml)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        yield Finding("gpus", "note", clean(f"no NVIDIA GPU is visible here: {error}"), _NO_GPUS)
        return
    usable = find_gpus()
    if not usable:
        yield Finding(
            "gpus", "note", f"none of {counted(len(names), 'GPU')} may be used here", _NO_GPUS
        )
        return
    kinds = ", ".join(sorted(set(names)))
    says = f"{len(usable)} of {len(names)}: {kinds}; driver {gpu_facts.text(driver)}"
    yield Finding("gpus", "ok", clean(says))
    found = gpu_facts.gpu_facts()
    yield from _used(found, usable, "nvidia-smi")
    yield from _sharing(found)


def _used(found: Iterable[GpuFacts], usable: Iterable[int], tool: str) -> Iterator[Finding]:
    """Yield a note for each GPU on which something runs already."""
    why = "a training beside it is slow or runs out of memory"
    do = f"{tool} shows whose they are; hpcext run --gpus N uses fewer GPUs"
    for gpu in found:
        if gpu.index in usable and gpu.processes:
            users = counted(gpu.processes, "process", "processes")
            says = f"GPU {gpu.index} is used by {users}"
            if gpu.memory_used_bytes is not None:
                says += f", {gpu.memory_used_bytes // _MIB} MiB"
            yield Finding("gpus", "note", says, do, why)


def _sharing(found: tuple[GpuFacts, ...]) -> Iterator[Finding]:
    """Yield a note if GPUs are divided or shared by MIG or MPS."""
    daemon = "the MPS daemon is running" if gpu_facts.mps_runs() else ""
    if says := "; ".join(filter(None, (gpu_facts.sharing(found), daemon))):
        # NVIDIA's MIG User Guide, "CUDA Device Enumeration".
        one = "a process uses one instance of a GPU in MIG mode: turn it off, or use other GPUs"
        yield Finding("gpu sharing", "note", says, one if any(gpu.mig for gpu in found) else "")


def _names(nvml: Any) -> list[str]:
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return [gpu_facts.text(nvml.nvmlDeviceGetName(handle)) for handle in handles]


def settings(asked: CheckOptions) -> Iterator[Finding]:
    """Check that all settings can be read; list those that are not defaults, with their origins."""
    found = config.load_settings()
    stated = [f"{name} ({origin})" for name, origin in found.origins.items() if origin != "default"]
    yield Finding("settings", "ok", ", ".join(stated) or "all are defaults")


def state_directory(asked: CheckOptions) -> Iterator[Finding]:
    """Check that the state directory can be written and locked, and that nodes can see it."""
    name = "state_dir"
    if asked.settings is None:
        yield Finding(name, "note", "not checked, because the settings cannot be read")
        return
    wanted = asked.settings.state_dir
    place = next(path for path in (wanted, *wanted.parents) if path.exists())
    try:
        with (
            tempfile.TemporaryDirectory(dir=place, prefix=".hpcext-doctor-") as scratch,
            locks.held(Path(scratch) / "lock", do="set another state_dir"),
        ):
            free = shutil.disk_usage(place).free // _MIB
    except OSError as error:
        says = f"{clean(str(place))}: {error.strerror}"
        yield Finding(name, "wrong", says, "make it writable, or set another state_dir")
        return
    kind = file_system(place)
    says = f"{clean(str(wanted))}: can be written and locked, {free} MiB free, {kind}"
    others = any(map(backends.is_here, map(backends.find, backends.BUILT_IN)))
    if others and kind in LOCAL:
        says += ": jobs on other nodes cannot see it"
        yield Finding(name, "note", says, "set state_dir to a directory that all nodes share")
    else:
        shared = ", shared" if kind in SHARED else ""
        yield Finding(name, "ok", says + shared)


def pilots(asked: CheckOptions) -> Iterator[Finding]:
    """Check how much disk space pilots occupy."""
    if asked.settings is None:
        yield Finding("pilots", "note", "not checked, because the settings cannot be read")
        return
    found, began_s = known(asked.settings.state_dir), time.monotonic()
    size, old, seen = 0, 0, 0
    for directory, pilot in found:
        if time.monotonic() - began_s > SIZES_S:
            break
        held = cleaning.size_of([directory]).bytes
        size, seen = size + held, seen + 1
        if time.time() - cleaning.touched_at(directory, pilot) > OLD_S:
            old += held
    says = f"{counted(len(found), 'pilot')} with {'' if seen == len(found) else 'at least '}"
    says += sized(size)
    if not old:
        yield Finding("pilots", "ok", says)
        return
    do = "hpcext prune --older-than 30d --dry-run shows what could be removed"
    why = "old pilots fill disks and quotas, and nothing removes them automatically"
    yield Finding("pilots", "note", f"{says}, {sized(old)} older than 30 days", do, why)


def batch(asked: CheckOptions) -> Iterator[Finding]:
    """Check which batch system hpcext would use."""
    if asked.settings is None:
        return
    try:
        yield Finding("batch", "ok", backends.choose(asked.settings.batch).title)
    except InputError as error:
        # With several of them, the user must choose.
        none = not any(map(backends.is_here, map(backends.find, backends.BUILT_IN)))
        yield Finding("batch", "note" if none else "wrong", error.what, error.do)


def file_system(path: Path) -> str:
    """Return the type of a path's file system, from ``/proc/self/mountinfo`` (proc(5))."""
    path = path.resolve()
    best, kind = 0, "unknown"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        # Of several mounts at one place, the last one is visible.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind
