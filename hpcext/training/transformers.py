"""A callback that makes the Trainer of Hugging Face Transformers suspendable and resumable.

Four lines are enough::

    from hpcext.training.transformers import Suspend, per_device

    args = TrainingArguments(per_device_train_batch_size=per_device(64), ...)
    trainer = Trainer(model, args, train_dataset=data)
    suspend = Suspend(trainer)
    trainer.train(resume_from_checkpoint=suspend.checkpoint)

It stops between an optimizer step and the next one, and in an evaluation, which then begins again
before the training goes on. The Trainer writes its own checkpoints; here they are written to a
store that knows which of them are complete, separate from those of ``save_strategy``.

On resumption the Trainer skips the batches that it has trained. Its order of samples is determined
by the seed and the epoch, so this is exact at any number of ranks as long as the batch of all ranks
together stays the same. :func:`per_device` ensures that, and it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
import transformers
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from hpcext.numerals import whole
from hpcext.protocol import environ
from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint.state import Tree
from hpcext.training.coordinator import Coordinator, Write
from hpcext.training.library import SAVE, SUSPEND, LibraryCheckpoints
from hpcext.training.ranks import Ranks
from hpcext.training.torch.random import TorchRandom
from hpcext.training.torch.ranks import TorchRanks

FORMAT = "transformers/1"


def per_device(global_batch: int, *, accumulate: int = 1) -> int:
    """Return this rank's part of a batch for ``per_device_train_batch_size``.

    Parameters
    ----------
    global_batch : int
        Samples in an optimizer step on all ranks together.
    accumulate : int
        Number of passes in an optimizer step, as ``gradient_accumulation_steps``.

    Returns
    -------
    int
        Samples in a pass of one rank.

    Raises
    ------
    ValueError
        The number of ranks does not divide the batch.
    """
    ranks = whole(environ().get("WORLD_SIZE"))
    ranks = 1 if ranks is None else ranks
    share, rest = divmod(global_batch, ranks * accumulate)
    if rest or share < 1:
        raise ValueError(
            f"per_device({global_batch}): {ranks} ranks with {accumulate} batches a step do not "
            "divide it; choose a batch that every number of ranks divides"
        )
    return share


class Suspend(transformers.TrainerCallback):
    """A callback that makes a Trainer suspendable; see the module.

    It adds itself to the trainer's callbacks.

    Parameters
    ----------
    trainer : transformers.Trainer
    checkpoint_dir : path-like, optional
        Where to save without a manager; a manager's own directory overrides it. With neither, the
        callback does nothing.
    checkpoint_every_s : float, optional
        Seconds between periodic checkpoints; None: none by time.
    checkpoint_every_steps : int, optional
        Optimizer steps between periodic checkpoints.
    keep : int
        Number of checkpoints to keep, at least 2.
    samples_per_step : int, optional
        Samples that all ranks consume in a step, if the job's work is in samples.
    on_suspend : iterable of callables
        Called without arguments on every rank when the suspension is acknowledged.

    Raises
    ------
    CheckpointError
        There are checkpoints and none can be used, or a newer attempt has begun.
    TypeError, ValueError
        A parameter is not valid.
    """

    def __init__(
        self,
        trainer: transformers.Trainer,
        *,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every_s: float | None = 300.0,
        checkpoint_every_steps: int | None = None,
        keep: int = 2,
        samples_per_step: int | None = None,
        on_suspend: Iterable[Callable[[], object]] = (),
    ) -> None:
        if not isinstance(trainer, transformers.Trainer):
            raise TypeError(
                f"Suspend({type(trainer).__name__}): give it the Trainer, once that is made"
            )
        # The ranks met when the trainer's arguments were made.
        ranks = _ranks(trainer.args)
        self._coordinator = Coordinator(
            checkpoint_dir=checkpoint_dir,
            checkpoint_every_s=checkpoint_every_s,
            checkpoint_every_steps=checkpoint_every_steps,
            keep=keep,
            samples_per_step=samples_per_step,
            on_suspend=on_suspend,
        )
        self._checkpoints = LibraryCheckpoints(self._coordinator, rank=ranks.rank, format=FORMAT)
        self._checkpoints.join(ranks)
        self._trainer: Any = trainer
        self._due = ""
        # Random states before the running evaluation, and its batches that may still stop.
        self._random = TorchRandom({})
        self._before: Tree | None = None
        self._looks: int | None = None
        self._training = False
        trainer.add_callback(self)

    @property
    def checkpoint(self) -> str | None:
        """The path for ``trainer.train(resume_from_checkpoint=...)``; None if there is none."""
        found = self._checkpoints.found
        return str(found.part(found.manifest.get("directory"))) if found else None

    # -- the beginning

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the training, with model, optimizer, schedule and counters restored."""
        self._training = True
        self._check(args, state)
        self._checkpoints.begin(state.global_step)
        found = self._checkpoints.found
        if found is None:
            return
        pending = found.manifest["pending"]
        if pending is not None:
            self._evaluate_again(control, pending)
        if found.manifest["finished"] and (
            state.global_step >= state.max_steps or found.manifest["stopped_early"]
        ):
            self._coordinator.enter(left=False)
            # The Trainer would make one more step before it checks.
            self._trainer._run_epoch = _no_epoch
            control.should_training_stop = True

    # -- between two steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count a step, and agree whether to suspend or save before the next one."""
        self._checkpoints.stepped(state.global_step, {})
        self._due = self._checkpoints.agree() or self._due
        if control.should_evaluate or control.should_save:
            self._coordinator.pause()
        self._evaluation_comes(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the random states if an evaluation follows."""
        self._coordinator.pause()
        self._evaluation_comes(control)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Suspend or save if agreed, after the last epoch's logs, evaluation and checkpoints."""
        self._carry_out()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Suspend or save if agreed, after the last step's logs, evaluation and checkpoints."""
        self._carry_out()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop in an evaluation if requested; it begins again on resumption."""
        if not self._training or not control.should_evaluate or self._before is None:
            return
        loader = kwargs.get("eval_dataloader")
        if self._looks is None:
            length = len(loader) if isinstance(loader, Sized) else 0
            # All ranks must exchange equally often, including those with fewer batches.
            self._looks = self._coordinator.ranks.smallest(length)
        if self._due != SUSPEND and (self._looks > 0 or self._coordinator.ranks.size == 1):
            self._looks -= 1
            if self._coordinator.agree_to_suspend():
                self._due = SUSPEND
        if self._due == SUSPEND:
            now = self._random.random()
            self._random.set_random(self._before)
            self._suspend(pending={"save": bool(control.should_save)})
            # _suspend() returns only if the state could not be saved, and the evaluation goes on.
            self._random.set_random(now)
            self._due = ""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the metrics of an evaluation."""
        self._before = self._looks = None
        if self._training:
            self._coordinator.reporter.metrics(kwargs.get("metrics") or {})

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the metrics that the Trainer logs."""
        if self._training:
            self._coordinator.reporter.metrics(kwargs.get("logs") or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the final checkpoint, so that a rerun trains no further."""
        self._training = False
        self._due = ""
        self._coordinator.ranks.settle()
        found = self._checkpoints.found
        if found is None or not found.manifest["finished"]:
            early = state.global_step < state.max_steps
            self._checkpoints.save_last(self._writing(finished=True, stopped_early=early))
        self._coordinator.reporter.flush()

    # -- checkpoints

    def _carry_out(self) -> None:
        due, self._due = self._due, ""
        if due == SUSPEND:
            self._suspend(pending=None)
        elif due == SAVE:
            self._coordinator.save(self._writing())

    def _suspend(self, *, pending: dict[str, bool] | None) -> None:
        self._coordinator.mark()
        self._coordinator.suspend(self._writing(pending=pending))

    def _writing(
        self,
        *,
        pending: dict[str, bool] | None = None,
        finished: bool = False,
        stopped_early: bool = False,
    ) -> Write:
        facts = {
            "directory": f"{PREFIX_CHECKPOINT_DIR}-{self._trainer.state.global_step}",
            "transformers": transformers.__version__,
            "global_batch": _global_batch(self._trainer.args),
            "pending": pending,
            "finished": finished,
            "stopped_early": stopped_early,
        }
        return self._checkpoints.writing(facts, self._write)

    def _write(self, draft: Path) -> None:
        """Make the Trainer write its checkpoint; call it on every rank."""
        changes = {
            "output_dir": str(draft),
            # Our checkpoints are no candidates for the best model, and are never deleted by
            # rotation.
            "save_strategy": SaveStrategy.NO,
            "save_only_model": False,
            "save_total_limit": None,
            "push_to_hub": False,
        }
        with _changed(self._trainer.args, changes):
            self._trainer._save_checkpoint(self._trainer.model_wrapped, None)

    # -- evaluations

    def _evaluation_comes(self, control: Any) -> None:
        if control.should_evaluate and self._coordinator.store is not None:
            self._before = self._random.random()

    def _evaluate_again(self, control: Any, pending: dict[str, bool]) -> None:
        """Run the evaluation that was left, and all that follows it, then go on from there."""
        trainer = self._trainer
        trainer._load_rng_state(self.checkpoint)
        self._before = self._random.random()
        control.should_evaluate, control.should_save = True, pending["save"]
        trainer.control = control
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, None, trainer.model_wrapped, None, trainer.state.epoch, None, 0.0
        )
        control.should_evaluate = control.should_save = False
        # The Trainer will load the checkpoint's random states, which precede the evaluation.
        after = self._random.random()
        trainer._load_rng_state = lambda _checkpoint: self._random.set_random(after)

    # -- checks

    def _check(self, args: Any, state: Any) -> None:
        found = self._checkpoints.found
        if found is None:
            return
        if state.global_step != found.manifest["step"]:
            raise CheckpointError(
                f"there is a checkpoint of step {found.manifest['step']}, but the training would "
                f"begin at step {state.global_step}",
                where=found.path,
                do="call trainer.train(resume_from_checkpoint=suspend.checkpoint), or remove the "
                "directory",
            )
        before, now = found.manifest["global_batch"], _global_batch(args)
        if before != now and not args.ignore_data_skip:
            raise CheckpointError(
                f"was written with {before} samples a step on {found.manifest['world_size']} "
                f"ranks, but now there are {now} on {self._coordinator.ranks.size}: the Trainer "
                "would skip other samples than those it has trained",
                where=found.path,
                do=f"use per_device_train_batch_size=per_device({before}), divided by the "
                "accumulated batches",
            )


def _ranks(args: Any) -> Ranks:
    if args.world_size == 1:
        return Ranks()
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"Suspend: {args.world_size} ranks and no process group of torch.distributed; "
            "start them by torchrun, accelerate or hpcext launch"
        )
    return TorchRanks()


def _global_batch(args: Any) -> int:
    """Return the number of samples in an optimizer step of all ranks together."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _no_epoch(**_: Any) -> None:
    """Do nothing, in place of an epoch, when there is nothing left to train."""


@contextmanager
def _changed(target: Any, changes: dict[str, Any]) -> Iterator[None]:
    """Change attributes of an object within this context."""
    before = {name: getattr(target, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
