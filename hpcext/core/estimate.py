"""What a job has stated and reported of its speed and its end; models of it are elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec.structs import replace

from hpcext.core.history.losses import Point, add

Finite = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Overlap = Annotated[float, msgspec.Meta(ge=1, le=10)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=2**40)]

LEAST_PASS_S = 1e-9
"""A pass takes at least this time, even with one sample."""

Throughput = tuple[Seconds, Seconds, Seconds, Seconds, Seconds, Seconds, Overlap]
"""``alpha_grad, beta_grad, alpha_local, beta_local, alpha_node, beta_node``, in seconds, and
``gamma``, as in :class:`hpcext.scaling.throughput.Throughput`."""


class GoodputReport(msgspec.Struct, frozen=True):
    """A training's report of its goodput (:data:`hpcext.protocol.REPORT`).

    The model of it, :class:`hpcext.scaling.goodput.Goodput`, has the same fields.

    Attributes
    ----------
    noise_scale : float
        Gradient noise scale, in samples.
    initial_batch : int
        Samples of a step of all GPUs that the user chose; fewer are never taken.
    most_batch : int or None
        Most samples of a step.
    least_per_gpu : int
        Fewest samples of a GPU in a pass.
    most_per_gpu : int or None
        Most, by the GPU's memory.
    accumulates : bool
        Whether a step may have several passes.
    throughput : Throughput or None
        Of the kind of GPUs on which the training runs.
    batch : int or None
        Samples of a step at present.

    Raises
    ------
    ValueError
        It contradicts itself.
    """

    noise_scale: Finite
    initial_batch: Samples
    most_batch: Samples | None = None
    least_per_gpu: Samples = 1
    most_per_gpu: Samples | None = None
    accumulates: bool = True
    throughput: Throughput | None = None
    batch: Samples | None = None

    def __post_init__(self) -> None:
        for low, high in (
            ("initial_batch", "most_batch"),
            ("least_per_gpu", "most_per_gpu"),
            ("initial_batch", "batch"),
            ("batch", "most_batch"),
        ):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{low} is {least}, more than {high}, {most}")
        if self.throughput is not None and sum(self.throughput[:2]) < LEAST_PASS_S:
            raise ValueError("throughput: a training step takes no time")


class Observed(msgspec.Struct, frozen=True):
    """A speed that was measured.

    Attributes
    ----------
    gpus, nodes : int
        GPUs in all, and the nodes that they were on.
    rate : float
        Work per second, as last reported there, > 0.
    batch : float
        Work of a step, of all GPUs together, > 0; 1 where work is counted in steps.
    seconds : float
        How long the job has trained there, from its first report on.
    at_s : float
        Instant of the last report.
    kind : str
        Of the GPUs, as :class:`~hpcext.core.values.Node` has it.
    """

    gpus: int
    nodes: int
    rate: float
    batch: float = 1.0
    seconds: float = 0.0
    at_s: float = 0.0
    kind: str = ""


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job has stated and reported of its speed and its work.

    The models in `hpcext.scaling` derive more from it.

    Attributes
    ----------
    stated : Mapping[int, float]
        GPUs in all → speed, from the job file; the unit is the job's own.
    by_kind : Mapping[str, Mapping[int, float]]
        The same for each kind of GPU, all in one unit; empty if kinds are not distinguished. If it
        is not empty, `stated` is one of these curves, or its shape.
    observed : tuple of Observed
        By GPUs, nodes and kind, ascending.
    losses : tuple of Point
        As reported, by step; thinned out.
    work : float or None
        Work of the whole job: steps or samples, as the job file says.
    target_loss : float or None
        The loss at which the job is done, if it states one.
    step : int
        Last step reported.
    done : float
        Work done and reported so far.
    up_s, down_s : float or None
        Seconds without progress that a growth and a shrink cost this job: as the job file says,
        then as last measured (CAPES and BFTrainer call them R_up and R_dw).
    goodput : GoodputReport or None
        As last reported.
    throughputs : Mapping[str, Throughput]
        Kind of GPUs → the throughput that was last reported on it.
    """

    stated: Mapping[int, float] = msgspec.field(default_factory=dict)
    by_kind: Mapping[str, Mapping[int, float]] = msgspec.field(default_factory=dict)
    observed: tuple[Observed, ...] = ()
    losses: tuple[Point, ...] = ()
    work: float | None = None
    target_loss: float | None = None
    step: int = 0
    done: float = 0.0
    up_s: float | None = None
    down_s: float | None = None
    goodput: GoodputReport | None = None
    throughputs: Mapping[str, Throughput] = msgspec.field(default_factory=dict)

    @property
    def measured(self) -> dict[int, float]:
        """GPUs in all → work per second; on the fewest nodes, if it was measured on several.

        If there are several kinds of GPU, it is the curve of the last report's kind.
        """
        order = sorted(self.observed, key=lambda each: (-each.nodes, each.at_s))
        return {each.gpus: each.rate for each in order}

    def rate(self, gpus: int, like: int | None = None) -> float | None:
        """Return the work per second on so many GPUs, or None where that is not known.

        Known where it was measured; and, if it was measured at `like` GPUs, wherever the job
        states how its speeds at the two sizes compare.

        Parameters
        ----------
        gpus : int
            In all.
        like : int or None
            A number of GPUs at which the speed was measured.

        Examples
        --------
        >>> known = Estimate(stated={2: 1.0, 4: 1.5}, observed=(Observed(2, 1, 10.0),))
        >>> known.rate(4), known.rate(4, like=2)
        (None, 15.0)
        """
        rates = self.measured
        if gpus in rates or like is None:
            return rates.get(gpus)
        measured, stated = rates.get(like), self.stated.get(like)
        if measured is None or not stated or gpus not in self.stated:
            return None
        return measured * self.stated[gpus] / stated

    def left_s(self, gpus: int, like: int | None = None) -> float | None:
        """Return the seconds until the work is done on so many GPUs, if known; see :meth:`rate`."""
        rate = self.rate(gpus, like)
        if self.work is None or not rate:
            return None
        return max(0.0, self.work - self.done) / rate

    def saw(self, now_s: float, since_s: float, seen: Observed) -> Estimate:
        """Add a speed that was observed where the job has been since an instant.

        Parameters
        ----------
        now_s, since_s : float
            Instants: of the observation, and since when the job is where it is.
        seen : Observed
            Its `seconds` and `at_s` are filled in.
        """
        places = {(each.gpus, each.nodes, each.kind): each for each in self.observed}
        here = (seen.gpus, seen.nodes, seen.kind)
        before = places.get(here, replace(seen, at_s=now_s))
        seconds = before.seconds + now_s - max(before.at_s, since_s)
        places[here] = replace(seen, seconds=seconds, at_s=now_s)
        return replace(self, observed=tuple(places[key] for key in sorted(places)))

    def reached(
        self,
        step: int,
        done: float,
        loss: float | None = None,
        goodput: GoodputReport | None = None,
        kind: str | None = None,
    ) -> Estimate:
        """Add what was reported at a step.

        Parameters
        ----------
        step : int
        done : float
            Work done since the job began.
        loss : float or None
            That of the step.
        goodput : GoodputReport or None
            As it is from now on; None: as it was.
        kind : str or None
            That of the GPUs on which it was reported; None: unknown.
        """
        losses = self.losses if loss is None else add(self.losses, step, loss)
        known = replace(self, step=step, done=done, losses=losses, goodput=goodput or self.goodput)
        if goodput is None or goodput.throughput is None or kind is None:
            return known
        return replace(known, throughputs={**self.throughputs, kind: goodput.throughput})

    def batch(self, step: int, done: float) -> float:
        """Return the work of a step since the last report; 1 where that is not known.

        Parameters
        ----------
        step : int
        done : float
            Work done since the job began.
        """
        steps, work = step - self.step, done - self.done
        if steps <= 0 or work <= 0:
            steps, work = step, done
        return work / steps if steps > 0 and work > 0 else 1.0

    def paid(self, gained: int, cost_s: float) -> Estimate:
        """Add what it cost to change the number of GPUs.

        Parameters
        ----------
        gained : int
            GPUs; below 0: as many were lost.
        cost_s : float
            Seconds without progress.
        """
        if not gained:
            return self
        return replace(self, **{"up_s" if gained > 0 else "down_s": cost_s})
