"""What is said of AMD's GPUs, with stand-ins for driver and library: none of these is here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from amd_machine import GIB, Amdsmi

from hpcext.dashboard import page, pages
from hpcext.doctor import machine
from hpcext.doctor.checkup import CheckOptions
from hpcext.executors.gpu_facts import GpuFacts, gpu_facts, sharing
from hpcext.manager.refine import UNKNOWN, gpu_kind

NAME = "AMD Instinct MI300X"
FOUND = (
    GpuFacts(0, NAME, 0.02, 192 * GIB, 2 * GIB),
    GpuFacts(1, "gfx942"),
    GpuFacts(2, NAME, 0.04, 192 * GIB, 4 * GIB, processes=1),
    GpuFacts(3, NAME, 0.05, 192 * GIB, 5 * GIB),
)

pytestmark = pytest.mark.usefixtures("amd")


def test_what_gpus_say_in_the_order_of_the_driver() -> None:
    smi = Amdsmi()
    assert gpu_facts(smi) == FOUND
    assert smi.open == 0


@pytest.mark.parametrize(
    ("smi", "found"),
    [(Amdsmi(driver=False), ()), (Amdsmi(lost=51003), (FOUND[0], *FOUND[2:]))],
)
def test_without_a_driver_or_with_a_lost_gpu(smi: Amdsmi, found: tuple[GpuFacts, ...]) -> None:
    assert gpu_facts(smi) == found
    assert smi.open == 0


def test_divided_gpus_are_reported() -> None:
    parts = gpu_facts(Amdsmi(mode="CPX"))
    assert [gpu.partition for gpu in parts] == ["CPX", "", "CPX", "CPX"]
    assert sharing(parts) == "3 GPUs are compute partitions (CPX)"
    assert sharing(parts[3:]) == "GPU 3 is a compute partition (CPX)"
    assert sharing(FOUND) == ""


def test_the_dashboard_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", Amdsmi(mode="CPX"))
    text = page.overview(pages.now(lambda: iter(())))
    for said in (NAME, "5.0 of 192 GiB", "4%", "GPU 3 is a compute partition (CPX)"):
        assert said in text


def test_the_kind_of_gpu_is_its_name_and_how_it_is_divided() -> None:
    assert gpu_kind(Amdsmi(), {}) == NAME
    assert gpu_kind(Amdsmi(mode="DPX"), {}) == f"{NAME} DPX"
    assert gpu_kind(Amdsmi(driver=False), {}) == UNKNOWN


def test_what_the_doctor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", Amdsmi(mode="CPX"))
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3")
    gpus, used, divided = machine.gpus(CheckOptions(None))
    assert (gpus.verdict, gpus.do) == ("ok", "")
    assert gpus.says.startswith(f"{NAME}: 2 of AMD, by ROCR_VISIBLE_DEVICES")
    assert used.says == "GPU 2 is used by 1 process, 4096 MiB"
    assert used.do.startswith("amd-smi process shows")
    assert (divided.name, divided.verdict, divided.do) == ("gpu sharing", "note", "")


BROKEN = "print('Unable to find libamd_smi.so')\nraise KeyError('libamd_smi.so')\n"
OLD = "class AmdSmiException(Exception): ...\n"


@pytest.mark.parametrize("package", [BROKEN, OLD, None])
def test_without_a_library_that_can_be_used(
    package: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The package is there and its shared library is not; it is of before ROCm 6.3; none is."""
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    if package is None:
        monkeypatch.setitem(sys.modules, "amdsmi", None)
    else:
        (tmp_path / "amdsmi.py").write_text(package)
        monkeypatch.syspath_prepend(tmp_path)
    assert gpu_facts() == ()
    assert capsys.readouterr().out == ""
    (finding,) = machine.gpus(CheckOptions(None))
    assert finding.says.startswith("4 of AMD, by ROCR_VISIBLE_DEVICES")
    assert finding.says.endswith("; amdsmi does not say what they do")
    assert finding.do.startswith("install amd-smi-lib")


@pytest.mark.slow
def test_the_real_package_over_a_library_that_is_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMD's Python code, as the package index has it, gives what the stand-in for it gives."""
    fetch = (sys.executable, "-m", "pip", "install", "--no-deps", "--quiet")
    subprocess.run([*fetch, "--target", tmp_path / "python", "amdsmi==7.0.2"], check=True)
    wrapper = (tmp_path / "python" / "amdsmi" / "amdsmi_wrapper.py").read_text()
    source = (Path(__file__).parent / "libamd_smi.c").read_text()
    # All that it looks up when it is imported has to be there.
    asked = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    rest = asked - set(re.findall(r"^int (\w+)\(", source, re.MULTILINE))
    lines = [source, *(f"int {name}(void) {{ return NOT_SUPPORTED; }}" for name in sorted(rest))]
    (tmp_path / "libamd_smi.c").write_text("\n".join(lines))
    (tmp_path / "lib").mkdir()
    compiled = ("gcc", "-Wall", "-Werror", "-shared", "-fPIC", tmp_path / "libamd_smi.c")
    subprocess.run([*compiled, "-o", tmp_path / "lib" / "libamd_smi.so"], check=True)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "python")
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert gpu_facts() == FOUND
