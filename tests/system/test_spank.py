"""The SPANK plugin in a real Slurm: its flags, and that nobody else notices it."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from plugin import Plugin
from site_of_test import Site
from slurm_cluster import REPOSITORY, Cluster

sys.path.insert(0, str(REPOSITORY / "tests" / "hooks"))

from option_harness import IS_VALID

OPTIONS = (
    "hpcext-suspendable", "hpcext-gpus", "hpcext-scaling", "hpcext-trainer", "hpcext-checkpoint"
)  # fmt: skip
# Says how it was started: words, what slurmstepd sets last, the environment of it and of a step.
SCRIPT = """#!/bin/bash
printf 'script'; printf '|%s' "$@"; echo
echo "limit=$(ulimit -Sn) TMPDIR=$TMPDIR"
env | sed 's/^/batch /'
srun -n1 /usr/bin/env | sed 's/^/step /'
"""


ARGS = ("a b", "", "--", "$HOME")
WORDS = "|".join(ARGS)
# Their values are never the same twice.
VOLATILE = re.compile(r"SLURM_.*(ID|PID|PORT|TIME)$|SLURM_.*(_ID_|ADDR|KEY)|SLURM_STEP|_$")


def batch(
    slurm: Cluster,
    place: Site,
    *flags: str,
    args: tuple[str, ...] = ARGS,
    before: tuple[str, ...] = (),
    quiet: bool = True,
    **environ: str,
) -> str:
    """Run a job to its end; what it printed."""
    source, printed = place.path / "job.sh", place.path / "out"
    source.write_text(SCRIPT)
    words = ("-n1", "--parsable", "--output", str(printed), *flags, str(source))
    said = slurm.as_user(*before, "sbatch", *words, *args, **environ)
    assert said.returncode == 0, said
    flagged = any(flag.startswith("--hpcext-") for flag in flags)
    # The cluster of these tests has no rules.
    assert not quiet or bool(said.stderr) == flagged, said
    assert not flagged or "does not load hpcext's rules" in said.stderr
    job = said.stdout.strip()
    over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
    slurm.wait_for(lambda: slurm.job(job)["JobState"] in over, "the end of the job")
    out = printed.read_text()
    assert slurm.job(job)["JobState"] == "COMPLETED", out
    return out


def without_plugin(slurm: Cluster, place: Site) -> Path:
    """Configure sbatch of a user so that it knows nothing of us."""
    conf = (slurm.root / "etc" / "slurm.conf").read_text()
    own = place.path / "slurm.conf"
    lines = (line for line in conf.splitlines() if not line.startswith("PlugStackConfig"))
    own.write_text("\n".join([*lines, "PlugStackConfig=/dev/null", ""]))
    return own


def environment(out: str, where: str) -> dict[str, str]:
    """The variables that a batch script or its step had."""
    lines = [line.removeprefix(f"{where} ") for line in out.splitlines() if line.startswith(where)]
    return dict(line.partition("=")[::2] for line in lines)


def ours(variables: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in variables.items() if key.startswith("HPCEXT_")}


def refused(said: subprocess.CompletedProcess[str], option: str) -> str:
    """The one line."""
    assert said.returncode == 1, said
    assert said.stdout == ""
    (line,) = said.stderr.splitlines()
    assert re.match(rf"(sbatch|srun|salloc): error: hpcext: --{option}: '", line)
    assert "(valid" in line
    assert line.isprintable()
    return line


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_help(slurm: Cluster, plugin: Plugin, command: str) -> None:
    said = slurm.as_user(command, "--help").stdout
    for option in OPTIONS:
        assert f"--{option}=" in said
    assert said.count("[hpcext]") == len(OPTIONS)


def test_flags_in_a_batch_job(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """All of them, of which the trainer goes first; the steps of the script know too."""
    flags = ("--hpcext-suspendable=90", "--hpcext-gpus=2:8", "--hpcext-scaling=res.net-50",
             "--hpcext-trainer=1:4", "--hpcext-checkpoint=keras")  # fmt: skip
    out = batch(slurm, place, *flags)
    expected = {
        "HPCEXT_SUSPENDABLE": "1",
        "HPCEXT_LEAD_S": "90",
        "HPCEXT_GPUS": "2:8",
        "HPCEXT_SCALING": "res.net-50",
        "HPCEXT_TRAINER": "1:4",
        "HPCEXT_CHECKPOINT": "keras",
    }
    assert ours(environment(out, "batch")) == expected
    assert ours(environment(out, "step")) == expected
    first, second, *_ = out.splitlines()
    found = re.fullmatch(r"stand-in\|trainer\|1:4\|--\|(\S+/slurm_script)\|(.*)", first)
    assert found, first
    assert found[2] == WORDS
    assert second == f"script|{WORDS}"


def test_a_suspendable_batch_job(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """Even if a variable says that it is more than that."""
    out = batch(slurm, place, "--hpcext-suspendable=90", HPCEXT_IS_TRAINER="1")
    first, second, *_ = out.splitlines()
    assert re.fullmatch(r"stand-in\|suspendable\|--lead\|90\|--\|\S+/slurm_script\|.*", first)
    assert second == f"script|{WORDS}"
    assert ours(environment(out, "batch")) == {"HPCEXT_SUSPENDABLE": "1", "HPCEXT_LEAD_S": "90"}


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "how",
    [
        ({}, "--export=NONE"),
        ({}, "--export=NIL"),
        ({}, "--export=HOME,PATH"),
        ({"SBATCH_EXPORT": "NONE"}, "--no-requeue"),
    ],
    ids=["none", "nil", "list", "variable"],
)
def test_options_do_not_depend_on_the_environment_that_is_exported(
    slurm: Cluster, place: Site, plugin: Plugin, how: tuple[dict[str, str], str]
) -> None:
    environ, option = how
    out = batch(slurm, place, option, "--hpcext-suspendable", "--hpcext-gpus=2", **environ)
    assert out.startswith("stand-in|suspendable|--lead|120|--|/")
    expected = {"HPCEXT_SUSPENDABLE": "1", "HPCEXT_LEAD_S": "120", "HPCEXT_GPUS": "2"}
    assert ours(environment(out, "batch")) == ours(environment(out, "step")) == expected
    out = batch(slurm, place, option, "--hpcext-trainer=1:4", **environ)
    assert out.startswith("stand-in|trainer|1:4|--|/")


def test_the_rest_of_the_launch_stays(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """Limits and TMPDIR, which slurmstepd sets after the plugin has spoken; no lead given."""
    environ = {"TMPDIR": str(place.path / "tmp")}
    limited = ("prlimit", "--nofile=321:")
    plain = batch(slurm, place, before=limited, **environ)
    # A script without arguments: there is one word, and no room for a second.
    suspendable = batch(slurm, place, "--hpcext-suspendable", args=(), before=limited, **environ)
    assert plain.splitlines()[1] == f"limit=321 TMPDIR={environ['TMPDIR']}"
    assert suspendable.splitlines()[2] == plain.splitlines()[1]
    assert suspendable.startswith("stand-in|suspendable|--lead|120|--|/")
    expected = {"HPCEXT_SUSPENDABLE": "1", "HPCEXT_LEAD_S": "120"}
    assert ours(environment(suspendable, "step")) == expected


FLAGS = {
    "--hpcext-suspendable=10": {"HPCEXT_SUSPENDABLE": "1", "HPCEXT_LEAD_S": "10"},
    "--hpcext-gpus=1024": {"HPCEXT_GPUS": "1024"},
    "--hpcext-scaling=a": {"HPCEXT_SCALING": "a"},
    "--hpcext-trainer=2:10000": {"HPCEXT_TRAINER": "2:10000"},
}


def test_flags_of_srun_and_salloc(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """Each alone in a step; all of them in an allocation, whose steps inherit them."""
    steps = "\n".join(f"srun {flag} env | sed 's/^/{i} /'" for i, flag in enumerate(FLAGS))
    said = slurm.as_user("salloc", "--quiet", "-n1", "bash", "-c", steps)
    for index, variables in enumerate(FLAGS.values()):
        assert ours(environment(said.stdout, str(index))) == variables, said
    said = slurm.as_user("salloc", "--quiet", "-n1", *FLAGS, "srun", "env")
    found = dict(line.partition("=")[::2] for line in said.stdout.splitlines())
    assert ours(found) == {k: v for each in FLAGS.values() for k, v in each.items()}


def test_a_terminal(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    user = ("setpriv", f"--reuid={slurm.user}", f"--regid={slurm.user}", "--clear-groups")
    command = ("srun", "-n1", "--hpcext-gpus=auto", "--hpcext-scaling=vit", "--pty")
    terminal = pexpect.spawn(
        user[0],
        [*user[1:], *command, "bash", "--norc", "--noprofile"],
        env=slurm.user_environ(PS1="ready> "),
        encoding="utf-8",
        timeout=500,
        cwd=str(slurm.home),
    )
    terminal.expect_exact("ready> ")
    terminal.sendline('test -t 0 && echo "is $HPCEXT_GPUS of $HPCEXT_SCALING"')
    terminal.expect_exact("is auto of vit")
    terminal.sendline("exit 7")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 7


def test_who_does_not_use_it_sees_no_difference(slurm: Cluster, place: Site, built: Plugin) -> None:
    """Every variable of the script and of its step, and all else that is printed."""
    seen = []
    for use in (built.use_none, built.use_well):
        use()
        out = batch(slurm, place)
        variables = {(w, k): v for w in ("batch", "step") for k, v in environment(out, w).items()}
        fixed = {k: v for k, v in variables.items() if not VOLATILE.search(k[1])}
        rest = [line for line in out.splitlines() if not line.startswith(("batch ", "step "))]
        assert ("step", "SLURM_CPUS_ON_NODE") in fixed
        seen.append((variables.keys(), fixed, rest))
    assert seen[0] == seen[1]


NO_RULES = (
    "sbatch: hpcext: nothing fills in what the job needs, since the site's cli_filter.lua does not "
    "load hpcext's rules: give {} yourself, and tell the administrator\n"
)


def test_where_the_rules_are_missing_a_flag_says_so(
    slurm: Cluster, place: Site, plugin: Plugin
) -> None:
    """With no script, with one that does not load them, and with one that does."""
    submit = ("sbatch", "--hold", "--wrap=true")
    again = "--requeue --open-mode=append"
    for flag, needs in (
        ("--hpcext-suspendable", f"{again} --signal=B:USR2@LEAD"),
        ("--hpcext-trainer=1:4", again),
        ("--hpcext-gpus=2", "--gres"),
    ):
        assert slurm.as_user(*submit, flag).stderr == NO_RULES.format(needs)
    assert slurm.as_user(*submit).stderr == ""
    conf = (slurm.root / "etc" / "slurm.conf").read_text()
    own = place.path / "etc"
    slurm.as_user("mkdir", str(own))
    (own / "slurm.conf").write_text(conf + "CliFilterPlugins=lua\n")
    functions = ("setup_defaults", "pre_submit", "post_submit")
    script = "".join(
        f"function slurm_cli_{name}() return slurm.SUCCESS end\n" for name in functions
    )
    for more, said in (
        ("", NO_RULES.format("--gres")),
        ("-- /usr/lib/hpcext/lua/cli_filter.lua", ""),
    ):
        (own / "cli_filter.lua").write_text(script + more)
        environ = {"SLURM_CONF": str(own / "slurm.conf")}
        assert slurm.as_user(*submit, "--hpcext-gpus=2", **environ).stderr == said


def test_a_heterogeneous_job_is_refused(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """Whichever part has the option, and however the parts are told apart; others are let pass."""
    line = (
        "error: hpcext: options of hpcext are not for a heterogeneous job (valid: one part, "
        "without ':' or hetjob); submit the part that trains by itself"
    )
    script = place.path / "parts.sh"
    script.write_text("#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n1\n")
    flag = "--hpcext-suspendable=90"
    for words in (
        ("sbatch", flag, "-n1", ":", "-n1", "--wrap=true"),
        ("sbatch", "-n1", ":", flag, "-n1", "--wrap=true"),
        ("sbatch", flag, str(script)),
        ("salloc", "--hpcext-gpus=1", "-n1", ":", "-n1", "true"),
        ("srun", "--hpcext-gpus=1", "-n1", ":", "-n1", "true"),
    ):
        said = slurm.as_user(*words)
        assert said.returncode == 1, said
        assert said.stderr.splitlines()[-1] == f"{words[0]}: {line}"
    assert slurm.run("squeue", "-h").stdout == ""
    assert slurm.as_user("sbatch", "--hold", "-n1", ":", "-n1", "--wrap=true").stderr == ""
    # From a client without our plugin, which refuses nothing.
    sent = "SLURM_SPANK__SLURM_SPANK_OPTION_hpcext_hpcext_suspendable"
    environ = {"SLURM_CONF": str(without_plugin(slurm, place)), sent: "90"}
    first, second, *_ = batch(slurm, place, ":", "-n1", **environ).splitlines()
    assert first.endswith("cannot be suspended: it is a heterogeneous one; it runs as usual")
    assert second == f"script|{WORDS}"


BAD = (
    "suspendable=9", "suspendable=86401", "suspendable=", "suspendable=2m", "suspendable=-60",
    "gpus=0", "gpus=1025", "gpus=8:2", "gpus=2:", "gpus=", "gpus=Auto", "gpus= 4", "gpus=4:2000",
    "scaling=", "scaling=-a", "scaling=a/../b", "scaling=12", "scaling=\x1b[31m\n", "scaling=\xe9",
    "trainer=4", "trainer=0:4", "trainer=1:10001", "gpus=auto", "gpus=2:4",
    "checkpoint=", "checkpoint=Keras", "checkpoint={signal=1}", "checkpoint=keras",
)  # fmt: skip


def test_a_bad_value_is_refused(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """By one line, and nothing is submitted."""
    for bad in BAD:
        option = f"hpcext-{bad.partition('=')[0]}"
        refused(
            slurm.as_user("sbatch", f"--hpcext-{bad}", "-J", "refused", "--wrap", "true"), option
        )
    for command in (("srun",), ("salloc", "srun")):
        refused(slurm.as_user(*command[:1], "--hpcext-gpus=x", *command[1:], "true"), "hpcext-gpus")
    # In a script, too, and with the status that the user wants for Slurm's own errors.
    script = place.path / "bad.sh"
    script.write_text("#!/bin/sh\n#SBATCH --hpcext-trainer=some\n")
    said = slurm.as_user("sbatch", str(script), SLURM_EXIT_ERROR="77")
    assert said.returncode == 77
    assert said.stderr.startswith("sbatch: error: hpcext: --hpcext-trainer: 'some' (valid: MIN:MAX")
    assert slurm.run("squeue", "-h", "--states=all", "--name=refused,bad.sh").stdout == ""


def test_a_variable_may_name_the_profile(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    said = slurm.as_user("srun", "-n1", "--hpcext-gpus=auto", "env", HPCEXT_SCALING="vit")
    assert {"HPCEXT_GPUS=auto", "HPCEXT_SCALING=vit"} <= set(said.stdout.splitlines())


def test_what_reaches_a_node_is_not_trusted(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """A job that runs is not broken: what is not valid counts as not given."""
    prefix = "_SLURM_SPANK_OPTION_hpcext_hpcext"
    hostile = {
        f"{prefix}_suspendable": "1; rm -rf /",
        f"{prefix}_gpus": "2:4",
        f"{prefix}_trainer": "x" * 20_000 + "\n%s%n",
    }
    out = batch(slurm, place, **hostile)
    assert ours(environment(out, "batch")) == {}
    assert out.startswith("script|")
    log = plugin.log()
    assert "hpcext: --hpcext-suspendable: '1; rm -rf /' (valid: whole seconds" in log
    assert f"hpcext: --hpcext-trainer: '{'x' * 60}'... (valid: MIN:MAX" in log
    assert "hpcext: --hpcext-gpus: '2:4' leaves a choice" in log


def test_what_looks_as_if_slurmctld_had_sent_it_is_not_trusted(
    slurm: Cluster, place: Site, plugin: Plugin
) -> None:
    """From an sbatch without our plugin, which would have refused it."""
    own = without_plugin(slurm, place)
    sent = "SLURM_SPANK__SLURM_SPANK_OPTION_hpcext_hpcext"
    hostile = {
        f"{sent}_suspendable": "2; rm -rf /",
        f"{sent}_scaling": "y" * 20_000,
        f"{sent}_gpus": "auto",
    }
    out = batch(slurm, place, SLURM_CONF=str(own), **hostile)
    assert ours(environment(out, "batch")) == {}
    assert out.startswith("script|")
    log = plugin.log()
    assert "hpcext: --hpcext-suspendable: '2; rm -rf /' (valid: whole seconds" in log
    assert f"hpcext: --hpcext-scaling: '{'y' * 60}'... (valid: a profile's name" in log
    # Such a job can be what its user could have asked for, and no more.
    out = batch(slurm, place, SLURM_CONF=str(own), **{f"{sent}_suspendable": "90"})
    assert out.startswith("stand-in|suspendable|--lead|90|--|/")


def test_steps_of_a_job_do_not_suffer_from_its_options(
    slurm: Cluster, place: Site, built: Plugin
) -> None:
    """Which a variable had made complete at submission, or that the plugin on the node refuses."""
    # batch() fails if the job did, whose last command is srun.
    built.use_well()
    flag = "--hpcext-gpus=auto"
    out = batch(slurm, place, "--export=NONE", flag, HPCEXT_SCALING="vit")
    assert "HPCEXT_SCALING" not in environment(out, "batch")
    assert environment(out, "step")["SLURM_STEP_ID"] == "0"
    # What slurmctld tells a batch script of an option that a newer sbatch has accepted.
    sent = "SLURM_SPANK__SLURM_SPANK_OPTION_hpcext_hpcext_checkpoint"
    source = place.path / "job.sh"
    for words, value in ((f"command={built.command}", "of-the-next-release"), ("loud", "keras")):
        built.use(words)
        source.write_text(f"#!/bin/sh\nexport {sent}={value}\nexec srun -n1 true\n")
        said = slurm.as_user("sbatch", "--wait", "-n1", "--output=/dev/null", str(source))
        assert said.returncode == 0, said


def test_a_plugin_that_is_missing_or_broken_breaks_nothing(
    slurm: Cluster, place: Site, built: Plugin
) -> None:
    (built.directory / "text.so").write_text("no ELF\n")
    shutil.copy("/bin/true", built.directory / "other.so")
    for file in ("gone.so", "text.so", "other.so"):
        built.use(file=file)
        assert f"script|{WORDS}" in batch(slurm, place, quiet=False)
    for words in ("command=hpcext", "loud"):
        built.use(words)
        assert f"script|{WORDS}" in batch(slurm, place)
    assert "hpcext: plugstack.conf: unknown argument 'loud' (valid: command=PATH)" in built.log()
    # Who wants what it cannot give is told why.
    said = slurm.as_user("sbatch", "--hpcext-gpus=2", "--wrap", "true")
    assert said.returncode == 1
    assert said.stderr == (
        "sbatch: error: hpcext: --hpcext-gpus: not available here: plugstack.conf: unknown "
        "argument 'loud' (valid: command=PATH); tell the administrator\n"
    )


def test_a_script_runs_plainly_without_the_command(
    slurm: Cluster, place: Site, built: Plugin
) -> None:
    gone = built.command.with_name("gone")
    why = {
        f"{gone}: No such file or directory": (f"command={gone}",),
        f"{built.directory}: Is a directory": (f"command={built.directory}",),
        "plugstack.conf has no command=PATH": (),
    }
    for reason, words in why.items():
        built.use(*words)
        first, second, *_ = batch(slurm, place, "--hpcext-suspendable").splitlines()
        assert first.endswith(
            f"error: hpcext: the job cannot be suspended: {reason}; it runs as usual"
        )
        assert second == f"script|{WORDS}"


@pytest.mark.slow
def test_a_thousand_bad_values_are_refused(slurm: Cluster, place: Site, plugin: Plugin) -> None:
    """By sbatch itself; tests/hooks has as many by the callbacks alone."""
    draw = random.Random(1)
    alphabet = [chr(code) for code in (*range(1, 128), 0xE9, 0x202E, 0x1F600)]
    done = 0
    while done < 1000:
        option = draw.choice(sorted(IS_VALID))
        near = draw.choice(("0123456789:", "auto1:2", "abc._-", "".join(alphabet)))
        value = "".join(draw.choices(near, k=draw.randrange(0, 90)))
        if not IS_VALID[option](value.encode()):
            refused(
                slurm.as_user("sbatch", f"--{option}={value}", "-J", "refused", "--wrap", "true"),
                option,
            )
            done += 1
    assert slurm.run("squeue", "-h", "--states=all", "--name=refused").stdout == ""
