"""Random faults over the whole of ``hpcext run``; see ``draws.py``, which also replays one seed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from draws import AT_ONCE, run

ALL = 2000


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make the tests; only one where they are left out, as each process collects all tests."""
    left_out = "not slow" in metafunc.config.option.markexpr
    metafunc.parametrize("seed", range(1 if left_out else ALL))


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
def test_nothing_is_lost(games: dict[int, Future[tuple[bool, str]]], seed: int) -> None:
    well, said = games[seed].result()
    assert well, said
