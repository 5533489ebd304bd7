"""Squared norms of the gradients of a PyTorch step, as :mod:`hpcext.training.noise` wants them.

A hook on each parameter sees the gradient of every pass before it is added to the others, and
before DistributedDataParallel averages; what that made of it is read after the last pass. So the
exchange of gradients is the one that is made anyway, and one number of each rank has to be added.
It is also before gradients are clipped.

For Adam and its kin the gradients are those that the optimizer goes by, divided by the root of the
averaged squares (the preconditioned noise scale of section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

_AVERAGES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
"""State of an optimizer that holds squares; amsgrad keeps two, and divides by the largest."""


SETTLED = 10
"""Steps before averaged squares are gone by. Of a few they are so small by chance, where a gradient
was nearly 0, that what is divided by them outweighs all later measurements."""


class Squared:
    """Squared norms of what an optimizer sees of the gradients.

    Parameters
    ----------
    optimizers : iterable of torch.optim.Optimizer
        Of all parameters that are trained.
    scale_of : Callable[[], float]
        By what the loss is multiplied at present (a gradient scaler); 1 without.
    """

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer], scale_of: Callable[[], float]
    ) -> None:
        self._groups = [
            (optimizer, group) for optimizer in optimizers for group in optimizer.param_groups
        ]
        self._scale_of = scale_of
        self._handles: list[Any] = []
        self._norms: list[torch.Tensor] = []
        self._before: tuple[list[torch.Tensor], int] | None = None

    @property
    def ready(self) -> bool:
        """Whether an optimizer that goes by averaged squares has averaged enough of them."""
        return all(
            any(_average(each) and each["step"] >= SETTLED for each in optimizer.state.values())
            for optimizer, _ in self._groups
            if _averages_squares(optimizer)
        )

    @property
    def waiting(self) -> bool:
        """Whether :meth:`difference` has seen the first of two steps."""
        return self._before is not None

    @property
    def preconditioned(self) -> bool:
        """Whether the first optimizer divides gradients by the root of averaged squares."""
        return _averages_squares(self._groups[0][0])

    def watch(self) -> None:
        """See the gradients of the passes to come."""
        for optimizer, group in self._groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._handles.append(
                        parameter.register_hook(self._hook(optimizer, group, parameter))
                    )

    def leave(self) -> None:
        """Do not see them any more."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._norms = [], []

    def take(self) -> float:
        """|g|^2 of the pass that has just been made."""
        norms, self._norms = self._norms, []
        return _total(norms) / self._scale_of() ** 2

    def gradients(self) -> float:
        """|g|^2 of the gradients that the parameters hold."""
        return _total(self._held()) / self._scale_of() ** 2

    def forget(self) -> None:
        """The next step is the first one of a difference."""
        self._before = None

    def difference(self, samples: int) -> tuple[float, float, int] | None:
        """The gradients of now and of the step before as two pieces (the paper's estimator).

        Parameters
        ----------
        samples : int
            Of the step that the parameters hold the gradients of.

        Returns
        -------
        tuple or None
            `spread`, `mean` and `samples` of :class:`~hpcext.training.noise.Squares`; None at the
            first of two steps.
        """
        scale = self._scale_of()
        now = [
            (p.grad.detach() if p.grad is not None else torch.zeros_like(p)) / scale
            for _, group in self._groups
            for p in group["params"]
        ]
        before, self._before = self._before, (now, samples)
        if before is None:
            return None
        self._before = None
        all_samples = samples + before[1]
        share = samples / all_samples
        mean = [share * new + (1 - share) * old for new, old in zip(now, before[0], strict=True)]
        spread = share * self._norm_of(now) + (1 - share) * self._norm_of(before[0])
        return spread, self._norm_of(mean), all_samples

    def _norm_of(self, gradients: list[torch.Tensor]) -> float:
        parameters = [(o, group, p) for o, group in self._groups for p in group["params"]]
        return _total([_norm(*each, g) for each, g in zip(parameters, gradients, strict=True)])

    def _held(self) -> list[torch.Tensor]:
        return [
            _norm(optimizer, group, parameter, parameter.grad)
            for optimizer, group in self._groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]

    def _hook(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
    ) -> Callable[[torch.Tensor], None]:
        def see(gradient: torch.Tensor) -> None:
            self._norms.append(_norm(optimizer, group, parameter, gradient))

        return see


def _norm(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
) -> torch.Tensor:
    """The norm of a gradient, as the optimizer sees it."""
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    kind = torch.promote_types(gradient.dtype, torch.float32)
    state = optimizer.state.get(parameter, {})
    found = _average(state)
    if found:
        squares = state[found].to(kind)
        decay = group["betas"][1] if "betas" in group else group.get("alpha")
        if decay is not None:
            # They begin at 0, which most optimizers correct too.
            squares = squares / (1.0 - decay ** float(state["step"]))
        seen = gradient.to(kind) / (squares.sqrt() + group.get("eps", 1e-8))
        # Of what had no gradient before, as a word that had not come yet, nobody knows what to
        # divide by; the optimizer itself will include the gradient of now.
        gradient = seen.where(squares > 0, 0.0)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=kind)
    return norm


def _average(state: Any) -> str:
    """The averaged squares that an optimizer keeps of a parameter; empty if it has none."""
    return next((name for name in _AVERAGES if name in state), "")


def _averages_squares(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer will keep averaged squares, also before its first step."""
    kin = (
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
    )
    return isinstance(optimizer, kin)


def _total(norms: list[torch.Tensor]) -> float:
    """The squared norm of all parts together, which may be on several devices."""
    if not norms:
        return 0.0
    devices = {norm.device for norm in norms}
    squared = [
        torch.stack([norm for norm in norms if norm.device == device]).double().square().sum()
        for device in devices
    ]
    return math.fsum(float(part) for part in squared)
