"""Whether several ranks train what they should: batches of their own, and one model.

What each has seen in its first step is compared at the boundary after it, once in an attempt. So
it is known, and not guessed from how a script looks, that ranks had the very same batch, or that
their gradients are not averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from typing import Any, NamedTuple

from hpcext.training.fingerprint import fingerprint
from hpcext.training.loading import elastic
from hpcext.training.sampler import ResumableSampler

_UNEQUAL = 1e-3
"""Norms of averaged gradients that differ by more than this part are of different gradients."""

_MAX_NORMS = 8


class Seen(NamedTuple):
    """What one rank has seen in its first step.

    Attributes
    ----------
    batch : str or None
        What its batch is recognised by; None where nothing is known of it, or need be.
    samples : int
        Of the data set that its loader goes through from end to end; 0: it does not.
    gradients : tuple of float
        Norms of the gradients, an optimizer each.
    """

    batch: str | None = None
    samples: int = 0
    gradients: tuple[float, ...] = ()

    def norms(self, gradients: Sequence[float]) -> Seen:
        """The same, and these gradients."""
        return self._replace(gradients=tuple(gradients[:_MAX_NORMS]))


def first_batch(loader: Any, batch: Any) -> Seen:
    """What is to be known of the first batch of a rank among several."""
    if _divides(loader):
        return Seen()
    return Seen(fingerprint(batch), _all_samples(loader))


def verdict(ranks: Sequence[Seen], *, use: str, wrap: str) -> Iterator[str]:
    """What is wrong, a sentence each.

    Parameters
    ----------
    ranks : sequence of Seen
        Of all ranks.
    use, wrap : str
        What divides the data, and what makes one model of many.
    """
    first = ranks[0]
    several = f"the {len(ranks)} ranks"
    if first.batch is not None and all(each.batch == first.batch for each in ranks):
        yield (
            f"{several} all train the same batches: the loader is not divided among them, and "
            f"more GPUs make nothing faster; {use}"
        )
    elif first.samples and all(each.samples == first.samples for each in ranks):
        yield (
            f"{several} each go through {first.samples} samples: unless each has data of its own, "
            f"an epoch trains every sample {len(ranks)} times; {use}"
        )
    if any(map(_differ, zip(*(each.gradients for each in ranks), strict=False))):
        yield (
            f"{several} do not average their gradients: each trains a model of its own, and a "
            f"checkpoint holds that of rank 0 alone; {wrap}"
        )


def _differ(norms: Sequence[float]) -> bool:
    finite = all(map(math.isfinite, norms))
    return finite and max(norms) - min(norms) > _UNEQUAL * max(norms)


def _divides(loader: Any) -> bool:
    """Whether it is known to give each rank a part."""
    if elastic(loader) is not None:
        return True
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers += [getattr(each, "sampler", None) for each in samplers]
    # num_replicas: DistributedSampler, and those that are made in its image.
    return any(
        isinstance(each, ResumableSampler) or hasattr(each, "num_replicas") for each in samplers
    )


def _all_samples(loader: Any) -> int:
    """The length of the data of a DataLoader whose own sampler goes through all of it."""
    sampler = getattr(loader, "sampler", None)
    data = getattr(loader, "dataset", None)
    plain = type(sampler).__module__ == "torch.utils.data.sampler"
    whole = plain and type(sampler).__name__ in {"RandomSampler", "SequentialSampler"}
    return len(data) if whole and isinstance(data, Sized) else 0
