"""The rules in Lua, without Slurm: each one under the oldest and the newest Lua that Slurm uses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcext import jobfields
from hpcext.checkpointers import PRESETS
from hpcext.core.errors import InputError

ROOT = Path(__file__).parents[2]
LUA = ROOT / "spank_hooks" / "lua"

# What Slurm gives to scripts; each call of a log function becomes a line that begins with its name.
SLURM = """
local function logs(name)
    return function(...) print(name .. " " .. string.format(...)) end
end
slurm = {SUCCESS = 0, ERROR = -1, NO_VAL16 = 65534, log_error = logs("error"),
         log_user = logs("user"), log_info = logs("info")}
function slurm_job_submit(request) print("site requeue=" .. tostring(request.requeue)) return 0 end
function slurm_cli_pre_submit(options)
    for _, name in ipairs({"gres", "requeue", "open-mode", "signal"}) do
        print(name .. "=" .. tostring(options[name]))
    end
    return 0
end
function load_rules(name, ...) assert(loadfile(DIRECTORY .. "/" .. name))(...) end
"""


@pytest.fixture(params=["lua5.1", "lua5.4"])
def interpreter(request: pytest.FixtureRequest) -> str:
    found = shutil.which(request.param)
    assert found, f"{request.param} is not installed; make test installs it"
    return found


def lua(interpreter: str, script: str, *, stdin: str = "", rules: Path = LUA) -> list[str]:
    """What a script prints."""
    start = f"DIRECTORY = {json.dumps(str(rules))}\n{SLURM}\n{script}"
    ended = subprocess.run(
        [interpreter, "-"] if not stdin else [interpreter, "-e", start],
        input=stdin or start,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def submit(interpreter: str, *env: str, request: str = "") -> list[str]:
    """A batch job goes through job_submit."""
    lines = "".join(f"[{index}] = {json.dumps(line)}, " for index, line in enumerate(env))
    return lua(
        interpreter,
        f"""
        load_rules("job_submit.lua")
        local request = {{script = "#!/bin/sh", requeue = 65534, spank_job_env_size = {len(env)},
                          spank_job_env = {{{lines}}}}}
        {request}
        print(slurm_job_submit(request))
        """,
    )


def option(name: str, value: str) -> str:
    return f"_SLURM_SPANK_OPTION_hpcext_hpcext_{name}={value}"


def filtered(interpreter: str, options: str, command: str | Path = "/nonexistent") -> list[str]:
    """A job goes through cli_filter."""
    return lua(
        interpreter,
        f"""
        load_rules("cli_filter.lua", {{command = {json.dumps(str(command))}}})
        local hpcext = {{}}
        local options = {{type = "sbatch", requeue = "unset", signal = "0@0"}}
        options.spank = {{hpcext = hpcext}}
        {options}
        print(slurm_cli_pre_submit(options))
        """,
    )


UNTOUCHED = ["gres=nil", "requeue=unset", "open-mode=nil", "signal=0@0", "0"]


# Values.

READ = """
local rules = assert(loadfile(DIRECTORY .. "/rules.lua"))()
for line in io.lines() do
    local option, hex = line:match("^(%w+) (%x*)$")
    local text = hex:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end)
    local values, wrong = rules.read(function(name)
        if name == option then return text end
        return option == "gpus" and name == "scaling" and "curve"
            or option == "checkpoint" and name == "trainer" and "1:2" or nil
    end)
    print(values and "good" or wrong)
end
"""


def is_good(name: str, text: str) -> bool:
    """The same rules again, in Python."""
    if name == "scaling":
        try:
            return bool(jobfields.plain_name(text))
        except InputError:
            return False
    if name == "checkpoint":
        return text in PRESETS
    if text in {"gpus": ("auto",), "suspendable": ("", "(null)", "set")}.get(name, ()):
        return True
    single, low, high = {
        "suspendable": (True, 10, 86400),
        "gpus": (True, 1, 1024),
        "trainer": (False, 1, 10000),
    }[name]
    pattern = "([1-9][0-9]*)" if name == "suspendable" else "([1-9][0-9]*):([1-9][0-9]*)"
    found = re.fullmatch(pattern, text) or (single and re.fullmatch("([1-9][0-9]*)", text))
    if not found:
        return False
    numbers = [int(each) for each in found.groups()]
    return low <= numbers[0] <= numbers[-1] <= high


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 9, 10, 11, 1024, 1025, 9999, 10000, 10001, 86399, 86400, 86401]),
    st.integers(-3, 2**70),
    st.integers(1, 20),
)
VALUES = st.one_of(
    st.sampled_from(
        ["auto", "Auto", "", "set", "1:", ":1", "1:2:3", "01", "1e3", "0x10", "1 ", "+1"]
    ),
    NUMBERS.map(str),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.from_regex(r"[A-Za-z0-9._-]{1,70}", fullmatch=True),
    st.sampled_from(sorted(PRESETS)),
    st.text(st.characters(codec="ascii"), max_size=80),
    st.text(max_size=20),
)
NAMES = st.sampled_from(["suspendable", "gpus", "scaling", "trainer", "checkpoint"])


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(NAMES, VALUES), min_size=150, max_size=300))
def test_values_are_judged_as_python_does(interpreter: str, cases: list[tuple[str, str]]) -> None:
    lines = "".join(f"{name} {text.encode().hex()}\n" for name, text in cases)
    said = lua(interpreter, READ, stdin=lines)
    assert len(said) == len(cases)  # each error is one line
    for (name, text), line in zip(cases, said, strict=True):
        assert (line == "good") == is_good(name, text), (name, text, line)
        if line != "good":
            assert line.startswith(f"--hpcext-{name}: '")
            assert "(valid: " in line
            assert line.isprintable()


def test_a_range_needs_a_curve(interpreter: str) -> None:
    (said, code) = submit(interpreter, option("gpus", "1:4"))
    assert said == (
        "user hpcext: --hpcext-gpus: '1:4' needs a scaling curve; "
        "add --hpcext-scaling=NAME (hpcext profile --list shows the names)"
    )
    assert code == "-1"


# job_submit.


def test_a_suspendable_batch_job_may_be_requeued(interpreter: str) -> None:
    wanted = option("suspendable", "(null)")
    assert submit(interpreter, "OTHER=1", wanted) == ["site requeue=1", "0"]
    said_no = submit(interpreter, wanted, request="request.requeue = 0")
    assert said_no == ["site requeue=0", "0"]
    no_script = submit(interpreter, wanted, request="request.script = nil")
    assert no_script == ["site requeue=65534", "0"]


def test_other_jobs_are_left_as_they_are(interpreter: str) -> None:
    assert submit(interpreter) == ["site requeue=65534", "0"]
    assert submit(interpreter, "_SLURM_SPANK_OPTION_other_x=1") == ["site requeue=65534", "0"]
    assert submit(interpreter, option("suspendable", "60")[1:]) == ["site requeue=65534", "0"]


@pytest.mark.parametrize(
    "request_",
    [
        "request.spank_job_env_size = nil",
        "request.spank_job_env_size = 99999999999",
        "request.spank_job_env_size = 5; request.spank_job_env = nil",
        "request.spank_job_env = setmetatable({}, {__index = function() error('ours') end})",
    ],
)
def test_an_error_within_a_rule_lets_the_job_pass(interpreter: str, request_: str) -> None:
    said = submit(interpreter, option("gpus", "2"), request=request_)
    assert said[-2:] == ["site requeue=65534", "0"]
    failed = "request.spank_job_env = " in request_
    assert said[0].startswith("error hpcext: a rule failed, the job passes: '") == failed


# What slurmctld gives: each access of the field makes the whole table anew.
COUNTED = """
request.spank_job_env = nil
local size, accesses, lines = {size}, 0, 0
request.spank_job_env_size = size
local made = setmetatable({{}}, {{__index = function(_, index)
    lines = lines + 1
    return index == size - 1 and "{last}" or "_SLURM_SPANK_OPTION_other_name=value"
end}})
setmetatable(request, {{__index = function(_, name)
    if name ~= "spank_job_env" then return nil end
    accesses = accesses + 1
    return made
end}})
local sites = slurm_job_submit
slurm_job_submit = function(...)
    local code = sites(...)
    print("accesses=" .. accesses .. " lines=" .. lines)
    return code
end
"""


def counted(interpreter: str, size: int) -> list[str]:
    last = option("suspendable", "60")
    return submit(interpreter, request=COUNTED.format(size=size, last=last))


def test_a_job_of_a_million_lines_costs_slurmctld_as_much_as_one_of_none(interpreter: str) -> None:
    (told, *rest) = counted(interpreter, 1_000_000)
    assert told == ("user hpcext: options are not looked at: its plugins sent more than 1000 lines")
    assert rest == ["site requeue=65534", "accesses=0 lines=0", "0"]


def test_the_lines_of_a_job_are_asked_for_once(interpreter: str) -> None:
    said = counted(interpreter, 1000)
    assert said == ["site requeue=1", "accesses=1 lines=1000", "0"]
    assert counted(interpreter, 0) == ["site requeue=65534", "accesses=0 lines=0", "0"]


@pytest.mark.parametrize("value", ["{}", "1:{}", "{}:1", "a{}"])
def test_a_value_of_a_million_characters_is_refused_in_a_short_line(
    interpreter: str, value: str
) -> None:
    for name in ("suspendable", "gpus", "scaling", "trainer", "checkpoint"):
        long = "string.rep('1', 1000000)"
        before, _, after = value.partition("{}")
        line = f"'{option(name, before)}' .. {long} .. '{after}'"
        more = f"request.spank_job_env_size = 1; request.spank_job_env = {{[0] = {line}}}"
        said, code = submit(interpreter, request=more)
        assert code == "-1"
        assert said.startswith(f"user hpcext: --hpcext-{name}: '")
        assert len(said) < 300


def test_errors_of_the_site_stay_errors(interpreter: str) -> None:
    said = submit(interpreter, request="print(pcall(slurm_job_submit)) request = {}")
    assert said[0].startswith("error hpcext: a rule failed")
    assert said[1].startswith("false")


def test_rules_that_are_loaded_too_early_say_so(interpreter: str) -> None:
    said = lua(interpreter, 'slurm_job_submit = nil\nprint(pcall(load_rules, "job_submit.lua"))')
    assert said[0].startswith("false")
    assert said[0].endswith(
        "no function slurm_job_submit yet: these lines belong at the end of the script"
    )


def test_rules_are_loaded_by_absolute_path_only(interpreter: str) -> None:
    said = lua(interpreter, 'DIRECTORY = "."\nprint(pcall(load_rules, "job_submit.lua"))')
    assert said[0].startswith("false")


# cli_filter.


def test_what_a_suspendable_job_needs_is_filled_in(interpreter: str) -> None:
    default = filtered(interpreter, 'hpcext["hpcext-suspendable"] = "set"')
    assert default == ["gres=nil", "requeue=set", "open-mode=append", "signal=B:USR2@120", "0"]
    given_lead = filtered(interpreter, 'hpcext["hpcext-suspendable"] = "300"')
    assert "signal=B:USR2@300" in given_lead


def test_a_trainer_takes_no_gpus_for_the_job_that_waits(interpreter: str) -> None:
    asked = 'hpcext["hpcext-trainer"] = "1:4" hpcext["hpcext-gpus"] = "3"'
    said = filtered(interpreter, asked)
    assert said == ["gres=nil", "requeue=set", "open-mode=append", "signal=0@0", "0"]
    kept = asked + ' options.requeue, options["open-mode"] = "no-requeue", "t"'
    assert {"requeue=no-requeue", "open-mode=t"} <= set(filtered(interpreter, kept))
    elsewhere = filtered(interpreter, f'options.type = "salloc" {asked}')
    assert elsewhere[0].startswith("info hpcext: --hpcext-trainer is for batch scripts")
    assert "gres=gpu:3" in elsewhere
    assert submit(interpreter, option("trainer", "1:4")) == ["site requeue=1", "0"]


@pytest.mark.parametrize(
    ("settings", "partition", "goes_to"),
    [
        ('tickets = "t"', "nil", "t"),
        ('tickets = "t"', '"mine"', "mine"),
        ("", "nil", "nil"),
    ],
)
def test_tickets_go_to_the_partition_of_the_site(
    interpreter: str, settings: str, partition: str, goes_to: str
) -> None:
    """They would keep a node from being harvested; who names a partition has that."""
    said = lua(
        interpreter,
        f"""
        load_rules("cli_filter.lua", {{{settings}}})
        local options = {{type = "sbatch", requeue = "unset", partition = {partition}}}
        options.spank = {{hpcext = {{["hpcext-trainer"] = "1:4"}}}}
        slurm_cli_pre_submit(options)
        print(options.partition)
        options.spank, options.partition = {{hpcext = {{["hpcext-gpus"] = "2"}}}}, nil
        slurm_cli_pre_submit(options)
        print(options.partition)
        """,
    )
    assert [line for line in said if "=" not in line and not line.isdigit()] == [goes_to, "nil"]


def test_what_the_user_said_is_kept(interpreter: str) -> None:
    said = filtered(
        interpreter,
        """
        hpcext["hpcext-suspendable"] = "60"
        hpcext["hpcext-gpus"] = "3"
        options.requeue, options.signal, options["open-mode"] = "no-requeue", "B:USR1@30", "t"
        options.gres = "gres:gpu:a100:1"
        """,
    )
    assert said == [
        "info hpcext: with --no-requeue a suspended job does not go on by itself",
        "info hpcext: the GPUs asked for beside --hpcext-gpus are taken",
        "gres=gres:gpu:a100:1",
        "requeue=no-requeue",
        "open-mode=t",
        "signal=B:USR1@30",
        "0",
    ]


def test_a_job_without_a_script_is_warned(interpreter: str) -> None:
    said = filtered(interpreter, 'options.type = "salloc" hpcext["hpcext-suspendable"] = "set"')
    assert said[0].startswith("info hpcext: --hpcext-suspendable is for batch scripts")
    assert said[1:] == UNTOUCHED


@pytest.mark.parametrize(
    "options",
    [
        "",
        "options.spank = nil",
        "options.spank.hpcext = nil",
        # A step inherits the options of its job, here even ones that are wrong.
        'options.type = "srun" options.jobid = "7" hpcext["hpcext-gpus"] = "x"',
    ],
)
def test_files_of_others_are_not_touched(interpreter: str, options: str) -> None:
    assert filtered(interpreter, options) == UNTOUCHED


def test_a_number_of_gpus_is_asked_for(interpreter: str) -> None:
    assert "gres=gpu:3" in filtered(interpreter, 'hpcext["hpcext-gpus"] = "3"')
    both = 'hpcext["hpcext-gpus"] = "3" options.gres = "gres:gpufarm:1"'
    assert "gres=gres:gpufarm:1,gpu:3" in filtered(interpreter, both)


@pytest.mark.parametrize(
    "gres", ["gres:gpu:1", "gres/gpu:1", "gres/nic:1,gres/gpu:a100:2", "gres/gpu"]
)
def test_gpus_that_the_user_asked_for_are_seen(interpreter: str, gres: str) -> None:
    """As Slurm 22.05 writes them, and as later releases do."""
    said = filtered(interpreter, f'hpcext["hpcext-gpus"] = "3" options.gres = "{gres}"')
    assert f"gres={gres}" in said


def stand_in(directory: Path, body: str) -> Path:
    """Some hpcext; the name of its directory would do harm if it were not quoted."""
    home = directory / "a 'b' $(touch harm)"
    home.mkdir()
    command = home / "hpcext"
    command.write_text(f'#!/bin/sh\necho "$*" > {directory}/words\n{body}\n')
    command.chmod(0o755)
    return command


CURVE = 'hpcext["hpcext-gpus"] = "{}" hpcext["hpcext-scaling"] = "cnn.v2"'


def test_the_curve_says_how_many(interpreter: str, tmp_path: Path) -> None:
    command = stand_in(tmp_path, "echo a warning >&2; echo 4")
    assert "gres=gpu:4" in filtered(interpreter, CURVE.format("auto"), command)
    assert (tmp_path / "words").read_text() == "profile --best cnn.v2\n"
    assert "gres=gpu:4" in filtered(interpreter, CURVE.format("2:8"), command)
    assert (tmp_path / "words").read_text() == "profile --best cnn.v2 --gpus=2-8\n"
    assert not (ROOT / "harm").exists()


def test_errors_that_the_user_can_fix_are_explained(interpreter: str, tmp_path: Path) -> None:
    command = stand_in(tmp_path, "echo \"hpcext: no profile 'cnn.v2'\" >&2; exit 2")
    assert filtered(interpreter, CURVE.format("auto"), command) == [
        "error hpcext: --hpcext-scaling: no profile 'cnn.v2'",
        "-1",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "echo 'Traceback (most recent call last):'; echo 'ImportError: x'; exit 1",
        "kill -9 $$",
        "echo many",
        "echo 9",  # outside of what was asked for
        "echo 0",
        "true",
        'rm -- "$0"; exec "$0"',
    ],
)
def test_a_broken_command_does_not_stop_a_job(interpreter: str, tmp_path: Path, body: str) -> None:
    said = filtered(interpreter, CURVE.format("2:8"), stand_in(tmp_path, body))
    assert said[0].startswith("info hpcext: the curve cnn.v2 could not be read (exit status ")
    assert said[0].endswith("; asking for 2 GPU")
    assert said[1:] == ["gres=gpu:2", *UNTOUCHED[1:]]
