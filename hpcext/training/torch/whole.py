"""A check that a session is given all state of a PyTorch training, before any is lost.

State that it is not given would start over at each resumption, and show only as a worse loss.
"""

from __future__ import annotations

import functools
import gc
import math
import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from hpcext.training.accumulation import tensors_in
from hpcext.training.fingerprint import unordered

_STATES = {
    "an optimizer": {"state", "param_groups"},
    "a scheduler": {"last_epoch", "_last_lr"},
    "a GradScaler": {"scale", "growth_factor"},
}
"""Keys by which the state_dict of each kind is recognised."""

_MEANT = "name it in unsaved=[...] (unsaved=True: anything) if this is intended"

UNGIVEN_ORDER = (
    "session.batches(loader): the loader draws the order of its samples from a torch.Generator "
    "that the session is not given, so it would start over when the training is resumed, and train "
    "some samples of the epoch again and others not; make it before the session and give it, "
    f"Session(generator=generator, ...), or {_MEANT}"
)

LEFT_GRADIENTS = (
    "the first step has left gradients that no optimizer has used: if several turns of "
    "session.batches accumulate them, those of a turn are lost when the training is suspended "
    "after it; make all passes of a step in one turn, by accumulated(loader, count) or "
    "split(batch, size)"
)

_FRAMES = 12
"""Number of frames searched for GradScaler.step(): no optimizer's step is deeper below it."""


def state_of(value: Any) -> str:
    """Return the kind of object of which a collection is the state, a copy; empty if none."""
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return ""
    if isinstance(value, Mapping):
        for kind, keys in _STATES.items():
            if keys <= value.keys():
                return kind
    inside = value.values() if isinstance(value, Mapping) else value
    if any(isinstance(each, torch.Tensor) for each in inside):
        return "tensors"
    return next(filter(None, map(state_of, inside)), "")


def has_state_of(kind: str, captured: Any) -> bool:
    """Return whether the state of such an object is somewhere in the saved state.

    Parameters
    ----------
    kind : str
        As returned by :func:`state_of`.
    captured : nested containers
        The saved state.
    """
    if not isinstance(captured, Mapping | list | tuple):
        return False
    inside = captured
    if isinstance(captured, Mapping):
        if _STATES[kind] <= captured.keys():
            return True
        inside = captured.values()  # type: ignore[assignment]
    return any(has_state_of(kind, each) for each in inside)


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters that an optimizer trains."""
    groups = getattr(optimizer, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def has_gradients(optimizer: Optimizer) -> bool:
    """Return whether the parameters of an optimizer have gradients: finite ones that are not 0."""
    found = (each.grad for each in parameters_of(optimizer) if each.grad is not None)
    norm = sum(float(_own(each.detach()).float().norm()) for each in found)
    # After a step that a GradScaler left out they are not finite.
    return 0.0 < norm < math.inf


def generator_of(loader: Any) -> torch.Generator | None:
    """Return the generator from which a loader draws its order of samples; None if it has none."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers += [getattr(each, "sampler", None) for each in samplers]
    found = (getattr(each, "generator", None) for each in samplers)
    return next((each for each in found if isinstance(each, torch.Generator)), None)


class Given:
    """The objects that a session saves, and those that are deliberately not saved.

    Parameters
    ----------
    objects : Mapping[str, Any]
        Objects by their names.
    unsaved : collection
    captured : Mapping[str, Any]
        Their states, with tensors that are not copied.
    """

    def __init__(
        self, objects: Mapping[str, Any], unsaved: Collection[Any], captured: Mapping[str, Any]
    ) -> None:
        self._objects = objects
        self._captured = captured
        self._unsaved = unsaved
        every = [*objects.values(), *unsaved]
        self._ids = set(map(id, every))
        self._memory: set[int] = set()
        for value in every:
            if isinstance(value, torch.nn.Module):
                self._ids.update(map(id, value.parameters()))
        for value in unsaved:
            self._ids.update(map(id, parameters_of(value)))
        for name, state in captured.items():
            # The state of an optimizer contains no parameters.
            if not isinstance(objects[name], Optimizer):
                self._memory.update(filter(None, map(_address, tensors_in(state))))

    def lacks_model(self) -> str:
        """Return a message about an optimizer whose parameters are not saved; empty if none."""
        for name, value in self._objects.items():
            if isinstance(value, Optimizer):
                trained = parameters_of(value)
                lost = [each for each in trained if not self._saves(each)]
                if lost:
                    return (
                        f"Session({name}=...): it trains {len(lost)} of its {len(trained)} "
                        f"parameters (one is {_kind(lost[0])}) in no model that the session is "
                        "given: when the training is resumed they would have their initial "
                        "values; give their model too, Session(model=model, ...), or name it in "
                        "unsaved=[...] if this is intended"
                    )
        return ""

    @functools.cached_property
    def _schedulers(self) -> list[Any]:
        """All that exist."""
        return alive(LRScheduler)

    def lacks_scheduler(self, optimizer: Any) -> str:
        """Return a message about a scheduler of this optimizer that is not given; empty if none."""
        if has_state_of("a scheduler", list(self._captured.values())):
            return ""
        mine = [each for each in self._schedulers if _sets(each, optimizer)]
        if not mine or any(id(each) in self._ids for each in mine):
            return ""
        kind = type(mine[-1]).__name__
        return (
            f"Session(): the {kind} that sets the learning rate of {type(optimizer).__name__} is "
            "not given to the session, so it would start over when the training is resumed; make "
            f"it before the session and give it, Session(scheduler=scheduler, ...), or {_MEANT}"
        )

    def lacks_schedulers(self) -> str:
        """Return a message about a scheduler of any given optimizer; empty if none."""
        mine = (each for each in self._objects.values() if isinstance(each, Optimizer))
        return next(filter(None, map(self.lacks_scheduler, mine)), "")

    def lacks(self, optimizer: Optimizer, scaler: Any) -> str:
        """Return a message about an optimizer that has made a step, or its scaler; empty if saved.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
        scaler : torch.amp.GradScaler or None
            The scaler that scales its gradients.
        """
        # Those of given optimizers are looked for at the end of the first step; each look is one at
        # all objects of the process.
        given = id(optimizer) in self._ids
        scheduler = "" if given else self.lacks_scheduler(optimizer)
        return self._lacks_optimizer(optimizer) or scheduler or self._lacks_scaler(scaler)

    def _lacks_optimizer(self, optimizer: Optimizer) -> str:
        # Plain SGD has no state to lose.
        empty = not any(optimizer.state.values())
        if id(optimizer) in self._ids or empty or self._held_by_others(optimizer):
            return ""
        if has_state_of("an optimizer", self._not_optimizers()):
            return ""
        return (
            f"Session(): {type(optimizer).__name__} makes steps but is not given to the session, "
            "so it would start over when the training is resumed; give it, "
            f"Session(optimizer=optimizer, ...), or {_MEANT}"
        )

    def _held_by_others(self, optimizer: Optimizer) -> bool:
        """Return whether all parameters of an optimizer are accounted for by other objects.

        These are given optimizers, if one wraps another, or objects that are deliberately not
        saved.
        """
        mine = [each for each in self._objects.values() if isinstance(each, Optimizer)]
        held = {id(each) for value in (*mine, *self._unsaved) for each in parameters_of(value)}
        for value in self._unsaved:
            held.update(map(id, value.parameters()) if isinstance(value, torch.nn.Module) else ())
        return {id(each) for each in parameters_of(optimizer)} <= held

    def _not_optimizers(self) -> list[Any]:
        return [
            state
            for name, state in self._captured.items()
            if not isinstance(self._objects[name], Optimizer)
        ]

    def _lacks_scaler(self, scaler: Any) -> str:
        if scaler is None or id(scaler) in self._ids or not scaler.is_enabled():
            return ""
        if has_state_of("a GradScaler", list(self._captured.values())):
            return ""
        return (
            "Session(): the GradScaler is not given to the session, so its scale would start over "
            f"when the training is resumed; give it, Session(scaler=scaler, ...), or {_MEANT}"
        )

    def _saves(self, parameter: torch.Tensor) -> bool:
        if id(parameter) in self._ids or not parameter.numel():
            return True
        address = _address(parameter)
        return address is not None and address in self._memory


class Steps:
    """An observer of the steps of all optimizers in this process.

    Parameters
    ----------
    heard : callable
        A method, called once for each optimizer when it has made its first step that counts, with
        the GradScaler that makes it step, or None.
    counts : callable
        A method that returns whether steps count now.
    """

    def __init__(self, heard: Callable[[Optimizer, Any], None], counts: Callable[[], bool]) -> None:
        self._heard = weakref.WeakMethod(heard)
        self._counts = weakref.WeakMethod(counts)
        self._known: set[int] = set()
        mine = weakref.WeakMethod(self._stepped)

        def hook(optimizer: Optimizer, *_: Any) -> None:
            if torch.compiler.is_compiling():
                return
            if (method := mine()) is not None:
                method(optimizer)

        self._handle = register_optimizer_step_post_hook(hook)

    def close(self) -> None:
        """Stop observing."""
        self._handle.remove()

    def _stepped(self, optimizer: Optimizer) -> None:
        heard, counts = self._heard(), self._counts()
        if id(optimizer) in self._known or heard is None or counts is None or not counts():
            return
        self._known.add(id(optimizer))
        heard(optimizer, _scaler(sys._getframe(1)))


def _scaler(frame: FrameType | None) -> Any:
    """Return the GradScaler whose step() called this frame, or None."""
    for _ in range(_FRAMES):
        if frame is None:
            break
        mine = frame.f_locals.get("self")
        if isinstance(mine, torch.amp.GradScaler):
            return mine
        frame = frame.f_back
    return None


def norm_of_gradients(optimizer: Optimizer) -> float:
    """Return the norm of all gradients that an optimizer uses."""
    gradients = (each.grad for each in parameters_of(optimizer) if each.grad is not None)
    squares = sum(float(each.detach().float().norm()) ** 2 for each in gradients)
    return math.sqrt(squares)


def present() -> dict[str, Any]:
    """Return fingerprints of the state of all optimizers in this process and their parameters."""
    optimizers = alive(Optimizer)
    trained = {id(each): each for one in optimizers for each in parameters_of(one)}
    modules = alive(torch.nn.Module)
    mine = [each for each in modules if any(id(p) in trained for p in each.parameters(False))]
    buffers = [buffer for each in mine for buffer in each.buffers(recurse=False)]
    schedulers = alive(LRScheduler)
    scalers = [each for each in alive(torch.amp.GradScaler) if each.is_enabled()]
    return {
        "weights": unordered(trained.values()),
        "buffers": unordered(buffers),
        "optimizer": unordered(each.state_dict() for each in optimizers),
        "schedule": unordered(each.state_dict() for each in schedulers),
        "gradient scaler": unordered(each.state_dict() for each in scalers),
    }


def alive(kind: type) -> list[Any]:
    """Return all objects of a class that exist; this searches all objects of the process."""
    # By type, because isinstance runs code of proxies.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def _sets(scheduler: Any, optimizer: Any) -> bool:
    """Return whether a scheduler sets the rates of this optimizer, or of the one inside it."""
    theirs = getattr(scheduler, "optimizer", None)
    groups = getattr(theirs, "param_groups", None)
    return theirs is optimizer or (groups is not None and groups is optimizer.param_groups)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{tuple(tensor.shape)}"


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return the shard of a detached tensor on this rank, or the tensor itself."""
    local = getattr(tensor, "to_local", None)
    own: torch.Tensor = tensor if local is None else local()
    return own


def _address(tensor: torch.Tensor) -> int | None:
    try:
        return int(_own(tensor.detach()).untyped_storage().data_ptr()) or None
    # Sparse tensors and those of subclasses have no storage.
    except (RuntimeError, NotImplementedError):
        return None
