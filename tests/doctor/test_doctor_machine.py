"""hpcext doctor on this machine, whatever it has, and on one where things are wrong."""

from __future__ import annotations

import configparser
import json
import re
import sys
import types
from pathlib import Path

import numpy
import pytest

from hpcext import __version__, config
from hpcext.cli import doctor
from hpcext.cli import main as cli
from hpcext.doctor import machine
from hpcext.doctor.checkup import CheckOptions

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, on a machine without a batch system."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in config.SETTINGS.values():
        monkeypatch.delenv(name["variable"], raising=False)
    return tmp_path


def write_settings(home: Path, text: str) -> None:
    (home / "config" / "hpcext").mkdir(parents=True)
    (home / "config" / "hpcext" / "hpcext.toml").write_text(text)


def asked() -> CheckOptions:
    return CheckOptions(config.load_settings())


def test_a_machine_where_all_is_well(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0, capsys.readouterr()
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["works"]) == ("hpcext.doctor/1", True)
    said = {each["name"]: each for each in document["findings"]}
    assert said["hpcext"]["says"].startswith(__version__)
    assert f"numpy {numpy.__version__}" in said["packages"]["says"]
    assert said["state_dir"]["verdict"] == "ok"
    assert {said[name]["verdict"] for name in ("batch", "slurm", "lsf")} == {"note"}
    for name in ("torch", "tensorflow", "jax"):
        assert said[name]["verdict"] in {"ok", "note"}
    assert not (home / "state").exists()  # it leaves nothing behind


def test_settings_that_cannot_be_read(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What others say of it is seen above, and takes long.
    frameworks = {"torch", "tensorflow", "jax"}
    checks = [each for each in doctor.CHECKS if each.name not in frameworks]
    monkeypatch.setattr(doctor, "CHECKS", checks)
    write_settings(home, "gpus = 0\n")
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    wrong, *others = [line for line in lines if line.startswith("wrong")]
    assert not others, others
    assert wrong.startswith("wrong settings: ")
    assert "hpcext.toml: gpus: 0" in wrong
    assert any(line.startswith("note  state_dir: not checked") for line in lines)


def test_where_settings_are_from(home: Path) -> None:
    write_settings(home, "gpus = 2\n")
    (found,) = machine.settings(asked())
    assert found.verdict == "ok"
    assert re.fullmatch(r"gpus \(.*hpcext\.toml\)", found.says)


def test_a_state_directory_that_cannot_be(home: Path) -> None:
    (home / "file").write_text("")
    write_settings(home, f'state_dir = "{home}/file/state"\n')
    (found,) = machine.state_directory(asked())
    assert (found.verdict, found.do) == ("wrong", "make it writable, or set another state_dir")
    assert str(home / "file") in found.says


def test_a_state_directory_that_nodes_cannot_see(home: Path) -> None:
    if machine.file_system(home) not in machine.LOCAL:
        pytest.skip("the tests run on a shared file system")
    bsub = home / "bin" / "bsub"
    bsub.touch(mode=0o755)
    (found,) = machine.state_directory(asked())
    assert (found.verdict, found.do) == (
        "note",
        "set state_dir to a directory that all nodes share",
    )


def test_file_systems() -> None:
    assert machine.file_system(Path("/proc/self")) == "proc"
    assert machine.file_system(Path("/sys/none")) == "sysfs"


def test_batch_systems(home: Path) -> None:
    (found,) = machine.batch(asked())
    assert (found.verdict, found.says) == ("note", "neither sbatch nor bsub is here")
    (home / "bin" / "bsub").touch(mode=0o755)
    (found,) = machine.batch(asked())
    assert (found.verdict, found.says) == ("ok", "LSF")
    (home / "bin" / "sbatch").touch(mode=0o755)
    (found,) = machine.batch(asked())
    assert (found.verdict, found.do) == ("wrong", "set HPCEXT_BATCH")


def test_packages_are_those_that_are_installed_with_us() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")
    names = [
        re.split(r"[ <>=;]", line)[0] for line in lines if line and "python_version" not in line
    ]
    assert sorted(names) == sorted(machine.PACKAGES)


def test_a_framework_that_is_broken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "torch.py").write_text("raise ImportError('no libcudart')\n")
    monkeypatch.setenv("PYTHONPATH", str(home))
    (found,) = machine.torch(asked())
    assert found.verdict == "wrong"
    assert found.says == "installed, and cannot be imported: ImportError: no libcudart"


def stand_in(
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    error: str = "",
    *,
    busy: tuple[int, ...] = (),
    instances: int = 0,
) -> None:
    """NVML as of a machine with GPUs; it gives bytes, as it did before version 11.5.

    With instances the GPUs are in MIG mode; else they have none, and neither do they say anything
    of their use.
    """

    class NVMLError(Exception):
        pass

    def init() -> None:
        if error:
            raise NVMLError(error)

    def unsupported(gpu: int) -> None:
        raise NVMLError("Not Supported")

    library = types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlDeviceGetUtilizationRates=unsupported,
        nvmlDeviceGetMPSComputeRunningProcesses=unsupported,
        nvmlDeviceGetMigMode=(lambda gpu: [1, 1]) if instances else unsupported,
        nvmlDeviceGetMaxMigDeviceCount=lambda gpu: instances,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda gpu, place: place,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
        nvmlDeviceGetName=lambda index: b"NVIDIA H200",
        nvmlDeviceGetComputeRunningProcesses=lambda index: [7] if index in busy else [],
        nvmlDeviceGetMemoryInfo=lambda index: types.SimpleNamespace(used=3 << 20, total=8 << 30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in(monkeypatch, 2)
    (found,) = machine.gpus(asked())
    assert (found.verdict, found.says) == ("ok", "2 of 2: NVIDIA H200; driver 580.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (found,) = machine.gpus(asked())
    assert (found.verdict, found.says) == ("note", "none of 2 GPUs may be used here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    stand_in(monkeypatch, 2, busy=(0, 1))
    found, used = machine.gpus(asked())
    assert (found.verdict, used.verdict) == ("ok", "note")
    assert used.says == "GPU 1 is used by 1 process, 3 MiB"  # the other one is not ours
    stand_in(monkeypatch, 0, "Driver Not Loaded")
    (found,) = machine.gpus(asked())
    assert (found.verdict, found.says) == (
        "note",
        "no NVIDIA GPU is visible here: Driver Not Loaded",
    )


def test_gpus_that_are_divided_or_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in(monkeypatch, 1, instances=7)
    _, found = machine.gpus(asked())
    assert (found.name, found.verdict) == ("gpu sharing", "note")
    assert found.says == "GPU 0 is in MIG mode, 7 instances"
    assert found.do.startswith("a process uses one instance")
    stand_in(monkeypatch, 1)
    monkeypatch.setattr(machine.gpu_facts, "mps_runs", lambda: True)
    _, found = machine.gpus(asked())
    assert (found.verdict, found.says, found.do) == ("note", "the MPS daemon is running", "")


@pytest.mark.parametrize(("seen", "verdict"), [(0, "wrong"), (2, "ok")])
def test_a_framework_and_gpus(
    home: Path, monkeypatch: pytest.MonkeyPatch, seen: int, verdict: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    stand_in(monkeypatch, 2)
    lines = ("import types", "__version__ = '9.9'")
    count = f"cuda = types.SimpleNamespace(device_count=lambda: {seen})"
    (home / "torch.py").write_text("\n".join((*lines, count, "")))
    monkeypatch.setenv("PYTHONPATH", str(home))
    (found,) = machine.torch(asked())
    assert found.verdict == verdict
    assert found.says == ("9.9, 2 GPUs" if seen else "9.9: sees none of the 2 GPUs")


def test_a_queue_belongs_to_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--queue", "q"]) == 2
    assert capsys.readouterr().err == "hpcext: --queue: can be given with --submit only\n"
