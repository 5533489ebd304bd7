"""The past of a training: what its steps change besides sharded tensors, to be set back."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from hpcext.training.checkpoint.position import Position
from hpcext.training.checkpoint.state import Tree
from hpcext.training.feature import Feature
from hpcext.training.torch.framework import Torch
from hpcext.training.torch.state import is_sharded, mapped, unwrapped


class Past(NamedTuple):
    """What a step may change besides parameters and the tensors of optimizers.

    Attributes
    ----------
    step : int
        The steps that had been made.
    done : float
        The work that had been done.
    place : Position
    random : dict
    objects : dict
        The state of other objects, by name.
    buffers : list of tensor
        Of the trained models.
    settings : list of dict
        Of the optimizers' groups of parameters, such as the learning rate.
    counts : list
        What optimizers of a sharded model have counted for each parameter, such as their steps.
    facts : Mapping
        What checkpoints say of the session's own parts.
    """

    step: int
    done: float
    place: Position
    random: Tree
    objects: dict[str, Any]
    buffers: list[torch.Tensor]
    settings: list[dict[str, Any]]
    counts: list[Any]
    facts: Mapping[str, Any]


class Recorder:
    """A recorder of what a training is, which can set it back.

    Parameters
    ----------
    framework : Torch
    followed : Feature
        A part of the session whose state follows the steps.
    """

    def __init__(self, framework: Torch, followed: Feature) -> None:
        self._framework = framework
        self._followed = followed

    def present(self) -> Past:
        """Record the present."""
        framework, state = self._framework, self._framework.state
        rest = {
            name: _copied(state.capture_object(value))
            for name, value in state.objects.items()
            if not self._trained(value)
        }
        return Past(
            framework.coordinator.step,
            framework.coordinator.done,
            dataclasses.replace(framework.loop.place),
            state.random(),
            rest,
            [each.detach().clone() for each in self._buffers()],
            [
                {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                for group in self._groups()
            ],
            [_copied(each[key]) for each, key in self._counts()],
            self._followed.facts(),
        )

    def set_back(self, past: Past) -> None:
        """Set the training back to what it was."""
        framework, state = self._framework, self._framework.state
        framework.coordinator.step, framework.coordinator.done = past.step, past.done
        framework.loop.place = dataclasses.replace(past.place)
        for group, settings in zip(self._groups(), past.settings, strict=True):
            group.update(copy.deepcopy(settings))
        for name, saved in past.objects.items():
            state.apply_to_object(state.objects[name], saved)
        with torch.no_grad():
            for buffer, saved in zip(self._buffers(), past.buffers, strict=True):
                buffer.copy_(saved)
        for (each, key), saved in zip(self._counts(), past.counts, strict=True):
            each[key] = _copied(saved)
        self._followed.restore(past.facts)
        state.set_random(past.random)

    def models(self) -> list[torch.nn.Module]:
        """Return the models that the session trains."""
        state = self._framework.state
        if not state.sharded:
            return [model.module for model in self._framework.models]
        # Their parameters may have been gathered, as by a validation.
        kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        return [
            each
            for each in state.modules()
            if any(isinstance(part, kind) for part in each.modules())
        ]

    def _trained(self, value: Any) -> bool:
        """Return whether only optimizers change an object, apart from its buffers."""
        if isinstance(value, torch.optim.Optimizer):
            return True
        return any(unwrapped(value) is model for model in self.models())

    def _buffers(self) -> list[torch.Tensor]:
        return [each for model in self.models() for each in model.buffers()]

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._framework.state.optimizers():
            yield from optimizer.param_groups

    def _counts(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield where optimizers have what is not in shards, though the parameters are."""
        if not self._framework.state.sharded:
            return
        for optimizer in self._framework.state.optimizers():
            for each in optimizer.state.values():
                for key, value in each.items():
                    if not is_sharded(value):
                        yield each, key


def _copied(value: Any) -> Any:
    """Return a copy of a state that later steps do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict | list | tuple):
        return mapped(value, lambda _, item: _copied(item))
    return copy.deepcopy(value)
