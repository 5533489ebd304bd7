"""A program that holds a state of any size on the GPU, computes with it, and saves nothing.

It reads commands: ``grow BYTES``, ``steps COUNT``, ``pace SECONDS``; each is answered by a line of
JSON. ``steps`` begins anew from the same state, says so before it computes, and then what all bits
came to.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import machine

WIDTH = 1024
MOST_BYTES = 1 << 30


class Held:
    """The state: whole numbers of that size, and a small matrix of floats."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.parts: list[torch.Tensor] = []
        self.floats = torch.empty(0)
        self.pace_s = 0.0

    def grow(self, size: int) -> dict[str, Any]:
        """Hold so many bytes."""
        self.parts = []
        full, rest = divmod(size, MOST_BYTES)
        for number in [MOST_BYTES] * full + [rest]:
            self.parts.append(torch.empty(number // 4, dtype=torch.int32, device=self.device))
        self._begin()
        return {"size": sum(part.nbytes for part in self.parts)}

    def steps(self, count: int) -> dict[str, Any]:
        """Compute so many steps from the beginning; all of the state counts in the result."""
        self._begin()
        print(json.dumps({"computes": count}), flush=True)
        began_s = time.monotonic()
        for number in range(count):
            for part in self.parts:
                part.mul_(1664525).add_(1013904223 + number)
            self.floats = torch.tanh(self.floats @ self.floats * 0.05 + 0.01)
            if self.pace_s:
                self._synchronize()
                time.sleep(self.pace_s)
        sums = [int(part.sum(dtype=torch.int64)) for part in self.parts]
        bits = int(self.floats.view(torch.int32).sum(dtype=torch.int64))
        return {"sums": sums, "bits": bits, "seconds": time.monotonic() - began_s}

    def pace(self, seconds: float) -> dict[str, Any]:
        """Sleep after each step."""
        self.pace_s = seconds
        return {}

    def _begin(self) -> None:
        for number, part in enumerate(self.parts):
            part.fill_(number + 1)
        numbers = torch.Generator().manual_seed(1)
        self.floats = torch.randn(WIDTH, WIDTH, generator=numbers).to(self.device)
        self._synchronize()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Obey."""
    held = Held()
    with machine.occupied():
        # What loads libraries and makes handles is over before the first command.
        held.grow(1 << 20)
        held.floats @ held.floats
        print(json.dumps({"device": str(held.device)}), flush=True)
        for line in sys.stdin:
            word, number = line.split()
            print(json.dumps(getattr(held, word)(json.loads(number))), flush=True)


if __name__ == "__main__":
    main()
