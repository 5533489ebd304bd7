"""What hpcext-admin installs, on a real Slurm: rules in Lua, prolog and epilog, seen by a user."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot_ends import requeued

from hpcext.cli import admin

ROOT = Path(__file__).parents[2]
STATE = "XDG_STATE_HOME"

# The site's own rules, which come after ours: this one shows what Slurm made of the options.
SHOW = """
function slurm_cli_pre_submit(options, offset)
    for _, name in ipairs({"gres", "requeue", "open-mode", "signal"}) do
        io.stderr:write(name, "=", tostring(options[name]), "\\n")
    end
    return slurm.SUCCESS
end
"""

# A plugin of a user who does not care what the options hold.
LAX = """
#include <stddef.h>
#include <slurm/spank.h>
SPANK_PLUGIN(hpcext, 1)
static int any(int value, const char *text, int remote) { return 0; }
static struct spank_option options[] = {
    {"hpcext-gpus", "X", "x", 1, 1, any},
    {"hpcext-suspendable", "X", "x", 2, 2, any},
    SPANK_OPTIONS_TABLE_END
};
int slurm_spank_init(spank_t spank, int count, char **words)
{
    for (int index = 0; options[index].name; index++)
        spank_option_register(spank, &options[index]);
    return 0;
}
"""


class Ruled(NamedTuple):
    """A cluster with all that is installed."""

    slurm: Cluster
    prefix: Path
    etc: Path

    def flags(self) -> list[str]:
        """Where hpcext-admin is to work."""
        return ["--usr", str(self.prefix)]

    def lua(self, name: str) -> Path:
        """An installed module."""
        return self.prefix / "lib" / "hpcext" / "slurm" / "lua" / name

    def log(self) -> str:
        """What slurmctld wrote."""
        return (self.slurm.root / "log" / "slurmctld.log").read_text(errors="replace")

    def restart(self) -> None:
        """A module is read anew when slurmctld starts."""
        self.slurm.stop_ctld()
        self.slurm.start_ctld()


@pytest.fixture(scope="module")
def ruled(slurm: Cluster) -> Iterator[Ruled]:
    """The site follows what the installer prints, and undoes it."""
    one = Ruled(slurm, slurm.root / "usr", slurm.root / "etc")
    before = {path: path.read_bytes() for path in one.etc.iterdir() if path.is_file()}
    install = ["install", "slurm", *one.flags(), "--conf-dir", str(one.etc)]
    install += ["--hpcext", str(slurm.root / "bin" / "hpcext")]
    assert admin.main(["-q", *install]) == 0
    code, document = _said(slurm, *install, "--dry-run")
    assert code == 0
    assert {each["do"] for each in document["files"]} == {"keep"}  # all is as it should be
    _apply(document["left"])
    conf = one.etc / "slurm.conf"
    text = conf.read_text()
    for kind in ("Prolog", "Epilog"):
        # Beside other clusters of this machine: in a directory of our own.
        program = slurm.root / "bin" / kind.lower()
        hook = one.etc / f"{kind.lower()}.d" / "50-hpcext"
        program.write_text(f"#!/bin/sh\nexec {hook} {slurm.root}/run/hpcext\n")
        program.chmod(0o755)
        text = text.replace(f"{kind}={one.etc}/{kind.lower()}.d/*", f"{kind}={program}")
    conf.write_text(text)
    script = one.etc / "cli_filter.lua"
    script.write_text(script.read_text().replace("-- hpcext:", f"{SHOW}-- hpcext:"))
    document = _said(slurm, "status", "slurm", *one.flags())[1]
    assert (document["whole"], document["runs"]) == (True, document["built_for"])
    told = {(step["daemon"], step["do"]) for step in document["daemons"]}
    assert ("slurmctld", "systemctl restart slurmctld") in told
    one.restart()
    slurm.run("scontrol", "reconfigure")
    assert _said(slurm, "status", "slurm", *one.flags())[1]["daemons"] == []
    yield one
    code, document = _said(slurm, "uninstall", "slurm", *one.flags())
    assert code == 2
    _apply(document["left"])
    lines = conf.read_text().splitlines(keepends=True)
    conf.write_text("".join(line for line in lines if not line.startswith(("Prolog", "Epilog"))))
    slurm.run("scontrol", "reconfigure")
    assert admin.main(["-q", "uninstall", "slurm", *one.flags()]) == 0
    # The other lines that were added do no harm.
    assert slurm.as_user("srun", "true").returncode == 0
    for path, text_before in before.items():
        path.write_bytes(text_before)
    one.restart()
    slurm.run("scontrol", "reconfigure")


def _said(slurm: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    """What hpcext-admin says."""
    program = "import sys; from hpcext.cli.admin import main; sys.exit(main())"
    said = slurm.run(sys.executable, "-c", program, *words, "--json", PYTHONPATH=str(ROOT))
    return said.returncode, json.loads(said.stdout)


def _apply(edits: list[dict[str, Any]]) -> None:
    """As the site does."""
    text = "".join(f"{line}\n" for edit in edits for line in edit["diff"])
    words = ["patch", "-p1", "-d", "/"]
    subprocess.run(words, input=text, text=True, check=True, capture_output=True)


def submit(ruled: Ruled, place: Site, *options: str, wrap: str = "true") -> Submitted:
    """Submit as the user, whose curves are in the place."""
    output = str(place.path / "%j.out")
    ended = ruled.slurm.as_user(
        "sbatch", "--parsable", "--job-name=rules", "--output", output, *options, "--wrap", wrap,
        cwd=place.path, **{STATE: place.environ[STATE]},
    )  # fmt: skip
    return Submitted(ended.returncode, ended.stdout.strip(), ended.stderr)


class Submitted(NamedTuple):
    """How sbatch ended."""

    code: int
    job: str
    err: str

    def shown(self) -> dict[str, str]:
        """The options as Slurm has them after our rules."""
        return dict(line.split("=", 1) for line in self.err.splitlines() if "=" in line)


def measure(ruled: Ruled, place: Site) -> None:
    """A curve of the user: 1, 2 and 4 GPUs, best on 4."""
    script = (
        "from pathlib import Path; from hpcext.profiles import *; "
        "p = Profiles(Path('state/hpcext/profiles')); "
        "p.add('cnn', [Measurement(at=1, gpus=g, steps_per_s=g, seconds=9, source='job')"
        " for g in (1, 2, 4)])"
    )
    done = ruled.slurm.as_user(str(ruled.slurm.python), "-c", script, cwd=place.path)
    assert done.returncode == 0, done


def test_a_curve_becomes_a_number_of_gpus(ruled: Ruled, place: Site) -> None:
    measure(ruled, place)
    gres = "gres:gpu" if ruled.slurm.release < (24, 11) else "gres/gpu"
    for gpus, wanted in (("auto", 4), ("1:3", 2), ("3", 3)):
        said = submit(ruled, place, "--hold", f"--hpcext-gpus={gpus}", "--hpcext-scaling=cnn")
        assert said.code == 0, said
        assert ruled.slurm.job(said.job)["TresPerNode"] == f"{gres}:{wanted}"
    own = submit(
        ruled, place, "--hold", "--hpcext-gpus=auto", "--hpcext-scaling=cnn", "--gres=gpu:1"
    )
    assert ruled.slurm.job(own.job)["TresPerNode"] == f"{gres}:1"
    assert "the GPUs asked for beside --hpcext-gpus are taken" in own.err


def test_what_has_no_curve_is_refused_in_one_line(ruled: Ruled, place: Site) -> None:
    measure(ruled, place)
    for options, line in (
        (
            ("--hpcext-gpus=auto", "--hpcext-scaling=cnm"),
            "no profile 'cnm' (valid: cnn); did you mean cnn?",
        ),
        (
            ("--hpcext-gpus=5:6", "--hpcext-scaling=cnn"),
            "--gpus: 'cnn' was not measured on 5-6 GPUs (valid: 1, 2, 4); "
            "hpcext profile --name cnn --gpus 5-6 -- COMMAND measures it",
        ),
    ):
        said = submit(ruled, place, *options)
        assert (said.code, said.job) == (1, "")
        (told,) = [each for each in said.err.splitlines() if "hpcext:" in each]
        assert told.startswith("sbatch: error: lua: hpcext: --hpcext-scaling: ")
        assert told.endswith(line)


def test_a_suspendable_job_has_what_it_needs(ruled: Ruled, place: Site) -> None:
    said = submit(ruled, place, "--hold", "--hpcext-suspendable=90")
    assert said.shown() == {
        "gres": "nil", "requeue": "requeue", "open-mode": "a", "signal": "B:USR2@90",
    }  # fmt: skip
    assert ruled.slurm.job(said.job)["Requeue"] == "1"
    own = ("--hold", "--no-requeue", "--open-mode=truncate", "--signal=B:USR1@30")
    said = submit(ruled, place, "--hpcext-suspendable", *own)
    assert said.shown() == {
        "gres": "nil", "requeue": "no-requeue", "open-mode": "t", "signal": "B:USR1@30",
    }  # fmt: skip
    assert ruled.slurm.job(said.job)["Requeue"] == "0"


def test_a_ticket_goes_to_the_partition_that_the_site_has_for_them(
    ruled: Ruled, place: Site
) -> None:
    """Where it keeps no node from being harvested; who names one has that."""
    script = ruled.etc / "cli_filter.lua"
    before = script.read_text()
    assert before.count("local settings = {") == 1
    script.write_text(
        before.replace("local settings = {", 'local settings = {tickets = "urgent", ')
    )
    submit = ("sbatch", "--parsable", "--hold", "--hpcext-trainer=1:1")
    try:
        said = [
            ruled.slurm.as_user(*submit, *more, "--wrap=true", cwd=place.path)
            for more in ((), ("--partition=batch",))
        ]
    finally:
        script.write_text(before)
    jobs = [each.stdout.strip() for each in said]
    assert [ruled.slurm.job(job)["Partition"] for job in jobs] == ["urgent", "batch"], said


def test_a_plain_job_and_steps_are_not_touched(ruled: Ruled, place: Site) -> None:
    said = submit(ruled, place)
    assert said.shown() == {"gres": "nil", "requeue": "unset", "open-mode": "nil", "signal": "0@0"}
    # A step inherits the options of its job.
    said = submit(ruled, place, "--hpcext-gpus=1", wrap="srun -n1 true")
    log = place.path / f"{said.job}.out"
    ruled.slurm.wait_for(lambda: ruled.slurm.job(said.job)["JobState"] == "COMPLETED", "the job")
    assert "gres=nil" in log.read_text().splitlines()


@pytest.mark.slow
def test_all_of_it_together(ruled: Ruled, place: Site) -> None:
    """An ordinary script and three flags: GPUs by a curve, a preemption that costs nothing."""
    slurm = ruled.slurm
    measure(ruled, place)
    counter = " ".join(place.counter("only", gated=True)["command"])
    flags = ("--hpcext-suspendable=30", "--hpcext-gpus=auto", "--hpcext-scaling=cnn")
    low = (
        "--partition=harvest",
        "--nodelist=n3",
        f"--export=ALL,COUNTER_LOG={place.path}/only.steps",
    )
    said = submit(ruled, place, *flags, *low, wrap=f"{counter}; echo over")
    assert said.code == 0, said
    wait_for(lambda: place.steps("only") and place.steps("only")[-1].step == 39, "the last step")
    high = slurm.as_user(
        "sbatch", "--partition=urgent", "--nodelist=n3", "--exclusive", "--wrap=sleep 1"
    )
    assert high.returncode == 0, high
    requeued(slurm, int(said.job))
    place.open("only")
    slurm.wait_for(lambda: slurm.job(said.job)["JobState"] == "COMPLETED", "the job")
    log = (place.path / f"{said.job}.out").read_text()
    assert [f"attempt {n}, 4 GPUs" in log for n in (1, 2)] == [True, True]
    assert log.count("over\n") == 1
    assert [step.step for step in place.steps("only")] == list(range(1, 41))


def test_slurmctld_believes_no_client(ruled: Ruled, place: Site) -> None:
    """A user with a plugin and a configuration of his own sends what he likes."""
    own = place.path / "own"
    ruled.slurm.as_user("mkdir", str(own))
    (own / "lax.c").write_text(LAX)
    words = ["cc", "-shared", "-fPIC", "-o", str(own / "lax.so"), str(own / "lax.c")]
    subprocess.run(words, check=True)
    (own / "plugstack.conf").write_text(f"required {own}/lax.so\n")
    text = (ruled.etc / "slurm.conf").read_text().replace("CliFilterPlugins=lua", "")
    kept = [line for line in text.splitlines() if not line.startswith("PlugStackConfig")]
    kept.append(f"PlugStackConfig={own}/plugstack.conf")
    (own / "slurm.conf").write_text("\n".join(kept) + "\n")
    mine = {"SLURM_CONF": str(own / "slurm.conf")}
    bad = "1:\n\033[31m;touch harm"
    said = ruled.slurm.as_user(
        "sbatch", "--job-name=rules", f"--hpcext-gpus={bad}", "--wrap", "true", **mine
    )
    assert said.returncode == 1
    assert "hpcext: --hpcext-gpus: '1:??[31m;touch harm' (valid: auto, N or MIN:MAX" in said.stderr
    assert "\033" not in said.stderr
    good = (
        "--parsable",
        "--job-name=rules",
        "--hpcext-suspendable",
        "--output=/dev/null",
        "--wrap",
        "true",
    )
    said = ruled.slurm.as_user("sbatch", *good, **mine)
    assert said.returncode == 0, said
    assert ruled.slurm.job(said.stdout.strip())["Requeue"] == "1"


def client(ruled: Ruled, place: Site) -> Path:
    """A program of the user that submits without sbatch."""
    program = place.path / "submit"
    source = Path(__file__).with_name("submit.c")
    subprocess.run(["cc", "-o", str(program), str(source), "-lslurm"], check=True)
    return program


def test_a_million_lines_do_not_block_submissions(ruled: Ruled, place: Site) -> None:
    program = client(ruled, place)
    wanted = "_SLURM_SPANK_OPTION_hpcext_hpcext_suspendable=60"
    seen = len(ruled.log())
    for lines in (1_000_000, 1001):
        said = ruled.slurm.as_user(str(program), "1", str(lines), wanted, cwd=place.path)
        assert said.returncode == 0, said
        assert "hpcext: options are not looked at: its plugins sent more than 1000" in said.stderr
    assert "hpcext:" not in ruled.log()[seen:]
    assert submit(ruled, place, "--hold", "--hpcext-suspendable").code == 0
    said = ruled.slurm.as_user(str(program), "1", "999", wanted, cwd=place.path)
    assert (said.returncode, said.stderr) == (0, "")
    requeue = ruled.slurm.run("squeue", "-h", "-n", "rules", "-o", "%A").stdout.split()
    told = {job: ruled.slurm.job(job)["Requeue"] for job in requeue}
    assert told[max(told, key=int)] == "1"


def test_nothing_of_the_users_directory_is_run(ruled: Ruled, place: Site) -> None:
    """``./`` is first in Lua's search path."""
    harm = place.path / "harm"
    for name in ("hpcext", "rules", "job_submit", "cli_filter", "slurm"):
        planted = place.path / f"{name}.lua"
        planted.write_text(f'io.open("{harm}", "w"):close()')
    for name in ("timeout", "hpcext"):  # the command is called by its path
        program = place.path / name
        program.write_text(f"#!/bin/sh\ntouch {harm}\n")
        program.chmod(0o755)
    measure(ruled, place)
    said = submit(ruled, place, "--hpcext-gpus=auto", "--hpcext-scaling=cnn")
    assert said.code == 0, said
    assert not harm.exists()


BROKEN = {
    "a syntax error": "function (",
    "an error while it is loaded": "error('ours')",
    "no file": None,
    "an error in a rule": "check",
}


def break_rules(path: Path, good: str, text: str | None) -> None:
    """Break one module; "check" stands for its rule, whose name is that."""
    path.unlink(missing_ok=True)
    if text == "check":
        begin, _, end = good.rpartition("rules.before(")
        text = f"{begin}check = function() error('ours') end\nrules.before({end}"
    if text is not None:
        path.write_text(text)


def test_broken_rules_stop_no_job_and_no_slurmctld(ruled: Ruled, place: Site) -> None:
    good = {name: ruled.lua(name).read_text() for name in ("job_submit.lua", "cli_filter.lua")}
    try:
        for how, broken in BROKEN.items():
            for name, text in good.items():
                break_rules(ruled.lua(name), text, broken)
            seen = len(ruled.log())
            ruled.restart()
            inside = how == "an error in a rule"
            wanted = "a rule failed, the job passes" if inside else "no rules"
            # A rule fails only for jobs that it looks at; the job may not start, that is not asked.
            for options in ((), ("--hpcext-suspendable", "--hold")):
                said = submit(ruled, place, *options)
                assert said.code == 0, (how, said)
                assert f"hpcext: {wanted}" in said.err
            assert f"hpcext: {wanted}" in ruled.log()[seen:]
    finally:
        for name, text in good.items():
            ruled.lua(name).write_text(text)
        ruled.restart()


def test_rules_that_are_newer_than_slurmctld_are_read_as_status_says(
    ruled: Ruled, place: Site
) -> None:
    module = ruled.lua("job_submit.lua")
    good = module.read_text()
    try:
        module.write_text(f'slurm.log_info("hpcext: rules anew")\n{good}')
        (step,) = _said(ruled.slurm, "status", "slurm", *ruled.flags())[1]["daemons"]
        assert step["do"] == f"touch {ruled.etc}/job_submit.lua"
        assert submit(ruled, place).code == 0
        assert "rules anew" not in ruled.log()
        subprocess.run(step["do"].split(), check=True)
        assert submit(ruled, place).code == 0
        assert "rules anew" in ruled.log()
        assert _said(ruled.slurm, "status", "slurm", *ruled.flags())[1]["daemons"] == []
    finally:
        module.write_text(good)


def test_a_job_has_a_directory_that_says_whose_it_is(ruled: Ruled, place: Site) -> None:
    base = ruled.slurm.root / "run" / "hpcext"
    script = f"cat {base}/$SLURM_JOB_ID/owner; touch {base}/$SLURM_JOB_ID/x || echo refused"
    hostile = {"SPANK_SLURM_JOB_UID": "0", "SLURM_JOB_UID": "0", "SPANK_PATH": "/nonexistent"}
    said = ruled.slurm.as_user(
        "sbatch",
        "--parsable",
        "--job-name=rules",
        f"--output={place.path}/out",
        "--wrap",
        script,
        **hostile,
    )
    job = said.stdout.strip()
    wait_for(lambda: not (base / job).exists() and (place.path / "out").exists(), "the epilog")
    ruled.slurm.wait_for(lambda: ruled.slurm.job(job)["JobState"] == "COMPLETED", "the job")
    lines = (place.path / "out").read_text().splitlines()
    assert lines[0] == str(Path(ruled.slurm.home).stat().st_uid)
    assert lines[-1] == "refused"
    assert "DRAIN" not in ruled.slurm.run("sinfo", "-N", "-h", "-o", "%T").stdout.upper()
