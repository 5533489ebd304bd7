"""Random faults over the whole of ``hpcext run``; see ``draws.py``, which also replays one seed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from draws import AT_ONCE, run

# Draws of the continuous integration: in them each fault is done four times at least, and two
# PyTorch trainings are among the jobs. More find what is rarer.
IN_CI, IN_ALL = 6, 2000
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= IN_CI)) for seed in range(IN_ALL)]


@pytest.fixture(scope="module")
def games(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Future[tuple[bool, str]]]]:
    """Every draw that was selected, several at once: they mostly wait."""
    here = (item for item in request.session.items if item.path == request.path)
    seeds = [item.callspec.params["seed"] for item in here]  # type: ignore[attr-defined]
    root = tmp_path_factory.mktemp("draws")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {seed: pool.submit(run, seed, root / str(seed)) for seed in seeds}
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost(games: dict[int, Future[tuple[bool, str]]], seed: int) -> None:
    well, said = games[seed].result()
    assert well, said
