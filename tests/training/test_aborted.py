"""What waits for ranks that have died ends, also where gloo misses that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("two_ranks.py")


def test_it_ends_though_gloo_does_not_read_from_that_rank_any_more(tmp_path: Path) -> None:
    """Gloo stops there after a message for an operation that has failed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, tmp_path, str(rank)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=400)[0] for rank in ranks]
    assert said[0].startswith("it ends: "), said
