"""Hooks of features are called where their base class says, and what they hold is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint import Checkpoint, Draft, Store, verify
from hpcext.training.checkpoint.shards import Shards
from hpcext.training.checkpoint.state import Tree
from hpcext.training.feature import Feature, Framework, Parts, Resizing
from hpcext.training.session import Session


class Noting(Feature):
    """Notes which hooks are called, and counts steps over all attempts."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.steps = name, log, 0
        self.reopen_after: int | None = None

    def _note(self, hook: str) -> None:
        self.log.append(f"{self.name} {hook}")

    def facts(self) -> dict[str, Any]:
        return {f"noting-{self.name}": self.steps}

    def restore(self, manifest: Any) -> None:
        self.steps = manifest.get(f"noting-{self.name}", 0)

    def epoch_begins(self) -> None:
        self._note("epoch begins")

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        self._note("opening")

    def opened(self) -> None:
        self._note("opened")

    def step_ends(self) -> None:
        self.steps += 1
        self._note("step ends")

    def before_boundary(self) -> bool:
        self._note("before boundary")
        return self.steps == self.reopen_after

    def after_boundary(self, *, reopens: bool, resized: bool) -> None:
        assert not resized
        self._note("after boundary, reopens" if reopens else "after boundary")

    def finishing(self) -> None:
        self._note("finishing")

    def finished(self) -> None:
        self._note("finished")


class Composed(Session):
    def __init__(self, *features: Feature, **options: Any) -> None:
        self.given = features
        super().__init__(**options)

    def compose(self) -> Parts:
        return Parts(Framework(), Resizing(), self.given)


def test_features_enclose_each_other() -> None:
    log: list[str] = []
    session = Composed(Noting("a", log), Noting("b", log), weights=np.zeros(2))
    for _ in session.epochs(1):
        for _ in session.batches([0]):
            log.append("step")
    assert log == [
        *("a epoch begins", "b epoch begins", "a opening", "b opening", "b opened", "a opened"),
        *("step", "a step ends", "b step ends", "a before boundary", "b before boundary"),
        *("b after boundary", "a after boundary"),
        *("a finishing", "b finishing", "a finished", "b finished"),
    ]


def test_a_feature_can_reopen_the_loader_without_losing_samples() -> None:
    log: list[str] = []
    noting = Noting("a", log)
    noting.reopen_after = 2
    session = Composed(noting, weights=np.zeros(2), seed=1)
    batches = session.batch_sampler(12, global_batch=3)
    seen: list[int] = []
    for _ in session.epochs(1):
        for batch in session.batches(batches):
            seen += batch
    assert sorted(seen) == list(range(12))
    assert log.count("a opening") == 2
    assert log.count("a after boundary, reopens") == 1


def test_what_a_feature_knows_is_in_the_checkpoint(tmp_path: Path) -> None:
    weights = np.zeros(2)

    def train(epochs: int, *features: Noting) -> Session:
        session = Composed(*features, weights=weights, checkpoint_dir=tmp_path)
        for _ in session.epochs(epochs):
            for _ in session.batches([0, 1]):
                pass
        return session

    train(1, Noting("a", []))
    # A feature that the last release did not have begins anew.
    old, new = Noting("a", []), Noting("b", [])
    assert train(2, old, new).resumed
    assert (old.steps, new.steps) == (4, 2)
    newest = Store(tmp_path).newest()
    assert newest is not None
    assert (newest.manifest["noting-a"], newest.manifest["noting-b"]) == (4, 2)


def test_a_period_of_fewer_than_no_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_every_steps=-5: at least 1"):
        Session(weights=np.zeros(2), checkpoint_dir=tmp_path, checkpoint_every_steps=-5)


class Halves(Shards):
    """Shards of one rank: the second half of each array, in a file of its own."""

    def separate(self, objects: Tree) -> tuple[Tree, Tree]:
        cut = {name: len(array) // 2 for name, array in objects.items()}
        whole = {name: array[: cut[name]] for name, array in objects.items()}
        return whole, {name: array[cut[name] :] for name, array in objects.items()}

    def write(self, path: Path, shards: Tree) -> list[dict[str, Any]]:
        draft = Draft(path)
        draft.write("halves.npz", lambda file: np.savez(cast("Any", file), **shards))
        return draft.files

    def join(self, checkpoint: Checkpoint, whole: Tree) -> Tree:
        with np.load(checkpoint.part("halves.npz")) as shards:
            return {name: np.concatenate((half, shards[name])) for name, half in whole.items()}


class Halving(Feature):
    def shards(self) -> Shards:
        return Halves(self.coordinator.ranks)


@pytest.mark.parametrize("staging", [False, True])
def test_what_a_feature_writes_as_shards_is_in_the_checkpoint(
    tmp_path: Path, staging: bool
) -> None:
    weights = np.zeros(5)

    def train(epochs: int) -> None:
        session = Composed(
            Halving(),
            weights=weights,
            checkpoint_dir=tmp_path,
            checkpoint_every_steps=1,
            staging=staging,
        )
        for _ in session.epochs(epochs):
            for _ in session.batches([0, 1]):
                weights[:] += np.arange(5)

    train(2)
    for path in tmp_path.glob("step-*"):
        names = {entry["name"] for entry in verify(path)["files"]}
        assert names == {"halves.npz", "state.npz"}
    weights[:] = -1
    train(3)
    assert weights.tolist() == [0, 6, 12, 18, 24]
