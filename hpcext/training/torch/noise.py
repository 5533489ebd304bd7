"""Squared norms of the gradients of a PyTorch step, for :mod:`hpcext.training.adapt.noise`.

A hook on each parameter gets the gradient of every pass before it is added to the others, and
before DistributedDataParallel averages; the averaged gradient is read after the last pass. So the
usual exchange of gradients is sufficient, and in addition only one number of each rank is summed.
Gradients are read before they are clipped. Norms stay on their device until somebody reads them, so
that nothing waits for a GPU within a step.

For Adam and similar optimizers the gradients are preconditioned as by the optimizer: divided by the
root of the averaged squares (the preconditioned noise scale of section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_AVERAGES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
"""Keys of an optimizer's state that hold averaged squares; amsgrad divides by the largest."""


SETTLED = 10
"""Steps before averaged squares are used. Over fewer steps some are tiny by chance, if a gradient
was nearly 0, and a gradient divided by them would outweigh all later measurements."""


class Squared:
    """The squared norms of gradients, as an optimizer uses them.

    Parameters
    ----------
    optimizers : iterable of torch.optim.Optimizer
        Optimizers of all parameters that are trained.
    scale_of : Callable[[], float]
        Returns the factor by which the loss is multiplied at present (by a gradient scaler); 1
        without one.
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
        self._ready = False

    @property
    def ready(self) -> bool:
        """Whether every optimizer with averaged squares has averaged enough steps."""
        # Asked no more once that is so: the number of steps may be on a GPU.
        self._ready = self._ready or all(
            any(_average(each) and each["step"] >= SETTLED for each in optimizer.state.values())
            for optimizer, _ in self._groups
            if _averages_squares(optimizer)
        )
        return self._ready

    @property
    def waiting(self) -> bool:
        """Whether :meth:`difference` has had the first of two steps."""
        return self._before is not None

    @property
    def preconditioned(self) -> bool:
        """Whether the first optimizer divides gradients by the root of averaged squares."""
        return _averages_squares(self._groups[0][0])

    def watch(self) -> None:
        """Begin to measure the gradients of passes."""
        for optimizer, group in self._groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._handles.append(
                        parameter.register_hook(self._hook(optimizer, group, parameter))
                    )

    def leave(self) -> None:
        """Stop measuring the gradients of passes."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._norms = [], []

    def take(self) -> torch.Tensor:
        """Return |g|^2 of the last pass, a number."""
        norms, self._norms = self._norms, []
        return _total(norms) / self._scale_of() ** 2

    def gradients(self) -> torch.Tensor:
        """Return |g|^2 of the gradients that the parameters hold, a number."""
        return _total(self._held()) / self._scale_of() ** 2

    def forget(self) -> None:
        """Discard the gradients of the previous step, so that a difference begins again."""
        self._before = None

    def difference(self, samples: int) -> tuple[torch.Tensor, torch.Tensor, int] | None:
        """Measure the present gradients and those of the previous step as two pieces.

        This is the paper's estimator.

        Parameters
        ----------
        samples : int
            Samples in the step whose gradients the parameters hold.

        Returns
        -------
        tuple or None
            `spread`, `mean` and `samples` of :class:`~hpcext.training.adapt.noise.Squares`; None at
            the first of two steps.
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

    def _norm_of(self, gradients: list[torch.Tensor]) -> torch.Tensor:
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
    """Return the norm of a gradient, as the optimizer uses it."""
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
            # Averages begin at 0; correct that bias, as most optimizers do.
            # Where the optimizer has the number: a copy to a GPU would wait, a division does not.
            squares = squares / (1.0 - decay ** torch.as_tensor(state["step"]).double()).to(kind)
        seen = gradient.to(kind) / (squares.sqrt() + group.get("eps", 1e-8))
        # For a parameter without an earlier gradient, such as the embedding of a new word, there is
        # no divisor yet; the optimizer itself will include the present gradient.
        gradient = seen.where(squares > 0, 0.0)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=kind)
    return norm


def _average(state: Any) -> str:
    """Return the key of the averaged squares in a parameter's state; empty if there are none."""
    return next((name for name in _AVERAGES if name in state), "")


def _averages_squares(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer keeps averaged squares, even before its first step."""
    kin = (
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
    )
    return isinstance(optimizer, kin)


def _total(norms: list[torch.Tensor]) -> torch.Tensor:
    """Return the squared norm of all parts together, which may be on several devices."""
    if not norms:
        return torch.zeros((), dtype=torch.float64)
    first, *others = [
        torch.stack([norm for norm in norms if norm.device == device]).double().square().sum()
        for device in dict.fromkeys(norm.device for norm in norms)
    ]
    return sum((part.to(first.device) for part in others), first)


def read(*numbers: torch.Tensor | float) -> list[float]:
    """Return numbers, waiting for each GPU once at most.

    Parameters
    ----------
    *numbers : torch.Tensor or float
    """
    found = list(numbers)
    tensors = {place: each for place, each in enumerate(found) if isinstance(each, torch.Tensor)}
    for device in dict.fromkeys(each.device for each in tensors.values()):
        places = [place for place, each in tensors.items() if each.device == device]
        values = torch.stack([tensors[place].double() for place in places]).tolist()
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return [float(each) for each in found]
