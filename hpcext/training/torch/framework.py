"""The PyTorch part of a session: device, process group, models, and their state."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from hpcext.training.balance.clock import Clock
from hpcext.training.batching import ElasticBatches
from hpcext.training.checkpoint.position import AFTER
from hpcext.training.data.loading import places_sampler
from hpcext.training.feature import Feature, Framework
from hpcext.training.learning_rate import Rates
from hpcext.training.ranks import Ranks
from hpcext.training.torch.clock import CudaClock
from hpcext.training.torch.compiled import keep_safe
from hpcext.training.torch.group import Member
from hpcext.training.torch.parallel import Parallel
from hpcext.training.torch.ranks import idle_gpus, join, own_device, unused_gpus
from hpcext.training.torch.state import TorchState
from hpcext.training.torch.weights import Catcher
from hpcext.training.torch.whole import (
    LEFT_GRADIENTS,
    UNGIVEN_ORDER,
    Steps,
    generator_of,
    has_gradients,
    norm_of_gradients,
    parameters_of,
)


class Torch(Framework):
    """The interface of a session to PyTorch.

    Parameters
    ----------
    deterministic : bool
        Whether weights are bit-identical however often training is interrupted.

    Attributes
    ----------
    device : torch.device
    member : Member or None
        This process among those that ``hpcext launch`` started.
    models : list of Parallel
        Models that average their gradients over the ranks.
    state : TorchState
    guard : Catcher or None
        Asked about errors of communication.
    """

    use = "use DataLoader(data, batch_sampler=session.batch_sampler(data, global_batch=...))"
    wrap = "use model = session.parallel(model), or DistributedDataParallel"

    state: TorchState

    def __init__(self, *, deterministic: bool) -> None:
        self.device = own_device()
        self.member: Member | None = None
        self.models: list[Parallel] = []
        self.guard: Catcher | None = None
        self.deterministic = deterministic
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if deterministic:
            # cuBLAS reads it at its first use; without it PyTorch refuses deterministic algorithms.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False

    def parallel(self, model: torch.nn.Module, *, joining: bool) -> torch.nn.Module:
        """Move a model to this rank's device, and wrap it in DDP if there are other ranks.

        Parameters
        ----------
        model : torch.nn.Module
        joining : bool
            Whether the other ranks are joined later; the model is then formed with them.
        """
        if self.state.sharded:
            # FSDP does all of this in its own way.
            return model
        model.to(self.device)
        self.state.follow(model)
        alone = self.coordinator.ranks.size == 1 and self.member is None
        if alone or not any(p.requires_grad for p in model.parameters()):
            return model
        # A deterministic step exchanges more than gradients, and cannot be made again.
        guarded = self.member is not None and self.member.replaces and not self.deterministic
        parallel = Parallel(
            model,
            guard=self.guard if guarded else None,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            # Otherwise the buckets are rebuilt after the first step, once per attempt, so that
            # gradients are added in another order and differ in the last bit.
            find_unused_parameters=self.deterministic,
        )
        self.models.append(parallel)
        if not joining:
            # Ranks have different weights unless they were seeded or restored from a checkpoint.
            parallel.form(equal=False)
        return parallel

    def join(self) -> Ranks:
        """Join the ranks of this job; a process that joins a running training is alone at first."""
        self.member = Member.here(self.device)
        if self.member is not None and self.guard is not None:
            self.member.survive(self.guard)
        if self.member is not None or not (dist.is_available() and dist.is_initialized()):
            atexit.register(self._leave_group)
        return self.member.ranks() if self.member else join(self.device)

    def _leave_group(self) -> None:
        """Leave the process group that this session formed, and keep no part of it."""
        if self.loop.phase != AFTER:
            # Ended by an error: an exchange may be running, and leaving would wait for ranks that
            # may never answer. The launcher must learn of the error now.
            return
        for model in self.models:
            model.dissolve()
        if sharded := self.state.fsdp_modules():
            from hpcext.training.torch.wrapping import forget_meshes, take_off  # noqa: PLC0415

            for each in sharded:
                take_off(each)
            forget_meshes()
        alone, left = Ranks(), self.coordinator.ranks
        alone.rank, alone.size = left.rank, left.size
        self.coordinator.ranks = alone
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()

    def began(self) -> None:
        """Say that GPUs are not used: this node has too few for its ranks, or more than ranks."""
        joining = self.member is not None and self.member.joining
        if self.coordinator.ranks.rank != 0 or joining:
            return
        attempt = self.coordinator.attempt
        gpus = attempt.num_gpus * attempt.num_nodes if attempt else 1
        if why := unused_gpus() or idle_gpus(self.coordinator.ranks.size, gpus):
            self.coordinator.reporter.note(why)

    def make_state(self, objects: dict[str, Any]) -> TorchState:
        """Make the state of the objects that the script names."""
        keep_safe()
        self.state = TorchState(objects)
        return self.state

    @property
    def divides_data(self) -> bool:
        """Whether each rank has batches of its own; not if ranks divide layers among them."""
        return self.state.data_parallel or not self.state.sharded

    def facts(self) -> dict[str, Any]:
        """Return the number of threads, which determines the last bit of sums."""
        return {"threads": torch.get_num_threads()}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Use as many threads as the training began with, if it should be deterministic."""
        if self.deterministic:
            # Sums computed by another number of threads differ in the last bit.
            torch.set_num_threads(manifest["threads"])

    # For balanced batches.

    def device_name(self) -> str:
        """Return the name of this rank's device: "cpu", or that of a GPU."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def clock(self) -> Clock:
        """Make the clock of this rank; optimizers tell it that gradients are exchanged."""
        clock = CudaClock(self.device) if self.device.type == "cuda" else Clock()
        for optimizer in self.state.optimizers():
            optimizer.register_step_pre_hook(lambda *_: clock.exchanged())
        return clock

    def check_can_balance(self) -> None:
        """Raise ValueError if the batches of this session cannot be balanced."""
        if self.state.sharded:
            raise ValueError("balance(): the model is sharded; valid: models of parallel(model)")
        if self.deterministic:
            raise ValueError(
                "balance(): the session is deterministic; sums of unequal batches differ in their "
                "last digits from run to run"
            )

    def check_gradients(self) -> None:
        """Raise ValueError unless there is one model whose gradients can be timed."""
        if len(self.models) != 1:
            raise ValueError(
                f"batches(loader): the session balances, and has {len(self.models)} models "
                "of session.parallel(model); it times the gradients of exactly one"
            )


class LearningRates(Feature):
    """The learning rates of a session, which follow the global batch.

    Parameters
    ----------
    framework : Torch
    rates : Rates
    """

    def __init__(self, framework: Torch, rates: Rates) -> None:
        self.rates = rates
        self._framework = framework

    def facts(self) -> dict[str, Any]:
        """Return the state of a warm-up."""
        return {"learning_rate": self.rates.state()}

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Go on with a warm-up."""
        self.rates.restore(manifest["learning_rate"])

    def opened(self) -> None:
        """Follow the global batch of the loader that was opened."""
        if self.loop.batches is not None:
            self.rates.use(self.loop.batches.global_batch, self._framework.state.optimizers())


class FirstSteps(Feature):
    """A check, as this attempt makes its first steps, that all is saved on which they depend.

    These are the objects that each optimizer trains, the order of a loader's samples, and the
    gradients.

    Parameters
    ----------
    framework : Torch
    """

    def __init__(self, framework: Torch) -> None:
        self._framework = framework
        self._steps: Steps | None = None
        self._resumed = False
        self._before: list[tuple[torch.Tensor, int]] | None = None  # weights, and their versions
        self._looked = self._heard = False

    def began(self) -> None:
        """Observe the optimizers."""
        self._steps = Steps(self._heard_step, self._in_step)

    def finishing(self) -> None:
        """Stop observing them."""
        if self._steps is not None:
            self._steps.close()

    def restore(self, manifest: Mapping[str, Any]) -> None:
        """Refuse no loader from now on, since the training may be one of an earlier release."""
        self._resumed = True

    def opening(self, loader: object, batches: ElasticBatches | None) -> None:
        """Check that the order in which the loader goes on will be restored."""
        state, unsaved = self._framework.state, self._framework.unsaved
        # With a sampler of the session its generator draws the seeds of workers only.
        generator = None if places_sampler(loader) else generator_of(loader)
        if generator is None or batches is not None or unsaved is None:
            return
        kept = [*state.objects.values(), *unsaved]
        if state.has_source(generator) or any(each is generator or each is loader for each in kept):
            return
        if not self._resumed:
            raise ValueError(UNGIVEN_ORDER)
        if self.coordinator.ranks.rank == 0:
            self.coordinator.reporter.note(UNGIVEN_ORDER)

    def step_begins(self) -> None:
        """Note the state of the weights before the first step."""
        if self._before is None:
            optimizers = self._framework.state.optimizers()
            weights = (weight for each in optimizers for weight in parameters_of(each))
            self._before = [(weight, weight._version) for weight in weights]

    def before_boundary(self) -> bool:
        """Check that the first step has used its gradients, which are in no checkpoint."""
        if self._looked:
            return False
        self._looked = True
        before, self._before = self._before or [], []
        if self._framework.unsaved is None or self.coordinator.ranks.rank != 0:
            return False
        # The steps of a compiled optimizer are not heard.
        stepped = self._heard or any(weight._version != version for weight, version in before)
        if not stepped and any(map(has_gradients, self._framework.state.optimizers())):
            self.coordinator.reporter.note(LEFT_GRADIENTS)
        return False

    def _in_step(self) -> bool:
        return self.loop.in_step

    def _heard_step(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        self._heard = True
        state, unsaved = self._framework.state, self._framework.unsaved
        ranks, seen = self.coordinator.ranks, self.loop.seen
        if ranks.size > 1 and seen and not self.loop.stepped and not state.sharded:
            self.loop.seen = seen.norms((*seen.gradients, norm_of_gradients(optimizer)))
        if unsaved is None:
            return
        missing = state.given(unsaved).lacks(optimizer, scaler)
        if not missing:
            return
        if not self.loop.stepped:
            raise ValueError(missing)
        # The optimizer was first used late; do not lose the training so far for it.
        if ranks.rank == 0:
            self.coordinator.reporter.note(missing)
