"""esub.hpcext: what users ask for reaches their jobs, and what is wrong is refused in one line."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lsf_site import ABORT_VALUE, Site
from lsf_tools import ROOT, SCRIPTS, MakeSite, command, output
from option_harness import IS_VALID

from hpcext.checkpointers import PRESETS

ESUB = SCRIPTS / "esub.hpcext"
SHOW = 'printf \'%s|\' "$HPCEXT_GPUS" "$HPCEXT_SCALING"'
VALID = {
    "lead": "whole seconds, 10 to 86400",
    "gpus": "auto, N or MIN:MAX, numbers from 1 to 1024",
    "scaling": "a profile's name: letters, digits, . _ -; a letter or digit first; at most 64",
    "trainer": "MIN:MAX, numbers from 1 to 10000",
    "checkpoint": "lightning, transformers, accelerate, submitit, keras, jax, torchrun, plain or "
    "transparent",
}


def esub(*arguments: str | bytes, **variables: str | Path) -> subprocess.CompletedProcess[bytes]:
    """As an engine calls it that keeps no text of -a."""
    return subprocess.run(
        [ESUB, *arguments], capture_output=True, env=variables, timeout=500, check=False
    )


def refused(ended: subprocess.CompletedProcess[bytes]) -> str:
    """The one line of a refusal, without its prefix."""
    assert ended.returncode == ABORT_VALUE
    assert ended.stdout == b""
    line = ended.stderr.decode("ascii")
    assert line.startswith("hpcext: ")
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    return line.removeprefix("hpcext: ")[:-1]


@pytest.mark.cases(10)
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("hpcext(gpus=auto,scaling=resnet-50)", b"auto|resnet-50|"),
        ("hpcext( gpus=2:8 , scaling=a )", b"2:8|a|"),
        ("hpcext(gpus=4)", b"4||"),
        ("hpcext", b"||"),
        ("hpcext()", b"||"),
    ],
)
@pytest.mark.parametrize(
    "quirks",
    [(), ("no_esub_arguments",), ("stray_argument",), ("bare_quotes", "stray_argument")],
    ids=" ".join,
)
def test_arguments_become_variables(
    make_site: MakeSite, asked: str, given: bytes, quirks: tuple[str, ...]
) -> None:
    site = make_site(*quirks)
    assert output(site, "-a", asked, "-J", 'a "name" $(x)', SHOW) == given


def test_arguments_of_others_are_theirs(site: Site) -> None:
    other = site.serverdir / "esub.other"
    other.write_text('#!/bin/sh\necho "OTHER=\\"$*\\"" >>"$LSB_SUB_MODIFY_ENVFILE"\n')
    other.chmod(0o755)
    asked = "other(gpus=7) hpcext(gpus=3) other(b)"
    assert output(site, "-a", asked, SHOW + ' "$OTHER"') == b"3||b|"


def test_a_site_may_ask_it_for_all_jobs(make_site: MakeSite) -> None:
    site = make_site(esub_method="hpcext")
    assert output(site, SHOW, HPCEXT_GPUS="2") == b"2||"
    ended = command(site, "bsub", SHOW, HPCEXT_GPUS="none")
    assert ended.returncode != 0
    assert b"hpcext: HPCEXT_GPUS: 'none' (valid: " in ended.stderr
    assert len(site.jobs()) == 1


def test_variables_are_settings_too(site: Site) -> None:
    given = {"HPCEXT_GPUS": "1:4", "HPCEXT_SCALING": "x"}
    for more in ([], ["-env", "none"]):
        assert output(site, "-a", "hpcext", *more, SHOW, **given) == b"1:4|x|"
    # An argument goes before a variable, which may be wrong then; an empty one is none.
    assert output(site, "-a", "hpcext(gpus=2)", SHOW, HPCEXT_GPUS="?") == b"2||"
    assert output(site, "-a", "hpcext", SHOW, HPCEXT_GPUS="", HPCEXT_SUSPENDABLE="") == b"||"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["gpus=auto"], "gpus: 'auto' leaves a choice, which nothing here decides "
         "(valid with it: scaling=NAME); hpcext profile --name NAME measures a training"),
        (["gpus=8:2"], f"gpus: '8:2': MIN is more than MAX (valid: {VALID['gpus']})"),
        (["gpus="], f"gpus: '' (valid: {VALID['gpus']})"),
        (["scaling=12"], f"scaling: '12': a number is no name (valid: {VALID['scaling']})"),
        (["lead=9", "suspendable"], f"lead: '9' (valid: {VALID['lead']})"),
        (["lead=60"], "lead: belongs to suspendable, which is not there "
         "(valid: suspendable,lead=SECONDS)"),
        (["trainer=16"], f"trainer: '16' (valid: {VALID['trainer']})"),
        (["trainer=0:16"], f"trainer: '0:16' (valid: {VALID['trainer']})"),
        (["gpu=2"], "-a hpcext: 'gpu=2' (valid: suspendable, lead=SECONDS, gpus=auto|N|MIN:MAX, "
         "scaling=NAME, trainer=MIN:MAX, checkpoint=PRESET)"),
        (["checkpoint=lightnin", "trainer=1:2"],
         f"checkpoint: 'lightnin' (valid: {VALID['checkpoint']})"),
        (["checkpoint=keras"],
         "checkpoint: belongs to suspendable or trainer=MIN:MAX, which are not there"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(site: Site, asked: list[str], said: str) -> None:
    assert refused(esub(*asked)) == said
    ended = command(site, "bsub", "-a", f"hpcext({','.join(asked)})", "true")
    assert ended.stderr.decode().splitlines()[0] == f"hpcext: {said}"
    assert not site.jobs()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HPCEXT_TRAINER", "2:1", f"'2:1': MIN is more than MAX (valid: {VALID['trainer']})"),
        ("HPCEXT_SUSPENDABLE", "yes", "'yes' (valid: 1)"),
        ("HPCEXT_LEAD_S", "9", f"'9' (valid: {VALID['lead']})"),
        ("HPCEXT_GPUS", "1:2", "'1:2' leaves a choice, which nothing here decides (valid with it: "
         "HPCEXT_SCALING=NAME); hpcext profile --name NAME measures a training"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_refused(variable: str, value: str, said: str) -> None:
    assert refused(esub(**{variable: value})) == f"{variable}: {said}"


def test_what_is_valid_is_said_as_on_slurm() -> None:
    source = (ROOT / "spank_hooks" / "values.c").read_text()
    joined = re.sub(r'"\s*"', "", source)
    for text in VALID.values():
        assert f'"{text}"' in joined


_NEARLY = st.from_regex(r"[0-9:auto.\-a\n ]{0,9}", fullmatch=True).map(str.encode)
VALUES = st.one_of(
    _NEARLY, st.sampled_from(sorted(PRESETS)).map(str.encode), st.binary(max_size=99)
).map(lambda value: value.replace(b"\0", b""))
KEYS = {"lead": "hpcext-suspendable", "gpus": "hpcext-gpus", "scaling": "hpcext-scaling",
        "trainer": "hpcext-trainer", "checkpoint": "hpcext-checkpoint"}  # fmt: skip
VARIABLES = {"lead": b"HPCEXT_LEAD_S", "gpus": b"HPCEXT_GPUS", "scaling": b"HPCEXT_SCALING",
             "trainer": b"HPCEXT_TRAINER", "checkpoint": b"HPCEXT_CHECKPOINT"}  # fmt: skip


@given(st.sampled_from(sorted(KEYS)), VALUES)
@example("gpus", b"1024")
@example("gpus", b"1025")
@example("lead", b"010")
@example("scaling", b"a" * 65)
@example("trainer", b"1:\xc3\xa9")
@example("checkpoint", b"transparent")
@example("checkpoint", b"{signal")
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_value_is_judged_as_on_slurm(key: str, value: bytes) -> None:
    # A variable: an engine splits and trims arguments, and an empty one is none.
    if not value:
        return
    env = {VARIABLES[key]: value}
    if key == "gpus":
        env[b"HPCEXT_SCALING"] = b"x"
    ended = subprocess.run([ESUB], capture_output=True, env=env, timeout=500, check=False)
    # What is no preset may be a table, which hpcext reads in the job.
    if IS_VALID[KEYS[key]](value) or (key == "checkpoint" and value.startswith(b"{")):
        # Nobody gave it a file to write to, and the job has the variable anyway.
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
        return
    assert len(refused(ended)) < 450


@pytest.mark.parametrize(
    "variables",
    [
        {"PATH": "/nowhere"},
        {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"},
        {"IFS": "gpus=0123456789"},
        {"BASH_ENV": "{evil}", "ENV": "{evil}", "PYTHONSTARTUP": "{evil}"},
        {"BASH_FUNC_printf%%": "() { :; }", "BASH_FUNC_refuse%%": "() { :; }"},
        {"SHELLOPTS": "noexec:xtrace", "BASHOPTS": "extdebug", "POSIXLY_CORRECT": "1"},
        {"TMPDIR": "/nowhere", "GLOBIGNORE": "*", "CDPATH": "/"},
        {
            "value": "1",
            "place": "gpus",
            "variable": "x",
            "valid": "y",
            "arguments": "z",
            "key": "q",
        },
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_the_environment_of_a_user_changes_nothing(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    evil = tmp_path / "evil"
    evil.write_text("echo evil\nexit 0\n")
    env = tmp_path / "env"
    env.touch()
    given = {key: value.format(evil=evil) if "{evil}" in value else value
             for key, value in variables.items()}  # fmt: skip
    ended = esub("gpus=1:2", "scaling=a", LSB_SUB_MODIFY_ENVFILE=env, **given)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert env.read_text() == 'HPCEXT_GPUS="1:2"\nHPCEXT_SCALING="a"\n'
    assert refused(esub("gpus=é", **given)).startswith(r"gpus: '\xc3\xa9' (valid: ")


def test_values_that_cannot_reach_the_job_are_refused(tmp_path: Path) -> None:
    said = refused(esub("gpus=2"))
    assert (
        said
        == "gpus: this LSF takes no variables from an esub (valid: HPCEXT_GPUS in the environment)"
    )
    assert "cannot be written" in refused(esub("gpus=2", LSB_SUB_MODIFY_ENVFILE=tmp_path))
    # It is in the job's environment as it is.
    assert esub(HPCEXT_GPUS="2").returncode == 0


def test_the_parameter_file_is_never_run(make_site: MakeSite) -> None:
    site = make_site("bare_quotes")
    text = 'printf "%s" "a"$(touch run; echo b)'
    assert output(site, "-a", "hpcext(gpus=2)", text) == b"ab"
    (site.directory / "run").unlink()
    # It would be, if it were sourced, which vendor's examples do.
    sourcing = site.serverdir / "esub.sourcing"
    sourcing.write_text('#!/bin/sh\n. "$LSB_SUB_PARM_FILE"\n')
    sourcing.chmod(0o755)
    command(site, "bsub", "-a", "sourcing", 'true "$(touch run)" ""')
    assert (site.directory / "run").exists()


def test_another_abort_value(tmp_path: Path) -> None:
    assert esub("x", LSB_SUB_ABORT_VALUE="42").returncode == 42
    assert esub("x", LSB_SUB_ABORT_VALUE="; x").returncode == ABORT_VALUE


def test_eexec_gets_nothing_on_its_standard_input(site: Site) -> None:
    eexec = site.serverdir / "eexec"
    heard = site.directory / "heard"
    eexec.write_text(f'#!/bin/sh\necho "$LS_EXEC_T" "$HPCEXT_GPUS" >>{heard}\ncat >>{heard}\n')
    eexec.chmod(0o755)
    output(site, "-a", "hpcext(gpus=2)", "true")
    assert heard.read_text() == "START 2\nEND 2\n"


def test_a_parameter_file_that_is_long_or_strange(tmp_path: Path) -> None:
    parm, env = tmp_path / "parm", tmp_path / "env"
    additional = b'LSB_SUB_ADDITIONAL="x hpcext(gpus=2,,) "\n'
    parm.write_bytes(b'LSB_SUB_COMMAND_LINE="' + os.urandom(300_000) + b'"\n' + additional)
    ended = esub("stray", LSB_SUB_PARM_FILE=parm, LSB_SUB_MODIFY_ENVFILE=env)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert env.read_text() == 'HPCEXT_GPUS="2"\n'


ERRORS = "errors of such a job go where its output goes (-o); leave out -e"
TWICE = "a job cannot have its input (-i, -is) twice; let it open the file"


@pytest.mark.parametrize(
    ("option", "asked", "said"),
    [
        (["-I"], "suspendable", "suspendable: an interactive job cannot be suspended; leave out"),
        (["-i", "in"], "suspendable", f"suspendable: {TWICE}"),
        (["-is", "in"], "suspendable", f"suspendable: {TWICE}"),
        (["-e", "err"], "suspendable", f"suspendable: {ERRORS}"),
        (["-e", "err"], "trainer=1:2", f"trainer: {ERRORS}"),
        (["-I"], "trainer=1:2", "trainer: an interactive job cannot be a trainer; leave out -I"),
        (["-i", "in"], "suspendable,trainer=1:2", f"trainer: {TWICE}"),
    ],
    ids=str,
)
def test_jobs_that_cannot_begin_again_are_refused(
    site: Site, option: list[str], asked: str, said: str
) -> None:
    refused = command(site, "bsub", *option, "-a", f"hpcext({asked})", "true")
    assert refused.returncode == 255
    assert said in refused.stderr.decode()
    assert not site.jobs()


@pytest.mark.parametrize(
    ("options", "rerunnable"),
    [
        (["-a", "hpcext(suspendable)"], True),
        (["-a", "hpcext(suspendable)", "-rn"], False),
        (["-a", "hpcext(suspendable)", "-r"], True),
        (["-a", "hpcext(trainer=1:2)"], True),
        (["-a", "hpcext(gpus=1)"], False),
    ],
    ids=str,
)
def test_what_is_suspendable_or_a_trainer_goes_on_after_the_loss_of_its_host(
    site: Site, options: list[str], rerunnable: bool
) -> None:
    assert command(site, "bsub", "-K", *options, "true").returncode == 0
    assert site.job(1).rerunnable == rerunnable


MODIFIES = [
    pytest.param("LSB_SUB_MODIFY=Y\n", {}, id="LSB_SUB_MODIFY"),
    pytest.param("LSB_SUB_MODIFY_ONCE=Y\n", {}, id="LSB_SUB_MODIFY_ONCE"),
    pytest.param("", {"LSF_INVOKE_CMD": "bmod"}, id="LSF_INVOKE_CMD"),
]


@pytest.mark.parametrize(("said", "variables"), MODIFIES)
@pytest.mark.parametrize("text", ["hpcext(suspendable)", "hpcext", "other hpcext(lead=10) more"])
def test_bmod_that_would_change_nothing_is_refused(
    tmp_path: Path, said: str, variables: dict[str, str], text: str
) -> None:
    """What bmod(1) gives its esubs; esub(8) of an engine of LSF's line, and IBM's page on it."""
    parm, changes = tmp_path / "parm", tmp_path / "changes"
    parm.write_text(f'{said}LSB_SUB_ADDITIONAL="{text}"\n')
    line = refused(
        esub(
            LSB_SUB_PARM_FILE=parm,
            LSB_SUB_MODIFY_FILE=changes,
            LSB_SUB_MODIFY_ENVFILE=changes,
            **variables,
        )
    )
    assert line.startswith("-a hpcext: bmod cannot change what a job was submitted with")
    assert not changes.exists()


@pytest.mark.parametrize(("said", "variables"), MODIFIES)
def test_bmod_of_anything_else_passes(tmp_path: Path, said: str, variables: dict[str, str]) -> None:
    """Where LSB_ESUB_METHOD names it, it runs at every bmod, with the settings of a shell too."""
    parm, changes = tmp_path / "parm", tmp_path / "changes"
    parm.write_text(f'{said}LSB_SUB_RLIMIT_RUN=120\nLSB_SUB_ADDITIONAL="myhpcext"\n')
    ended = esub(
        LSB_SUB_PARM_FILE=parm,
        LSB_SUB_MODIFY_FILE=changes,
        LSB_SUB_MODIFY_ENVFILE=changes,
        HPCEXT_SUSPENDABLE="1",
        HPCEXT_LEAD_S="not checked",
        **variables,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert not changes.exists()
