"""A callback that makes a Lightning training suspendable and resumable.

Five lines are enough::

    from hpcext.training.lightning import Suspend

    suspend = Suspend()
    loader = suspend.loader(data, global_batch=64)
    trainer = Trainer(devices=suspend.devices, callbacks=[suspend])
    trainer.fit(model, loader, ckpt_path=suspend.checkpoint)

It stops between an optimizer step and the next batch, and in a validation, which then begins again.
The checkpoint contains everything that Lightning itself saves (loops, optimizers, schedules, data
modules, other callbacks), and in addition the place in the data and the random states of every
rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcext.numerals import whole
from hpcext.protocol import environ
from hpcext.training.checkpoint import CheckpointError
from hpcext.training.coordinator import Coordinator, Write
from hpcext.training.data.elastic_loader import ElasticLoader
from hpcext.training.library import SUSPEND, LibraryCheckpoints
from hpcext.training.lightning.random_states import RandomStates
from hpcext.training.lightning.trainer import (
    FILE,
    close_loggers,
    first_rank,
    hold_to,
    leave_in_validation,
    pl,
    ranks_of,
    read_up_to,
    requeued,
    write,
)

FORMAT = "lightning/1"
_NEVER = -(2**62)


class Suspend(pl.Callback):  # type: ignore[misc]
    """A callback that makes a Lightning training suspendable; see the module.

    It installs no signal handler under a supervisor of hpcext, and does not replace Lightning's
    own.

    Parameters
    ----------
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
    requeue_dir : path-like
        The ``default_root_dir`` of the trainer, where Lightning's own requeueing under Slurm saves.
        Its last checkpoint is resumed from if it is newer than that of hpcext.

    Raises
    ------
    ValueError
        A parameter is not valid.
    """

    def __init__(
        self,
        *,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every_s: float | None = 300.0,
        checkpoint_every_steps: int | None = None,
        keep: int = 2,
        samples_per_step: int | None = None,
        on_suspend: Iterable[Callable[[], object]] = (),
        requeue_dir: str | Path = ".",
    ) -> None:
        self._coordinator = Coordinator(
            checkpoint_dir=checkpoint_dir,
            checkpoint_every_s=checkpoint_every_s,
            checkpoint_every_steps=checkpoint_every_steps,
            keep=keep,
            samples_per_step=samples_per_step,
            on_suspend=on_suspend,
        )
        self._checkpoints = LibraryCheckpoints(self._coordinator, rank=first_rank(), format=FORMAT)
        self._requeue_dir = Path(requeue_dir)
        self._loader: ElasticLoader | None = None
        self._random = RandomStates()
        self._due = ""
        self._validation: dict[str, int] | None = None
        self._fitting = self._fitted = False
        self._looks = 0
        self._resume: dict[str, Any] = {}

    # -- for scripts

    @property
    def checkpoint(self) -> str | None:
        """The path for ``trainer.fit(ckpt_path=...)``; None if there is nothing to resume.

        Raises
        ------
        CheckpointError
            There are checkpoints and none verifies, or a newer attempt has begun.
        """
        found = self._checkpoints.find()
        # Under a manager, files in that directory belong to another job.
        theirs = None if self._coordinator.attempt else requeued(self._requeue_dir)
        if theirs and not (found and theirs.stat().st_mtime <= found.manifest["created_at"]):
            return str(theirs)
        return str(found.part(FILE)) if found else None

    @property
    def devices(self) -> int:
        """The value of ``Trainer(devices=...)``: ranks started on this node, or else its GPUs."""
        attempt = self._coordinator.attempt
        alone = attempt.num_gpus if attempt else 1
        return alone if (started := whole(environ().get("LOCAL_WORLD_SIZE"))) is None else started

    def loader(
        self,
        data: Any,
        *,
        global_batch: int | None = None,
        gpu_batch: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        last: str = "weighted",
        **options: Any,
    ) -> ElasticLoader:
        """Make the loader of the training data, which resumes in mid-epoch at any number of ranks.

        Parameters
        ----------
        data : torch.utils.data.Dataset
            A dataset with a length.
        global_batch : int, optional
            Samples in a batch of all ranks together, so that the training is the same at any number
            of ranks.
        gpu_batch : int, optional
            Samples in a batch of one rank. Exactly one of the two is given.
        shuffle : bool
        seed : int
            The order of an epoch is drawn from it and the epoch.
        last : {"weighted", "dropped"}
            Whether the last samples of an epoch, fewer than a batch, form a smaller batch or are
            left out.
        **options
            Options of :class:`torch.utils.data.DataLoader`, such as ``num_workers=``.

        Returns
        -------
        ElasticLoader
            For ``trainer.fit``; no other training loader may be used beside it.
        """
        self._loader = ElasticLoader(
            data,
            global_batch=global_batch,
            gpu_batch=gpu_batch,
            shuffle=shuffle,
            seed=seed,
            last=last,
            **options,
        )
        self._loader.before_fetch = self._before_fetch
        # An earlier loader may already be in use with these ranks.
        self._loader.join(self._coordinator.ranks.rank, self._coordinator.ranks.size)
        return self._loader

    # -- the beginning

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Join the ranks, which have met by now."""
        if stage != "fit":
            return
        if self._fitted:
            raise RuntimeError(
                "Suspend: trainer.fit() was called a second time; make a new callback for each "
                "training"
            )
        self._fitted = True
        self._checkpoints.join(ranks_of(trainer))
        if self._loader is not None:
            self._loader.join(self._coordinator.ranks.rank, self._coordinator.ranks.size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this callback for Lightning's checkpoint: plain values only."""
        state: dict[str, Any] = {"world_size": self._coordinator.ranks.size}
        if self._loader is not None:
            state["place"] = self._loader.state_dict()
        if self._random.gathered:
            state["random"] = self._random.gathered
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the place of a checkpoint."""
        self._resume = dict(state_dict)
        if self._loader is None or "place" not in self._resume:
            return
        try:
            self._loader.load_state_dict(self._resume["place"])
        except ValueError as error:
            raise CheckpointError(
                str(error), do="resume with the data that the training began with"
            ) from None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the checkpoint was restored; the loops are restored later."""
        found = self._checkpoints.found
        if found is not None and not trainer.ckpt_path:
            raise CheckpointError(
                f"there is a checkpoint of step {found.manifest['step']}, but the training would "
                "start over",
                where=found.path,
                do="call trainer.fit(..., ckpt_path=suspend.checkpoint), or remove the directory",
            )
        if self._resume.get("stopped_early"):
            trainer.should_stop = True

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the training, with the loops restored."""
        self._fitting = True
        if self._loader is not None:
            hold_to(trainer, self._loader)
        elif self._coordinator.store is not None:
            read_up_to(trainer, resumed=bool(self._resume))
            if "validation" not in self._resume:
                self._restore_random()
        self._checkpoints.begin(trainer.global_step)

    # -- between two steps

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Weigh the loss, so that the average over unequal batches is the mean over samples."""
        if self._loader is not None and self._coordinator.ranks.size > 1:
            weight = self._loader.weight()
            if weight != 1.0:
                # In place, since Lightning takes no other tensor; the loss that it logs is a copy.
                loss.mul_(weight)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, and agree whether to suspend or save before the next one."""
        if self._loader is not None:
            self._loader.trained()
        if trainer.fit_loop._should_accumulate():
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._checkpoints.stepped(trainer.global_step, {} if loss is None else {"loss": loss})
        self._due = self._checkpoints.agree() or self._due
        if self._due and self._loader is None:
            self._random.keep()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Suspend or save if agreed: all hooks, validation and schedules of the last step have run.

        The batch that was just read is read again on resumption.
        """
        if "stepped" in self._resume:
            # Lightning guesses the number of batches its loggers have seen, and is sometimes off by
            # one.
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._resume.pop("stepped")
        if self._due:
            self._carry_out(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Prepare to leave this validation, which begins again on resumption."""
        if not self._fitting:
            return
        self._coordinator.pause()
        loop = trainer.fit_loop.epoch_loop.val_loop
        if "validation" in self._resume:
            total = loop.batch_progress.total
            total.ready = total.started = self._resume.pop("validation")
            trainer.fit_loop.epoch_loop._batches_that_stepped = self._resume.pop("stepped")
            self._restore_random()
        self._random.keep()
        self._validation = {"completed": loop.batch_progress.total.completed}
        if self._due == SUSPEND:
            self._carry_out(trainer)
        finite = (n for n in trainer.num_val_batches if not math.isinf(n))
        # All ranks must exchange equally often, including those with fewer batches.
        self._looks = self._coordinator.ranks.smallest(int(sum(finite)))
        if trainer.fit_loop._should_accumulate():
            # In the middle of a step, whose gradients are in no checkpoint.
            self._looks = _NEVER

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Stop if requested, between two batches of a validation."""
        alone = self._coordinator.ranks.size == 1 and self._looks != _NEVER
        if not self._fitting or not (self._looks > 0 or alone):
            return
        self._looks -= 1
        if self._coordinator.agree_to_suspend():
            self._due = SUSPEND
            self._carry_out(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics of a validation."""
        if self._fitting:
            self._validation = None
            self._coordinator.reporter.metrics(trainer.callback_metrics)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Make Lightning count the batches of the next epoch again after a resize.

        It counts them once, when it sets the loader up. After an epoch that was resumed at another
        number of ranks, the next one has another length.
        """
        self._coordinator.pause()
        loader, sizes = self._loader, (0, self._coordinator.ranks.size)
        if loader is not None and self._resume.pop("world_size", 0) not in sizes:
            loader.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
            trainer.fit_loop._combined_loader = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the final checkpoint, so that a rerun trains no further."""
        self._fitting = False
        self._coordinator.ranks.settle()
        self._due = ""
        self._random.keep()
        self._save(trainer, self._checkpoints.save_last)
        self._coordinator.reporter.flush()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Look for the reason if there was nothing to train."""
        if not self._checkpoints.begun:
            self._coordinator.enter(left=False)

    # -- checkpoints

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Record the true place of the loops, in checkpoints of hpcext only."""
        if not self._random.gathered:
            return
        # Lightning stores the result of state_dict() under this key.
        mine = checkpoint["callbacks"][self.state_key]
        mine["stepped"] = trainer.fit_loop.epoch_loop._batches_that_stepped
        mine["stopped_early"] = bool(trainer.should_stop) and not self._fitting
        if self._validation is None:
            return
        mine["validation"] = self._validation["completed"]
        leave_in_validation(checkpoint, self._validation["completed"])

    def _carry_out(self, trainer: Any) -> None:
        """Suspend or save, as agreed."""
        due, self._due = self._due, ""
        if due == SUSPEND:
            self._random.gather(self._coordinator.ranks)
            self._coordinator.mark()
            self._coordinator.suspend(
                self._writing(trainer), before_leaving=lambda: close_loggers(trainer)
            )
            # suspend() returns only if the state could not be saved.
            self._random.gathered = ""
            return
        self._save(trainer, self._coordinator.save)

    def _save(self, trainer: Any, save: Callable[[Write], None]) -> None:
        self._random.gather(self._coordinator.ranks)
        save(self._writing(trainer))
        # A checkpoint that Lightning writes on its own has a later state.
        self._random.gathered = ""

    def _writing(self, trainer: Any) -> Write:
        facts = {"epoch": trainer.current_epoch, "lightning": pl.__version__}
        return self._checkpoints.writing(facts, lambda draft: write(trainer, draft))

    # -- random numbers

    def _before_fetch(self) -> None:
        """Restore or keep the random states before the next batch is drawn."""
        if "validation" not in self._resume:
            self._restore_random()
        if self._due:
            self._random.keep()

    def _restore_random(self) -> None:
        if "random" in self._resume:
            random, coordinator = self._resume.pop("random"), self._coordinator
            self._random.restore(random, coordinator.ranks, coordinator.step)
