"""What a driver says of GPUs once an attempt has failed, by a stand-in of NVIDIA's library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stage import Stage, end

from hpcext.launch import gpu_faults

SOURCE = Path(__file__).parents[1] / "fakes" / "nvidia" / "nvml.c"
FAILS = (sys.executable, "-c", "raise SystemExit(3)")


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, which supervisors find."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    strict = ("-Wall", "-Wextra", "-Werror", "-std=c11", "-D_GNU_SOURCE")
    subprocess.run(["cc", *strict, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(path.parent))
    return path


def found(stage: Stage, gpus: str, *argv: str) -> tuple[list[str], list[str]]:
    """What ``exit.json`` says of an attempt on these GPUs."""
    environ = {
        "HPCEXT_PROTOCOL": "1",
        "HPCEXT_REPORT_DIR": str(stage.directory),
        "CUDA_VISIBLE_DEVICES": gpus,
    }
    end(stage.run(*(argv or FAILS), environ=environ))
    document = stage.read("exit.json")
    return document.get("gpus_broken", []), document.get("gpus_noted", [])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("is lost", "GPU 1 is lost"),
        ("needs a reset", "GPU 1 needs a reset"),
        ("reboot", "GPU 1 needs a reboot of its node"),
        ("pages wait", "GPU 1 has pages of memory that a reset would retire"),
        ("rows wait", "GPU 1 has rows of memory that a reset would remap"),
        ("rows fail", "GPU 1 cannot remap rows of its memory"),
    ],
)
def test_a_fault_of_a_gpu_of_a_failed_attempt_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str
) -> None:
    monkeypatch.setenv("FAKE_NVML", wrong)
    assert found(stage, "0,1") == ([said], [])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("wrong", "gpus"),
    [
        # Another one's GPU, none, an instance, one that is not there; a GPU without ECC, and a
        # driver that does not know the question.
        ("is lost", "0"), ("is lost", "-1"), ("is lost", "MIG-1"), ("is lost", "7"),
        ("has no ECC", "1"), ("an old driver", "1"), ("nothing", "0,1"),
    ],
)  # fmt: skip
def test_nothing_is_wrong_with_its_gpus(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, wrong: str, gpus: str
) -> None:
    monkeypatch.setenv("FAKE_NVML", wrong)
    assert found(stage, gpus) == ([], [])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hot", "is slowed down by its hardware and heat"),
        ("memory errors", "has had uncorrected memory errors (2) since its driver was loaded"),
    ],
)
def test_what_proves_nothing_is_only_said_of_gpus_by_uuid_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str
) -> None:
    monkeypatch.setenv("FAKE_NVML", wrong)
    assert found(stage, "GPU-0001") == ([], [f"GPU-0001 {said}"])


@pytest.mark.usefixtures("library")
def test_nobody_looks_after_an_attempt_that_went_well(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML", "is lost")
    assert found(stage, "0,1", sys.executable, "-c", "") == ([], [])


@pytest.mark.usefixtures("library")
def test_a_driver_that_hangs_delays_the_end_for_a_while_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML", "hangs")
    assert found(stage, "0,1") == ([], [])
    assert stage.read("exit.json")["exit_code"] == 3


def test_without_a_driver_nothing_is_known(stage: Stage) -> None:
    assert found(stage, "0,1") == ([], [])


@pytest.mark.parametrize(
    ("xid", "at_s", "bus", "said"),
    [
        (79, 101, "0000:3b:00", [79]),
        (79, 99, "0000:3b:00", []),
        (79, 101, "0000:3a:00", []),
        # A program that reads beyond its memory.
        (31, 101, "0000:3b:00", []),
    ],
)
@pytest.mark.usefixtures("kernel_log")
def test_xids_of_hardware_count_that_came_during_the_attempt(
    xid: int, at_s: int, bus: str, said: list[int]
) -> None:
    logged = f"NVRM: Xid (PCI:{bus}): {xid}, pid='<unknown>', name=<unknown>"
    Path(gpu_faults.KERNEL_LOG).write_text(
        f"6,1,90000000,-;something else\n4,2,{at_s}000000,-;{logged}\n"
    )
    assert gpu_faults.xids("0000:3b:00", 100.0) == said


@pytest.fixture
def kernel_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log in the place of the kernel's."""
    monkeypatch.setattr(gpu_faults, "KERNEL_LOG", str(tmp_path / "kmsg"))
