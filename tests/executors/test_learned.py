"""Warm starts that nobody has asked for: by what the attempt before was seen to import."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from site_of_test import wait_for
from stage import Stage
from test_local import in_loop
from test_preload import PROGRAM, Twice, nurseries, words

from hpcext.config import load_settings
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.errors import InputError
from hpcext.executors import local as local_
from hpcext.executors.attempt import learned
from hpcext.jobfile import parse_jobs
from hpcext.launch import nurseries as starting
from hpcext.protocol import digest
from hpcext.training import imported

ALL_KNOWN = learned.KNOWN


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is quick to import, in the place of PyTorch."""
    monkeypatch.setattr(learned, "KNOWN", ("heavy", "other"))


def said(*modules: str) -> dict[str, Any]:
    """What a session says of its script, which does nothing before it imports them."""
    environ = {"SET_BY_IMPORT": digest("1")} if "heavy" in modules else {}
    return {"modules": list(modules), "environ": environ, "compiled": []}


class Learns(Twice):
    """A job that states no modules, and whose session says some."""

    def __init__(self, stage: Stage, *words: str, learns: bool = True, says: Any = None) -> None:
        super().__init__(stage, *words, modules=(), learns=learns)
        self.says = said("heavy") if says is None else says

    async def waits(self, attempt: int) -> None:
        """Wait until its command runs."""
        log = self.local.jobs / "1" / "log.txt"
        while not log.exists() or [each[:5] for each in self.logs()].count("waits") < attempt:
            await asyncio.sleep(0.02)

    async def suspended(self, attempt: int) -> None:
        """Begin an attempt, which reports what it has imported, and suspend it."""
        self.begin(attempt)
        await self.local.heard(f.Started, "1", attempt)
        directory = self.local.jobs / "1" / f"attempt-{attempt:04d}"
        report = {"schema": "hpcext.report/1", "beforehand": self.says}
        (directory / "report.json").write_text(json.dumps(report))
        await self.waits(attempt)
        self.local.perform(v.Kind.SUSPEND, "1", attempt)
        self.local.perform(v.Kind.KILL, "1", attempt)
        await self.local.heard(f.Ended, "1", attempt)


@in_loop
async def test_the_attempt_after_a_suspension_finds_it_imported(stage: Stage) -> None:
    learns = Learns(stage, sys.executable, PROGRAM, "wait")
    await learns.suspended(1)
    await learns.ready()
    learns.begin(2)
    await learns.waits(2)
    (of_all,) = nurseries()
    (supervisor,) = of_all.children()
    assert supervisor.children()
    # In the first attempt, and for all that follow.
    assert learns.imports() == 2
    learns.local.perform(v.Kind.KILL, "1", 2)
    await learns.local.heard(f.Ended, "1", 2)


@pytest.mark.parametrize(
    "how",
    [
        "asked",
        "none stated",
        "not known",
        "not a list",
        "no premise",
        "as once",
        "no memory",
        "nothing said",
    ],
)
@in_loop
async def test_nothing_is_imported_where_it_is_not_wanted(
    stage: Stage, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = {
        "not known": said("os"),
        "not a list": {**said(), "modules": "heavy"},
        "no premise": {"modules": ["heavy"]},
        "as once": ["heavy"],
        "nothing said": {},
    }.get(how, said("heavy"))
    if how == "asked":
        monkeypatch.setenv("HPCEXT_WARM_STARTS", "asked")
    if how == "no memory":
        monkeypatch.setattr(local_, "host_memory", lambda _: 1 << 30)
    learns = Learns(stage, sys.executable, PROGRAM, "wait", learns=how != "none stated", says=says)
    await learns.suspended(1)
    learns.local.executor.look()
    assert nurseries() == []


@in_loop
async def test_one_that_fails_is_nobodys_concern(stage: Stage) -> None:
    """Nobody has asked for it: the training imports what it needs, as ever."""
    learns = Learns(stage, sys.executable, PROGRAM, "wait", says=said("other"))
    await learns.suspended(1)
    learns.begin(2)
    while nurseries():
        learns.local.executor.look()
        await asyncio.sleep(0.02)
    learns.local.perform(v.Kind.KILL, "1", 2)
    await learns.local.heard(f.Ended, "1", 2)
    assert not [fact for fact in learns.local.facts if isinstance(fact, f.Noted)]


@pytest.mark.parametrize(
    ("premise", "why"),
    [
        ({"environ": {"COUNTED": digest("1"), "GONE": None}, "compiled": ["settled"]}, ""),
        # Set by the script: another value, one more, or one that it has set back.
        ({"environ": {"COUNTED": digest("2"), "GONE": None}, "compiled": []}, "sets COUNTED"),
        (
            {"environ": {"COUNTED": digest("1"), "GONE": None, "OWN": digest("1")}, "compiled": []},
            "the script sets OWN before it imports",
        ),
        ({"environ": {"COUNTED": digest("1")}, "compiled": []}, "sets GONE"),
        (
            {"environ": {"COUNTED": digest("1"), "GONE": None}, "compiled": ["settled", "another"]},
            "the script imports another first",
        ),
    ],
)
def test_it_is_forked_only_where_the_import_explains_what_the_session_found(
    tmp_path: Path, premise: dict[str, Any], why: str
) -> None:
    (tmp_path / "settled.py").write_text(
        "import os\nos.environ['COUNTED'] = '1'\ndel os.environ['GONE']\n"
    )
    one = starting.Preloaded()
    try:
        nursery = one.of(
            {
                "argv": [sys.executable, "x.py"],
                "preload": ["settled"],
                "preload_if": premise,
                "cwd": str(tmp_path),
                "environ": {"GONE": "1", "PYTHONPATH": str(tmp_path)},
            }
        )
        nursery.prepare()
        # Everybody can read command lines.
        assert not [each for each in nurseries() if "COUNTED" in " ".join(words(each))]

        def settled() -> bool:
            nursery.look()
            # For a moment, as it begins, a program has no words.
            found = [words(each) for each in nurseries()]
            ready = bool(found) and not any(starting.PADDING in each for each in found)
            return bool(nursery.failed) or ready

        wait_for(settled, "what it makes of it")
        assert why in nursery.failed
        assert bool(why) == bool(nursery.failed)
    finally:
        one.close()


def test_no_more_than_two_are_kept_that_nobody_asked_for() -> None:
    many = starting.Preloaded()
    try:
        for number in range(4):
            many.prepare(
                {
                    "argv": [sys.executable, "x.py"],
                    "preload": ["json"],
                    "cwd": os.getcwd(),
                    "environ": {"NUMBER": str(number)},
                }
            )
        assert len(nurseries()) == 2
    finally:
        many.close()


@pytest.mark.parametrize(
    ("key", "preload"), [("", ()), ("preload = []", ()), ('preload = "torch"', ("torch",))]
)
def test_what_is_stated_is_not_learned(key: str, preload: Any, tmp_path: Path) -> None:
    text = f'[[job]]\nname = "a"\ncommand = "python a.py"\n{key}\n'
    (spec,) = parse_jobs(text, "jobs.toml", tmp_path)
    assert (spec.preload, spec.learns) == (preload, not key)


def test_all_that_sessions_say_is_known() -> None:
    # As the module has it, and not as tests do.
    known = {*imported.FRAMEWORKS, *imported.FRAMEWORKS.values()}
    assert known == set(ALL_KNOWN)
    assert all(
        ALL_KNOWN.index(each) < ALL_KNOWN.index(name) for name, each in imported.FRAMEWORKS.items()
    )


def test_the_setting_is_one_of_two() -> None:
    assert load_settings(environ={}).warm_starts == "auto"
    with pytest.raises(InputError, match="auto, asked"):
        load_settings(environ={"HPCEXT_WARM_STARTS": "no"})
