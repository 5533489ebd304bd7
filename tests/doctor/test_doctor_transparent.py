"""The doctor's check that a program which saves nothing can be suspended as it is: it is tried."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from nvidia_machine import Machine
from site_of_test import wait_for

from hpcext.doctor import driver, transparent
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.launch.transparent.criu import Criu

needs_criu = pytest.mark.skipif(
    bool(why := Criu(os.environ).probe()), reason=f"no CRIU that works here: {why}"
)


def found() -> Finding:
    (finding,) = transparent.check(CheckOptions(None))
    return finding


def stand_in(path: Path, monkeypatch: pytest.MonkeyPatch, cases: str) -> None:
    """A program in the place of criu."""
    (path / "criu").write_text(
        f"#!/bin/sh\n# A stand-in of criu, for tests.\ncase $1 in {cases} esac\n"
    )
    (path / "criu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")


@needs_criu
@pytest.mark.slow
def test_a_program_goes_on_with_the_next_number() -> None:
    finding = found()
    assert finding.verdict == "ok", finding
    assert "a program was suspended as it is in " in finding.says


def with_a_gpu() -> list[str]:
    """What is found in a process of its own, which finds the libraries of the driver."""
    text = (
        "from hpcext.doctor import checkup, transparent\n"
        "for found in transparent.check(checkup.CheckOptions(None)):\n"
        "    print(found.verdict, found.says)"
    )
    words = [sys.executable, "-c", text]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return said.splitlines()


@needs_criu
@pytest.mark.slow
def test_a_program_with_memory_on_a_gpu_goes_on_with_the_next_number(machine: Machine) -> None:
    _, gpu = with_a_gpu()
    assert gpu.startswith(
        "ok NVIDIA's driver and CRIU: a program with memory on a GPU was suspended"
    )
    assert machine.asked() == {"state", "lock", "checkpoint", "restore", "unlock"}


@needs_criu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("denied", "CUDA_ERROR_NOT_PERMITTED"),
        ("old", "driver 570 or later is needed, and this one supports CUDA 12.4 only"),
        ("none", "cuInit: error 100"),
    ],
)
def test_a_driver_that_does_not_work_is_not_said_to_work(
    machine: Machine, fault: str, why: str
) -> None:
    machine.fault(fault)
    if fault == "old":
        (machine.path / "version").write_text("12040")
    elif fault == "none":
        machine.has()
    criu, gpu = with_a_gpu()
    assert criu.startswith("ok CRIU ")
    assert gpu.startswith("note what uses a GPU cannot be suspended as it is: ")
    assert why in gpu


@pytest.mark.parametrize(
    ("cases", "why"),
    [
        ("--version) echo Version: 3.17.1 ;;", "is 3.17.1; 4 or later is needed"),
        (
            '--version) echo Version: 4.2 ;; *) echo "Error (a.c:1): No capability"; exit 1 ;;',
            "CRIU: No capability",
        ),
    ],
)
def test_without_criu_it_stays_in_memory(
    cases: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, cases)
    finding = found()
    assert finding.verdict == "ok", finding
    assert finding.says.startswith("without CRIU (CRIU: ")
    assert why in finding.says
    assert (
        "stays in memory, or begins anew where it cannot: a program was suspended" in finding.says
    )
    assert "install CRIU 4" in finding.do


def test_without_criu_a_program_leaves_a_gpu_all_the_same(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "--version) echo Version: 3.17.1 ;;")
    without, gpu = with_a_gpu()
    assert without.startswith("ok without CRIU (")
    assert gpu.startswith("ok NVIDIA's driver: a program with memory on a GPU was suspended")
    assert machine.asked() == {"state", "lock", "checkpoint", "restore", "unlock"}
    assert machine.on_gpus() == []


@pytest.mark.slow
def test_what_does_not_work_is_not_said_to_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "--version) echo Version: 4.2 ;; check) ;; *) exit 7 ;;")
    finding = found()
    assert finding.verdict == "note"
    assert finding.says == "nothing can be suspended as it is: criu dump: exit code 7"
    assert "install CRIU 4" in finding.do


def test_one_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keeper ends the program that counts, and removes its directory."""
    stand_in(
        tmp_path, monkeypatch, "--version) echo Version: 4.2 ;; check) ;; *) exec sleep 600 ;;"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    text = (
        "from hpcext.doctor import checkup, transparent\n"
        "list(transparent.check(checkup.CheckOptions(None)))"
    )
    process = subprocess.Popen([sys.executable, "-c", text])
    wait_for(lambda: any(scratch.glob("*/job/log.txt")), "the program that counts")
    process.kill()
    process.wait()

    def nothing_left() -> bool:
        words = (each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"]))
        return not any(scratch.iterdir()) and not any(
            str(scratch) in word for each in words for word in each
        )

    wait_for(nothing_left, "the end of all of it")


def test_it_forks_nothing_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks run in threads; the child of a process that has some may crash at once."""
    stand_in(tmp_path, monkeypatch, "--version) echo Version: 4.2 ;; check) ;; *) exit 7 ;;")

    def fork() -> int:
        raise AssertionError("a fork")

    monkeypatch.setattr(os, "fork", fork)
    assert found().verdict == "note"
    assert driver.without() is None
