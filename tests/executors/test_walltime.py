"""When a pilot leaves its allocation, by what the batch system answers and when it is asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpcext.batch import lsf, runner
from hpcext.batch.slurm.commands import Commands
from hpcext.core.errors import BatchError
from hpcext.core.facts import Drain, Fact
from hpcext.executors import walltime as walltimes
from hpcext.executors.walltime import Walltime

LEAD_S = 100.0


class Slurm:
    """Answers in the place of squeue, one after the other; the last one for ever."""

    def __init__(self, *answers: Callable[[], str], preempted: bool = False) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.preempted = preempted

    def run(self, argv: Sequence[str], **options: Any) -> str:
        if argv[0] == "scontrol":
            at = "2026-11-22T23:54:24" if self.preempted else "None"
            return f"JobId=7 JobState=RUNNING PreemptTime={at}\n"
        assert argv[0] == "squeue"
        # What instants look like depends on it.
        assert options["environ"]["SLURM_TIME_FORMAT"] == "%s"
        return self.answer()

    def answer(self) -> str:
        self.asked += 1
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()


class Lsf(Slurm):
    """The same in the place of bjobs."""

    def run(self, argv: Sequence[str], **options: Any) -> str:
        assert argv[0] == "bjobs"
        state, end = self.answer().strip().split("|")[:2]
        left_s = float(end) - time.time()
        record = {
            "JOBID": "7",
            "STAT": {"RUNNING": "RUN"}.get(state, state),
            "RUN_TIME": "60 second(s)",
            "RUNTIMELIMIT": f"{(60 + left_s) / 60:.3f}",
            "TIME_LEFT": "",
        }
        return json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [record]})


SYSTEMS = pytest.mark.parametrize("system", [Slurm, Lsf])


def ends_in(seconds: float, state: str = "RUNNING", *, limit_s: int = 0) -> Callable[[], str]:
    """With a limit of so many seconds from now on; 0: none that is known."""
    now_s = time.time()
    limit = f"0:{limit_s}" if limit_s else "INVALID"
    return lambda: f"{state}|{now_s + seconds:.0f}|{now_s:.0f}|{limit}\n"


def no_end() -> str:
    return "RUNNING|N/A|N/A|INVALID\n"


def broken() -> str:
    raise BatchError("squeue gave no answer")


def watch(
    monkeypatch: pytest.MonkeyPatch, slurm: Slurm, *looks: bool, wait_s: float = 0.0
) -> tuple[list[Fact], Walltime]:
    """Begin, look once for each of `looks` (whether a step was told to end), and wait."""
    return follow(monkeypatch, slurm, *looks, until=lambda _: False, wait_s=wait_s)


def follow(
    monkeypatch: pytest.MonkeyPatch,
    slurm: Slurm,
    *looks: bool,
    until: Callable[[list[Fact]], bool],
    wait_s: float = 30.0,
) -> tuple[list[Fact], Walltime]:
    """The same, until something is so."""
    monkeypatch.setattr(runner, "run", slurm.run)
    facts: list[Fact] = []
    asked = lsf.Commands() if isinstance(slurm, Lsf) else Commands()

    async def main() -> Walltime:
        loop = asyncio.get_running_loop()
        walltime = Walltime(
            7, ask=asked.end, wanted=asked.preempted, lead_s=LEAD_S, emit=facts.append, loop=loop
        )
        await walltime.look()
        for noticed in looks:
            await walltime.look(noticed=noticed)
        end_s = loop.time() + wait_s
        while loop.time() < end_s and not until(facts):
            await asyncio.sleep(0.02)
        walltime.close()
        return walltime

    return facts, asyncio.run(main())


def leaves(facts: list[Fact], left_s: float | None = None) -> bool:
    """Whether all has to go, with about so long until the end; None: as long as it may take."""
    wanted = None if left_s is None else pytest.approx(left_s, abs=5)
    return facts == [Drain(suspend=True, must=True, left_s=wanted)]  # type: ignore[arg-type]


def test_it_says_how_long_there_is_and_does_not_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(ends_in(3600))
    facts, walltime = watch(monkeypatch, slurm, wait_s=0.3)
    assert not facts
    assert walltime.left_s == pytest.approx(3600 - LEAD_S, abs=5)
    assert slurm.asked == 1


def test_at_the_lead_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(ends_in(LEAD_S + 2.5))
    facts, _ = watch(monkeypatch, slurm, wait_s=3.0)
    assert leaves(facts, LEAD_S)
    assert slurm.asked == 2


def test_a_limit_that_was_extended_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(ends_in(LEAD_S + 2.5), ends_in(3600))
    facts, walltime = watch(monkeypatch, slurm, wait_s=3.0)
    assert not facts
    assert slurm.asked == 2
    assert walltime.left_s == pytest.approx(3600 - LEAD_S, abs=5)


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PREEMPTED"])
def test_an_allocation_that_is_over_is_left(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    facts, _ = watch(monkeypatch, Slurm(ends_in(3600), ends_in(3600, state)), True)
    assert leaves(facts)


def test_a_preemption_is_an_end_that_came_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its grace is: others wait for the nodes, and Slurm itself requeues it."""
    slurm = Slurm(ends_in(7200), ends_in(3600), preempted=True)
    facts, walltime = watch(monkeypatch, slurm, True)
    assert leaves(facts)
    assert walltime.preempted


@SYSTEMS
def test_a_shortened_limit_is_not_a_preemption(
    monkeypatch: pytest.MonkeyPatch, system: type[Slurm]
) -> None:
    facts, walltime = watch(monkeypatch, system(ends_in(7200), ends_in(3600)), True)
    assert not facts
    assert not walltime.preempted
    assert walltime.left_s == pytest.approx(3600 - LEAD_S, abs=5)


@SYSTEMS
def test_a_limit_that_was_shortened_is_noticed(
    monkeypatch: pytest.MonkeyPatch, system: type[Slurm]
) -> None:
    monkeypatch.setattr(walltimes, "LOOK_S", 0.1)
    batch = system(ends_in(7200), ends_in(7200), ends_in(LEAD_S - 10))
    facts, walltime = follow(monkeypatch, batch, until=bool)
    assert leaves(facts, LEAD_S - 10)
    assert not walltime.preempted


@SYSTEMS
def test_a_question_without_an_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, system: type[Slurm]
) -> None:
    """Already the first one: else nothing would be suspended before the end."""
    monkeypatch.setattr(walltimes, "RETRY_S", 0.05)
    batch = system(broken, broken, ends_in(LEAD_S + 2.5))
    facts, _ = follow(monkeypatch, batch, until=bool)
    assert leaves(facts, LEAD_S)
    # Once more when it is due; perhaps twice, if that was a moment too early.
    assert batch.asked >= 4


@SYSTEMS
def test_an_error_that_nobody_foresaw_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, system: type[Slurm]
) -> None:
    def no_thread() -> str:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(walltimes, "RETRY_S", 0.05)
    facts, _ = follow(monkeypatch, system(no_thread, ends_in(LEAD_S - 10)), until=bool)
    assert leaves(facts, LEAD_S - 10)


def test_pauses_after_failures_grow_and_end_at_the_known_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walltimes, "RETRY_S", 0.5)
    slurm = Slurm(ends_in(LEAD_S + 2.5), broken)
    facts, _ = follow(monkeypatch, slurm, False, until=bool)
    assert leaves(facts, LEAD_S)
    # After half a second, one and two: the last at the lead. The look before those failed, too.
    assert slurm.asked <= 5


@SYSTEMS
@pytest.mark.parametrize("state", ["SUSPENDED", "USUSP", "SSUSP", "UNKWN", "STOPPED", "NEW_WORD"])
def test_a_stopped_or_unknown_job_is_not_over(
    monkeypatch: pytest.MonkeyPatch, system: type[Slurm], state: str
) -> None:
    facts, _ = watch(monkeypatch, system(ends_in(3600), ends_in(3600, state)), True)
    assert not facts


def test_a_preemption_before_the_first_look_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job may have begun a second ago."""
    facts, walltime = watch(monkeypatch, Slurm(ends_in(10, limit_s=3600), preempted=True))
    assert leaves(facts)
    assert walltime.preempted
    facts, walltime = watch(monkeypatch, Slurm(ends_in(10, limit_s=10)))
    assert leaves(facts, 10.0)
    assert not walltime.preempted


def test_a_job_without_an_end_is_preempted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing was nearer before Slurm first answered."""
    slurm = Slurm(broken, no_end, ends_in(3600))
    facts, walltime = watch(monkeypatch, slurm, True)
    assert (facts, walltime.left_s) == ([], None)
    slurm = Slurm(broken, no_end, ends_in(3600), preempted=True)
    assert leaves(watch(monkeypatch, slurm, True, True)[0])
    assert not watch(monkeypatch, Slurm(broken, ends_in(3600)), True)[0]


def test_a_cancelled_step_is_not_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _ = watch(monkeypatch, Slurm(ends_in(3600)), True)
    assert not facts


@pytest.mark.parametrize("noticed", [True, False])
def test_a_notice_of_slurm_may_come_early(monkeypatch: pytest.MonkeyPatch, noticed: bool) -> None:
    facts, _ = watch(monkeypatch, Slurm(ends_in(LEAD_S + 40)), noticed)
    assert leaves(facts, LEAD_S + 40) if noticed else not facts


def test_without_an_answer_the_end_that_was_known_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(ends_in(LEAD_S + 2.5), broken)
    assert leaves(watch(monkeypatch, slurm, wait_s=3.0)[0], LEAD_S)


def test_no_limit_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, walltime = watch(monkeypatch, Slurm(no_end), True)
    assert not facts
    assert walltime.left_s is None


def test_it_leaves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _ = watch(monkeypatch, Slurm(ends_in(10)), True, True)
    assert leaves(facts, 10.0)
