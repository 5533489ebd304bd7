"""The table of checks: whatever one of them does, the others are shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from hpcext.core.errors import InputError
from hpcext.doctor.checks import CHECKS
from hpcext.doctor.checkup import Check, CheckOptions, Finding, examine

NOTHING = CheckOptions(None)


def fine(asked: CheckOptions) -> Iterator[Finding]:
    yield Finding("fine", "ok", f"queue {asked.queue}")


def raises(asked: CheckOptions) -> Iterator[Finding]:
    yield Finding("raises", "ok", "so far")
    yield Finding("raises", "note", "this", why="own")
    raise InputError("no", where="file", do="do it")


def breaks(asked: CheckOptions) -> Iterator[Finding]:
    raise ZeroDivisionError("\x1b[2J")
    yield


def test_one_that_fails_is_a_finding_and_hides_no_other() -> None:
    checks = [Check("raises", raises, "why"), Check("breaks", breaks, "y"), Check("fine", fine, "")]
    assert list(examine(checks, CheckOptions(None, queue="q"))) == [
        Finding("raises", "ok", "so far"),
        Finding("raises", "note", "this", why="own"),
        Finding("raises", "wrong", "file: no", "do it", "why"),
        Finding("breaks", "wrong", r"could not be checked: ZeroDivisionError: \x1b[2J", why="y"),
        Finding("fine", "ok", "queue q"),
    ]


def test_one_that_hangs_is_left_behind() -> None:
    ever = threading.Event()

    def hangs(asked: CheckOptions) -> Iterator[Finding]:
        yield Finding("hangs", "ok", "so far")
        ever.wait()

    began = time.monotonic()
    found = list(
        examine([Check("hangs", hangs, "", within_s=0.3), Check("fine", fine, "")], NOTHING)
    )
    assert time.monotonic() - began < 60
    assert [(each.name, each.verdict) for each in found] == [
        ("hangs", "ok"), ("hangs", "wrong"), ("fine", "ok"),
    ]  # fmt: skip
    assert found[1].says == "no answer within 0.3 s"
    ever.set()


def test_checks_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=500)

    def meets(asked: CheckOptions) -> Iterator[Finding]:
        both.wait()
        yield Finding("meets", "ok", "")

    found = list(examine([Check("one", meets, ""), Check("two", meets, "")], NOTHING))
    assert [each.verdict for each in found] == ["ok", "ok"]


def test_names_in_the_table_are_unique() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
