"""Settings: precedence, origins, and the one line that each fault gives."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcext import config
from hpcext.cli.main import main
from hpcext.core.errors import InputError
from hpcext.policies import POLICIES


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The site's file and the user's file, neither there; no variable set."""
    for facts in config.SETTINGS.values():
        monkeypatch.delenv(facts["variable"], raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    site = tmp_path / "site.toml"
    monkeypatch.setattr(config, "SITE_FILE", site)
    user = tmp_path / "config" / "hpcext" / "hpcext.toml"
    user.parent.mkdir(parents=True)
    return site, user


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's file is root's, whoever runs the tests."""
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        facts = list(real(fd))
        facts[4] = 0
        return os.stat_result(facts)

    monkeypatch.setattr("hpcext.textfiles.os.fstat", fstat)


def test_defaults(files: tuple[Path, Path], tmp_path: Path) -> None:
    settings = config.load_settings()
    assert settings.policy == "marble"
    assert settings.gpus == "auto"
    assert settings.suspend_timeout_s == 60
    assert settings.report_interval_s == 5
    assert settings.state_dir == tmp_path / "state" / "hpcext"
    assert set(settings.origins.values()) == {"default"}
    assert settings.origins.keys() == settings.values().keys() == config.SETTINGS.keys()


def test_without_a_home_directory_only_what_is_there_has_to_be_stated(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An account of a container that is in no passwd."""

    def nobody(_: object) -> None:
        raise KeyError("uid not found")

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert main(["config", "show"]) == 2
    said = capsys.readouterr().err
    assert said == "hpcext: the account has no home directory: set HOME or XDG_STATE_HOME\n"
    monkeypatch.setenv("HPCEXT_STATE_DIR", "/somewhere")
    assert config.load_settings().state_dir == Path("/somewhere")
    monkeypatch.setenv("HPCEXT_STATE_DIR", "~nobody-at-all/x")
    with pytest.raises(InputError, match=r"x. .valid: an absolute path"):
        config.load_settings()


@pytest.mark.usefixtures("as_root")
def test_each_source_beats_the_next(files: tuple[Path, Path]) -> None:
    site, user = files
    site.write_text("gpus = 1\n")
    site.chmod(0o644)
    assert _gpus() == (1, str(site))
    user.write_text("gpus = 2\n")
    assert _gpus() == (2, str(user))
    environ = {"HPCEXT_PILOT_GPUS": "3"}
    assert _gpus(environ=environ) == (3, "HPCEXT_PILOT_GPUS")
    assert _gpus({"gpus": "4"}, environ) == (4, "--gpus")
    assert _gpus({"gpus": None}, environ) == (3, "HPCEXT_PILOT_GPUS")
    assert _gpus(environ={"HPCEXT_PILOT_GPUS": ""}) == (2, str(user))


def _gpus(
    flags: dict[str, object] | None = None, environ: dict[str, str] | None = None
) -> tuple[object, str]:
    settings = config.load_settings(flags, environ=environ)
    return settings.gpus, settings.origins["gpus"]


def test_the_variables_of_this_process_are_read(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCEXT_POLICY", "exclusive")
    monkeypatch.setenv("HPCEXT_STATE_DIR", "~/runs")
    monkeypatch.setenv("HPCEXT_REPORT_INTERVAL_S", "0.5")
    settings = config.load_settings()
    assert settings.policy == "exclusive"
    assert settings.state_dir == Path.home() / "runs"
    assert settings.report_interval_s == 0.5
    monkeypatch.setenv("HPCEXT_DECISION_TIMEOUT_S", "7.5")
    assert config.load_settings().decision_timeout_s == 7.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("polcy = 'marble'", "unknown key 'polcy' (valid: policy, gpus,"),
        ("polcy = 'marble'", "did you mean policy?"),
        ("harvest_autoscale = '0.7:0.4'", "harvest_autoscale: '0.7:0.4' (valid: LOW:HIGH"),
        (
            "policy = 'marbel'",
            "policy: unknown policy 'marbel' (valid: marble, exclusive, equal_share, ",
        ),
        ("policy = 3", "policy: 3 is an integer (valid: a string)"),
        ("gpus = 0", "gpus: 0 (valid: auto, or an integer, 1 to"),
        ("gpus = true", "gpus: true is a boolean"),
        ("gpus = 'all'", "gpus: 'all' is a string (valid: auto"),
        ("suspend_timeout_s = 0", "suspend_timeout_s: 0 (valid: a number, above 0"),
        ("suspend_timeout_s = nan", "suspend_timeout_s: nan"),
        ("report_interval_s = 0.01", "report_interval_s: 0.01 (valid: a number, 0.1 to 3600)"),
        ("decision_timeout_s = 0", "decision_timeout_s: 0 (valid: a number, 1 to 3600)"),
        ("state_dir = 'runs'", "state_dir: 'runs' (valid: an absolute path"),
        ("state_dir = ", "not TOML"),
    ],
)
def test_faults_of_a_file(files: tuple[Path, Path], text: str, expected: str) -> None:
    user = files[1]
    user.write_text(text)
    with pytest.raises(InputError) as caught:
        config.load_settings()
    assert str(caught.value).startswith(str(user))
    assert expected in str(caught.value)


def test_faults_of_flags_and_variables_name_them(files: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="unknown policy 'fifo'") as flag:
        config.load_settings({"policy": "fifo"})
    assert flag.value.where == "--policy"
    for text in ("0", "nan", "x", "1e999", "9" * 5000):
        with pytest.raises(InputError) as variable:
            config.load_settings(environ={"HPCEXT_SUSPEND_TIMEOUT_S": text})
        assert variable.value.where == "HPCEXT_SUSPEND_TIMEOUT_S"


def test_words_may_be_digits(files: tuple[Path, Path]) -> None:
    found = config.load_settings(environ={"HPCEXT_HARVEST_PARTITION": "2024"})
    assert found.harvest_partition == "2024"
    with pytest.raises(InputError, match="unknown policy '7'"):
        config.load_settings({"policy": "7"})


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
@pytest.mark.usefixtures("as_root")
def test_a_site_file_that_others_can_write_is_refused(files: tuple[Path, Path], mode: int) -> None:
    site = files[0]
    site.write_text("gpus = 1\n")
    site.chmod(mode)
    with pytest.raises(InputError, match="writable by root alone") as caught:
        config.load_settings()
    assert f"owned by uid 0, mode {mode:04o}" in str(caught.value)
    assert f"chown root {site} && chmod go-w {site}" in caught.value.do


def test_a_site_file_of_somebody_else_is_refused(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = files[0]
    site.write_text("gpus = 1\n")
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        facts = list(real(fd))
        facts[4] = 1234
        return os.stat_result(facts)

    monkeypatch.setattr("hpcext.textfiles.os.fstat", fstat)
    with pytest.raises(InputError, match="owned by uid 1234"):
        config.load_settings()


def test_files_that_cannot_be_read_are_not_passed_over(files: tuple[Path, Path]) -> None:
    user = files[1]
    user.mkdir()
    with pytest.raises(InputError, match="a directory"):
        config.load_settings()
    user.rmdir()
    user.symlink_to(user.parent / "gone")
    with pytest.raises(InputError, match="no such file"):
        config.load_settings()


def test_the_policies_are_those_that_there_are() -> None:
    assert tuple(POLICIES) == config.POLICIES


def test_show_prints_a_file_that_says_the_same(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    user = files[1]
    user.write_text("policy = 'exclusive'\ngpus = 3\n")
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    assert 'policy = "exclusive"' in shown.splitlines()
    assert main(["config", "show", "--origin"]) == 0
    with_origin = capsys.readouterr().out
    assert f"gpus = 3  # {user}" in with_origin.splitlines()
    assert "report_interval_s = 5.0  # default" in with_origin.splitlines()
    before = config.load_settings().values()
    user.write_text(with_origin)
    assert config.load_settings().values() == before


def test_show_as_json(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[1].write_text("gpus = 3\n")
    assert main(["config", "show", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "hpcext.config/1"
    assert document["settings"]["gpus"] == {"value": 3, "origin": str(files[1])}
    assert document["settings"].keys() == config.SETTINGS.keys()


def test_check(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    user = files[1]
    assert main(["config", "check"]) == 0
    assert "no file" in capsys.readouterr().out
    user.write_text("gpus = 3\n")
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == f"{user}: valid, 1 setting\n"
    assert main(["config", "check", str(user), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [
        {"file": str(user), "settings": ["gpus"]}
    ]
    user.write_text("gpus = -3\n")
    assert main(["config", "check", str(user)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"hpcext: {user}: gpus: -3 (valid: auto, or an integer, 1 to 1024)\n"
