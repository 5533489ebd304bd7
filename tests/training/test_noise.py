"""The gradient noise scale of models whose noise is known, on one, two and four ranks."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import train_noise as script

from hpcext.protocol import environ
from hpcext.training.adapt.noise import LEAST, NoiseScale, Squares
from hpcext.training.torch.noise import Squared

Cases = dict[str, list[Squares]]
SCALED = pytest.param(2, "scaled", marks=pytest.mark.slow)
WORLDS = (1, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 4)))


class MeasuredNoise(dict[int, Cases]):
    """What rank 0 of each number of ranks measured; measured when it is asked for."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._place = place

    def __missing__(self, world: int) -> Cases:
        words = [sys.executable, str(Path(script.__file__))]
        store = str(self._place / f"store-{world}")
        ranks = [
            subprocess.Popen(
                [*words, str(rank), str(world), store, str(self._place)],
                env={**environ(), "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            errors = [rank.communicate(timeout=500)[1] for rank in ranks]
            assert [rank.returncode for rank in ranks] == [0] * world, errors
        finally:
            for rank in ranks:
                rank.kill()
        texts = {(self._place / f"{world}-{rank}.json").read_text() for rank in range(world)}
        assert len(texts) == 1, "ranks that believe in different noise would part"
        cases = json.loads(texts.pop())
        self[world] = {name: [Squares(*each) for each in steps] for name, steps in cases.items()}
        return self[world]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> MeasuredNoise:
    return MeasuredNoise(tmp_path_factory.mktemp("noise"))


def estimates(steps: list[Squares]) -> tuple[list[float], list[float]]:
    told = [step.estimates() for step in steps]
    return [each[0] for each in told if each], [each[1] for each in told if each]


@pytest.mark.cases(1)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "name", [pytest.param("pieces", marks=pytest.mark.slow), "unequal", "accumulated"]
)
def test_estimates_are_without_bias(seen: MeasuredNoise, world: int, name: str) -> None:
    check_bias(seen, world, name)


@pytest.mark.parametrize(("world", "name"), [(1, "halves"), (1, "differenced"), SCALED])
def test_other_estimates_are_without_bias(seen: MeasuredNoise, world: int, name: str) -> None:
    check_bias(seen, world, name)


def check_bias(seen: MeasuredNoise, world: int, name: str) -> None:
    for found, exact in zip(
        estimates(seen[world][name]), (script.SIGNAL, script.NOISE), strict=True
    ):
        error = statistics.stdev(found) / len(found) ** 0.5
        assert abs(statistics.fmean(found) - exact) < 4 * error
        # And close enough to tell a formula that is wrong.
        assert 4 * error < 0.25 * exact


@pytest.mark.parametrize("world", WORLDS[1:])
@pytest.mark.parametrize("name", ["pieces", "scaled"])
def test_the_same_pieces_are_the_same_on_any_ranks(
    seen: MeasuredNoise, world: int, name: str
) -> None:
    for mine, other in zip(seen[1]["pieces"], seen[world][name], strict=True):
        assert mine.pieces == other.pieces == 4
        assert mine.mean == pytest.approx(other.mean, rel=1e-4)
        assert mine.spread == pytest.approx(other.spread, rel=1e-4)


@pytest.mark.slow
def test_how_many_pieces_there_are(seen: MeasuredNoise) -> None:
    assert {step.pieces for step in seen[1]["unequal"]} == {3}
    assert {step.pieces for step in seen[2]["accumulated"]} == {8}


@pytest.mark.slow
def test_how_many_pieces_four_ranks_have(seen: MeasuredNoise) -> None:
    assert {step.pieces for step in seen[4]["unequal"]} == {4}


def measured(signal: float, noise: float, batch: float, seed: int, count: int) -> NoiseScale:
    """Two pieces of a gradient of 40 numbers, again and again."""
    return further(NoiseScale(), signal, noise, batch, seed, count)


def further(scale: NoiseScale, *model: float) -> NoiseScale:
    """More measurements of the same kind."""
    signal, noise, batch = model[:3]
    seed, count = map(int, model[3:])
    draw = random.Random(seed)
    for _ in range(count):
        pieces = [
            [
                (signal / 40) ** 0.5 + draw.gauss(0, (noise / 40 / (batch / 2)) ** 0.5)
                for _ in range(40)
            ]
            for _ in range(2)
        ]
        mean = [(a + b) / 2 for a, b in zip(*pieces, strict=True)]
        spread = sum(sum(x * x for x in piece) for piece in pieces) / 2
        assert scale.add(Squares(2, batch, spread, sum(x * x for x in mean)))
    return scale


def test_the_noise_scale_is_that_of_the_model() -> None:
    found = [measured(1.0, 200.0, 64.0, seed, 60).phi() for seed in range(10)]
    known = [phi for phi in found if phi is not None]
    assert len(known) == 10
    assert statistics.fmean(known) == pytest.approx(200.0, rel=0.3)


def test_gradients_that_shrink_do_not_outweigh_later_ones() -> None:
    """A tenth of the noise scale, in gradients a hundred times as long."""
    found = []
    for seed in range(10):
        scale = measured(1e4, 2e5, 64.0, seed, 10)
        found.append(further(scale, 1.0, 200.0, 64.0, seed + 100, 40).phi() or 0.0)
    assert statistics.fmean(found) > 100.0


def test_it_is_not_larger_than_could_be_seen() -> None:
    """A gradient that vanishes in its noise: its estimates are negative half of the time."""
    scales = [measured(0.0, 200.0, 64.0, seed, 60) for seed in range(10)]
    assert any(scale.averages()[0] < 0 for scale in scales)
    for scale in scales:
        phi = scale.phi()
        assert phi is not None
        assert 64 < phi < 64 * 100
    # With more measurements more can be seen.
    few, many = (measured(0.0, 200.0, 64.0, 3, count).phi() for count in (LEAST, 80))
    assert few is not None
    assert many is not None
    assert measured(0.0, 200.0, 64.0, 3, LEAST - 1).phi() is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_numbers_change_nothing(bad: float) -> None:
    scale = measured(1.0, 200.0, 64.0, 1, 10)
    before = scale.state()
    assert not scale.add(Squares(2, 64, bad, 1.0))
    assert not scale.add(Squares(2, 64, 3.0, bad))
    assert not scale.add(Squares(1, 64, 3.0, 1.0)), "one piece has no spread"
    assert scale.state() == before
    assert NoiseScale.of(json.loads(json.dumps(before))) == scale


def test_a_gain_is_that_of_adascale() -> None:
    scale = measured(1.0, 200.0, 64.0, 1, 30)
    signal, noise = scale.averages()
    phi = scale.phi()
    assert phi == pytest.approx(noise / signal)
    for batch in (64, 100, 2048):
        exact = (noise / 64 + signal) / (noise / batch + signal)
        assert scale.gain(batch, 64) == pytest.approx(exact)
    assert NoiseScale().gain(64, 64) == 1.0


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_adam_divides_by_the_root_of_its_squares(kind: type[torch.optim.Optimizer]) -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = kind([w], lr=0.1)  # type: ignore[call-arg]
    squared = Squared([optimizer], lambda: 1.0)
    assert not squared.ready
    gradient = torch.tensor([3.0, -0.5])
    for _ in range(30):
        w.grad = gradient.clone()
        optimizer.step()
    assert squared.ready
    # Of a gradient that stays as it is, the averaged square is its own: 1 for each parameter.
    w.grad = gradient.clone()
    assert float(squared.gradients()) == pytest.approx(2.0, rel=1e-3)


def test_what_had_no_gradient_before_does_not_outweigh_the_rest() -> None:
    """Averaged squares of 0 are no divisor, nor are those of one step."""
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([w], lr=0.1)
    squared = Squared([optimizer], lambda: 1.0)
    for step in range(30):
        assert squared.ready == (step >= 10)
        w.grad = torch.tensor([2.0, 0.0])
        optimizer.step()
    w.grad = torch.tensor([2.0, 1e-3])
    assert float(squared.gradients()) == pytest.approx(1.0, rel=1e-3)


def test_gradients_are_seen_before_they_are_added() -> None:
    w = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    squared = Squared([optimizer], lambda: 4.0)
    squared.watch()
    (w.sum() * 4).backward()
    first = float(squared.take())
    (w.sum() * 8).backward()
    second = float(squared.take())
    squared.leave()
    (w.sum() * 8).backward()
    assert (first, second, float(squared.take())) == (pytest.approx(3.0), pytest.approx(12.0), 0.0)
    assert float(squared.gradients()) == pytest.approx(3 * 25.0)
