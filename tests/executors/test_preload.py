"""``preload``: a command that is not executed sees and does what it would if it were."""

from __future__ import annotations

import asyncio
import json
import py_compile
import re
import shutil
import signal
import sys
import zipapp
from pathlib import Path
from typing import Any

import psutil
import pytest
from stage import Stage, runs
from test_local import Local, in_loop
from test_next_allocation import in_next

from hpcext.backends.slurm.steps import SlurmSteps
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.executors.attempts import NO_PRELOAD
from hpcext.launch import nurseries as starting
from hpcext.launch import preload as program

PROGRAMS = Path(__file__).parent / "preloading"
PROGRAM = str(PROGRAMS / "program.py")
HPCEXT = str(Path(sys.executable).with_name("hpcext"))


def words(process: psutil.Process) -> list[str]:
    """The command line of a process; none of a zombie that another test has left here."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def nurseries() -> list[psutil.Process]:
    """Those of this process that have imported something, or do."""
    return [each for each in psutil.Process().children() if program.__file__ in words(each)]


class Twice:
    """A job that is begun twice: as usual, and by a process that has imported its module."""

    def __init__(
        self,
        stage: Stage,
        *words: str,
        modules: tuple[str, ...] = ("heavy",),
        programs: Path = PROGRAMS,
        learns: bool = False,
    ) -> None:
        self.stage = stage
        self.local = Local(stage)
        env = {"PYTHONPATH": str(programs), "IMPORTS": str(stage.path / "imports")}
        self.local.job("1", *words, env=env, preload=modules, learns=learns)

    def begin(self, attempt: int) -> None:
        self.local.perform(v.Kind.START, "1", attempt, alloc={"n": 1})

    async def ends(self, attempt: int) -> f.Ended:
        self.begin(attempt)
        return await self.local.heard(f.Ended, "1", attempt)

    async def ready(self) -> None:
        """Wait until the process has imported the module."""
        while not (found := nurseries()) or any(starting.PADDING in words(each) for each in found):
            await asyncio.sleep(0.02)

    async def both(self) -> list[f.Ended]:
        first = await self.ends(1)
        await self.ready()
        return [first, await self.ends(2)]

    async def warned(self) -> str:
        """Begin it, and again once that has no effect; the reason that its user is told."""
        ended = await self.ends(1)
        assert ended.outcome is f.Outcome.COMPLETED, self.logs()
        while nurseries():
            self.local.executor.look()
            await asyncio.sleep(0.02)
        self.begin(2)
        self.local.executor.look()
        noted = await self.local.heard(f.Noted, "1", 2)
        (note,) = noted.notes
        before, _, why = note.partition(" effect: ")
        assert before == "preload has no"
        await self.local.heard(f.Ended, "1", 2)
        return why

    def logs(self) -> list[str]:
        """What each attempt has printed, without its heading."""
        text = (self.local.jobs / "1" / "log.txt").read_text()
        _, *parts = text.split("--- attempt ")
        return [part.partition("\n")[2] for part in parts]

    def seen(self) -> list[Any]:
        return [json.loads(log.partition("SEEN ")[2]) for log in self.logs()]

    def imports(self) -> int:
        return len((self.stage.path / "imports").read_text().split())


def alike(seen: dict[str, Any], attempt: int) -> dict[str, Any]:
    """What is the same in both attempts: their number and their pids are not."""
    text = json.dumps(seen).replace(f"attempt-{attempt:04d}", "attempt")
    found: dict[str, Any] = json.loads(text)
    environ = found["environ"]
    for name in ("HPCEXT_ATTEMPT", "HPCEXT_OP", "HPCEXT_NOTIFY", "HPCEXT_RESTART_STEP"):
        shown = f"{name}={environ.pop(name)}"
        found["shown"].remove(shown)
    # Of these Python knows after a fork what it does not know otherwise; SigCgt tells all.
    for signum in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV):
        del found["signals"][str(int(signum))]
    found["main"] = {
        name: re.sub(" at 0x[0-9a-f]+", "", value) for name, value in found["main"].items()
    }
    return found


def without_ports(seen: dict[str, Any]) -> dict[str, Any]:
    """What is seen by a rank but for where its ranks meet, which is another place each time."""
    environ = seen["environ"]
    for name in ("MASTER_PORT", "HPCEXT_RANK", "HPCEXT_RENDEZVOUS", "HPCEXT_LAUNCHER"):
        if name in environ:
            seen["shown"].remove(f"{name}={environ.pop(name)}")
    return seen


@pytest.fixture(autouse=True)
def without_readline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readline, in the process of a test, sets what Python there does not know of."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, "80")


@pytest.mark.parametrize(
    "words",
    [(sys.executable,), (sys.executable, "-u", "-B"), (sys.executable, "-X", "dev")],
    ids=["plain", "unbuffered", "with a value"],
)
@in_loop
async def test_it_sees_nothing_else(stage: Stage, words: tuple[str, ...]) -> None:
    twice = Twice(stage, *words, PROGRAM, "seen", "a b", "")
    for ended in await twice.both():
        assert ended.outcome is f.Outcome.COMPLETED, twice.logs()
    cold, warm = (alike(seen, at + 1) for at, seen in enumerate(twice.seen()))
    assert warm == cold
    assert warm["environ"]["SET_BY_IMPORT"] == "1"
    # In the first attempt, and for all that follow.
    assert twice.imports() == 2


@in_loop
async def test_a_module_is_run_as_well(stage: Stage) -> None:
    twice = Twice(stage, sys.executable, "-m", "program", "seen")
    await twice.both()
    cold, warm = (alike(seen, at + 1) for at, seen in enumerate(twice.seen()))
    assert warm == cold
    assert twice.imports() == 2


@pytest.mark.parametrize(
    "launcher", [(HPCEXT,), (sys.executable, "-m", "hpcext")], ids=["program", "module"]
)
@in_loop
async def test_each_rank_of_a_launcher_sees_nothing_else(
    stage: Stage, launcher: tuple[str, ...]
) -> None:
    launch = [*launcher, "launch", "--ranks=2", "--"]
    twice = Twice(stage, *launch, sys.executable, PROGRAM, "rank")
    for ended in await twice.both():
        assert ended.outcome is f.Outcome.COMPLETED, twice.logs()
    for rank in "01":
        cold, warm = (
            without_ports(alike(json.loads((directory / f"seen-{rank}").read_text()), attempt))
            for attempt in (1, 2)
            for directory in [twice.local.jobs / "1" / f"attempt-{attempt:04d}"]
        )
        assert warm == cold
        assert warm["environ"]["RANK"] == warm["environ"]["LOCAL_RANK"] == rank
        assert warm["environ"]["SET_BY_IMPORT"] == "1"
    # In each rank of the first attempt, and for all that follow.
    assert twice.imports() == 3


@in_loop
async def test_a_rank_that_fails_ends_the_launcher_as_ever(stage: Stage) -> None:
    twice = Twice(stage, HPCEXT, "launch", sys.executable, PROGRAM, "exit")
    first, second = await twice.both()
    assert twice.imports() == 2
    assert (first.exit_code, second.exit_code) == (7, 7), twice.logs()
    cold, warm = twice.logs()
    assert warm == cold


@in_loop
async def test_an_import_that_asks_for_its_rank_is_no_part_of_it(stage: Stage) -> None:
    """Each rank would take the answer that there is none for its own."""
    twice = Twice(stage, HPCEXT, "launch", sys.executable, PROGRAM, "seen", modules=("ranked",))
    why = "ranked: an import asks for LOCAL_RANK, which each rank gets later"
    assert await twice.warned() == why


@in_loop
async def test_one_that_is_no_rank_may_ask_for_it(stage: Stage) -> None:
    twice = Twice(stage, sys.executable, PROGRAM, "exit", modules=("heavy", "ranked"))
    await twice.both()
    assert twice.imports() == 2


@in_loop
async def test_its_classes_and_functions_are_found(stage: Stage) -> None:
    twice = Twice(stage, sys.executable, PROGRAM, "main")
    await twice.both()
    assert twice.seen() == [[42, "heavy"]] * 2


@in_loop
async def test_two_draw_unlike_numbers(stage: Stage) -> None:
    twice = Twice(stage, sys.executable, PROGRAM, "draw", modules=("heavy", "numpy", "torch"))
    await twice.both()
    await twice.ends(3)
    assert twice.imports() == 2
    drawn = [number for numbers in twice.seen() for number in numbers]
    assert len({*drawn}) == len(drawn) == 9


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("exit", 7),
        ("message", 1),
        ("raise", 1),
        ("interrupt", -signal.SIGINT),
        ("kill", -9),
        ("hook", 1),
    ],
)
@in_loop
async def test_it_ends_as_ever(stage: Stage, way: str, code: int) -> None:
    twice = Twice(stage, sys.executable, PROGRAM, way)
    first, second = await twice.both()
    assert twice.imports() == 2
    assert (first.exit_code, second.exit_code) == (code, code), twice.logs()
    cold, warm = twice.logs()
    assert warm == cold


@in_loop
async def test_it_is_killed_and_nothing_of_it_is_left(stage: Stage) -> None:
    twice = Twice(stage, sys.executable, PROGRAM, "wait")
    twice.begin(1)
    await twice.ready()
    twice.local.perform(v.Kind.KILL, "1", 1)
    await twice.local.heard(f.Ended, "1", 1)
    twice.begin(2)
    while ["waits" in log for log in twice.logs()][1:] != [True]:
        await asyncio.sleep(0.02)
    # By SIGKILL to its supervisor: what is left is found by its variables.
    (of_all,) = nurseries()
    (supervisor,) = of_all.children()
    (command,) = supervisor.children()
    supervisor.kill()
    ended = await twice.local.heard(f.Ended, "1", 2)
    assert ended.outcome is f.Outcome.LOST
    assert not runs(command.pid)
    assert of_all.is_running()


@in_loop
async def test_another_environment_is_not_taken_for_this_one(stage: Stage) -> None:
    """A job of which a variable was changed is executed by a process of its own."""
    twice = Twice(stage, sys.executable, PROGRAM, "seen")
    await twice.both()
    env = {**twice.local.specs["1"].env, "OMP_NUM_THREADS": "3"}
    twice.local.job("1", *twice.local.specs["1"].command, env=env, preload=("heavy",))
    await twice.ends(3)
    assert twice.seen()[-1]["environ"]["OMP_NUM_THREADS"] == "3"
    await twice.ready()
    assert len(nurseries()) == 2


@pytest.mark.parametrize("kind", ["archive", "compiled"])
@in_loop
async def test_what_is_no_text_is_executed(stage: Stage, kind: str) -> None:
    """An archive begins with any line that starts it."""
    program = stage.path / "program"
    if kind == "archive":
        (stage.path / "source").mkdir()
        shutil.copy(PROGRAM, stage.path / "source" / "__main__.py")
        zipapp.create_archive(stage.path / "source", program, interpreter=sys.executable)
    else:
        py_compile.compile(PROGRAM, cfile=str(program), doraise=True)
    twice = Twice(stage, sys.executable, str(program), "exit")
    for ended in await twice.both():
        assert ended.exit_code == 7, twice.logs()


@in_loop
async def test_a_module_that_was_changed_is_imported_anew(stage: Stage) -> None:
    programs = stage.path / "programs"
    shutil.copytree(PROGRAMS, programs)
    twice = Twice(stage, sys.executable, str(programs / "program.py"), "main", programs=programs)
    await twice.both()
    with (programs / "heavy.py").open("a") as module:
        module.write("__name__ = 'changed'\n")
    await twice.ends(3)
    assert twice.seen()[-1] == [42, "changed"]


@in_loop
async def test_another_copy_of_hpcext_is_not_mixed_with_ours(stage: Stage) -> None:
    programs = stage.path / "programs"
    shutil.copytree(PROGRAMS, programs)
    (programs / "hpcext").mkdir()
    (programs / "hpcext" / "__init__.py").touch()
    twice = Twice(stage, sys.executable, PROGRAM, "seen", programs=programs)
    assert await twice.warned() == "the interpreter has another copy of hpcext"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("absent", "absent: ModuleNotFoundError: No module named 'absent'"),
        ("threads", "threads: an import starts threads"),
    ],
)
@in_loop
async def test_what_cannot_be_forked_is_said_and_the_job_runs(
    stage: Stage, module: str, why: str
) -> None:
    twice = Twice(stage, sys.executable, PROGRAM, "seen", modules=(module,))
    assert await twice.warned() == why


@in_loop
async def test_of_many_environments_the_newest_are_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "MOST", 2)
    twice = Twice(stage, sys.executable, PROGRAM, "seen")
    env = twice.local.specs["1"].env
    for attempt in (1, 2, 3):
        changed = {**env, "NUMBER": str(attempt)}
        twice.local.job("1", *twice.local.specs["1"].command, env=changed, preload=("heavy",))
        await twice.ends(attempt)
    assert len(nurseries()) == 2
    twice.local.executor.close()
    assert not nurseries()


@in_loop
async def test_that_steps_are_not_forked_is_said(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmSteps, "_launch", lambda *_: None)
    local = in_next(stage, "slurm-steps")
    try:
        local.job("1", sys.executable, PROGRAM, preload=("heavy",))
        local.perform(v.Kind.START, "1", alloc={"new": 1})
        noted = await local.heard(f.Noted, "1")
    finally:
        local.executor.close()
    assert noted.notes == (NO_PRELOAD,)
