"""What hpcext doctor says of a Slurm, by commands that print what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext import __version__, config
from hpcext.admin import manifest
from hpcext.admin.manifest import Manifest
from hpcext.doctor import slurm
from hpcext.doctor.checkup import Asked, Finding

RECORDED = Path(__file__).parents[1] / "batch" / "recorded" / "slurm-26.05"


class Commands:
    """A machine whose commands of Slurm print what they are told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.conf = directory / "etc"
        self.home = directory / "lib"
        for path in (directory / "bin", self.conf / "plugstack.conf.d", self.home):
            path.mkdir(parents=True)
        self.preempt = "preempt/partition_prio"
        self.ping = 0
        self.help = "--begin"

    def write(self) -> None:
        version = (RECORDED / "scontrol-version.txt").read_text().strip()
        facts = f"PreemptType = {self.preempt}\\nSLURM_CONF = {self.conf}/slurm.conf\\n"
        self._script(
            "scontrol",
            f'case "$*" in --version) echo "{version}";; ping) exit {self.ping};;'
            f' "show config") printf "{facts}";; *) exit 9;; esac',
        )
        self._script("sbatch", f'echo "{self.help}"')
        self._script("sinfo", f"exec /bin/cat {RECORDED}/sinfo-idle.txt")

    def plugin(self, release: str = __version__, command: str = "/bin/sh") -> None:
        line = f"optional {self.home}/hpcext.so command={command}\n"
        (self.conf / "plugstack.conf.d" / "hpcext.conf").write_text(line)
        manifest.save(self.home, Manifest(hpcext=release))

    def _script(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return Commands(tmp_path)


def found(commands: Commands | None = None, **flags: str) -> dict[str, Finding]:
    if commands:
        commands.write()
    settings = config.load_settings(flags, environ={})
    return {each.name: each for each in slurm.check(Asked(settings))}


def test_no_slurm(commands: Commands) -> None:
    assert found()["slurm"].verdict == "note"


def test_all_is_well(commands: Commands) -> None:
    commands.plugin()
    commands.help = slurm.FLAG
    said = found(commands, harvest_partition="all")
    assert {name: each.verdict for name, each in said.items()} == {
        "slurm": "ok", "slurm plugin": "ok", "harvest_partition": "ok",
    }  # fmt: skip
    assert said["slurm"].says == "slurm-wlm 26.05.5, its controller answers"
    assert said["harvest_partition"].says == "'all': 4 nodes, 1 idle now"


def test_a_controller_that_does_not_answer(commands: Commands) -> None:
    commands.ping = 1
    said = found(commands)
    assert list(said) == ["slurm"]
    assert said["slurm"].verdict == "wrong"
    assert said["slurm"].do


@pytest.mark.parametrize(
    ("plugin", "loaded", "verdict", "says"),
    [
        (("0.0.9", "/bin/sh"), True, "wrong", f"it is of hpcext 0.0.9, this is {__version__}"),
        ((__version__, "/none"), True, "wrong", "command that it runs is not there: '/none'"),
        ((__version__, "/bin/sh"), False, "wrong", "is configured, and not loaded"),
        (("", "/bin/sh"), True, "note", "loaded, of a release that is not known"),
        (None, True, "note", "there, of a release that is not known"),
        (None, False, "note", "not installed"),
    ],
)
def test_plugins(
    commands: Commands, plugin: tuple[str, str] | None, loaded: bool, verdict: str, says: str
) -> None:
    if plugin is not None:
        commands.plugin(*plugin)
        if not plugin[0]:
            (commands.home / manifest.NAME).unlink()
    commands.help = slurm.FLAG if loaded else "--begin"
    said = found(commands)["slurm plugin"]
    assert said.verdict == verdict
    assert says in said.says
    assert said.do.startswith(("root runs hpcext-admin", "see what sbatch says"))


def test_partitions(commands: Commands) -> None:
    assert found(commands)["harvest_partition"].verdict == "note"
    commands.preempt = "preempt/none"
    said = found(commands, harvest_partition="all")["harvest_partition"]
    assert said.verdict == "wrong"
    assert "PreemptType" in said.says
    commands.write()
    (commands.directory / "bin" / "sinfo").write_text("#!/bin/sh\n")
    settings = config.load_settings({"harvest_partition": "none"}, environ={})
    *_, said = slurm.check(Asked(settings))
    assert (said.verdict, said.says) == ("wrong", "'none' has no nodes, or is no partition")
