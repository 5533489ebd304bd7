"""The rules for dividing a step, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcext.scaling.balance import LeaderStraggler, Rule, Speeds, WorkerBounds
from hpcext.scaling.balance.best import Best
from hpcext.scaling.balance.lines import Affine

RULES: dict[str, Callable[[Sequence[int], WorkerBounds, Sequence[Any]], Rule]] = {
    "affine": Affine,
    "best": Best,
    "speeds": Speeds,
    "leader": LeaderStraggler,
}
"""hpcext's own two, Algorithm 1 and Algorithm 2."""
