"""What waits for ranks that have died ends, also where gloo misses that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("two_ranks.py")


def played(path: Path, how: str) -> list[str]:
    """What the rank says that outlives the other one."""
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, path, str(rank), how],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said, _ = ranks[0].communicate(timeout=400)
    assert ranks[0].returncode == 0, said
    ranks[1].wait(timeout=400)
    return said.splitlines()


def test_it_ends_though_gloo_does_not_read_from_that_rank_any_more(tmp_path: Path) -> None:
    """Gloo stops there after a message for an operation that has failed."""
    ends, left = played(tmp_path, "unread")
    assert ends.startswith("it ends: ")
    assert left == "it has left"


def test_what_was_being_sent_to_that_rank_is_not_waited_for(tmp_path: Path) -> None:
    """Gloo never ends that; neither the wait nor the end of the process depends on it."""
    assert played(tmp_path, "unsent") == ["free", "it ends: NeverEnds", "it has left"]


def test_the_layers_of_a_sharded_model_go_on_in_a_step_that_is_broken(tmp_path: Path) -> None:
    """With this rank's own values; where a step does not survive it, they end with the error."""
    before, after, *ends = played(tmp_path, "layers")
    summed, both, own = [1, 3, 5, 7], [0, 1, 2, 3, 1, 2, 3, 4], [0, 1, 2, 3]
    assert json.loads(before) == [
        summed, summed[:2], both, own, [1, 2, 3, 4], summed, both, summed[:2],
    ]  # fmt: skip
    assert json.loads(after) == [
        own, own[:2], own * 2, own, own, own, own * 2, own[:2],
    ]  # fmt: skip
    assert [each.partition(": ")[0] for each in ends] == ["it ends", "it has left"]
