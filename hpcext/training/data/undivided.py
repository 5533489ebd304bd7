"""A check that several ranks train as they should: batches of their own, and one model.

Observations of each rank in its first step are compared at the boundary after it, once in an
attempt. So a training whose ranks had the same batch, or whose gradients are not averaged, is
recognised by facts and not by the look of its script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence, Sized
from typing import Any, NamedTuple

from hpcext.training.data.loading import elastic, inside
from hpcext.training.data.sampler import ResumableSampler
from hpcext.training.fingerprint import fingerprint
from hpcext.training.ranks import Ranks

_UNEQUAL = 1e-3
"""Relative difference of norms beyond which gradients are not averaged."""

_MAX_NORMS = 8


class Observation(NamedTuple):
    """The observations of a rank in its first step.

    Attributes
    ----------
    batch : str or None
        Fingerprint of its batch; None if unknown or not needed.
    samples : int
        Number of samples in the data set that its loader traverses completely; 0 if it does not.
    gradients : tuple of float
        Norms of the gradients, one for each optimizer.
    """

    batch: str | None = None
    samples: int = 0
    gradients: tuple[float, ...] = ()

    def norms(self, gradients: Sequence[float]) -> Observation:
        """Return these observations with norms of gradients."""
        return self._replace(gradients=tuple(gradients[:_MAX_NORMS]))


def first_batch(loader: Any, batch: Any) -> Observation:
    """Return the observations of a rank's first batch."""
    loader = inside(loader)
    if _divides(loader):
        return Observation()
    return Observation(fingerprint(batch), _all_samples(loader))


def compare(ranks: Ranks, seen: Observation | None, *, use: str, wrap: str) -> list[str]:
    """Compare the observations of all ranks, which all call it; on rank 0, return the problems.

    Parameters
    ----------
    ranks : Ranks
    seen : Observation or None
        Observations of this rank.
    use, wrap : str
        As for :func:`verdict`.
    """
    if ranks.size == 1:
        return []
    told = [json.loads(each) for each in ranks.gather(json.dumps(seen).encode())]
    return (
        list(verdict([Observation(*(each or ())) for each in told], use=use, wrap=wrap))
        if told
        else []
    )


def verdict(ranks: Sequence[Observation], *, use: str, wrap: str) -> Iterator[str]:
    """Yield a sentence for each problem.

    Parameters
    ----------
    ranks : sequence of Observation
        Observations of all ranks.
    use, wrap : str
        For the messages: how to divide the data, and how to average the models.
    """
    first = ranks[0]
    several = f"the {len(ranks)} ranks"
    if first.batch is not None and all(each.batch == first.batch for each in ranks):
        yield (
            f"{several} all train the same batches: the loader is not divided among them, so more "
            f"GPUs do not help; {use}"
        )
    elif first.samples and all(each.samples == first.samples for each in ranks):
        yield (
            f"{several} each go through {first.samples} samples: unless each has its own data, an "
            f"epoch trains every sample {len(ranks)} times; {use}"
        )
    if any(map(_differ, zip(*(each.gradients for each in ranks), strict=False))):
        yield (
            f"{several} do not average their gradients: each trains its own model, and a "
            f"checkpoint holds only that of rank 0; {wrap}"
        )


def _differ(norms: Sequence[float]) -> bool:
    finite = all(map(math.isfinite, norms))
    return finite and max(norms) - min(norms) > _UNEQUAL * max(norms)


def _divides(loader: Any) -> bool:
    """Return whether a loader is known to give each rank a part of the data."""
    if elastic(loader) is not None:
        return True
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers += [getattr(each, "sampler", None) for each in samplers]
    # num_replicas is in DistributedSampler, and in samplers modelled on it.
    return any(
        isinstance(each, ResumableSampler) or hasattr(each, "num_replicas") for each in samplers
    )


def _all_samples(loader: Any) -> int:
    """Return the length of a DataLoader's data if its own sampler traverses all of it, else 0."""
    sampler = getattr(loader, "sampler", None)
    data = getattr(loader, "dataset", None)
    plain = type(sampler).__module__ == "torch.utils.data.sampler"
    whole = plain and type(sampler).__name__ in {"RandomSampler", "SequentialSampler"}
    return len(data) if whole and isinstance(data, Sized) else 0
