"""Trainings that adapt their batch: on one rank and on two, interrupted, with what goes wrong."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_job import Forked
from nursery import Nursery
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from train_adapt import SAMPLES

from hpcext.training import adapt
from hpcext.training.adapt.configurations import Configuration, Split
from hpcext.training.torch import Session

SCRIPT = "train_adapt.py"


class Trained:
    """A regression whose noise is large, on one rank, step by step."""

    def __init__(self, *, optimizer: str = "SGD", amp: bool = False, **options: Any) -> None:
        torch.manual_seed(3)
        x = torch.randn(600, 8)
        self.y = x @ torch.ones(8, 1) + 2 * torch.randn(600, 1)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=amp)
        self.session = Session(
            model=self.model, optimizer=self.optimizer, scaler=self.scaler, seed=5
        )
        # It keeps its batch, however long a busy machine takes.
        self.session.adapt(batch_size=6, **{"max_batch_size": 6, **options})
        self.net = self.session.parallel(self.model)
        data = TensorDataset(torch.arange(600), x, self.y)
        self.loader = DataLoader(data, batch_sampler=self.session.batch_sampler(data))

    def train(
        self,
        epochs: int = 1,
        *,
        bad: tuple[int, ...] = (),
        value: float = float("nan"),
        clip: float | None = None,
    ) -> list[int]:
        """Train; in the bad steps the loss is multiplied by this value. Passes of each step."""
        passes = []
        for _ in self.session.epochs(epochs):
            for batch in self.session.batches(self.loader):
                self.optimizer.zero_grad()
                passes.append(0)
                for (_, a, b), share in self.session.microbatches(batch):
                    passes[-1] += 1
                    loss = mse_loss(self.net(a), b) * share
                    if self.session.step in bad:
                        loss = loss * value
                    self.scaler.scale(loss).backward()
                if clip is not None:
                    self.scaler.unscale_(self.optimizer)
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
                self.scaler.step(self.optimizer)
                self.scaler.update()
        return passes


@pytest.mark.slow
def test_one_pass_is_made_in_two_now_and_then() -> None:
    trained = Trained()
    passes = trained.train()
    assert set(passes) == {1, 2}
    assert passes[0] == 2
    assert passes.count(2) < len(passes) / 4
    assert trained.session.noise_scale is not None


def test_the_work_is_counted_in_samples_of_the_first_batch() -> None:
    trained = Trained(max_batch_size=12)
    session, agent = trained.session, trained.session.adapting.agent
    assert agent is not None
    agent._use_split(Split(12, 12))
    session.adapting.resize_batches()
    trained.train()
    # In batches of twice the first one each of the 600 samples teaches less.
    assert session.training.coordinator.done == pytest.approx(6 * session.progress)
    assert 300 <= session.training.coordinator.done < 600


def test_steps_are_timed_whatever_their_passes() -> None:
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = Session(model=model, optimizer=optimizer, seed=5)
    now_s = 0.0
    session.adapting.clock = lambda: now_s
    session.adapt(batch_size=6, max_batch_size=6)
    net, data = session.parallel(model), TensorDataset(torch.randn(300, 8))
    loader = DataLoader(data, batch_sampler=session.batch_sampler(data))
    for _ in session.epochs(1):
        for batch in session.batches(loader):
            for (x,), share in session.microbatches(batch):
                (net(x).square().mean() * share).backward()
                now_s += 0.5 + 0.25 * len(x)
            optimizer.step()
    agent = session.adapting.agent
    assert agent is not None
    assert agent.timing.whole.times() == {Configuration(1, 1, 6, 0): 2.0}
    assert agent.timing.halves.times() == {Configuration(1, 1, 3, 1): 2.5}


def test_the_batch_may_change_after_the_last_step_of_an_epoch() -> None:
    trained = Trained(max_batch_size=12)
    session, agent = trained.session, trained.session.adapting.agent
    assert agent is not None
    agent._look_at_s = math.inf
    sizes: list[list[int]] = []
    for _ in session.epochs(2):
        sizes.append([])
        for batch in session.batches(trained.loader):
            for (_, a, b), share in session.microbatches(batch):
                (mse_loss(trained.net(a), b) * share).backward()
            trained.optimizer.step()
            sizes[-1].append(len(batch[0]))
            if len(sizes[-1]) == 100:
                session.training.coordinator.ranks.begin_sum(
                    [0.0, 0.0, 0.0, 0.0, 20.0, 20.0, 12.0, 12.0]
                )
    assert sizes == [[6] * 100, [12] * 50]


def test_a_pass_keeps_as_many_samples_as_layers_want() -> None:
    assert set(Trained(gpu_batch_bounds=(4, None)).train()) == {1}
    # Not five and a last one of one.
    several = Trained(gpu_batch_bounds=(1, 5))
    sizes = [
        [len(part[0]) for part, _ in several.session.microbatches(batch)]
        for _ in several.session.epochs(1)
        for batch in several.session.batches(several.loader)
    ]
    assert set(map(tuple, sizes)) == {(3, 3)}


def test_the_noise_is_the_same_scaled_and_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient scaler's factor and clipping do not show in what is measured."""
    # In the same steps, whatever that costs on a busy machine.
    monkeypatch.setattr(adapt, "COST", math.inf)
    plain = Trained()
    plain.train()
    scaled = Trained(amp=True)
    scaled.train()
    assert scaled.session.noise_scale == pytest.approx(plain.session.noise_scale, rel=0.1)
    # Clipped to all but nothing, the weights stay, and the gradients with them.
    clipped = Trained()
    clipped.train(clip=1e-9)
    still = Trained(lr_rule="none")
    still.optimizer.param_groups[0]["lr"] = 0.0
    still.train()
    assert clipped.session.noise_scale == pytest.approx(still.session.noise_scale, rel=0.1)


def test_steps_that_a_scaler_skips_are_no_progress_and_no_measurement() -> None:
    good = Trained(amp=True)
    good.train()
    # The first step is measured.
    bad = Trained(amp=True)
    bad.train(bad=(0, 50, 51), value=float("inf"))
    assert good.session.progress == 100
    assert bad.session.progress < good.session.progress - 2.5
    # Measured in other steps, but of the same gradients.
    assert good.session.noise_scale is not None
    assert bad.session.noise_scale is not None
    assert 0.1 < bad.session.noise_scale / good.session.noise_scale < 10
    assert all(torch.isfinite(p).all() for p in bad.model.parameters())


def test_a_loss_that_is_not_a_number_does_not_affect_the_agent() -> None:
    """The weights are lost, as without us; nothing of it is believed."""
    trained = Trained()
    trained.train(bad=tuple(range(60, 100)))
    noise = trained.session.noise_scale
    assert noise is not None
    assert 0 < noise < 1e6
    assert trained.session.adapted_batch == 6


def test_the_estimator_of_the_paper() -> None:
    trained = Trained(noise="differenced")
    assert set(trained.train()) == {1}
    assert trained.session.noise_scale is not None


def test_adam_is_preconditioned_and_follows_the_square_root() -> None:
    trained = Trained(optimizer="Adam")
    trained.train()
    assert trained.session.noise_scale is not None
    agent = trained.session.adapting.agent
    assert agent is not None
    agent.split = agent.split._replace(total=24)
    trained.session.rates.rates.use(24, [])
    assert trained.session.rate(1.0) == pytest.approx(2.0)


def test_the_rate_of_adascale_is_the_gain() -> None:
    trained = Trained()
    trained.train()
    session = trained.session
    assert session.rate(0.1) == pytest.approx(0.1)
    session.rates.rates.use(60, [])
    phi = session.noise_scale
    assert phi is not None
    assert session.rate(0.1) == pytest.approx(0.1 * 10 * (phi + 6) / (phi + 60))


def test_the_rate_of_legw_warms_up_longer_for_more() -> None:
    trained = Trained(lr_rule="legw", warm_up=50)
    assert trained.session.rates.rates.rate(1.0) == 1.0, "before there is a step"
    trained.train()
    assert trained.session.rate(1.0) == pytest.approx(1.0), "100 of 50 steps"
    trained.session.rates.rates.use(24, [])
    assert trained.session.rate(1.0) == pytest.approx(2.0 * 101 / 200)


def test_a_rule_of_ones_own() -> None:
    trained = Trained(lr_rule=lambda old, new, lr: lr * new / old / 2)
    trained.train()
    assert trained.session.rate(1.0) == 0.5


def test_statistical_epochs_are_epochs_of_the_first_batch() -> None:
    trained = Trained()
    trained.train(2)
    assert trained.session.statistical_epochs == pytest.approx(2.0)


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 8, "max_batch_size": 4}, "max_batch_size=4"),
        ({"batch_size": 8, "gpu_batch_bounds": (4, 2)}, "gpu_batch_bounds"),
        ({"batch_size": 8, "noise": "guess"}, "split, differenced"),
        ({"batch_size": 8, "lr_rule": "cubic"}, "adascale, legw"),
        ({"batch_size": 8, "lr_rule": "legw"}, "warm_up=0"),
        ({"batch_size": 8, "every_s": 0}, "every_s"),
    ],
)
def test_what_is_not_valid_is_refused(options: dict[str, Any], match: str) -> None:
    model = torch.nn.Linear(2, 1)
    session = Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=match):
        session.adapt(**options)
    with pytest.raises(ValueError, match="optimizer"):
        Session(model=model).adapt(8)
    with pytest.raises(ValueError, match="learning_rate"):
        Session(
            learning_rate="linear",
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ).adapt(8)
    session.batch_sampler(10, global_batch=2)
    with pytest.raises(ValueError, match="before batch_sampler"):
        session.adapt(8)


@pytest.mark.slow
def test_the_model_is_not_fitted_before_it_is_due() -> None:
    text = (
        "import sys, torch, hpcext.training.torch\n"
        "found = [name for name in sys.modules if name.startswith('hpcext.scaling')]\n"
        "print(found, 'threadpoolctl' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=500
    )
    assert told.stdout == "[] False\n"


def test_batches_of_another_size_are_refused() -> None:
    trained = Trained()
    for _ in trained.session.epochs(1):
        with pytest.raises(ValueError, match="without a size"):
            next(trained.session.batches(DataLoader(torch.zeros(10, 2), batch_size=2)))
        break


@pytest.mark.parametrize("passes", [False, True])
def test_a_loop_without_passes_is_told_that_it_does_not_adapt(
    capsys: pytest.CaptureFixture[str], passes: bool
) -> None:
    trained = Trained()
    if passes:
        trained.train()
    else:
        for _ in trained.session.epochs(1):
            for _, x, y in trained.session.batches(trained.loader):
                trained.optimizer.zero_grad()
                mse_loss(trained.net(x), y).backward()
                trained.optimizer.step()
    assert capsys.readouterr().err.count("no step goes through session.microbatches") == (
        0 if passes else 1
    )


def lines(job: Forked, kind: str) -> list[list[str]]:
    return [line for line in job.log if line[2] == kind]


def check(job: Forked, ranks: int) -> dict[int, int]:
    """Each sample once in each epoch, and the same weights on all ranks; step → samples."""
    epochs: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    weights: dict[int, set[str]] = {}
    for line in lines(job, "step"):
        step, epoch, seen = int(line[3]), int(line[4]), [int(each) for each in line[5].split(",")]
        epochs.setdefault(epoch, []).extend(seen)
        sizes[step] = sizes.get(step, 0) + len(seen)
        weights.setdefault(step, set()).add(line[6])
    assert all(sorted(seen) == list(range(SAMPLES)) for seen in epochs.values())
    assert sorted(sizes) == list(range(len(sizes)))
    assert all(len(each) == 1 for each in weights.values())
    assert len(lines(job, "step")) == ranks * len(sizes)
    return sizes


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_grows_and_each_sample_is_trained_once(
    nursery: Nursery, tmp_path: Path, ranks: int
) -> None:
    job = Forked(nursery, tmp_path, SCRIPT, ranks=ranks)
    # Suspended as soon as the batch is another one.
    first = job.run("--until=7")
    assert first.code == (85 if ranks == 1 else 0), first.output
    assert first.suspended is not None, first.output
    told = first.report["goodput"]
    assert told["initial_batch"] == 6
    assert told["most_batch"] == 48
    assert len(told["throughput"]) == 7
    second = job.run()
    assert second.code == 0, second.output
    assert second.suspended is None
    sizes = check(job, ranks)
    assert sizes[0] == 6
    assert max(sizes.values()) > 6
    begins, ends = lines(job, "begins"), lines(job, "ends")
    saved = begins[-1]
    # What was known goes on.
    assert int(saved[3]) >= 7
    assert float(saved[4]) > 0
    assert 0 < float(saved[5]) <= first.suspended["step"] * int(saved[3]) / 6
    assert float(ends[-1][5]) > float(saved[5])
    assert len({line[4] for line in ends}) == 1


@pytest.mark.slow
def test_a_rank_that_dies_before_the_report(nursery: Nursery, tmp_path: Path) -> None:
    """The other one does not wait for ever, and the next attempt goes on from the checkpoint."""
    job = Forked(nursery, tmp_path, SCRIPT, "--epochs=4", ranks=2)
    dead = job.run("--die=45")
    assert dead.code != 0
    assert dead.suspended is None
    json.dumps(dead.report)
    again = job.run()
    assert again.code == 0, again.output
    # Steps were made twice at most since the last checkpoint.
    last = [line for line in lines(job, "step") if line[0] == "2"]
    assert int(last[0][3]) <= 45
    assert last
