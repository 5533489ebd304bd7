"""The learning rate when a resize changes the global batch.

The rules are the linear one (Capes et al., eq. 7; Goyal et al. 2017), the square-root one (commonly
used with Adam; Krizhevsky 2014), none, and any function, which may be an adaptive one: it is asked
before every step, as Pollux asks its ``SCALE_LR``. :func:`adascale` and :func:`legw` make two such
functions, for a training that counts its progress (:mod:`hpcext.training.adapt`).

Why the schedule never sees the scaled rate
-------------------------------------------
Schedulers compute a rate from the one before (ExponentialLR), from the initial one (LambdaLR), from
bounds of their own (OneCycleLR), or from the loss (ReduceLROnPlateau). :class:`Rescale` leaves all
of that as it was when the training began, and changes what the optimizer finds while it makes a
step, and only then. So each later rate is the factor times the one of the undisturbed schedule, for
any scheduler, and a return to the first size returns to the very same numbers. A rate that a script
reads between two steps is the schedule's; :meth:`Rescale.rate` says what it becomes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

Rule = str | Callable[[int, int, float], float]
"""``"linear"``, ``"sqrt"``, ``"none"``, or a function (old batch, new batch, rate) → rate."""

Function = Callable[[int, int, float], float]

RULES = ("linear", "sqrt", "none")

_ATTACHED = "_hpcext_rescale"


def scaled(lr: float, old_batch: int, new_batch: int, rule: Rule = "linear") -> float:
    """The learning rate at another global batch.

    Parameters
    ----------
    lr : float
        The rate at `old_batch`.
    old_batch, new_batch : int
        Samples in a step of all ranks together.
    rule : {"linear", "sqrt", "none"} or callable
        "linear": ``lr * new_batch / old_batch``, eq. 7 of Capes et al.; "sqrt": by the square root
        of the same ratio; or a function of the three numbers.

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
    # Equal batches, no rounding: the very same rate.
    if rule == "none" or old_batch == new_batch:
        return lr
    ratio = new_batch / old_batch
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))


def _check_batch(name: str, batch: int) -> None:
    if batch < 1:
        raise ValueError(f"{name}={batch}: samples of all ranks in a step, at least 1")


def check_rule(rule: Rule) -> None:
    """Raise ValueError, which lists the rules, if this is none."""
    if not callable(rule) and rule not in RULES:
        raise ValueError(
            f"learning-rate rule {rule!r}: must be one of {', '.join(RULES)}, or a function "
            "(old_batch, new_batch, lr) -> lr"
        )


def adascale(gain: Callable[[float, float], float]) -> Function:
    """The rule of AdaScale (Johnson et al. 2020): as much larger as a step is worth more.

    Parameters
    ----------
    gain : Callable[[float, float], float]
        Steps of an initial batch that one of so many samples is worth, by these two, as
        :meth:`hpcext.training.noise.NoiseScale.gain` says it at present.
    """
    return lambda old_batch, new_batch, lr: lr * gain(new_batch, old_batch)


def legw(progress: Callable[[], float], warm_up: int) -> Function:
    """The rule LEGW (You et al. 2019): the square root, after a warm-up that grows with the batch.

    Parameters
    ----------
    progress : Callable[[], float]
        Steps made so far, in those of the initial batch.
    warm_up : int
        Steps of the initial batch over which it would be warmed up; times the ratio of the two
        batches for another one.
    """

    def rate(old_batch: int, new_batch: int, lr: float) -> float:
        ratio = new_batch / old_batch
        return lr * math.sqrt(ratio) * min(1.0, (progress() + 1.0) / (warm_up * ratio))

    return rate


class Rescale:
    """Scales learning rates with the global batch, relative to what the training began with.

    An object with a state: what is saved is the batch that the training began with and a warm-up
    that is under way. The batch of now is a fact and not a state: after ``load_state_dict`` it is
    the one that this object was made with, or resized to, and its rates follow.

    Momentum is not corrected when the rate changes (Goyal et al., remark 3): a velocity keeps
    what it has gathered at the old rate.

    Parameters
    ----------
    batch : int
        The global batch now.
    rule : {"linear", "sqrt", "none"} or callable
        See :func:`scaled`. A function must depend on nothing but its arguments if a resumed
        training is to be the same.
    warm_up : int
        Steps over which a *larger* rate is reached, linearly (the gradual warm-up of Goyal et al.,
        section 2.2); a smaller one is taken at once. 0: at once.

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
        # A warm-up begins at a mixture of rates, (batch, share) each: one, or more if it
        # interrupted an earlier one. As batches, it serves every rate and every rule.
        self._from: list[tuple[int, float]] = []
        self._done = self._steps = 0
        self._counting: object = None

    def resize(self, batch: int) -> None:
        """The global batch is another one from the next step on."""
        _check_batch("batch", batch)
        if batch == self.batch:
            return
        mixture = self._mixture()
        self.batch = batch
        warms = self._warm_up > 0 and sum(size * part for size, part in mixture.items()) < batch
        self._from = list(mixture.items()) if warms else []
        self._done, self._steps = 0, self._warm_up if warms else 0

    def rate(self, lr: float) -> float:
        """The rate for the next step, where the schedule says `lr`."""
        return math.fsum(
            part * scaled(lr, self.base_batch, batch, self._rule)
            for batch, part in self._mixture().items()
        )

    @property
    def changes(self) -> bool:
        """Whether the next step may have another rate than the schedule says."""
        return callable(self._rule) or self.warming_up or self.batch != self.base_batch

    @property
    def warming_up(self) -> bool:
        """Whether the rate has not yet reached that of the present batch."""
        return self._done < self._steps

    def stepped(self) -> None:
        """A step was made; :meth:`attach` sees to it, others call it for a warm-up."""
        if self.warming_up:
            self._done += 1

    def attach(self, optimizer: Any) -> None:
        """Scale the rates of a PyTorch optimizer, in each of its steps.

        May be called for several optimizers; the steps of the first one count for a warm-up. A
        step that a gradient scaler skips does not count.

        Raises
        ------
        TypeError
            It has no hooks for its steps.
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
        """What a checkpoint must hold, as JSON values."""
        return {
            "base_batch": self.base_batch,
            "batch": self.batch,
            "from": [list(pair) for pair in self._from],
            "done": self._done,
            "steps": self._steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, at the batch of now: a resize, if it is another one."""
        now = self.batch
        self.base_batch, self.batch = int(state["base_batch"]), int(state["batch"])
        self._from = [(int(batch), float(part)) for batch, part in state["from"]]
        self._done, self._steps = int(state["done"]), int(state["steps"])
        self.resize(now)

    def _mixture(self) -> dict[int, float]:
        """The batches whose rates make up that of the next step, and the share of each."""
        if not self.warming_up:
            return {self.batch: 1.0}
        # The first step after a resize has the rate from before it, step `steps` the new one.
        new = self._done / self._steps
        shares = {batch: part * (1 - new) for batch, part in self._from}
        shares[self.batch] = shares.get(self.batch, 0.0) + new
        return {batch: part for batch, part in shares.items() if part > 0}


def rescale(optimizer: Any, old_batch: int, new_batch: int, rule: Rule = "linear") -> float:
    """Go on with an optimizer at another global batch; may be called again and again.

    The short form of :class:`Rescale`, for a script that keeps none: without a warm-up, and
    without a state that a checkpoint would hold.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    old_batch : int
        The global batch now, or the one for which the rates of the schedule are meant.
    new_batch : int
    rule : {"linear", "sqrt", "none"} or callable
        Of the first call; later ones go by it.

    Returns
    -------
    factor : float
        The rate of the next step by that of the schedule, in the first parameter group.

    Raises
    ------
    TypeError
        It is no PyTorch optimizer.
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
    """The rates of one optimizer while it makes a step."""

    def __init__(self, rescale: Rescale, *, counts: bool) -> None:
        self._rescale = rescale
        self._counts = counts
        self._schedule: list[tuple[MutableMapping[str, Any], Any]] = []

    def begin(self, optimizer: Any, *_: Any) -> None:
        # Left over only if the step before raised an error, which nobody tells us.
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
                # A tensor, for compiled optimizers: these know it by its place in memory.
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
    """The :class:`Rescale` of a session, from the moment that its global batch is known.

    Parameters
    ----------
    rule : Rule or None
        None: rates are left alone.
    warm_up : int
    base_batch : int, optional
        The one that the rates of the schedule are meant for; unless stated the first one.
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
        """Whether there is a rule."""
        return self._rule is not None

    def use(self, batch: int, optimizers: Iterable[Any]) -> None:
        """This is the global batch from now on."""
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
        """The rate for the next step, where the schedule says `lr`."""
        return self._rescale.rate(lr) if self._rescale else lr

    def state(self) -> Mapping[str, Any] | None:
        """What a checkpoint must hold, as JSON values."""
        return self._rescale.state_dict() if self._rescale else self._saved

    def restore(self, saved: Mapping[str, Any] | None) -> None:
        """Go on from what :meth:`state` gave."""
        self._saved = saved
