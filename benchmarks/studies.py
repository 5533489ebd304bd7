"""The two trainings of examples/ as benchmarks train them: on a clock of their own.

A step takes as long as a profile says that it takes on real GPUs, which this machine has not:
`PACES`. The session's clock is set forward by so much in each pass, so that its agent times, fits
and chooses as it would there, and a training of minutes takes as long as it computes. A fit ends
within the step in which it began, as it does where steps are longer than it.

A training *adapts*, or is *held* at one batch, under the same rule of learning rates, and measures
the noise all the same; that is not counted in its time.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training.adapt import PolluxAgent
from hpcext.training.adapt.configurations import Split
from hpcext.training.adapt.noise import NoiseScale, Squares
from hpcext.training.torch import Session
from hpcext.training.torch.adapt import Adapting

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import digits_resnet
import text_transformer


class Pace(NamedTuple):
    """Seconds of a pass, and more of each sample in it."""

    per_pass_s: float
    per_sample_s: float


PACES = {
    "one GPU": Pace(0.0229, 0.00066),
    "four GPUs": Pace(0.0372, 0.000165),
}
"""Of ResNet-18 on CIFAR-10, on T4s, as the measurements published with Pollux have it
(``cifar10/placements.csv``): a line through batches of 32 to 1,024 on one GPU; on four of one node,
of which each has a quarter of the samples, with their synchronisation of 14.3 ms."""


class Study(NamedTuple):
    """A training, and what it is to reach.

    Attributes
    ----------
    module : module
        Of examples/.
    rule : str
        Of learning rates.
    target : float
        Accuracy on what was held out, in the mean of three validations.
    most_samples : int
        A training that has not reached it by then never does.
    """

    module: ModuleType
    rule: str
    target: float
    most_samples: int


STUDIES = {
    "digits": Study(digits_resnet, "adascale", 0.93, 30_000),
    "text": Study(text_transformer, "sqrt", 0.40, 40_000),
}


class Clock:
    """Seconds that are told, and do not pass."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """As ``time.monotonic``."""
        return self.now_s


class HeldBatch(Adapting):
    """An adaptation that may keep its batch.

    Attributes
    ----------
    held : int or None
    always : bool
        Whether the noise is measured in each step.
    measured : NoiseScale
        What this session measured, without what it was restored from.
    """

    held: int | None = None
    always = False

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.measured = NoiseScale()

    def after_boundary(self, *, reopens: bool, resized: bool) -> None:
        """Measure again in the next step, if in each."""
        super().after_boundary(reopens=reopens, resized=resized)
        if self.always:
            self.begun()._next_step = 0

    def tell(self, agent: PolluxAgent, mine: tuple[float, float, float, float] | None) -> None:
        """Keep what was measured."""
        if mine is not None:
            self.measured.add(Squares(*mine))
        super().tell(agent, mine)

    def choose(self, agent: PolluxAgent) -> Split | None:
        """Choose nothing where the batch is held."""
        return None if self.held else super().choose(agent)


class Held(Session):
    """A session on such a clock, which may keep its batch."""

    adapting: HeldBatch
    kind_of_adapting = HeldBatch

    def __init__(self, clock: Clock, **options: Any) -> None:
        super().__init__(**options)
        self.adapting.clock = clock

    @property
    def agent(self) -> PolluxAgent:
        """What chooses."""
        return self.adapting.begun()

    def hold(self, batch: int) -> None:
        """Train with this batch from the beginning to the end."""
        self.adapting.held = batch
        self.agent._become(Split(batch, batch))


class Training:
    """One training, step by step.

    Parameters
    ----------
    study : Study
    seed : int
        Of the weights and of the order of samples.
    batch : int, optional
        One to keep; without, it adapts.
    pace : Pace
    begun : dict, optional
        What :meth:`state` gave, of a training that this one goes on with, in an order of its own.

    Attributes
    ----------
    clock : Clock
    samples : int
        Trained so far.
    """

    def __init__(
        self,
        study: Study,
        seed: int,
        batch: int | None = None,
        pace: Pace = PACES["one GPU"],
        begun: dict[str, Any] | None = None,
    ) -> None:
        self.study, self.pace, self.clock, self.samples = study, pace, Clock(), 0
        torch.manual_seed(seed)
        module = study.module
        train, self.held_out = module.data()
        self.length = len(train)
        self.model = module.network()
        self.optimizer = module.optimizer_of(self.model)
        self.session = Held(self.clock, model=self.model, optimizer=self.optimizer, seed=seed)
        self.session.adapt(batch_size=module.BATCH, lr_rule=study.rule)
        if begun is not None:
            self.model.load_state_dict(begun["model"])
            self.optimizer.load_state_dict(begun["optimizer"])
            self.session.agent.restore(begun["agent"])
        if batch is not None:
            self.session.hold(batch)
        self.net = self.session.parallel(self.model)
        self._loader = self._loader_of(train)

    def _loader_of(self, train: TensorDataset) -> DataLoader[Any]:
        return DataLoader(train, batch_sampler=self.session.batch_sampler(train))

    def state(self) -> dict[str, Any]:
        """All that is learned, to go on from."""
        return {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "agent": copy.deepcopy(self.session.agent.state()),
        }

    def steps(self) -> Iterator[int]:
        """Train on; after each step the samples it had."""
        session = self.session
        for _ in session.epochs(10**6):
            for batch in session.batches(self._loader):
                self.optimizer.zero_grad()
                made = passes = 0
                for part, share in session.microbatches(batch):
                    loss = self.study.module.loss_of(self.net, part, session.device)
                    (loss * share).backward()
                    made, passes = made + len(part[0]), passes + 1
                self.optimizer.step()
                if session.adapting.held:
                    passes = 1
                self.clock.now_s += passes * self.pace.per_pass_s + made * self.pace.per_sample_s
                session.agent.rest()
                self.samples += made
                yield made

    def validated(self) -> tuple[float, float]:
        """Accuracy and loss on what was held out."""
        found: tuple[float, float] = self.study.module.validate(
            self.model, self.held_out, self.session.device
        )
        return found
