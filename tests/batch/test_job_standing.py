"""How a batch job stands, and what its user can do: not to know is neither of the two ends."""

from __future__ import annotations

import pytest

from hpcext import backends
from hpcext.batch import lsf
from hpcext.batch.jobs import LEFT, OVER, Seen
from hpcext.batch.slurm import STATES
from hpcext.batch.standing import Is, kind

LSF = {
    "RUN": Is.RUNS, "PEND": Is.WAITS, "PSUSP": Is.HELD, "USUSP": Is.STOPPED, "SSUSP": Is.STOPPED,
    "UNKWN": Is.UNKNOWN, "ZOMBI": Is.UNKNOWN, "NEW": Is.UNKNOWN, "DONE": Is.OVER, "EXIT": Is.OVER,
}  # fmt: skip


@pytest.mark.parametrize(("word", "wanted"), LSF.items())
def test_a_job_of_lsf(word: str, wanted: Is) -> None:
    """bjobs(1), "Job status"."""
    assert kind(Seen(lsf.state(word), word)) is wanted


@pytest.mark.parametrize("state", sorted(STATES))
def test_a_job_of_slurm(state: str) -> None:
    """Each state that squeue(1) has is one of those of which something is known."""
    found = kind(Seen(state))
    assert found is not Is.UNKNOWN
    assert (found is Is.OVER) == (state in OVER)
    assert not (found.there and state in LEFT)


def test_a_forgotten_job_is_not_a_job_in_an_unknown_state() -> None:
    assert kind(None) is Is.FORGOTTEN
    assert Is.FORGOTTEN.ended
    assert not Is.UNKNOWN.ended


@pytest.mark.parametrize(
    ("seen", "what", "do"),
    [
        (Seen("suspended", "PSUSP"), "is held in the queue (PSUSP)", "bresume 8 lets it begin"),
        (Seen("suspended", "USUSP"), "is stopped (USUSP)", "bresume 8 lets it go on"),
        (Seen("suspended", "SSUSP"), "is stopped (SSUSP)", "when there is room for it"),
        (lsf.seen_of({"STAT": "UNKWN"}), "LSF cannot reach its host (UNKWN)", "ask again"),
        (lsf.seen_of({"STAT": "ZOMBI"}), "does not know what runs there (ZOMBI)", "ask again"),
        (Seen("pending", "PEND"), "waits in the queue (PEND)", ""),
        (Seen("running", "RUN"), "", ""),
    ],
)
def test_what_is_said_of_a_job_of_lsf(seen: Seen, what: str, do: str) -> None:
    found = backends.find("lsf").standing(8, seen)
    assert found.what.endswith(what)
    assert do in found.do
    assert bool(do) == bool(found.do)


@pytest.mark.parametrize(
    ("seen", "what", "do"),
    [
        (Seen("pending", why="JobHeldUser"), "(JobHeldUser)", "scontrol release 8 lets it begin"),
        (Seen("pending", why="JobHeldAdmin"), "(JobHeldAdmin)", "takes an operator"),
        (Seen("requeue_hold"), "(requeue_hold)", "scontrol release 8"),
        (Seen("suspended"), "is stopped (suspended)", "scontrol resume 8"),
        (Seen("stopped"), "is stopped (stopped)", "scancel --signal=CONT 8"),
        (Seen("completing"), "is ending (completing)", "ask again"),
        (Seen("unknown", why="accounting did not answer"), "did not answer", "ask again"),
        (Seen("pending", why="Priority"), "waits in the queue (pending)", ""),
    ],
)
def test_what_is_said_of_a_job_of_slurm(seen: Seen, what: str, do: str) -> None:
    found = backends.find("slurm").standing(8, seen)
    assert found.what.endswith(what)
    assert do in found.do
    assert bool(do) == bool(found.do)
