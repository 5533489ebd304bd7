"""What hpcext doctor says of a Slurm, by commands that print what was recorded."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from hpcext import __version__, config
from hpcext.admin import manifest
from hpcext.admin.manifest import Manifest
from hpcext.batch.slurm import restd
from hpcext.doctor import slurm, slurm_plugin
from hpcext.doctor.checkup import CheckOptions, Finding

RECORDED = Path(__file__).parents[1] / "batch" / "recorded" / "slurm-26.05"
SITE = RECORDED.parent / "slurm-22.05"
FLAG = slurm_plugin.FLAG


class Commands:
    """A machine whose commands of Slurm print what they are told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.conf = directory / "etc"
        self.home = directory / "lib"
        for path in (directory / "bin", self.conf / "plugstack.conf.d", self.home):
            path.mkdir(parents=True)
        self.preempt = "preempt/partition_prio"
        self.clock_s = time.time()
        self.ping = 0
        self.help = "--begin"
        self.plugstack = ""
        self.auth_info = ""

    def write(self) -> None:
        version = (RECORDED / "scontrol-version.txt").read_text().strip()
        config = (SITE / "scontrol-config.txt").read_text().replace("/site/etc", str(self.conf))
        config = config.replace("preempt/partition_prio", self.preempt)
        if self.plugstack:
            config = re.sub(r"(PlugStackConfig\s*= ).*\n", self.plugstack, config)
        if self.auth_info:
            config = re.sub(r"(AuthInfo\s*= ).*\n", rf"\g<1>{self.auth_info}\n", config)
        (self.directory / "config").write_text(config)
        self._script(
            "scontrol",
            f'case "$*" in --version) echo "{version}";; ping) exit {self.ping};;'
            f' "show config") exec /bin/cat {self.directory}/config;;'
            f" *partition) exec /bin/cat {SITE}/scontrol-partitions.txt;; *) exit 9;; esac",
        )
        self._script("sbatch", f'echo "{self.help}"')
        self._script(
            "sinfo",
            f'case "$*" in *--all*) exec /bin/cat {SITE}/sinfo-members.txt;;'
            f" *) exec /bin/cat {RECORDED}/sinfo-idle.txt;; esac",
        )
        self._script("squeue", "echo 7")
        self._script("sdiag", f'echo "sdiag output at now ({self.clock_s:.0f})"')

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
    """The last one of each name."""
    if commands:
        commands.write()
    environ = {"HPCEXT_STATE_DIR": "/none"}
    settings = config.load_settings(flags, environ=environ)
    return {each.name: each for each in slurm.check(CheckOptions(settings))}


def test_no_slurm(commands: Commands) -> None:
    assert found()["slurm"].verdict == "note"


def test_all_is_well(commands: Commands) -> None:
    commands.plugin()
    commands.help = FLAG
    said = found(commands, harvest_partition="harvest")
    assert {name: each.verdict for name, each in said.items()} == {
        "slurm": "ok", "clock": "ok", "slurm plugin": "ok", "slurm rules": "note",
        "wait after a requeue": "ok",
        "harvest_partition": "ok", "preemption": "ok", "GraceTime": "note",
        "signal at preemption": "note", "requeue": "ok", "PrivateData": "ok", "backfill": "ok",
    }  # fmt: skip
    assert said["slurm"].says == "slurm-wlm 26.05.5, its controller answers"
    assert said["harvest_partition"].says == "'harvest': 4 nodes, 3 idle now"


def test_what_slurm_is_to_be_queried_with(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restd, "find", lambda: None)
    one = found(commands, slurm_reader="slurmrestd")["slurm_reader"]
    assert one.verdict == "note"
    assert one.says == "Slurm's commands are used: slurmrestd is not installed"
    assert "slurm_reader" not in found(commands)


@pytest.mark.parametrize(
    ("info", "verdict", "says"),
    [
        ("socket=/run/munge,cred_expire=10", "ok", "waits 10 s"),
        ("cred_expire=300", "note", "waits 300 s"),
        ("(null)", "note", "waits 120 s"),
    ],
)
def test_how_long_a_requeued_job_waits(
    commands: Commands, info: str, verdict: str, says: str
) -> None:
    commands.auth_info = info
    one = found(commands)["wait after a requeue"]
    assert one.verdict == verdict
    assert says in one.says
    assert ("cred_expire=30" in one.do) == (verdict == "note")


@pytest.mark.parametrize("conf", [True, False], ids=["of a cluster", "mere commands"])
def test_a_controller_that_does_not_answer(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, conf: bool
) -> None:
    commands.ping = 1
    monkeypatch.setattr("hpcext.doctor.slurm._CONFIG", commands.home / "none")
    if conf:
        monkeypatch.setenv("SLURM_CONF", "/etc/elsewhere/slurm.conf")
    else:
        monkeypatch.delenv("SLURM_CONF", raising=False)
    said = found(commands)
    assert list(said) == ["slurm"]
    assert said["slurm"].verdict == ("wrong" if conf else "note")
    assert ("slurmctld" if conf else "fine if you do not use Slurm") in said["slurm"].do


@pytest.mark.parametrize(
    ("plugin", "loaded", "verdict", "says"),
    [
        (("0.0.9", "/bin/sh"), True, "wrong", f"it is of hpcext 0.0.9, this is {__version__}"),
        ((__version__, "/none"), True, "wrong", "command that it runs does not exist: '/none'"),
        ((__version__, "/bin/sh"), False, "wrong", "is configured, but not loaded"),
        (("", "/bin/sh"), True, "note", "loaded, of an unknown release"),
        (None, True, "note", "installed, of an unknown release"),
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
    commands.help = FLAG if loaded else "--begin"
    said = found(commands)["slurm plugin"]
    assert said.verdict == verdict
    assert says in said.says
    assert said.do.startswith(("root runs hpcext-admin", "check what sbatch says"))


@pytest.mark.parametrize("line", [r"\1(null)\n", "NoPlugStackConfig = x\n"])
def test_a_plugin_where_plugstack_conf_is_where_it_is_by_default(
    commands: Commands, line: str
) -> None:
    """As scontrol of 22.05 shows it, and where the key is not there at all."""
    commands.plugstack, commands.help = line, FLAG
    commands.plugin()
    said = found(commands)["slurm plugin"]
    assert (said.verdict, said.says) == ("ok", f"loaded, of hpcext {__version__}")


def test_partitions(commands: Commands) -> None:
    assert found(commands)["harvest_partition"].verdict == "note"
    commands.preempt = "preempt/none"
    said = found(commands, harvest_partition="harvest")["preemption"]
    assert said.verdict == "wrong"
    assert "PreemptType" in said.says
    commands.write()
    (commands.directory / "bin" / "sinfo").write_text("#!/bin/sh\n")
    settings = config.load_settings({"harvest_partition": "none"}, environ={})
    *_, said = slurm.check(CheckOptions(settings))
    assert (said.verdict, said.says) == ("wrong", "'none' has no nodes, or is not a partition")


@pytest.mark.parametrize(("apart_s", "verdict"), [(0, "ok"), (-60, "wrong"), (60, "wrong")])
def test_clocks(commands: Commands, apart_s: float, verdict: str) -> None:
    commands.clock_s += apart_s
    assert found(commands)["clock"].verdict == verdict


def test_a_plugin_of_another_slurm(commands: Commands) -> None:
    """The plugin itself says what it was built for, loaded or not."""
    commands.plugin()
    source = commands.directory / "plugin.c"
    source.write_text("const unsigned int plugin_version = 0x160508;\n")
    words = ["/usr/bin/cc", "-shared", "-o", commands.home / "hpcext.so", source]
    subprocess.run(words, env={"PATH": "/usr/bin:/bin"}, check=True)
    said = found(commands)["slurm plugin"]
    assert (said.verdict, said.why) == ("wrong", "Slurm loads no plugin of another release")
    assert said.says.endswith("was built for Slurm 22.05, and this is 26.05")


def test_rules_that_are_active(commands: Commands) -> None:
    commands.write()
    path = commands.directory / "config"
    text = path.read_text()
    for key in ("JobSubmitPlugins", "CliFilterPlugins"):
        text = re.sub(rf"^({key}\s*=).*$", r"\1 lua", text, flags=re.M)
    path.write_text(text)
    for name in ("job_submit.lua", "cli_filter.lua"):
        assert f"{name}: no such file" in found()["slurm rules"].says
        (commands.conf / name).write_text("-- of the site\n")
        assert f"{name} does not load that of hpcext" in found()["slurm rules"].says
        (commands.conf / name).write_text(f'loadfile("/x/lib/hpcext/slurm/lua/{name}")\n')
    assert found()["slurm rules"].verdict == "ok"
