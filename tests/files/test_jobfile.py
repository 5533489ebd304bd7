"""Job files: what is read, and the one line that each fault gives."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext import jobfile
from hpcext.admission import admit
from hpcext.checkpointers import PRESETS, Checkpointer
from hpcext.containers import Container
from hpcext.core.errors import InputError
from hpcext.core.estimate import Estimate
from hpcext.core.trials import Trial
from hpcext.jobfile import find_cycle, parse_jobs, read_jobs
from hpcext.jobspec import Gpus, JobSpec, Nodes, optimum
from hpcext.manager.submissions import check_in_time
from hpcext.profiles import Profiles

FULL = """
[[job]]
name = "cnn"
command = "torchrun --nproc-per-node {gpus} train.py --name '{name} x' {other}"
gpus = {min = 1, max = 6, optimal = 3}
nodes = {min = 1, max = 2}
scaling = {4 = 3.0, 1 = 1, 2 = 1.9}
work = {samples = 60000}
target_loss = -0.5
after = "first"
env = {SEED = "1"}
workdir = "sub"
retries = 0
hang = "restart"
hang_after_s = 300
walltime_s = 7200
suspend_timeout_s = 12.5
rescale_up_s = 1
rescale_down_s = 0
weight = 2
priority = -1.5
mem_per_gpu = "16G"
mps = false
shell = false
trial = {sweep = "lr", settings = {lr = "1"}, metric = "loss", goal = "max", first = 9, factor = 2}
checkpoint = {signal = "SIGUSR1", done = {exit = [0, 143], file = "*.pt"}, resume = "--from {file}"}
trackers = false
container = {image = "docker://python:3.12", binds = ["/data:/in:ro"], runtime = "apptainer"}

[[job]]
name = "first"
command = ["python", "-u", "say.py", "a b"]
preload = ["torch", "numpy.linalg"]
"""


def line_of(text: str, base: Path = Path("/"), known: tuple[str, ...] = ()) -> str:
    """The one line that a faulty text gives."""
    with pytest.raises(InputError) as caught:
        parse_jobs(text, "jobs.toml", base, known=known)
    line = str(caught.value)
    assert caught.value.exit_status == 2
    assert line.isprintable()
    assert line.startswith("jobs.toml: ")
    assert len(line) < 1000
    return line


def job(keys: str = "", name: str = "a") -> str:
    return f'[[job]]\nname = "{name}"\ncommand = "x"\n{keys}\n'


def one(keys: str) -> JobSpec:
    (spec,) = parse_jobs(job(keys), "jobs.toml", Path("/"))
    return spec


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "jobs.toml"
    path.write_text(FULL)
    cnn, first = read_jobs(path, suspend_timeout_s=33.0)
    assert cnn == JobSpec(
        name="cnn",
        command=("torchrun", "--nproc-per-node", "{gpus}", "train.py", "--name", "{name} x",
                 "{other}"),
        gpus=Gpus(1, 6, 3),
        nodes=Nodes(1, 2),
        scaling={1: 1.0, 2: 1.9, 4: 3.0},
        work=60000.0,
        work_unit="samples",
        target_loss=-0.5,
        after=("first",),
        env={"SEED": "1"},
        workdir=str(tmp_path / "sub"),
        retries=0,
        hang="restart",
        hang_after_s=300.0,
        walltime_s=7200.0,
        suspend_timeout_s=12.5,
        rescale_up_s=1.0,
        rescale_down_s=0.0,
        weight=2.0,
        priority=-1.5,
        mem_per_gpu=16 * 2**30,
        trial=Trial("lr", {"lr": "1"}, "loss", "max", 9, 2),
        checkpoint=Checkpointer(
            "SIGUSR1", exits=(0, 143), file="*.pt", newer=True, resume=("--from", "{file}")
        ),
        trackers=False,
        container=Container("docker://python:3.12", ("/data:/in:ro",), "apptainer"),
    )  # fmt: skip
    assert list(cnn.scaling) == [1, 2, 4]

    assert first == JobSpec(
        name="first",
        command=("python", "-u", "say.py", "a b"),
        workdir=str(tmp_path),
        suspend_timeout_s=33.0,
        preload=("torch", "numpy.linalg"),
        learns=False,
    )


def test_scaling_by_kind_of_gpu(tmp_path: Path) -> None:
    """What is there stands for all; on another machine the slowest."""
    keys = "gpus = {max = 4}\nscaling = {a100 = {2 = 4.4, 1 = 4.0}, 'Tesla V100' = {1 = 1, 4 = 4}}"
    spec = one(keys)
    a100, v100 = {1: 4.0, 2: 4.4}, {1: 1.0, 4: 4.0}
    assert spec.by_kind == {"a100": a100, "Tesla V100": v100}
    assert spec.scaling == v100
    assert optimum(spec) == 4
    here = Profiles(tmp_path, "NVIDIA A100-SXM4-80GB")
    (spec,) = parse_jobs(job(keys), "jobs.toml", Path("/"), profiles=here)
    assert spec.scaling == a100
    (admitted,) = admit([spec], 1, {})
    assert admitted.estimate == Estimate(stated=a100, by_kind=spec.by_kind)
    assert one("scaling = {1 = 1.0, 2 = 1.9}").by_kind == {}
    # The best of all kinds says whether a job can end in time.
    (dear,) = parse_jobs(job(f"{keys}\nwork = 44"), "jobs.toml", Path("/"))
    check_in_time([dear], 10.0, "jobs.toml")
    with pytest.raises(InputError, match=r"takes 0\.2 minutes at its best speed"):
        check_in_time([dear], 9.0, "jobs.toml")


def test_the_full_example_has_every_key() -> None:
    stated = set(re.findall(r"^(\w+) =", FULL, re.MULTILINE))
    assert stated == set(jobfile.KEYS)


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ("gpus = 2", "gpus", Gpus(2, 2)),
        ("gpus = {max = 4}", "gpus", Gpus(1, 4)),
        ("gpus = {min = 2, max = 4}", "gpus", Gpus(2, 4)),
        ("nodes = 3", "nodes", Nodes(3, 3)),
        ("work = 100", "work", 100.0),
        ("work = {steps = 7}", "work", 7.0),
        ("work = 1e6", "work", 1e6),
        ("mem_per_gpu = 1024", "mem_per_gpu", 1024),
        ('mem_per_gpu = "1k"', "mem_per_gpu", 1024),
        ('mem_per_gpu = "2T"', "mem_per_gpu", 2 * 2**40),
        ("mps = true", "mps", True),
        ('checkpoint = "lightning"', "checkpoint", PRESETS["lightning"]),
        ('checkpoint = {preset = "plain", file = "*.pt"}', "checkpoint", Checkpointer(file="*.pt")),
        (
            'checkpoint = {signal = "SIGTERM", done = {exit = "any"}}',
            "checkpoint",
            Checkpointer("SIGTERM", exits=()),
        ),
        ("checkpoint = {done = {file = 'a'}}", "checkpoint", Checkpointer(file="a", newer=True)),
        (
            'checkpoint = {preset = "lightning", done = {file = "a"}, after_s = 9}',
            "suspend_timeout_s",
            9.0,
        ),
        ('checkpoint = {preset = "keras", after_s = 9}', "suspend_timeout_s", 39.0),
        ('checkpoint = "transparent"', "checkpoint", Checkpointer(transparent=True)),
        ('checkpoint = {preset = "transparent", after_s = 9}', "suspend_timeout_s", 9.0),
        ('checkpoint = "keras"\nsuspend_timeout_s = 50', "suspend_timeout_s", 50.0),
        ("retries = 3", "retries", 3),
        ("after = []", "after", ()),
    ],
)
def test_short_forms(keys: str, field: str, value: object) -> None:
    assert getattr(one(keys), field) == value


def test_dependencies_named_twice_count_once_and_may_be_known_already() -> None:
    text = job('after = ["old", "old"]')
    (spec,) = parse_jobs(text, "jobs.toml", Path("/"), known={"old"})
    assert spec.after == ("old",)


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_bytes(b"\xef\xbb\xbf" + job().replace("\n", "\r\n").encode())
    assert [spec.name for spec in read_jobs(path)] == ["a"]


FAULTS = [
    # what is wrong, then what the line says: job, key, valid values, what to do
    ("gpu = 2", ["[[job]] 1 (a): unknown key 'gpu'", "mem_per_gpu", "did you mean gpus?"]),
    ("gpus = true", ["gpus: true is a boolean", "an integer or a table"]),
    ("gpus = 0", ["gpus: 0", "1 to 1024"]),
    ("gpus = 2.0", ["gpus: 2.0 is a float"]),
    ('gpus = "2"', ["gpus: '2' is a string"]),
    ("gpus = 99999999999999999999999999", ["gpus: 99999999999999999999999999", "1 to 1024"]),
    (f"gpus = {'9' * 4000}", ["gpus: a number of 13288 bits", "1 to 1024"]),
    (f"gpus = {'9' * 5000}", ["not TOML", "digits"]),
    ("gpus = [1, 2]", ["gpus: an array (valid: an integer or a table"]),
    ("gpus = {min = 1}", ["gpus: max is missing", "{min = 1, max = 4}"]),
    ("gpus = {min = 3, max = 2}", ["gpus: min 3 is more than max 2", "1 to 2"]),
    ("gpus = {min = 2, max = 4, optimal = 5}", ["gpus: optimal: 5", "2 to 4"]),
    ("gpus = {max = 4, optimum = 2}", ["gpus: unknown key 'optimum'", "did you mean optimal?"]),
    ("gpus = {min = true, max = 2}", ["gpus: min: true is a boolean"]),
    ("gpus = {max = 7, multiple = 2}", ["gpus: max: 7 is no multiple of 2", "6 or 8"]),
    ("gpus = {max = 2, multiple = 4}", ["gpus: max: 2 is no multiple of 4", "4"]),
    ("gpus = {min = 1, max = 4, multiple = 2}", ["gpus: min: 1 is no multiple of 2", "valid: 2"]),
    ("gpus = {max = 8, optimal = 3, multiple = 4}", ["gpus: optimal: 3 is no", "valid: 4"]),
    ("gpus = {max = 8, multiple = 0}", ["gpus: multiple: 0", "1 to 1024"]),
    ("nodes = {max = 2, multiple = 2}", ["nodes: unknown key 'multiple'", "min, max"]),
    ("nodes = {max = 2, optimal = 1}", ["nodes: unknown key 'optimal'", "min, max"]),
    ('scaling = "resnet50"', ["scaling: 'resnet50'", "no profiles here", "{1 = 1.0, 2 = 1.9}"]),
    ("scaling = {}", ["scaling: a table"]),
    ("scaling = {two = 1.0}", ["scaling: unknown key 'two'", "1, 2, ..."]),
    ("scaling = {0 = 1.0}", ["scaling: unknown key '0'"]),
    ("scaling = {99999999999 = 1.0}", ["scaling: unknown key '99999999999'"]),
    ("scaling = {1 = nan}", ["scaling: 1: nan", "above 0"]),
    ("scaling = {1 = inf}", ["scaling: 1: inf"]),
    ("scaling = {1 = 0}", ["scaling: 1: 0"]),
    ("scaling = {a = {1 = 2.0}, 1 = 1.0}", ["scaling: it mixes speeds", "either {1 = 1.0,"]),
    ("scaling = {a = {}}", ["scaling: a: a table", "{1 = 1.0, 2 = 1.9}"]),
    ("scaling = {a = {two = 1.0}}", ["scaling: a: unknown key 'two'"]),
    ("scaling = {a = {1 = 0}}", ["scaling: a: 1: 0", "above 0"]),
    ("scaling = {a = {1 = {2 = 1}}}", ["scaling: a: 1: a table"]),
    ("scaling = {1 = {1 = 1.0}}", ["scaling: '1' is not a kind of GPU", "a name with a letter"]),
    ("work = 0", ["work: 0", "1 to 1e+15"]),
    ("work = nan", ["work: nan"]),
    ("work = 1.5", ["work: 1.5", "a whole number"]),
    ("work = {epochs = 3}", ["work: unknown key 'epochs'", "steps, samples"]),
    ("work = {steps = 3, samples = 4}", ["work: it has 2 units", "{steps = N} or {samples = N}"]),
    ("work = {steps = -3}", ["work: steps: -3"]),
    ('after = "b"', ["after: unknown job 'b'", "no other job"]),
    ("after = [1]", ["after: 1 is an integer"]),
    ("after = 1", ["after: 1 is an integer"]),
    ('after = "a"', ["after: these jobs wait for each other: a -> a"]),
    ("env = {SEED = 1}", ["env: SEED: 1 is an integer", "a string", "put it in quotes"]),
    ('env = {SEED = "a\\u0000b"}', ["env: SEED", "NUL"]),
    ('env = {"A=B" = "1"}', ["env: 'A=B' is not the name of a variable"]),
    ('env = {HPCEXT_OP = "1"}', ["env: 'HPCEXT_OP' is set by hpcext itself"]),
    ('env = "A=B"', ["env: 'A=B' is a string", "a table of strings"]),
    ('workdir = "nowhere/at/all"', ["workdir: there is no directory '/nowhere/at/all'"]),
    ('workdir = ""', ["workdir: empty"]),
    ("retries = -1", ["retries: -1", "0 to 1000"]),
    ("retries = true", ["retries: true is a boolean"]),
    ("hang = \"no\"", ["hang: 'no'", "report, restart, ignore"]),
    ("hang_after_s = 0", ["hang_after_s: 0"]),
    ("walltime_s = 0", ["walltime_s: 0", "above 0"]),
    ('walltime_s = "2:00:00"', ["walltime_s: '2:00:00' is a string", "a number"]),
    ("walltime_s = inf", ["walltime_s: inf"]),
    ("suspend_timeout_s = 0", ["suspend_timeout_s: 0", "above 0"]),
    ("suspend_timeout_s = inf", ["suspend_timeout_s: inf"]),
    (f"suspend_timeout_s = 1{'0' * 400}", ["suspend_timeout_s: a number of"]),
    ("rescale_up_s = -1", ["rescale_up_s: -1", "0 to"]),
    ('rescale_down_s = "1"', ["rescale_down_s: '1' is a string", "a number"]),
    ("weight = 0", ["weight: 0", "above 0"]),
    ("priority = nan", ["priority: nan"]),
    ("priority = 1979-05-27", ["priority: ", "is a date or time"]),
    ('mem_per_gpu = "16 G"', ["mem_per_gpu: '16 G'", '"16G"']),
    ("mem_per_gpu = 0", ["mem_per_gpu: 0"]),
    ("mps = 1", ["mps: 1 is an integer", "true or false"]),
    ("gpus = 2\nmps = true", ["mps: true, but the job needs more than one GPU"]),
    ("nodes = 2\nmps = true", ["mps: true, but the job needs more than one GPU"]),
    ("trial = 3", ["trial: 3 is an integer", "a table"]),
    ("trial = {metric = 'loss'}", ["trial: sweep is missing"]),
    ("trial = {sweep = 'a', rung = 3}", ["trial: unknown key 'rung'", "first"]),
    ("trial = {sweep = 'a', metric = 'a b'}", ["trial: metric: 'a b'"]),
    ("trial = {sweep = 'a', metric = 'a', goal = {}}", ["trial: goal: {}", "min, max"]),
    ("trial = {sweep = 'a', metric = 'a', first = 0}", ["trial: first: 0"]),
    ("trial = {sweep = 'a', metric = 'a', first = 1, factor = 1}", ["trial: factor: 1"]),
    ("trial = {sweep = 'a', first = 1}", ["trial: first needs metric"]),
    ("trial = {sweep = 'a', metric = 'a', factor = 2}", ["trial: factor needs first"]),
    ("trial = {sweep = 'a', settings = {lr = 1}}", ["trial: settings: lr: 1 is an integer"]),
    ("mem_per_gpu = true", ["mem_per_gpu: true is a boolean"]),
    ('mem_per_gpu = "9999999T"', ["mem_per_gpu: '9999999T'", "at most"]),
    ("checkpoint = 3", ["checkpoint: 3 is an integer", "a preset"]),
    ("checkpoint = {}", ["checkpoint: a table", "a preset"]),
    ('checkpoint = "lightening"', ["checkpoint: unknown preset", "did you mean lightning?"]),
    ('checkpoint = {preset = "x"}', ["checkpoint: preset: unknown preset 'x'", "keras"]),
    ("checkpoint = {sginal = 1}", ["checkpoint: unknown key", "did you mean signal?"]),
    ('checkpoint = {signal = "USR1"}', ["checkpoint: signal: 'USR1'", "did you mean SIGUSR1?"]),
    ('checkpoint = {signal = "SIGKILL"}', ["checkpoint: signal: 'SIGKILL'", "SIGTERM"]),
    ('checkpoint = {signal = "SIGUSR1"}', ["checkpoint: done is missing", "{exit = [0]}"]),
    ("checkpoint = {done = {exit = [0]}}", ["checkpoint: done: exit without signal"]),
    ("checkpoint = {done = {requeue = true}}", ["checkpoint: done: requeue without signal"]),
    ("checkpoint = {done = {requeue = false}}", ["checkpoint: done: requeue: false"]),
    ("checkpoint = {done = {exit = [256]}}", ["checkpoint: done: exit: 256", "0 to 255"]),
    ("checkpoint = {done = {exit = []}}", ["checkpoint: done: exit: an array", '"any"']),
    ("checkpoint = {done = {}}", ["checkpoint: done: a table", "requeue = true"]),
    ("checkpoint = {done = {file = ''}}", ["checkpoint: done: file: empty"]),
    (
        "checkpoint = {file = 'a', done = {file = 'b'}}",
        ["checkpoint: done: file is stated twice"],
    ),
    (
        'checkpoint = {preset = "transparent", file = "a"}',
        ["checkpoint: file beside transparent", "only after_s"],
    ),
    (
        'checkpoint = "transparent"\nnodes = 2',
        ["checkpoint: transparent, for a job on several nodes"],
    ),
    (
        'checkpoint = "transparent"\ngpus = {min = 1, max = 4}',
        ["checkpoint: transparent, for a job on 1 to 4 GPUs", "say gpus = 1"],
    ),
    (
        'checkpoint = "transparent"\nmps = true',
        ["checkpoint: transparent, for a job that may share a GPU"],
    ),
    ("checkpoint = {after_s = 0, file = 'a'}", ["checkpoint: after_s: 0", "above 0"]),
    ("checkpoint = {after_s = 9}", ["checkpoint: after_s: nothing to wait for"]),
    ("checkpoint = {resume = '--a'}", ["checkpoint: resume: no file is stated"]),
    ("checkpoint = {file = 'a', resume = \"'\"}", ["checkpoint: resume: ", "quotation"]),
    (
        'checkpoint = {preset = "jax", after_s = 9}\nsuspend_timeout_s = 9',
        ["checkpoint: after_s: stated beside suspend_timeout_s"],
    ),
    (
        'checkpoint = "transformers"\nshell = true',
        ["checkpoint: adds", "--enable_jit_checkpoint", "resume = []"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "expected"), FAULTS, ids=[keys[:40] for keys, _ in FAULTS])
def test_each_fault_names_job_key_and_valid_values(keys: str, expected: list[str]) -> None:
    line = line_of(job(keys))
    for part in expected:
        assert part in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it has no [[job]]"),
        ("# nothing\n", "it has no [[job]]"),
        ("job = []\n", "it has no [[job]]"),
        ("job = 3\n", "job is an integer"),
        ("[job]\nname = 'a'\n", "job is a table (valid: [[job]])"),
        ("job = [3]\n", "[[job]] 1: an integer (valid: a table)"),
        ("[[jobs]]\nname = 'a'\n", "unknown table or key 'jobs' (valid: [[job]]); did you mean"),
        ("[[job]]\ncommand = 'x'\n", "[[job]] 1: name is missing"),
        ("[[job]]\nname = 'a'\n", "[[job]] 1 (a): command is missing"),
        ("[[job]]\nname = 3\n", "[[job]] 1: name: 3 is an integer"),
        ("[[job]]\nname = 'a/b'\n", "[[job]] 1 (a/b): name: 'a/b' (valid: up to 64"),
        ("[[job]]\nname = '..'\n", "name: '..'"),
        ("[[job]]\nname = '-f'\n", "name: '-f'"),
        ("[[job]]\nname = 'a '\n", "name: 'a '"),
        ("[[job]]\nname = ''\n", "name: ''"),
        ("[[job]]\nname = '12'\n", "a number is the id of a job"),
        ('[[job]]\nname = "a\\n"\n', r"name: 'a\n'"),
        ('[[job]]\nname = "\\u001b[31m"\n', r"name: '\x1b[31m'"),
        ('[[job]]\nname = "\\u202etxt"\n', r"name: '\u202etxt'"),
        (f"[[job]]\nname = '{'n' * 70}'\n", "up to 64"),
        (f"[[job]]\nname = '{'n' * 100000}'\n", "..."),
        ("[[job]]\nname = 'a'\ncommand = ''\n", "command: empty"),
        ("[[job]]\nname = 'a'\ncommand = '  '\n", "command: empty"),
        ("[[job]]\nname = 'a'\ncommand = []\n", "command: empty"),
        ("[[job]]\nname = 'a'\ncommand = ['']\n", "command: empty"),
        ("[[job]]\nname = 'a'\ncommand = 3\n", "command: 3 is an integer"),
        ("[[job]]\nname = 'a'\ncommand = ['x', 3]\n", "command: 3 is an integer"),
        ('[[job]]\nname = "a"\ncommand = "x \'y"\n', 'command: "x \'y": no closing quotation'),
        ('[[job]]\nname = "a"\ncommand = "x\\u0000y"\n', "NUL"),
        ('[[job]]\nname = "a"\ncommand = ["x", "\\u0000"]\n', "NUL"),
        (f'[[job]]\nname = "a"\ncommand = "{"x" * 70000}"\n', "command: 70000 bytes"),
        ("[[job]]\nname = \n", "not TOML: Invalid value (at line 2, column 8)"),
        ("[[job]]\nname = 'a'\nname = 'b'\n", "not TOML: Cannot overwrite a value (at line 3"),
        ("x = '\x1b[31m'\n", r"invalid character '\x1b'"),
        ("x = " + "[" * 100_000, "not TOML: nested too deeply"),
        (
            job() + job(name="b") + job(),
            "[[job]] 3 (a): name: 'a' is already the name of [[job]] 1",
        ),
        (job() + job("gpus = -1", "b"), "[[job]] 2 (b): gpus: -1"),
        (job("after = 'trian'") + job(name="train"), "did you mean train?"),
    ],
)
def test_faults_of_a_whole_file(text: str, expected: str) -> None:
    assert expected in line_of(text)


def test_a_cycle_is_named() -> None:
    text = job("after = 'c'", "a") + job("after = 'a'", "b") + job("after = ['b', 'd']", "c")
    line = line_of(text + job(name="d"))
    assert "[[job]] 1 (a): after: these jobs wait for each other: a -> c -> b -> a" in line


def test_paths_that_are_not_files_are_refused(tmp_path: Path) -> None:
    missing, fifo, binary = tmp_path / "missing", tmp_path / "fifo", tmp_path / "binary"
    os.mkfifo(fifo)
    binary.write_bytes(b'x = "a\xff"')
    huge = tmp_path / "huge"
    with open(huge, "wb") as file:
        file.truncate(1 << 40)
    odd = tmp_path / "odd\x1b[31m\n"
    for path, expected in (
        (missing, "no such file"),
        (tmp_path, "a directory"),
        (fifo, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (binary, "not UTF-8: byte 0xff at offset 6"),
        (huge, "1099511627776 bytes (valid: at most 32 MiB)"),
        (odd, "no such file"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        with pytest.raises(InputError) as caught:
            read_jobs(path)
        assert expected in str(caught.value)
        assert str(caught.value).isprintable()


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "million.toml"
    path.write_text("".join(f'[[job]]\nname="j{i}"\ncommand="x"\n' for i in range(1_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="at most 32 MiB"):
            read_jobs(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_too_many_jobs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobfile, "MAX_JOBS", 3)
    three = "".join(job(name=f"j{n}") for n in range(3))
    assert len(parse_jobs(three, "jobs.toml", Path("/"))) == 3
    assert "4 jobs (valid: at most 3)" in line_of(three + job(name="more"))


@pytest.mark.slow
def test_a_hundred_thousand_jobs_in_one_chain() -> None:
    chain = (job(f"after = 'j{n - 1}'" if n else "", f"j{n}") for n in range(jobfile.MAX_JOBS))
    specs = parse_jobs("".join(chain), "jobs.toml", Path("/"))
    assert len(specs) == jobfile.MAX_JOBS
    assert specs[-1].after == (f"j{jobfile.MAX_JOBS - 2}",)


def test_long_chains_need_no_recursion() -> None:
    chain = {str(n): [str(n + 1)] for n in range(50_000)}
    assert find_cycle(chain) == []
    cycle = find_cycle({**chain, "50000": ["0"]})
    assert len(cycle) == 50_001


@given(
    st.dictionaries(
        st.integers(0, 8).map(str), st.sets(st.integers(0, 9).map(str), max_size=4), max_size=9
    )
)
def test_cycles_are_found_where_there_are_some(after: dict[str, set[str]]) -> None:
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(after.get(start, ()))
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += after.get(name, ())
        return seen

    cycle = find_cycle(after)
    assert bool(cycle) == any(name in reachable(name) for name in after)
    for name, following in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        assert following in after[name]
    assert len(set(cycle)) == len(cycle)


@given(st.text(max_size=200))
def test_no_text_gives_anything_but_jobs_or_one_line(text: str) -> None:
    for whole in (text, f"[[job]]\nname = {json.dumps(text)}\n", job(text)):
        try:
            said = [spec.name for spec in parse_jobs(whole, "jobs.toml", Path("/"))]
        except InputError as error:
            said = [str(error)]
        assert len(said) == 1
        assert said[0].isprintable()


@pytest.mark.parametrize(
    ("keys", "best"),
    [
        ("gpus = 3", 3),
        ("gpus = {max = 6}", 6),
        ("gpus = {max = 6, optimal = 2}\nscaling = {1 = 1, 6 = 9}", 2),
        ("gpus = {max = 6}\nscaling = {1 = 1.0, 2 = 1.9, 4 = 3.0, 6 = 3.02}", 4),
        ("gpus = {max = 3}\nscaling = {1 = 1.0, 2 = 1.9, 4 = 3.0}", 2),
        ("gpus = {min = 2, max = 3}\nscaling = {1 = 5.0, 4 = 3.0}", 3),
        ("gpus = {max = 6}\nscaling = {1 = 1.0, 3 = 2.0, 6 = 1.5}", 3),
        ("gpus = {max = 6, multiple = 2}\nscaling = {2 = 1.0, 3 = 2.0, 6 = 1.5}", 6),
    ],
)
def test_the_optimum_is_the_fewest_that_are_nearly_best(keys: str, best: int) -> None:
    assert optimum(one(keys)) == best


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ("gpus = {max = 8, multiple = 2}", (2, 4, 6, 8)),
        ("gpus = {min = 4, max = 8, multiple = 4}", (4, 8)),
        ("gpus = {min = 2, max = 3}", (2, 3)),
    ],
)
def test_a_job_gets_multiples_and_no_other_number(keys: str, sizes: tuple[int, ...]) -> None:
    [job] = admit([one(keys)], 1, {})
    assert job.sizes == sizes


def test_trials_of_a_sweep_have_the_same_rules() -> None:
    rules = "sweep = 'a', metric = 'loss', first = 10"
    text = job(f"trial = {{{rules}}}") + job("trial = {sweep = 'b'}", "b")
    assert line_of(text + job(f"trial = {{{rules}, factor = 2}}", "c")).startswith(
        "jobs.toml: [[job]] 3 (c): trial: the rules of sweep a differ from those in [[job]] 1"
    )
    assert len(parse_jobs(text + job(f"trial = {{{rules}}}", "c"), "jobs.toml", Path("/"))) == 3


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("python train.py | tee log", "|"),
        ("python train.py > log", ">"),
        ("cd x && python train.py", "&&"),
        ("python train.py; echo done", ";"),
        ("python train.py &", "&"),
        ("python train.py --data $HOME/x", "$HOME"),
        ('python train.py --data "$HOME/x"', "$HOME"),
        ("python train.py --data $(pwd)", "$("),
        ("python train.py data/*.npz", "data/*.npz"),
        ("python train.py ~/data", "~"),
        (["a", "|", "b"], "|"),
        # Meant as it stands.
        ("torchrun --nproc-per-node={gpus} train.py --dir {checkpoint_dir}", ""),
        ("python train.py lr=[0.1,0.2] --glob=*.py", ""),
        ("python train.py 'a|b' '$HOME' \\$HOME a\\|b", ""),
        ('python -c "print(1); print(2)"', ""),
        ("python train.py --url http://host/x?a=b&c=d", ""),
        ('bash -c "python train.py | tee $LOG"', ""),
        (["sh", "-c", "a | b"], ""),
        (["python", "-c", "a > b; c"], ""),
    ],
)
def test_commands_that_are_meant_for_a_shell_are_doubted(
    command: str | list[str], what: str
) -> None:
    warnings: list[str] = []
    text = f'[[job]]\nname = "a"\ncommand = {json.dumps(command)}\n'
    (spec,) = parse_jobs(text, "jobs.toml", Path("/"), warnings=warnings)
    assert not spec.shell
    assert (f"{what!r} is passed on" in "".join(warnings)) == bool(what), warnings
    assert len(warnings) == bool(what)
    if isinstance(command, str):
        # For a shell all of it is well, but the end of what is before a pipe.
        (spec,) = parse_jobs(f"{text}shell = true\n", "jobs.toml", Path("/"), warnings=(more := []))
        assert spec.command == ("/bin/sh", "-c", command)
        assert len(more) == (what == "|")


def test_a_doubt_names_some_of_the_jobs() -> None:
    warnings: list[str] = []
    jobs = "".join(f'[[job]]\nname = "j{number}"\ncommand = "a | b"\n' for number in range(100))
    parse_jobs(jobs, "jobs.toml", Path("/"), warnings=warnings)
    (warning,) = warnings
    assert "j0, j1, j2, j3, j4, j5, j6, j7 and 92 more" in warning


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            'command = ["a"]\nshell = true',
            "command: an array (valid: a string, because shell = true)",
        ),
        ('command = "a"\nshell = "yes"', "shell: 'yes'"),
        ('shell = true\ncommand = " "', "command: empty"),
    ],
)
def test_faults_of_commands_for_a_shell(keys: str, expected: str) -> None:
    assert expected in line_of(f'[[job]]\nname = "a"\n{keys}\n')


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--ranks {gpu}", "gpus"),
        ("--to {checkpoints_dir}", "checkpoint_dir"),
        ("--lr {lr} --mode {mode} {gpus} {0} ${gpu}", ""),
    ],
)
def test_a_mistyped_placeholder_is_warned_of(words: str, meant: str) -> None:
    warnings: list[str] = []
    jobs = "".join(f"[[job]]\nname = '{name}'\ncommand = 'train {words}'\n" for name in "ab")
    parse_jobs(jobs, "jobs.toml", Path("/"), warnings=warnings)
    told = [each for each in warnings if "placeholder" in each]
    assert len(told) == bool(meant)
    assert all(f"the command of a, b has {words.split()[1]}, which" in each for each in told)
    assert all(each.endswith(f"did you mean {{{meant}}}?") for each in told)
