"""The agent: what it measures of a training, and which batch it chooses."""

from __future__ import annotations

import itertools
import json
import math
import random
import time

import pytest

from hpcext.scaling.goodput import Goodput
from hpcext.scaling.throughput import Throughput
from hpcext.training.adapt import EVERY, SOON, PolluxAgent
from hpcext.training.adapt.choice import FURTHER, Fit, best
from hpcext.training.adapt.configurations import BatchBounds, Configuration, Split, StepTimes
from hpcext.training.adapt.noise import LEAST, NoiseScale, Squares
from hpcext.training.adapt.timing import SKIPPED

TRUE = Throughput(0.02, 1e-3, 0.01, 0.002, 0.1, 0.003, 1.5)
BOUNDS = BatchBounds(32, 1024, 1, 128)


def noise(phi: float) -> NoiseScale:
    """Exactly this one."""
    found = NoiseScale()
    for _ in range(10):
        found.add(Squares(2, 32, 1.0 + 2 * phi / 32, 1.0 + phi / 32))
    return found


def train(
    agent: PolluxAgent, phi: float, rounds: int, gpus: int, jitter: float = 0.0
) -> list[Split]:
    """Steps as long as they truly are, and a look after every few; the splits it went through."""
    draw = random.Random(2)
    agent.noise = noise(phi)
    splits, now_s = [agent.split], 0.0
    for _ in range(rounds):
        split = agent.split
        step_s = TRUE.step_s(gpus, 1, split.per_gpu, split.passes(gpus) - 1)
        for _ in range(SKIPPED + 6):
            agent.timed(float(step_s) * math.exp(draw.gauss(0, jitter)), split.total)
        agent.window()
        now_s += 1000.0
        # Begins a fit, and hears of it.
        found = agent.look(now_s)
        while found is None:
            time.sleep(0.001)
            found = agent.look(now_s)
        agent.hear(Squares(0, 0, 0, 0), found.split)
        splits.append(agent.split)
    return splits


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("phi", [50.0, 5000.0])
def test_it_comes_to_the_batch_of_most_goodput(gpus: int, phi: float) -> None:
    agent = PolluxAgent(BOUNDS, gpus)
    splits = train(agent, phi, 10, gpus)
    truth = Goodput(TRUE, phi, *BOUNDS)
    most = float(truth.best(gpus, 1).goodput)
    last = agent.split
    step_s = TRUE.step_s(gpus, 1, last.per_gpu, last.passes(gpus) - 1)
    # Where half of a pass, the prior, promises nothing of a larger batch, none is tried.
    share = 0.8 if (gpus, phi) == (4, 50.0) else 0.93
    worth = float(truth.statistical_efficiency(last.total))
    assert last.total * worth / float(step_s) > share * most
    for split in splits:
        assert BOUNDS.initial_batch <= split.total <= BOUNDS.most_batch
        assert split.per_gpu <= 128
    tried = splits[0].per_gpu
    for split in splits[1:]:
        assert split.per_gpu <= FURTHER * tried
        tried = max(tried, split.per_gpu)


def test_a_step_in_two_passes_tells_what_a_pass_takes() -> None:
    """A larger batch is tried where the prior, half of a pass, promises nothing of it."""
    # Most of a pass is for any batch.
    true = Throughput(0.05, 2e-4)
    tried = []
    for tells in (False, True):
        agent = PolluxAgent(BatchBounds(32, 1024), 1)
        agent.noise = noise(20.0)
        for _ in range(SKIPPED + 6):
            agent.timed(float(true.step_s(1, 1, 32)), 32)
        agent.window()
        if tells:
            agent.halved(float(true.step_s(1, 1, 16, 1)), 32)
        assert agent.look(100.0) is None
        agent.rest()
        found = agent.look(100.0)
        assert found is not None
        tried.append(found.split)
        # What was known goes on.
        again = PolluxAgent(BatchBounds(32, 1024), 1)
        again.restore(json.loads(json.dumps(agent.state())))
        assert again.state() == agent.state()
    assert tried[0] is None
    assert tried[1] is not None
    assert tried[1].total > 48


def test_times_of_another_kind_of_gpus_wait_until_it_is_back() -> None:
    first = PolluxAgent(BOUNDS, 2, device="a100")
    train(first, 400.0, 3, 2)
    saved = json.loads(json.dumps(first.state()))
    other = PolluxAgent(BOUNDS, 2, device="v100")
    other.restore(saved)
    assert other.state()["profile"] == []
    assert other.state()["throughput"] is None
    assert other.noise.phi() == first.noise.phi()
    again = PolluxAgent(BOUNDS, 2, device="a100")
    again.restore(json.loads(json.dumps(other.state())))
    back = json.loads(json.dumps(again.state()))
    assert back["profile"] == saved["profile"]
    assert back["throughput"] == saved["throughput"] is not None
    # As an earlier release wrote it.
    del saved["device"], saved["elsewhere"]
    other.restore(saved)
    assert other.state()["profile"] == saved["profile"]


def test_steps_after_a_change_in_two_passes_are_not_timed() -> None:
    agent = PolluxAgent(BatchBounds(32, 1024), 1)
    agent.halved(9.0, 32)
    assert agent.state()["halves"] == []


def test_it_does_not_run_to_and_fro() -> None:
    splits = train(PolluxAgent(BOUNDS, 2), 400.0, 25, 2, jitter=0.05)
    assert len(set(splits[8:])) <= 2
    changes = sum(a != b for a, b in itertools.pairwise(splits[8:]))
    assert changes <= 2


def test_without_noise_a_batch_is_not_made_larger() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    assert set(train(agent, 0.0, 4, 1)) == {Split(32, 32)}


def test_before_anything_is_known_nothing_is_chosen() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    for _ in range(5):
        agent.timed(0.1, 32)
    agent.window()
    assert agent.look(1e6) is None
    assert not agent.hear(Squares(2, 32, math.nan, 1.0), None)
    assert agent.noise.count == 0


def test_a_batch_on_other_gpus() -> None:
    agent = PolluxAgent(BOUNDS, 4)
    agent.hear(Squares(0, 0, 0, 0), Split(512, 128))
    agent.resized(2)
    assert agent.split == Split(512, 128)
    assert agent.split.passes(2) == 2
    agent.resized(1)
    assert (agent.split.passes(1), agent.split.per_gpu) == (4, 128)
    agent.resized(5)
    assert agent.split == Split(512, 103)
    # Without a bound a pass is no larger than any that had room.
    free = PolluxAgent(BatchBounds(32, 1024), 4)
    free.resized(1)
    assert free.split == Split(32, 8)
    free.limit(500)
    assert free.split == Split(32, 8)
    # A training that does not accumulate takes what has room.
    once = PolluxAgent(BOUNDS._replace(accumulates=False), 4)
    once.hear(Squares(0, 0, 0, 0), Split(512, 128))
    once.resized(1)
    assert once.split == Split(128, 128)
    # More GPUs than the first batch has samples for.
    many = PolluxAgent(BatchBounds(32, 1024, 8), 1)
    many.resized(16)
    assert many.split == Split(128, 8)
    # No more than there are.
    many.limit(100)
    assert many.split.total == 100


def test_a_fit_for_other_gpus_changes_no_batch() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    agent.noise = noise(5000.0)
    for _ in range(SKIPPED + 3):
        agent.timed(0.052, 32)
    agent.window()
    assert agent.look(100.0) is None
    agent.resized(2)
    found: Fit | None = None
    while found is None:
        time.sleep(0.001)
        found = agent.look(0.0)
    assert found.split is None
    assert len(found.throughput) == 7


def test_invalid_times_are_ignored() -> None:
    profile = StepTimes()
    way = Configuration(1, 1, 32, 0)
    # A clock that was set back or forward, and a machine that slept.
    for step_s in (0.05, -3.0, 0.0, math.nan, math.inf, 0.05, 86400.0, 0.05):
        profile.add(way, step_s)
    assert profile.times() == {way: 0.05}
    back = StepTimes()
    back.restore(json.loads(json.dumps(profile.state())))
    assert back.times() == profile.times()
    for number in range(1, 1000):
        profile.add(Configuration(1, 1, number, 0), 0.1)
    assert len(json.dumps(profile.state())) < 20_000


def test_steps_after_a_change_and_smaller_ones_are_not_timed() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    for step_s in (9.0, 9.0, 0.1, 0.3):
        agent.timed(step_s, 32)
    agent.timed(9.0, 17)
    agent.window()
    agent.hear(Squares(0, 0, 0, 0), Split(64, 64))
    for step_s in (9.0, 9.0, 0.4):
        agent.timed(step_s, 64)
    agent.window()
    assert agent.state()["profile"] == [
        [[1, 1, 32, 0], [pytest.approx(0.2)]],
        [[1, 1, 64, 0], [0.4]],
    ]


def test_a_clock_set_back_ends_no_fits() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    train(agent, 400.0, 2, 1)
    agent.resized(1)
    assert agent.look(-1e9) is None
    agent.timed(0.1, agent.split.total)


def test_times_that_fit_no_model_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    agent = PolluxAgent(BOUNDS, 1)
    agent.noise = noise(400.0)
    # More nodes than GPUs: nothing that a model can be made of.
    agent.on_nodes(3)
    for _ in range(SKIPPED + 3):
        agent.timed(0.05, 32)
    agent.window()
    assert agent.look(10.0) is None
    while agent._thread.busy():
        time.sleep(0.001)
    assert agent.look(10.5) is None
    assert "the batch keeps its size" in capfd.readouterr().err
    assert agent.look(100.0) is None
    while agent._thread.busy():
        time.sleep(0.001)
    assert agent.look(100.5) is None
    assert not capfd.readouterr().err, "said once"
    assert agent.split == Split(32, 32)


def test_how_often_the_noise_is_measured() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    measured = []
    for step in range(400):
        if agent.due(step):
            measured.append(step)
            agent.hear(Squares(2, 32, 2.0, 1.0), None)
            agent.measured(step + 1)
    gaps = [b - a for a, b in itertools.pairwise(measured)]
    assert gaps == sorted(gaps)
    assert gaps[: LEAST - 1] == [1] * (LEAST - 1)
    assert gaps[-1] == EVERY + 1


def test_long_steps_are_measured_more_often() -> None:
    wanted = []
    for step_s in (0.01, 1.0, 60.0, 1e300):
        agent = PolluxAgent(BOUNDS, 1)
        assert agent.wanted_every() == EVERY
        for _ in range(SKIPPED + 1):
            agent.timed(step_s, 32)
        agent.window()
        wanted.append(agent.wanted_every())
    assert wanted == [EVERY, 10, 5, 5]
    agent.hear(Squares(0, 0, 0, 0), None, 5)
    agent.noise = noise(100.0)
    agent.measured(100)
    assert [agent.due(step) for step in (104, 105)] == [False, True]


def test_a_state_is_json_and_goes_on_alike() -> None:
    agent = PolluxAgent(BOUNDS, 2)
    train(agent, 400.0, 5, 2)
    agent.made(agent.split.total)
    agent.measured(77)
    saved = json.loads(json.dumps(agent.state()))
    again = PolluxAgent(BOUNDS, 2)
    again.restore(saved)
    assert again.state() == agent.state()
    assert again.progress == agent.progress > 0
    # On other GPUs the same samples make a step.
    other = PolluxAgent(BOUNDS, 1)
    other.restore(saved)
    assert other.split.total == agent.split.total


def test_progress_is_counted_in_steps_of_the_initial_batch() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    agent.made(32)
    assert agent.progress == 1.0
    agent.noise = noise(64.0)
    agent.made(32)
    assert agent.progress == pytest.approx(2.0)
    agent.made(128)
    # Four times the samples, each worth (64 + 32) / (64 + 128).
    assert agent.progress == pytest.approx(4.0)


def test_the_priors_are_those_of_the_paper() -> None:
    seen = {Configuration(1, 1, 32, 0): 0.052}
    found = best(seen, None, bounds=BOUNDS, phi=400.0, gpus=1, nodes=1, now=Split(32, 32))
    theta = Throughput(*found.throughput)
    # Scales perfectly to GPUs that were not tried; half of a pass is constant.
    assert theta.sync_s(8, 2) == 0
    assert theta.alpha_grad == pytest.approx(0.026)


def test_a_measurement_that_costs_a_pass_is_made_less_often() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    for step_s in [0.1] * (SKIPPED + 5):
        agent.timed(step_s, 32)
    agent.window()
    agent.halved(0.11, 32)
    assert agent.wanted_every() == EVERY
    agent = PolluxAgent(BOUNDS, 1)
    for step_s in [0.1] * (SKIPPED + 5):
        agent.timed(step_s, 32)
    agent.window()
    agent.halved(0.19, 32)
    assert agent.wanted_every() == 45
    # Steps of several passes or GPUs have pieces anyway.
    agent.resized(2)
    assert agent.wanted_every() == EVERY


def test_rank_0_reports_sooner_while_it_explores() -> None:
    agent = PolluxAgent(BOUNDS, 1)
    assert agent.wanted_hearing() == SOON
    train(agent, 0.0, 1, 1)
    assert agent.wanted_hearing() == EVERY
    agent.hear(Squares(0, 0, 0, 0), Split(64, 64), EVERY, SOON)
    assert agent.wanted_hearing() == SOON, "the new batch is not timed yet"
    agent.noise = noise(100.0)
    agent.measured(100)
    agent.heard(100)
    assert [agent.hears(step) for step in (100 + SOON - 1, 100 + SOON)] == [False, True]
    # A step that is measured is always heard of.
    agent.hear(Squares(0, 0, 0, 0), None)
    agent.heard(100)
    assert [agent.hears(step) for step in (100 + EVERY - 1, 100 + EVERY)] == [False, True]
    # Nor do the ranks wait so long if there is news: that of a batch comes with its choice.
    agent.hear(Squares(0, 0, 0, 0), None, EVERY, agent.wanted_hearing(Split(128, 128)))
    assert [agent.hears(step) for step in (100 + SOON - 1, 100 + SOON)] == [False, True]


def test_a_larger_batch_is_tried_before_any_pass_of_this_one_was_timed() -> None:
    """The first steps are all made in two passes, to measure."""
    agent = PolluxAgent(BOUNDS, 1)
    agent.noise = noise(1e4)
    for _ in range(SKIPPED + 1):
        agent.halved(2 * 0.05, 32)
    agent.look(100.0)
    agent.rest()
    found = agent.look(100.0)
    assert found is not None
    assert found.split is not None
    assert found.split.per_gpu == 32 * FURTHER
