"""Loaders that hide from a session which of its samplers they read from."""

from __future__ import annotations

from hpcext.training.batching import ElasticBatches
from hpcext.training.data.loading import places_sampler
from hpcext.training.feature import Feature


class Hidden(Feature):
    """The samplers of a session that are read through a loader of another kind.

    Such a loader (``enumerate``, ``zip``, a prefetcher around a DataLoader) shows no sampler, so it
    is read up to its place, like any other. The samplers begin it in the order of its epoch, and
    the user learns what is not done.
    """

    def __init__(self) -> None:
        self._loader = ""
        self._begun: list[int] | None = None

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        """Set the samplers to this epoch, unless the loader shows the one it reads from."""
        self._begun = None
        if batches is not None or places_sampler(loader):
            return
        for walk in self.loop.walks:
            walk.begin(self.loop.place.epoch)
        self._loader = type(loader).__name__
        self._begun = [walk.begun for walk in self.loop.walks]

    def step_begins(self) -> None:
        """Note it if the first batch came from one of the samplers."""
        before, self._begun = self._begun, None
        if before is None or before == [walk.begun for walk in self.loop.walks]:
            return
        if self.coordinator.ranks.rank == 0:
            self.coordinator.reporter.note(
                f"session.batches({self._loader}): it does not show which sampler of the session "
                "it reads from, so smaller batches at the end of an epoch count like whole ones, "
                "and a change of the number of ranks repeats or leaves out samples; give it the "
                "loader itself, as in enumerate(session.batches(loader))"
            )
