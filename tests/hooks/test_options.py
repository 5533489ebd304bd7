"""The values of the plugin's options, by the callbacks that sbatch calls."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from option_harness import IS_VALID, Answer, Harness, check_refusal

from hpcext.checkpointers import PRESETS

OPTIONS = st.sampled_from(sorted(IS_VALID))
# Any bytes that an argument can be, and what is nearly right.
_NUMBER = st.integers(-1, 100_000).map(str)
_NEARLY = st.one_of(
    _NUMBER,
    st.builds("{}:{}".format, _NUMBER, _NUMBER),
    st.from_regex(r"[0-9:+\- ]{0,12}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9._\-é\n]{0,70}", fullmatch=True),
    st.sampled_from(
        ["auto", "AUTO", "auto ", "(null)", "0x10", "010", "1e2", "9" * 40, "1" * 5000]
    ),
).map(str.encode)
VALUES = st.one_of(_NEARLY, st.binary(max_size=200)).map(lambda value: value.replace(b"\0", b""))


@pytest.fixture(scope="module")
def harness(checked_harness: Path) -> Iterator[Harness]:
    """Under ASan and UBSan; it must end as it should."""
    one = Harness(checked_harness)
    yield one
    assert one.end() == (0, "")


@given(
    st.tuples(OPTIONS, VALUES).filter(lambda case: not IS_VALID[case[0]](case[1])), st.booleans()
)
@example(("hpcext-scaling", b"\xff" * 200), False)  # the longest line
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_malformed_value_gives_one_clear_line(
    harness: Harness, case: tuple[str, bytes], remote: bool
) -> None:
    option, value = case
    if remote and (option, value) == ("hpcext-suspendable", b""):
        return  # there it is the option without its argument
    said = harness.ask("remote" if remote else "local", option, value)
    assert said.status == (0 if remote else -1), "slurmstepd must not fail a job"
    (line,) = said.lines
    check_refusal(line, option)
    assert line.endswith("; ignored") == remote
    assert harness.ask("values") == Answer(0, []), "nothing of it reaches the job"


_LEAD = st.integers(10, 86_400).map(str)
_GPUS = st.integers(1, 1024)
_NODES = st.integers(1, 10_000)
_PRESETS = st.sampled_from(sorted(PRESETS))


def _ranges(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    return st.tuples(numbers, numbers).map(lambda two: f"{min(two)}:{max(two)}")


@given(
    st.one_of(
        st.tuples(st.just(("hpcext-suspendable", "HPCEXT_LEAD_S")), _LEAD),
        st.tuples(
            st.just(("hpcext-gpus", "HPCEXT_GPUS")),
            st.one_of(st.just("auto"), _GPUS.map(str), _ranges(_GPUS)),
        ),
        st.tuples(
            st.just(("hpcext-scaling", "HPCEXT_SCALING")),
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True).filter(
                lambda name: not name.isdecimal()
            ),
        ),
        st.tuples(st.just(("hpcext-trainer", "HPCEXT_TRAINER")), _ranges(_NODES)),
        st.tuples(st.just(("hpcext-checkpoint", "HPCEXT_CHECKPOINT")), _PRESETS),
    ),
    st.sampled_from(["local", "remote"]),
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_valid_value_is_taken_as_it_is(
    harness: Harness, case: tuple[tuple[str, str], str], context: str
) -> None:
    (option, variable), value = case
    assert harness.ask(context, option, value.encode()) == Answer(0, [])
    assert harness.ask("values").lines == [f"{variable}={value}"]


def test_the_last_value_counts(harness: Harness) -> None:
    """As in a script's #SBATCH lines and then on the command line."""
    for value in (b"1", b"2:64", b"16"):
        assert harness.ask("local", "hpcext-gpus", value).status == 0
    assert harness.ask("values").lines == ["HPCEXT_GPUS=16"]


def test_a_lead_may_be_left_out(harness: Harness) -> None:
    for words in (("local",), ("remote",), ("remote", b""), ("local", b"(null)")):
        context, *value = words
        assert harness.ask(context, "hpcext-suspendable", *value) == Answer(0, [])
        assert harness.ask("values").lines == ["HPCEXT_LEAD_S=120"]
    for option in sorted(set(IS_VALID) - {"hpcext-suspendable"}):
        assert len(harness.ask("local", option).lines) == 1, "no other argument may"


def test_a_choice_of_gpus_needs_a_profile(harness: Harness) -> None:
    for value, choice in ((b"auto", True), (b"2:8", True), (b"4:4", True), (b"4", False)):
        harness.ask("local", "hpcext-gpus", value)
        said = harness.ask("fit")
        assert (said.status, len(said.lines)) == ((-1, 1) if choice else (0, 0))
        if choice:
            assert "(valid with it: --hpcext-scaling=NAME)" in said.lines[0]
        # The variable does as well, if it can be a name.
        assert harness.ask("fit", b"resnet50").status == 0
        assert harness.ask("fit", b"12").status == (-1 if choice else 0)
        harness.ask("local", "hpcext-scaling", b"resnet50")
        assert harness.ask("fit") == Answer(0, [])
        harness.ask("values")


def test_how_it_saves_is_said_of_a_job_that_may_be_suspended(harness: Harness) -> None:
    assert harness.ask("belong") == Answer(0, [])
    for option, value in ((None, b""), ("hpcext-suspendable", b"60"), ("hpcext-trainer", b"1:2")):
        harness.ask("local", "hpcext-checkpoint", b"keras")
        if option:
            harness.ask("local", option, value)
        said = harness.ask("belong")
        assert said.status == (0 if option else -1)
        assert ["--hpcext-suspendable" in line for line in said.lines] == ([] if option else [True])
        harness.ask("values")


CHOICE = "'auto' leaves a choice, which nothing here decides"


def test_a_step_does_not_suffer_from_what_its_job_was_submitted_with(checked_harness: Path) -> None:
    """By a newer plugin, or with a variable that the job does not have any more."""
    step = Harness(checked_harness)
    said = step.ask("inherit", "hpcext-checkpoint", b"of-the-next-release")
    (line,) = said.lines
    check_refusal(line, "hpcext-checkpoint")
    assert (said.status, line.endswith("; ignored")) == (0, True)
    assert step.ask("inherit", "hpcext-gpus", b"auto") == Answer(0, [])
    assert step.ask("post") == Answer(0, [])
    assert step.ask("values") == Answer(0, ["HPCEXT_GPUS=auto"])
    # What its own command line says is judged as ever.
    assert step.ask("local", "hpcext-checkpoint", b"bad").status == -1
    assert step.end() == (0, "")
    step = Harness(checked_harness)
    step.ask("inherit", "hpcext-suspendable", b"(null)")
    step.ask("local", "hpcext-gpus", b"auto")
    (line,) = step.ask("post").lines
    assert line.startswith(f"hpcext: --hpcext-gpus: {CHOICE}")
    assert step.end() == (0, "")


def test_what_is_submitted_from_inside_is_judged(checked_harness: Path) -> None:
    """The option of the job around it was a good one, and another is given."""
    inner = Harness(checked_harness)
    inner.ask("inherit", "hpcext-gpus", b"4")
    assert inner.ask("local", "hpcext-gpus", b"auto") == Answer(0, [])
    (line,) = inner.ask("post").lines
    assert line.startswith(f"hpcext: --hpcext-gpus: {CHOICE}")
    assert inner.end() == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([b"command=hpcext"], "command=: 'hpcext' (valid: the absolute path of hpcext)"),
        ([b"command="], "command=: '' (valid: the absolute path of hpcext)"),
        ([b"command=/" + b"x" * 5000], f"command=: '/{'x' * 59}'... (valid: the absolute"),
        ([b"command=/a", b"command=/b"], "command= is given twice"),
        ([b"command=/a", b"loud\x1b"], r"unknown argument 'loud\x1b' (valid: command=PATH)"),
        ([b"comman"], "unknown argument 'comman' (valid: command=PATH)"),
    ],
)
def test_what_plugstack_conf_may_not_say(
    harness: Harness, words: list[bytes], message: str
) -> None:
    said = harness.ask("args", *words)
    assert said.status == -1
    (line,) = said.lines
    assert line.startswith(f"plugstack.conf: {message}")


def test_what_plugstack_conf_may_say(harness: Harness) -> None:
    assert harness.ask("args", b"command=/opt/hpcext") == Answer(0, ["/opt/hpcext"])
    assert harness.ask("args") == Answer(0, [""])


def test_valgrind_finds_nothing(build) -> None:
    """What ASan does not see: values that were never set."""
    program = build("harness", "SANITIZE=")
    options = ("--quiet", "--error-exitcode=9", "--leak-check=full")
    harness = Harness(program, "valgrind", *options)
    values = (b"", b"\x1b[31m", b"12", b"auto", b"1:2", b"2:1", b":", b"a" * 64, b"a" * 65, b"\xff")
    for option in sorted(IS_VALID):
        for context in ("local", "remote"):
            for value in values:
                harness.ask(context, option, value)
        harness.ask("local", option)
    harness.ask("fit")
    harness.ask("fit", b"resnet50")
    harness.ask("values")
    harness.ask("args", b"command=/opt/hpcext", b"loud")
    assert harness.end() == (0, "")


def test_only_what_slurm_looks_for_is_exported(build) -> None:
    """Any other name could take the place of one of sbatch's own."""
    said = subprocess.run(
        ["nm", "-D", "--defined-only", str(build("hpcext.so"))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[2] for line in said.splitlines()}
    ours = re.compile(r"slurm_spank_|plugin_|spank_plugin_")
    assert [name for name in names if not ours.match(name)] == []
    assert {"slurm_spank_init", "slurm_spank_task_init", "plugin_version"} <= names
