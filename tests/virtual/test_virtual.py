"""The virtual machine room: seeds in which nothing may be lost, and bugs that must be found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from virtual import mutants

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPT = (
    "checkpoint: the oldest one is resumed from",
    "executor: a GPU is free too early",
    "journal: a torn line is kept",
    "session: acknowledges before it has saved",
)

MENDED = {
    927: "a manager told twice to end, on a failing disk: that its journal lacks the end is said",
    6196: "a clock set forward, a killed manager: a suspension has its whole time again",
    10493: "a machine that restarts while a supervisor starts: the job is not blamed for it",
    1611: "a clock set forward: the hours that it skipped were told as work that is lost",
    # Of the room itself.
    8345: "a training that was stopped is told again to suspend itself, a second later",
    15173: "so is one that was stopped before its user wanted that",
    23443: "one that was stopped for 4.4 s, and may take 5 s to save itself, may be killed",
    9762: "an attempt that a killed manager has begun is begun once more, to be suspended",
    10836: "what its user has suspended goes on only if a manager hears the request",
    11308: "of a journal on a full disk the last line may be half",
    22349: "what a training says may not fit on its disk",
    2032: "the next request, of another job, is not on the disk while the first is answered",
    11540: "of a write that fails on the disk all may be there",
}
"""Seeds that failed once, and what they have found."""

MENDED_ON_LSF = {
    147: "the end of other hosts was seen late over NFS: a training that had ended counted as lost",
    459: "so did one on three hosts, until it had failed",
    654: "and one that had been harmed once",
    # These failed in an earlier state of the room.
    258: "LSF began the job again while another host of its first run went on",
    384: "a manager was killed before it could note what it had started, which was ended",
    1551: "a manager died between two files of a launch; a host had restarted and was not ready",
    # Of the room itself.
    1656: "what is about to begin hears that LSF cancels its job, too",
    1671: "what is about to begin is harmed, too, as its blaunch is killed",
}
"""Those of pilots on LSF."""

MENDED_ON_LEASES = {
    1969: "a training had failed just before its node went, which over NFS was seen too late",
    # Of the room itself.
    1103: "what is about to begin is harmed, too, as the srun of its lease is killed",
    1627: "no job begins on a node that has booted and not registered yet",
}
"""Those of leases of Slurm."""

MENDED_ON_LEASES_OF_LSF = {
    1672: "so it was",
    # Of the room itself.
    158: "no job begins on a host that has booted and not registered yet",
    1748: "of two requests at once, a node aside and used again, nobody knows which came last",
}
"""Those of leases of LSF."""

MENDED_WITH_RANKS = {
    30: "a full disk as the launcher made its directory: a traceback",
    163: "a full disk as the ranks had changed in place: the training ended",
    # Of the room itself.
    1157: "what a manager writes just now is on the disk a moment later",
    2246: "a job began with what was free, and another one ended before it had begun",
}
"""Those of trainings with ranks."""


def play(*words: str) -> tuple[int, str]:
    """Run the command of docs/testing.md; its status and what it said."""
    argv = [sys.executable, "-m", "tests.virtual", *words]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_nothing_is_lost_whatever_happens() -> None:
    code, said = play("0-199")
    assert code == 0, said
    assert len(re.findall(r"\d+ seeds, 0 failed", said)) >= 1


def test_what_was_found_stays_mended() -> None:
    code, said = play(",".join(map(str, MENDED)), "--jobs=1")
    assert code == 0, said


def test_what_was_found_on_lsf_stays_mended() -> None:
    code, said = play(",".join(map(str, MENDED_ON_LSF)), "--jobs=1", "--room=lsf-pilot")
    assert code == 0, said


@pytest.mark.parametrize(
    ("room", "seeds"),
    [("harvest", MENDED_ON_LEASES), ("lsf-harvest", MENDED_ON_LEASES_OF_LSF)],
    ids=["Slurm", "LSF"],
)
def test_what_was_found_on_leases_stays_mended(room: str, seeds: dict[int, str]) -> None:
    code, said = play(",".join(map(str, seeds)), "--jobs=1", f"--room={room}")
    assert code == 0, said


def test_what_was_found_with_ranks_stays_mended() -> None:
    code, said = play(",".join(map(str, MENDED_WITH_RANKS)), "--jobs=1", "--room=ranks")
    assert code == 0, said


LOST = "ranks that were lost"
"""Which seeds tell it changes with what programs say and when, so several are played."""


def test_nothing_is_lost_while_ranks_come_and_go() -> None:
    code, said = play("0-49,190-199", "--room=ranks", f"--tells={LOST}")
    assert code == 0, said
    assert len(re.findall(r"\d+ seeds, 0 failed", said)) >= 1
    # Otherwise nothing is tried of them.
    assert "told by" in said


def test_ranks_come_and_go() -> None:
    """Otherwise nothing is tried there."""
    code, said = play("0-49", "--room=ranks", "--tells=had 3 ranks, and has 2")
    assert code == 0, said
    assert "told by" in said


def test_nothing_is_lost_while_nodes_of_trainings_come_and_go() -> None:
    code, said = play("0-14", "--room=spread", f"--tells={LOST}")
    assert code == 0, said
    assert "told by" in said


def test_nodes_that_fall_silent_are_found_out() -> None:
    """By the harvester, long before Slurm says so."""
    code, said = play("40-59", "--room=spread", "--tells=does not answer: its node is lost")
    assert code == 0, said
    assert "told by" in said


def test_a_seed_is_played_again_to_the_bit() -> None:
    """Also after others were played in the same process."""
    _, alone = play("17-17", "--digest", "--jobs=1")
    _, later = play("10-17", "--digest", "--jobs=1")
    (digest,) = re.findall(r"digest of 17: \w+", alone)
    assert digest in later


def test_a_seed_tells_its_story() -> None:
    code, said = play("17")
    assert code == 0
    assert "job 1 attempt 1 begins after step 0" in said


def test_nothing_is_lost_with_faults_that_are_chosen() -> None:
    code, said = play("0-39", "--guided")
    assert code == 0, said


def test_a_play_with_chosen_faults_is_found_and_repeated() -> None:
    bug = PROMPT[1]
    code, said = play("0-199", "--guided", "--mutants", bug)
    assert code == 0, said
    (name,) = re.findall(r"seed (\d+:\S+): ", said)
    code, found = play(name, "--mutant", bug)
    assert code == 1
    assert "WRONG" in found
    assert play(name)[0] == 0


def test_a_play_with_other_faults_than_there_are_is_refused() -> None:
    code, said = play("17:nonsense")
    assert (code, "'nonsense' is no fault" in said) == (2, True)


def test_nothing_is_lost_in_a_job_of_slurm() -> None:
    code, said = play("0-19", "--room=pilot")
    assert code == 0, said


def test_nothing_is_lost_on_leases_of_slurm() -> None:
    code, said = play("0-14", "--room=harvest")
    assert code == 0, said


def test_nothing_is_lost_in_a_job_of_lsf() -> None:
    code, said = play("0-9", "--room=lsf-pilot")
    assert code == 0, said


def test_nothing_is_lost_on_leases_of_lsf() -> None:
    code, said = play("0-9", "--room=lsf-harvest")
    assert code == 0, said


@pytest.mark.parametrize("room", ["pilot", "lsf-pilot"])
def test_a_seed_with_a_batch_system_is_played_again_to_the_bit(room: str) -> None:
    _, alone = play("9-9", "--digest", "--jobs=1", f"--room={room}")
    _, later = play("5-9", "--digest", "--jobs=1", f"--room={room}")
    (digest,) = re.findall(r"digest of 9: \w+", alone)
    assert digest in later


def test_every_planted_bug_has_its_place() -> None:
    """One that does not would be found by nothing, and prove nothing."""
    assert [name for name, bug in mutants.read().items() if not bug.fits()] == []


@pytest.mark.parametrize("bug", PROMPT)
def test_a_planted_bug_is_found(bug: str) -> None:
    code, said = play("0-199", "--mutants", bug)
    assert code == 0, said
    assert "1 of 1 found" in said


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_planted_bug_is_found() -> None:
    names = [name for name, bug in mutants.read().items() if bug.found]
    code, said = play("0-9999", "--mutants", *names)
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "seeds"),
    [
        ("local", "0-19999"), ("pilot", "0-1999"), ("harvest", "0-1999"), ("lsf-pilot", "0-1999"),
        ("lsf-harvest", "0-1999"), ("ranks", "0-1999"), ("spread", "0-999"),
    ],
)  # fmt: skip
@pytest.mark.timeout(7200)
def test_nothing_is_lost_in_many_seeds(room: str, seeds: str) -> None:
    code, said = play(seeds, f"--room={room}")
    assert code == 0, said
