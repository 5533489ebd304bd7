"""Variables that name GPUs, on machines of NVIDIA and of AMD.

No machine here has a GPU of AMD: its driver's files are made up, after the kernel's sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from amd_machine import make_nodes

from hpcext.doctor import machine
from hpcext.doctor.checkup import CheckOptions
from hpcext.executors import gpus
from hpcext.launch import devices
from hpcext.manager.refine import UNKNOWN, gpu_kind

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("amd")
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, (1, 3)),
        # What Slurm sets without AutoDetect: the others count among what ROCr leaves.
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, (2, 3)),
        ({"HIP_VISIBLE_DEVICES": "2"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000ab04"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, ()),
    ],
)
def test_gpus_of_amd_that_may_be_used(environ: dict[str, str], expected: tuple[int, ...]) -> None:
    assert gpus.find_gpus(environ=environ) == expected


@pytest.mark.usefixtures("amd")
def test_gpus_of_amd_are_named_once() -> None:
    assert devices.naming("4,5") == {"ROCR_VISIBLE_DEVICES": "4,5"}
    slurms = dict.fromkeys(devices.NAMES, "4,5") | {"PATH": "/bin"}
    assert devices.without(slurms) == {"PATH": "/bin"}
    assert gpu_kind() == UNKNOWN
    (finding,) = machine.gpus(CheckOptions(None))
    assert (finding.verdict, finding.says[:8]) == ("ok", "4 of AMD")


def test_beside_nvidia_graphics_of_amd_do_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "_AMD", tmp_path)
    monkeypatch.setattr(devices, "_NVIDIA", tmp_path)
    assert devices.name() == "CUDA_VISIBLE_DEVICES"
    assert devices.said({"ROCR_VISIBLE_DEVICES": "0"}) is None
    assert devices.naming("1") == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}


JOBS = """
[[job]]
name = "first"
command = "sh -c 'env > first; while [ ! -e second ]; do sleep 0.1; done'"
gpus = 1

[[job]]
name = "others"
command = "sh -c 'env > new && mv new second'"
gpus = 2
"""

# The files of the driver, in a mount namespace; what else is below /dev stays visible.
NAMESPACE = """
set -eu
mount -t tmpfs layers "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/dev,upperdir=$1/upper,workdir=$1/work" /dev
: >/dev/kfd
mount -t tmpfs class /sys/class
mkdir -p /sys/class/kfd/kfd/topology
cp -R "$2" /sys/class/kfd/kfd/topology/nodes
shift 2
exec "$@"
"""


@pytest.mark.skipif(os.getuid() != 0, reason="a mount namespace is root's")
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine's GPUs are NVIDIA's")
def test_jobs_share_gpus_of_amd(tmp_path: Path) -> None:
    """A user's pilot, in an allocation that has three of the four."""
    make_nodes(tmp_path / "nodes")
    (tmp_path / "layers").mkdir()
    (tmp_path / "jobs.toml").write_text(JOBS)
    names = {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "0,1,2"}
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh"]
    done = subprocess.run(
        [*inside, tmp_path / "layers", tmp_path / "nodes",
         sys.executable, "-m", "hpcext", "run", "jobs.toml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
        env={**os.environ, **names, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done
    seen = {}
    for job in ("first", "second"):
        environ = dict(
            line.partition("=")[::2] for line in (tmp_path / job).read_text().split("\n")
        )
        assert [name for name in devices.NAMES if name in environ] == ["ROCR_VISIBLE_DEVICES"]
        seen[job] = environ["ROCR_VISIBLE_DEVICES"]
    assert seen == {"first": "1", "second": "2,3"}
