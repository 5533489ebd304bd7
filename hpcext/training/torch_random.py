"""The random numbers of PyTorch: on the CPU, and on the GPU of this process if it uses one."""

from __future__ import annotations

import base64

import torch

from hpcext.training.state import State, Tree


class TorchRandom(State):
    """A state whose random numbers are those of PyTorch, too."""

    def random(self) -> Tree:
        """The random states of this process: Python, NumPy, PyTorch, its GPU."""
        states = {**super().random(), "torch": to_text(torch.get_rng_state())}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            states["cuda"] = to_text(torch.cuda.get_rng_state())
        return states

    def set_random(self, states: Tree) -> None:
        """Set the random numbers to states that :meth:`random` gave."""
        super().set_random(states)
        torch.set_rng_state(from_text(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(from_text(states["cuda"]))

    def seed(self, seed: int) -> None:
        """Seed the global sources, those of the GPUs too."""
        super().seed(seed)
        torch.manual_seed(seed)


def to_text(state: torch.Tensor) -> str:
    """The bytes of a generator's state as text, for JSON."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def from_text(text: str) -> torch.Tensor:
    """What :func:`to_text` was given."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
