"""The learning rate after a resize that changes the global batch.

The rules are the linear one (Capes et al., eq. 7; Goyal et al. 2017), the square-root one (common
with Adam; Krizhevsky 2014), none, and any function. A function may adapt: it is called before every
step, as Pollux calls its ``SCALE_LR``. :func:`adascale` and :func:`legw` make such functions for a
training that counts its progress (:mod:`hpcext.training.adapt`).

Why the schedule never sees the scaled rate
-------------------------------------------
Schedulers compute a rate from the previous one (ExponentialLR), from the initial one (LambdaLR),
from bounds of their own (OneCycleLR), or from the loss (ReduceLROnPlateau). :class:`Rescale` leaves
all of that as it was when the training began, and changes the rate only while the optimizer makes a
step. So each later rate is the factor times that of the undisturbed schedule, for any scheduler,
and a return to the first size restores exactly the same numbers. A rate that a script reads between
two steps is the schedule's; :meth:`Rescale.rate` converts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

Rule = str | Callable[[int, int, float], float]
"""``"linear"``, ``"sqrt"``, ``"none"``, or a function: (old batch, new batch, rate) → rate."""

Function = Callable[[int, int, float], float]

RULES = ("linear", "sqrt", "none")

_ATTACHED = "_hpcext_rescale"


def scaled(lr: float, old_batch: int, new_batch: int, rule: Rule = "linear") -> float:
    """Return the learning rate at another global batch.

    Parameters
    ----------
    lr : float
        The rate at `old_batch`.
    old_batch, new_batch : int
        Samples in a step on all ranks together.
    rule : {"linear", "sqrt", "none"} or callable
        "linear": ``lr * new_batch / old_batch``, eq. 7 of Capes et al.; "sqrt": by the square root
        of the same ratio; or a function of the three numbers.

    Returns
    -------
    float
        The rate at `new_batch`.

    Raises
    ------
    ValueError
        There is no such rule, a batch is not positive, or a function returned no rate.
    """
    _check_batch("old_batch", old_batch)
    _check_batch("new_batch", new_batch)
    check_rule(rule)
    if callable(rule):
        rate = float(rule(old_batch, new_batch, lr))
        if not (math.isfinite(rate) and rate >= 0):
            raise ValueError(
                f"the learning-rate rule returned {rate} for batches of {old_batch} and "
                f"{new_batch} and the rate {lr}: must be a finite number, not negative"
            )
        return rate
    # Equal batches give exactly the same rate, without rounding.
    if rule == "none" or old_batch == new_batch:
        return lr
    ratio = new_batch / old_batch
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))


def _check_batch(name: str, batch: int) -> None:
    if batch < 1:
        raise ValueError(f"{name}={batch}: samples of all ranks in a step, at least 1")


def check_rule(rule: Rule) -> None:
    """Raise ValueError, which lists the rules, if `rule` is not valid."""
    if not callable(rule) and rule not in RULES:
        raise ValueError(
            f"learning-rate rule {rule!r}: must be one of {', '.join(RULES)}, or a function "
            "(old_batch, new_batch, lr) -> lr"
        )


def adascale(gain: Callable[[float, float], float]) -> Function:
    """Return the rule of AdaScale (Johnson et al. 2020): scale the rate by a step's gain.

    Parameters
    ----------
    gain : Callable[[float, float], float]
        Given a batch and the initial batch, in samples, returns the number of initial-batch steps
        that a step is worth, such as :meth:`hpcext.training.adapt.noise.NoiseScale.gain`.
    """
    return lambda old_batch, new_batch, lr: lr * gain(new_batch, old_batch)


def legw(progress: Callable[[], float], warm_up: int) -> Function:
    """Return the rule LEGW (You et al. 2019): square root, and a warm-up that grows with the batch.

    Parameters
    ----------
    progress : Callable[[], float]
        Returns the steps made so far, as initial-batch steps.
    warm_up : int
        Warm-up steps at the initial batch; for another batch, multiplied by the ratio of the two.
    """

    def rate(old_batch: int, new_batch: int, lr: float) -> float:
        ratio = new_batch / old_batch
        return lr * math.sqrt(ratio) * min(1.0, (progress() + 1.0) / (warm_up * ratio))

    return rate


class Rescale:
    """Learning rates scaled with the global batch, relative to the initial batch.

    An object with a state: it saves the batch with which the training began, and a running warm-up.
    The present batch is not part of the state: after ``load_state_dict`` it is the one with which
    this object was made, or to which it was resized, and its rates follow.

    Momentum is not corrected when the rate changes (Goyal et al., remark 3): a velocity keeps what
    it has accumulated at the old rate.

    Parameters
    ----------
    batch : int
        The present global batch, in samples.
    rule : {"linear", "sqrt", "none"} or callable
        See :func:`scaled`. A function must depend only on its arguments for a resumed training to
        be the same.
    warm_up : int
        Steps over which a *larger* rate is reached, linearly (the gradual warm-up of Goyal et al.,
        section 2.2); a smaller one applies at once. 0: no warm-up.

    Attributes
    ----------
    batch : int
    base_batch : int
        The batch for which the rates of the schedule are meant.
    """

    def __init__(self, batch: int, rule: Rule = "linear", warm_up: int = 0) -> None:
        if warm_up < 0:
            raise ValueError(f"warm_up={warm_up}: steps, must not be negative")
        _check_batch("batch", batch)
        check_rule(rule)
        self.base_batch = self.batch = batch
        self._rule = rule
        self._warm_up = warm_up
        # A warm-up begins at a mixture of rates, given as (batch, share): of one, or of several if
        # it interrupted an earlier one. As batches, it serves every rate and every rule.
        self._from: list[tuple[int, float]] = []
        self._done = self._steps = 0
        self._counting: object = None

    def resize(self, batch: int) -> None:
        """Set the global batch from the next step on."""
        _check_batch("batch", batch)
        if batch == self.batch:
            return
        mixture = self._mixture()
        self.batch = batch
        warms = self._warm_up > 0 and sum(size * part for size, part in mixture.items()) < batch
        self._from = list(mixture.items()) if warms else []
        self._done, self._steps = 0, self._warm_up if warms else 0

    def rate(self, lr: float) -> float:
        """Return the rate for the next step, given the schedule's rate `lr`."""
        return math.fsum(
            part * scaled(lr, self.base_batch, batch, self._rule)
            for batch, part in self._mixture().items()
        )

    @property
    def changes(self) -> bool:
        """Whether the rate of the next step may differ from the schedule's."""
        return callable(self._rule) or self.warming_up or self.batch != self.base_batch

    @property
    def warming_up(self) -> bool:
        """Whether the rate has not yet reached that of the present batch."""
        return self._done < self._steps

    def stepped(self) -> None:
        """Count a step for a warm-up; :meth:`attach` does so by itself."""
        if self.warming_up:
            self._done += 1

    def attach(self, optimizer: Any) -> None:
        """Scale the rates of a PyTorch optimizer in each of its steps.

        It may be called for several optimizers; the steps of the first one count for a warm-up. A
        step that a gradient scaler skips does not count.

        Raises
        ------
        TypeError
            The optimizer has no hooks for its steps.
        """
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise TypeError(
                f"{type(optimizer).__name__} has no register_step_pre_hook: valid are PyTorch's "
                "optimizers and classes derived from them; for another one set its rate to "
                "rate(lr) before each step and call stepped() after it"
            )
        self._counting = self._counting or optimizer
        inside = _Inside(self, counts=self._counting is optimizer)
        optimizer.register_step_pre_hook(inside.begin)
        optimizer.register_step_post_hook(inside.end)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, as JSON values."""
        return {
            "base_batch": self.base_batch,
            "batch": self.batch,
            "from": [list(pair) for pair in self._from],
            "done": self._done,
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, then resize to the present batch if it differs."""
        now = self.batch
        self.base_batch, self.batch = int(state["base_batch"]), int(state["batch"])
        self._from = [(int(batch), float(part)) for batch, part in state["from"]]
        self._done, self._steps = int(state["done"]), int(state["steps"])
        self.resize(now)

    def _mixture(self) -> dict[int, float]:
        """Return the batches whose rates are mixed in the next step, with their shares."""
        if not self.warming_up:
            return {self.batch: 1.0}
        # The first step after a resize has the old rate, step number `steps` the new one.
        new = self._done / self._steps
        shares = {batch: part * (1 - new) for batch, part in self._from}
        shares[self.batch] = shares.get(self.batch, 0.0) + new
        return {batch: part for batch, part in shares.items() if part > 0}


def rescale(optimizer: Any, old_batch: int, new_batch: int, rule: Rule = "linear") -> float:
    """Scale the rates of an optimizer to another global batch; calls may be repeated.

    This is the short form of :class:`Rescale` for a script that keeps none: without a warm-up, and
    without a state in the checkpoint.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    old_batch : int
        The present global batch, or the one for which the rates of the schedule are meant.
    new_batch : int
    rule : {"linear", "sqrt", "none"} or callable
        Only the rule of the first call counts.

    Returns
    -------
    factor : float
        The rate of the next step divided by the schedule's, in the first parameter group.

    Raises
    ------
    TypeError
        `optimizer` is not a PyTorch optimizer.
    ValueError
        `old_batch` is neither of the two, or a batch or the rule is not valid.
    """
    now: Rescale | None = getattr(optimizer, _ATTACHED, None)
    if now is None:
        now = Rescale(old_batch, rule)
        now.attach(optimizer)
        setattr(optimizer, _ATTACHED, now)
    if old_batch not in (now.batch, now.base_batch):
        raise ValueError(
            f"old_batch={old_batch}: the optimizer is at {now.batch}, its schedule is meant for "
            f"{now.base_batch}; give one of them"
        )
    now.resize(new_batch)
    lr = float(optimizer.param_groups[0]["lr"])
    return now.rate(lr) / lr if lr else now.rate(1.0)


class _Inside:
    """The hooks of one optimizer, which set the scaled rates while it makes a step."""

    def __init__(self, rescale: Rescale, *, counts: bool) -> None:
        self._rescale = rescale
        self._counts = counts
        self._schedule: list[tuple[MutableMapping[str, Any], Any]] = []

    def begin(self, optimizer: Any, *_: Any) -> None:
        # Left over only if the previous step raised an error, of which there is no notice.
        self._restore()
        if not self._rescale.changes:
            return
        for group in optimizer.param_groups:
            lr = group["lr"]
            rate = self._rescale.rate(float(lr))
            if isinstance(lr, (int, float)):
                self._schedule.append((group, lr))
                group["lr"] = rate
            else:
                # Compiled optimizers refer to a tensor by its memory, so it is changed in place.
                self._schedule.append((group, lr.clone()))
                lr.fill_(rate)

    def end(self, *_: Any) -> None:
        self._restore()
        if self._counts:
            self._rescale.stepped()

    def _restore(self) -> None:
        for group, lr in self._schedule:
            if isinstance(lr, (int, float)):
                group["lr"] = lr
            else:
                group["lr"].copy_(lr)
        self._schedule = []


class Rates:
    """The :class:`Rescale` of a session, made when its global batch is known.

    Parameters
    ----------
    rule : Rule or None
        The rule; None if learning rates are not changed.
    warm_up : int
    base_batch : int, optional
        The batch for which the rates of the schedule are meant; by default the first one.
    """

    def __init__(self, rule: Rule | None, warm_up: int, base_batch: int | None = None) -> None:
        if rule is not None:
            check_rule(rule)
        self._rule = rule
        self._warm_up = warm_up
        self._base_batch = base_batch
        self._rescale: Rescale | None = None
        self._saved: Mapping[str, Any] | None = None

    @property
    def follows(self) -> bool:
        """Whether rates follow a rule."""
        return self._rule is not None

    def use(self, batch: int, optimizers: Iterable[Any]) -> None:
        """Set the global batch from now on, and scale the rates of these optimizers.

        Parameters
        ----------
        batch : int
            Samples in a step on all ranks.
        optimizers : iterable
        """
        if self._rule is None:
            return
        if self._rescale is not None:
            self._rescale.resize(batch)
            return
        self._rescale = Rescale(self._base_batch or batch, self._rule, self._warm_up)
        if self._base_batch:
            self._rescale.resize(batch)
        if self._saved is not None:
            self._rescale.load_state_dict(self._saved)
        for optimizer in optimizers:
            self._rescale.attach(optimizer)

    def rate(self, lr: float) -> float:
        """Return the rate for the next step, given the schedule's rate `lr`."""
        return self._rescale.rate(lr) if self._rescale else lr

    def state(self) -> Mapping[str, Any] | None:
        """Return the state to save, as JSON values."""
        return self._rescale.state_dict() if self._rescale else self._saved

    def restore(self, saved: Mapping[str, Any] | None) -> None:
        """Restore the result of :meth:`state`, also in the midst of a training."""
        self._saved = saved
        if self._rescale is not None and saved is not None:
            self._rescale.load_state_dict(saved)
