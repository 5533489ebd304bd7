"""Fixtures that several folders use."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import nvidia_machine
import own_state
from amd_machine import make_nodes
from site_of_test import Site

from hpcext.executors import gpu_facts, gpus
from hpcext.launch import devices

# Where it is set, as in many containers, each of the thousand processes of these tests would
# compile all of ours that it imports: a third of the time of a short command.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
# Ignored, as in the background of a shell, it would be ignored by all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Before any module of ours is asked where that is.
_PLACE = own_state.begin()
_BEFORE = own_state.entries(own_state.user_state())


_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGHUP,
)  # fmt: skip


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """What a session in this process ignores or blocks, the programs of later tests would, too."""
    handlers = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    for signum, handler in handlers.items():
        if handler is not None and signal.getsignal(signum) is not handler:
            signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have the run fail whose tests left something in the user's own state directory."""
    if hasattr(session.config, "workerinput"):
        return
    tests = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    left = list(own_state.left_by(tests, own_state.user_state(), _BEFORE))
    for path in left:
        sys.stderr.write(f"\nleft by tests: {path}: give them the XDG_STATE_HOME of own_state.py\n")
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    """Leave nothing of the tests' own place."""
    if _PLACE is not None:
        own_state.end(_PLACE)


WAITS = ("system", "lsf", "seams", "launch", "executors", "manager", "broker", "trackers")
"""Folders whose tests mostly wait."""

COMPUTES = (
    "gpu", "training", "packages", "tensorflow", "jax", "transformers", "lightning", "run",
    "random_faults", "faults", "rescaling", "examples", "doctor", "sim", "cli", "compatibility",
    "core",
)  # fmt: skip
"""Other folders with long files."""


PART = 6
"""Of the examples of a property, so many times fewer are tried where slow tests are left out."""

LEAST = 15
"""But so many, if it has them."""


def _fewer_examples(items: list[pytest.Item]) -> None:
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if not getattr(function, "is_hypothesis_test", False) or hasattr(function, "has_fewer"):
            continue
        # Those of a parametrized test are one function.
        function.has_fewer = True
        before = function._hypothesis_internal_use_settings
        few = min(before.max_examples, max(LEAST, before.max_examples // PART))
        function._hypothesis_internal_use_settings = hypothesis.settings(before, max_examples=few)


def _fewer_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take out all but some of the cases of tests marked so, evenly spread; return the others."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("cases")
        if mark is not None and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0], mark.args[0]
            cases.setdefault(test, []).append(item)
    left_out = set()
    for (_, most), found in cases.items():
        few = min(most, len(found))
        kept = {index * len(found) // few for index in range(few)}
        left_out |= {item for index, item in enumerate(found) if index not in kept}
    items[:] = [item for item in items if item not in left_out]
    return list(left_out)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first, and those that wait beside those that compute.

    Files are given to the processes that run tests in this order, so none of them is left with a
    long one at the end, and the processors have something to do.

    Properties have all their examples unless slow tests are left out, and tests marked ``cases``
    all their cases: ``make test-slow`` tries them.
    """
    if "not slow" in config.option.markexpr:
        _fewer_examples(items)
        config.hook.pytest_deselected(items=_fewer_cases(items))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)

    def of(folders: tuple[str, ...]) -> list[Path]:
        places = {name: place for place, name in enumerate(folders)}
        found = [path for path in files if path.parent.name in places]
        return sorted(found, key=lambda path: places[path.parent.name])

    pairs = itertools.zip_longest(of(WAITS), of(COMPUTES))
    order = [path for pair in pairs for path in pair if path is not None]
    order += [path for path in files if path not in set(order)]
    items[:] = [item for path in order for item in files[path]]


ONE_BY_ONE = ("tests/docs/test_pages.py",)
"""Long files whose tests share nothing, and are spread over the processes."""


SHARED = {
    f"tests/{folder}/test_{name}.py": f"tests/{folder}"
    for folder, names in (
        ("tensorflow", ("fit", "loop", "balanced_tf")),
        (
            "training",
            ("torch_features", "adapted", "apart", "balanced", "interrupted_torch", "sharded"),
        ),
    )
    for name in names
}
"""Files that one process runs, since they share one that has imported a framework."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what is collected, which stays to the end, to no collection of garbage, then or later.

    Each process that runs tests collects them all; tests that make much garbage, and processes
    that are forked, would go through all of it again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out all other files whole, as ``--dist loadfile`` does, and some together."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ONE_BY_ONE):
                return nodeid
            file = super()._split_scope(nodeid)
            return SHARED.get(file, file)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A place for real managers and jobs; nothing of it survives the test."""
    place = Site(tmp_path)
    yield place
    for manager in place.started:
        # First, or it would start again what is killed next.
        manager.kill()
        manager.wait()
    place.kill_left_behind()


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with AMD's driver, on which AMD's library has not been looked for yet."""
    monkeypatch.setattr(devices, "_AMD", tmp_path)
    monkeypatch.setattr(devices, "_NVIDIA", tmp_path / "none")
    make_nodes(tmp_path / "nodes")
    found = gpus.amd_gpus(tmp_path / "nodes")
    monkeypatch.setattr(gpus, "amd_gpus", lambda: found)
    for name in devices.NAMES:
        monkeypatch.delenv(name, raising=False)
    gpu_facts.amdsmi.cache_clear()
    yield
    gpu_facts.amdsmi.cache_clear()


@pytest.fixture(scope="session")
def stand_ins_of_nvidia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries of NVIDIA's driver that :mod:`nvidia_machine` needs."""
    return nvidia_machine.build(tmp_path_factory.mktemp("nvidia"))


@pytest.fixture
def machine(
    tmp_path: Path, stand_ins_of_nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> nvidia_machine.Machine:
    """A machine with two GPUs, of which the first one is visible."""
    path = tmp_path / "driver"
    shutil.copytree(stand_ins_of_nvidia, path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return nvidia_machine.Machine(path)
