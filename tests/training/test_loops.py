"""Loops of other forms than one over epochs and one over a loader go on where they were."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Suspensions
from tqdm import tqdm

from hpcext.training.batching import ElasticBatches
from hpcext.training.session import Session


@pytest.fixture
def suspensions(monkeypatch: pytest.MonkeyPatch) -> Suspensions:
    return Suspensions(monkeypatch)


def session_at(path: Path | None) -> Session:
    return Session(weights=np.zeros(1), seed=3, checkpoint_dir=path)


# Several loops over epochs.


def test_a_second_loop_over_epochs_goes_on_where_it_was(
    suspensions: Suspensions, tmp_path: Path
) -> None:
    trained: list[tuple[int, int]] = []

    def train(stop_at: tuple[int, int] | None = None) -> Session:
        session = session_at(tmp_path)
        batches = session.batch_sampler(8, global_batch=2, shuffle=False)
        for count in (1, 3):
            for epoch in session.epochs(count):
                for samples in session.batches(batches):
                    trained.append((epoch, samples[0]))
                    if trained[-1] == stop_at:
                        suspensions.request()
        return session

    with suspensions.expected():
        train((2, 2))
    assert train().step == 12
    assert trained == [(epoch, sample) for epoch in range(3) for sample in range(0, 8, 2)]
    # All of it is finished, for both loops.
    assert train().step == 12
    assert len(trained) == 12


def test_samples_that_are_carried_outlive_a_suspension_in_a_validation(
    suspensions: Suspensions, tmp_path: Path
) -> None:
    trained: Counter[int] = Counter()

    def train(global_batch: int, *, stops: bool = False) -> None:
        session = session_at(tmp_path)
        batches = session.batch_sampler(10, global_batch=global_batch, last="carried")
        for _ in session.epochs(3):
            for samples in session.batches(batches):
                trained.update(samples)
            for _ in session.validation(range(3)):
                if stops:
                    suspensions.request()

    with suspensions.expected():
        train(4, stops=True)
    assert sum(trained.values()) == 8
    # As a batch of each GPU is, if there are fewer GPUs now.
    train(2)
    assert trained == dict.fromkeys(range(10), 3)


# Loaders within others.


class Prefetcher:
    """A loader that others write around theirs."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self._loader


def orders(session: Session, batches: ElasticBatches, wrap: Any) -> list[list[int]]:
    return [
        [sample for samples in session.batches(wrap(batches)) for sample in samples]
        for _ in session.epochs(3)
    ]


def plainly(batches: ElasticBatches) -> ElasticBatches:
    return batches


@pytest.mark.parametrize("last", ["weighted", "carried"])
def test_a_progress_bar_around_a_loader_changes_nothing(
    capsys: pytest.CaptureFixture[str], last: str
) -> None:
    expected, seen = (
        orders(session, session.batch_sampler(10, global_batch=4, last=last), wrap)
        for session, wrap in (
            (session_at(None), plainly),
            (session_at(None), lambda loader: tqdm(loader, file=io.StringIO())),
        )
    )
    assert seen == expected
    assert "hpcext" not in capsys.readouterr().err


def test_a_loader_that_hides_its_sampler_has_the_orders_of_its_epochs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session, hiding = session_at(None), session_at(None)
    expected = orders(session, session.batch_sampler(10, global_batch=4), plainly)
    # Nothing that is carried is known, so each epoch trains all of its own.
    batches = hiding.batch_sampler(10, global_batch=4, last="carried")
    assert orders(hiding, batches, Prefetcher) == expected
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "session.batches(Prefetcher): it does not show which sampler" in said


def test_a_loader_of_the_users_own_is_not_said_to_hide_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = session_at(None)
    validation = session.batch_sampler(4, global_batch=2, shuffle=False)
    for _ in session.epochs(2):
        for _ in session.batches(range(3)):
            assert [*session.validation(validation)] == [[0, 1], [2, 3]]
    assert not capsys.readouterr().err


def test_a_hidden_sampler_goes_on_in_the_order_of_its_epoch(
    suspensions: Suspensions, tmp_path: Path
) -> None:
    trained: list[int] = []

    def train(stop_at: int = 0) -> None:
        session = session_at(tmp_path)
        batches = session.batch_sampler(6, global_batch=2)
        for _ in session.epochs(2):
            for samples in session.batches(Prefetcher(batches)):
                trained.extend(samples)
                if session.step + 1 == stop_at:
                    suspensions.request()

    with suspensions.expected():
        train(stop_at=4)
    train()
    session = session_at(None)
    first, second, _ = orders(session, session.batch_sampler(6, global_batch=2), plainly)
    assert trained == first + second
