"""The benchmarks on a GPU, rehearsed by stand-ins: what they find out here, and how parts may end.

What they say of speed means nothing without a GPU, and is not looked at.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcext.manager import suspendable

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

import needs

GPU = Path(needs.__file__).parent

TRUE_HERE = {
    "facts": {"doctor", "processes", "pilot", "alone", "free", "faults"},
    "training": {"amp", "graphs", "freed"},
    "nccl": {"nccl", "again", "grow", "shrink", "grow_sharded", "shrink_sharded", "lost"},
    "mps": {"terminated", "killed", "anew", "daemon"},
    "transparent": {"same", "between", "same-user"},
    "agent": set(),
    "marble": {"learned"},
    "programs": {"jax"},
}
"""Part → its questions whose answer is yes by the stand-ins, too."""

PART = """
from pathlib import Path
from part import Part

def run(bench):
    {run}

PART = Part("{name}", "{name}", {limit_s}, {least_s}, {{"first": "1?", "second": "2?"}}, run)
"""


def left_behind(scratch: Path) -> list[str]:
    """Processes that know of this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(scratch).encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("names", [[*TRUE_HERE], ["agent"]])
def test_parts_are_rehearsed(tmp_path: Path, names: list[str]) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    numbers = ",".join(str([*TRUE_HERE].index(name) + 1) for name in names)
    words = ["--rehearse", "--parts", numbers, "--out", str(out), "--scratch", str(scratch)]
    done = subprocess.run(
        [str(GPU / "run"), *words],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    log = (out / "gpu.log").read_text()
    assert done.returncode == 0, done.stderr + log
    found = json.loads((out / "gpu.json").read_text())["parts"]
    states = {name: part["state"] for name, part in found.items()}
    assert states == dict.fromkeys(names, "done"), log
    assert not any(part["real"] for part in found.values())
    for name, part in found.items():
        answers = part["answers"]
        yes = {each for each in TRUE_HERE[name] if answers[each]["verdict"] == "yes"}
        assert yes == TRUE_HERE[name], (answers, log)
        assert all(each["says"] for each in answers.values() if each["verdict"] == "not asked")
    table = (out / "gpu.md").read_text()
    last = table.rstrip().splitlines()[-1]
    assert last.startswith("Real: none. Not real: ")
    assert all(f"{name} (rehearsed" in last for name in names)
    assert done.stdout.rstrip().endswith(table.rstrip())
    assert not left_behind(scratch)
    assert not list(scratch.iterdir())


class Kit:
    """A run of parts that tests make."""

    def __init__(self, path: Path) -> None:
        self.path, self.names = path, list[str]()
        (path / "modules").mkdir()

    def write(self, name: str, run: str, *, limit_s: float = 60.0, least_s: float = 0.0) -> None:
        """Make a part; what was there before is replaced."""
        text = PART.format(name=name, run=run, limit_s=limit_s, least_s=least_s)
        (self.path / "modules" / f"{name}.py").write_text(text)
        if name not in self.names:
            self.names.append(name)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin to run them."""
        program = (
            f"import sys; sys.path.insert(0, {str(GPU)!r}); import kit; "
            f"kit.NAMES = {tuple(self.names)!r}; "
            "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
            "sys.exit(kit.main())"
        )
        return subprocess.Popen(
            [sys.executable, "-c", program, "--out", str(self.path / "out"),
             "--scratch", str(self.path / "scratch"), *words],
            env={**os.environ, "PYTHONPATH": str(self.path / "modules")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> dict[str, Any]:
        """Run them; the results by part."""
        process = self.start(*words)
        _, err = process.communicate()
        assert process.returncode == 0, err
        return self.results()

    def results(self) -> dict[str, Any]:
        """What the document says, by part."""
        found: dict[str, Any] = json.loads((self.path / "out" / "gpu.json").read_text())
        return found["parts"]

    def count(self, name: str) -> int:
        """How often a part has run."""
        path = self.path / name
        return len(path.read_text()) if path.exists() else 0

    def counting(self, name: str) -> str:
        """The line by which a part counts."""
        return f"open({str(self.path / name)!r}, 'a').write('.')"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def verdicts(part: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["verdict"], each["says"]) for each in part["answers"].values()]


def test_a_part_that_fails_or_hangs_stops_no_other_and_keeps_its_answers(kit: Kit) -> None:
    child = "__import__('subprocess').Popen(['sleep', '600'], start_new_session=True)"
    kit.write("gpu_hangs", f"bench.answer('first', True); {child}; __import__('time').sleep(600)",
              limit_s=2.0)  # fmt: skip
    kit.write("gpu_raises", "bench.answer('first', False, 'why'); raise ValueError('no luck')")
    kit.write("gpu_broken", "pass")
    (kit.path / "modules" / "gpu_broken.py").write_text("import a_package_that_is_missing\n")
    kit.write("gpu_late", "pass", least_s=1e6)
    kit.write("gpu_works", "bench.answer('first', 'measured', x=1.5); bench.answer('second', True)")
    found = kit.run()
    assert {name: part["state"] for name, part in found.items()} == {
        "gpu_hangs": "ended early",
        "gpu_raises": "failed",
        "gpu_broken": "failed",
        "gpu_late": "skipped",
        "gpu_works": "done",
    }
    late = "it took longer than 2 s"
    assert verdicts(found["gpu_hangs"]) == [("yes", ""), ("not asked", late)]
    assert verdicts(found["gpu_raises"])[0] == ("no", "why")
    assert "a_package_that_is_missing" in found["gpu_broken"]["why"]
    assert verdicts(found["gpu_late"])[0][1].endswith("s were left, and it needs 1000000")
    assert verdicts(found["gpu_works"]) == [("measured", ""), ("yes", "")]
    assert "ValueError: no luck" in (kit.path / "out" / "gpu.log").read_text()
    assert not left_behind(kit.path / "scratch")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_told_to_end_leaves_answers_and_nothing_else(
    kit: Kit, signum: int, code: int
) -> None:
    there = kit.path / "there"
    kit.write(
        "gpu_long",
        f"bench.answer('first', True); __import__('pathlib').Path({str(there)!r}).touch(); "
        "__import__('time').sleep(600)",
    )
    kit.write("gpu_next", kit.counting("next"))
    process = kit.start()
    while not there.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signum)
    _, err = process.communicate()
    assert process.returncode == code, err
    found = kit.results()
    assert list(found) == ["gpu_long"]
    assert verdicts(found["gpu_long"]) == [("yes", ""), ("not asked", "the run was told to end")]
    assert not kit.count("next")
    assert not left_behind(kit.path / "scratch")
    assert not list((kit.path / "scratch").iterdir())


def test_a_run_goes_on_with_what_lacks_answers(kit: Kit) -> None:
    kit.write("gpu_done", f"{kit.counting('done')}; bench.answer('first', True)")
    kit.write("gpu_once", f"{kit.counting('once')}; bench.answer('first', True); raise OSError")
    kit.run()
    kit.write("gpu_once", f"{kit.counting('once')}; bench.answer('second', True)")
    found = kit.run()
    assert (kit.count("done"), kit.count("once")) == (1, 2)
    assert [verdict for verdict, _ in verdicts(found["gpu_once"])] == ["yes", "yes"]
    assert found["gpu_once"]["state"] == "done"
    kit.run("--again", "--parts", "1")
    assert (kit.count("done"), kit.count("once")) == (2, 2)


def test_a_rehearsal_takes_no_answer_from_a_real_run(kit: Kit) -> None:
    kit.write("gpu_real", f"{kit.counting('real')}; bench.answer('first', not bench.rehearse)")
    kit.run("--rehearse")
    found = kit.run()
    assert (found["gpu_real"]["real"], kit.count("real")) == (True, 2), "it was only rehearsed"
    found = kit.run("--rehearse", "--again")
    assert (found["gpu_real"]["real"], kit.count("real")) == (True, 3)
    assert verdicts(found["gpu_real"])[0] == ("yes", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "9"], "--parts: '9' (valid: 1 to 8)"),
        (["--earlier", "/nonexistent/gpu.json"], "No such file or directory"),
        (["--earlier", __file__], "--out another directory begins anew"),
        (["--out", "/dev/null"], "/dev/null"),
    ],
)
def test_bad_words_are_refused_in_a_line(tmp_path: Path, words: list[str], said: str) -> None:
    command = [sys.executable, str(GPU / "kit.py"), "--out", str(tmp_path / "out"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho False\n")
    python.chmod(0o755)
    done = subprocess.run(
        [str(GPU / "run")],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no PyTorch that finds a GPU in:" in done.stderr


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ([{7}, set(), {8}], "yes"),
        ([{7}, {7, 8}, {8}], "no"),
        ([set(), set()], "not asked"),
    ],
)
def test_two_jobs_at_once_on_a_gpu_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[set[int]], verdict: str
) -> None:
    # What these modules put into the path is not for other tests.
    monkeypatch.syspath_prepend(str(GPU))
    facts, part = map(importlib.import_module, ("facts", "part"))
    bench = part.Bench(facts.PART, tmp_path, 60.0, rehearse=False)
    facts._alone(bench, list(map(frozenset, seen)), {7, 8})
    answers = part.read_answers(part.answers_of(tmp_path, "facts"))
    assert answers["alone"]["verdict"] == verdict


def test_what_is_carried_is_what_a_manager_needs() -> None:
    always = [need.name for need in needs.needs() if need.below is None]
    assert sorted(needs.MODULES.get(name, name) for name in always) == sorted(suspendable.NEEDED)
    assert not needs.missing()
