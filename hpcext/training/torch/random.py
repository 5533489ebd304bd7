"""The random states of PyTorch: on the CPU, and on this process's GPU if it uses one."""

from __future__ import annotations

import base64

import torch

from hpcext.training.checkpoint.state import TrainingState, Tree


class TorchRandom(TrainingState):
    """A state with the random states of PyTorch."""

    def random(self) -> Tree:
        """Return the random states of this process: Python, NumPy, PyTorch, its GPU."""
        states = {**super().random(), "torch": to_text(torch.get_rng_state())}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = to_text(torch.cuda.get_rng_state())
        return states

    def set_random(self, states: Tree) -> None:
        """Set the random states to the result of :meth:`random`."""
        super().set_random(states)
        torch.set_rng_state(from_text(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(from_text(states["cuda"]))

    def seed(self, seed: int) -> None:
        """Seed the global sources of random numbers, including those of the GPUs."""
        super().seed(seed)
        torch.manual_seed(seed)


def to_text(state: torch.Tensor) -> str:
    """Return the bytes of a generator's state as text for JSON."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def from_text(text: str) -> torch.Tensor:
    """Reverse :func:`to_text`."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
