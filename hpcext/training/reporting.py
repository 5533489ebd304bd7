"""The progress of a session: where it is, and what it reports."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Sequence
from typing import Any

from hpcext.training.composition import Training


class Reporting:
    """The part of :class:`hpcext.training.session.Session` about progress: queries and reports."""

    training: Training

    def __init__(self) -> None:
        self._run_id = uuid.uuid4().hex
        self._repeated: set[str] = set()

    @property
    def step(self) -> int:
        """Optimizer steps since the job began, over all attempts."""
        return self.training.coordinator.step

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.training.coordinator.ranks.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.training.coordinator.ranks.size

    @property
    def resumed(self) -> bool:
        """Whether a checkpoint was restored."""
        return self.training.resumed

    @property
    def run_id(self) -> str:
        """The id of the run for an experiment tracker (wandb, MLflow): 32 hexadecimal digits.

        It is the same in every attempt of the job and on every rank, and differs between jobs.
        Without a checkpoint directory it is not stored: it is new each time, on each rank.
        """
        return self.training.keeper.run_id if self.training.keeper else self._run_id

    def report(self, **metrics: Any) -> None:
        """Report numbers of the training, such as loss and accuracy, to show for the job.

        The call is cheap, and may be made in each step.

        Parameters
        ----------
        **metrics : number or tensor
            Metrics by name. Numbers on a device are fetched only when a report is written.
        """
        reporter = self.training.coordinator.reporter
        reporter.metrics(metrics)
        if self.training.keeper is None or reporter.registered or self.rank != 0:
            return
        again = self._repeated & metrics.keys()
        self._repeated |= metrics.keys()
        if again:
            # A report may come before the loop, or instead of it; several come from a loop.
            reporter.note(
                f"session.report({min(again)}=...) was called again, and no loop over "
                "session.batches(loader) has begun: nothing is saved, and the job cannot be "
                "suspended; write `for batch in session.batches(loader):` inside "
                "`for epoch in session.epochs(n):`"
            )

    def report_goodput(
        self,
        noise_scale: float,
        initial_batch: int,
        *,
        most_batch: int | None = None,
        least_per_gpu: int = 1,
        most_per_gpu: int | None = None,
        accumulates: bool = True,
        throughput: Sequence[float] | None = None,
        batch: int | None = None,
    ) -> None:
        """Report the value of larger batches, for policies that divide GPUs by goodput.

        The last report remains valid, in later attempts too. The call is cheap, but fetches a
        number on a device at once, so call it only occasionally.

        Parameters
        ----------
        noise_scale : float
            The present gradient noise scale of Pollux (eq. 5), in samples. A value that is negative
            or not a number, as measurements of few steps may be, is ignored.
        initial_batch : int
            Samples in a step on all ranks for which the training was tuned.
        most_batch : int, optional
            Largest number of samples in a step; default 32 times the initial one. Give
            `initial_batch` for a training that keeps its batch.
        least_per_gpu, most_per_gpu : int
            Smallest and largest number of samples of a rank in a pass; the largest fits its memory.
        accumulates : bool
            Whether a step may have several passes.
        throughput : sequence of float, optional
            Seven parameters, see :data:`hpcext.protocol.REPORT`. Without them they are fitted to
            the steps that the manager sees.
        batch : int, optional
            Present number of samples in a step.

        Raises
        ------
        ValueError
            There is neither `throughput` nor a session that counts samples.
        """
        coordinator = self.training.coordinator
        if throughput is None and not coordinator.counts_samples:
            raise ValueError("report_goodput: needs throughput=, or Session(samples_per_step=...)")
        samples = {
            "initial_batch": initial_batch,
            "most_batch": most_batch,
            "least_per_gpu": least_per_gpu,
            "most_per_gpu": most_per_gpu,
            "batch": batch,
        }
        # As plain numbers, since JSON cannot encode those of NumPy.
        coordinator.reporter.goodput(
            noise_scale,
            {
                **{name: each and operator.index(each) for name, each in samples.items()},
                "accumulates": bool(accumulates),
                "throughput": None if throughput is None else list(map(float, throughput)),
            },
        )
