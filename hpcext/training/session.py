"""Sessions, which make a training script suspendable: they find the step to stop at, save, resume.

The session here is for NumPy and anything else that has a state; that of PyTorch is
:class:`hpcext.training.torch.Session`.

Where a script may stop, and where it goes on
---------------------------------------------
Each iteration of the loop over :meth:`Session.batches` is one step, and its end is a boundary: a
place to stop. So is the end of each iteration of :meth:`Session.validation`; there the script later
goes on from the *beginning* of the validation.

A resumed script runs from its first line. Whatever it does in the same epoch before the place where
it stopped (say ``scheduler.step()`` between training and validation), it does once more. At that
place everything that the session holds is therefore set to the saved state *again*, and so are the
random states. Until then they are as they were when the epoch began, so that an order drawn there
is the same one.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import operator
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcext import protocol
from hpcext.training.batching import ElasticBatches
from hpcext.training.boundaries import Boundaries
from hpcext.training.checkpoint import Checkpoint, CheckpointError, Store
from hpcext.training.checkpoint.keeper import Keeper
from hpcext.training.checkpoint.place import AFTER, BEFORE, EPOCH, Place
from hpcext.training.checkpoint.state import State, Tree
from hpcext.training.data.loading import elastic, open_loader
from hpcext.training.data.sampler import ResumableSampler, Walk
from hpcext.training.data.undivided import Seen, first_batch
from hpcext.training.options import collected, refuse_misspelt
from hpcext.training.partitions import PartitionedBatches, Partitions
from hpcext.training.ranks import Ranks
from hpcext.training.rehearsal import Rehearsal
from hpcext.training.reports import Reporter
from hpcext.training.signals import SuspendRequest

Batch = TypeVar("Batch")


class Session(Boundaries):
    """A session that makes a training loop resumable; it restores the newest checkpoint.

    Parameters
    ----------
    checkpoint_dir : path-like, optional
        Where to save outside a manager; a manager's own directory takes its place. With neither,
        the loops are plain loops.
    checkpoint_every_s : float, optional
        Seconds between periodic checkpoints; None: none by time.
    checkpoint_every_steps : int, optional
        Steps between periodic checkpoints.
    keep : int
        Checkpoints to keep, at least 2.
    staging : bool
        Whether a periodic checkpoint holds up a step only while the state is copied in host memory;
        a thread writes the copy, which takes as much memory as the state. False: it is written
        between two steps. The checkpoints of a suspension and of the end are always written at
        once.
    seed : int, optional
        Seeds the global random numbers (plus the rank) when there is nothing to resume, and the
        order of :meth:`sampler`. Not given: the random states are left alone.
    samples_per_step : int, optional
        Samples that all ranks consume in a step, if the job's work counts samples.
    on_suspend : iterable of callables
        Called without arguments on every rank when the suspension is acknowledged.
    unsaved : collection of objects, or True
        Objects of the training that are deliberately not saved: a model, an optimizer, a scheduler.
        The session refuses to go on without objects that it finds in use and is not given, unless
        they are named here; with True it looks for none.
    **state
        Objects to save, by name: see :class:`hpcext.training.checkpoint.state.State`.

    Raises
    ------
    CheckpointError
        There are checkpoints and none can be used, or a newer attempt has begun.
    TypeError, ValueError
        A parameter is not valid.

    Attributes
    ----------
    step : int
        Optimizer steps since the job began, over all attempts.
    rank, world_size : int
    resumed : bool
        Whether a checkpoint was restored.
    """

    def __init__(
        self,
        *,
        checkpoint_dir: str | Path | None = None,
        checkpoint_every_s: float | None = 300.0,
        checkpoint_every_steps: int | None = None,
        keep: int = 2,
        staging: bool = True,
        seed: int | None = None,
        samples_per_step: int | None = None,
        on_suspend: Iterable[Callable[[], object]] = (),
        unsaved: Any = (),
        **state: Any,
    ) -> None:
        self._attempt = protocol.Attempt.from_environ()
        directory = self._attempt.checkpoint_dir if self._attempt else checkpoint_dir
        # Done before anything slow: from here on no request is lost, supervised or not.
        notices = self._attempt is not None and self._attempt.notices
        self._request = SuspendRequest(
            watch=directory is not None, supervised=self._attempt is not None, notices=notices
        )
        self._ranks = self._join()
        self.rank, self.world_size = self._ranks.rank, self._ranks.size
        self._reporter = Reporter(self._attempt if self.rank == 0 else None, self.world_size)
        refuse_misspelt(state, type(self))
        self._state = self._make_state(state)
        self._unsaved = collected(unsaved)
        self._keeper: Keeper | None = None
        if directory is not None:
            number = self._attempt.attempt if self._attempt else None
            store = Store(Path(directory), attempt=number, keep=keep)
            self._keeper = self._make_keeper(store)
        self._staging = staging
        self._every_s = checkpoint_every_s
        self._every_steps = checkpoint_every_steps
        self._seed = seed
        self._step_work = samples_per_step or 1
        self._counts_samples = samples_per_step is not None
        self._on_suspend = tuple(on_suspend)
        self.step = 0
        self._done = 0.0
        self._place = Place()
        self._phase = BEFORE
        self._count = 0
        self._turn: Callable[[], int] | None = None
        self._turns = 0
        self._walks: list[Walk] = []
        # The batches of the loader being read, if they follow the number of ranks.
        self._elastic: ElasticBatches | None = None
        self._validations = 0
        self._save_asked = False
        self._saved_s = time.monotonic()
        self._resume_random: Tree | None = None
        self._run_id = uuid.uuid4().hex
        # Whether this attempt has made a step, and no state was missing after it.
        self._stepped = self._whole = False
        self._seen: Seen | None = None
        self._repeated: set[str] = set()
        self._rehearsal = Rehearsal.asked(self._attempt, self.rank, self._state.present)
        self._begin()

    def sampler(self, data: Sized | int, *, shuffle: bool = True) -> ResumableSampler:
        """Make a sampler for this rank that resumes in mid-epoch, at any number of ranks.

        Draw augmentation in loader workers from (seed, epoch, index): workers start anew when an
        epoch is resumed, so what they draw from random states of their own differs then.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length.
        shuffle : bool

        Returns
        -------
        ResumableSampler
            For ``DataLoader(data, sampler=...)``.
        """
        sampler = ResumableSampler(
            data if isinstance(data, int) else len(data),
            rank=self.rank,
            world_size=self.world_size,
            seed=self._seed or 0,
            shuffle=shuffle,
        )
        self._walks.append(sampler)
        return sampler

    def batch_sampler(
        self,
        data: Sized | int,
        *,
        global_batch: int | None = None,
        gpu_batch: int | None = None,
        shuffle: bool = True,
        last: str = "weighted",
    ) -> ElasticBatches:
        """Make batches for this rank that are divided anew when the number of ranks changes.

        They are for ``DataLoader(data, batch_sampler=...)``, or to be iterated as lists of indices.
        With them, and a model from ``parallel``, the number of ranks can change without stopping.

        Parameters
        ----------
        data : Sized or int
            The data set, or its length; or an account of which rank holds which part of it, see
            :class:`~hpcext.training.partitions.Partitions`.
        global_batch, gpu_batch : int
            Samples of all ranks, or of one rank, in a step. Give the one that stays the same when
            the number of ranks changes.
        shuffle : bool
        last : {"weighted", "carried", "dropped"}
            What becomes of an epoch's last samples, see
            :class:`~hpcext.training.batching.ElasticBatches`.

        Returns
        -------
        ElasticBatches

        Raises
        ------
        ValueError
            Not exactly one of the batch sizes is given, or a parameter is not valid.
        """
        make = (
            functools.partial(PartitionedBatches, data)
            if isinstance(data, Partitions)
            else functools.partial(ElasticBatches, data if isinstance(data, int) else len(data))
        )
        batches = make(
            global_batch=global_batch,
            gpu_batch=gpu_batch,
            rank=self.rank,
            world_size=self.world_size,
            seed=self._seed or 0,
            shuffle=shuffle,
            last=last,
        )
        self._walks.append(batches)
        return batches

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, of `count` in all.

        A finished job has none left. The final checkpoint is written at the end.

        Parameters
        ----------
        count : int
            Epochs of the whole training.

        Yields
        ------
        epoch : int
            Number of the epoch, from 0.
        """
        self._count = count
        self._join_group()
        for epoch in range(self._place.epoch, count):
            self._begin_epoch(epoch)
            yield epoch
            if self._phase == AFTER:
                return
            self._drop_resume()
            carried = 0 if self._elastic is None else self._elastic.rest
            self._place = Place(epoch=epoch + 1, carried=carried)
        self._phase, self._validations = AFTER, 0
        if self._place.phase != AFTER:
            self.finish()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches that are left of this epoch; each iteration is one step.

        With a :meth:`sampler` in the loader, data consumed before is not read again. Any other
        loader is read up to its place, which is exact if the number of ranks is the same.

        Parameters
        ----------
        loader : iterable of batches
            Without ranks of its own: each rank has its loader.

        Yields
        ------
        batch
            As the loader yields it.

        Raises
        ------
        RuntimeError
            The call is not inside :meth:`epochs`, or it is the second such loop of an epoch.
        CheckpointError
            The loader ends before the place where the checkpoint was written.
        """
        place = self._place
        if self._phase != EPOCH:
            raise RuntimeError("session.batches(): only inside `for epoch in session.epochs(n):`")
        if place.trained:
            if self._resume is None:
                raise RuntimeError("session.batches(): the second loop in one epoch; use only one")
            if not place.validation:
                self._arrive()
            return
        try:
            changed = True
            while changed:
                changed = False
                position, source = self._open(loader)
                for turns, batch in enumerate(source, start=1):
                    self._turn = functools.partial(position, turns)
                    self._turns = turns
                    if self._seen is None:
                        self._seen = self._first_batch(loader, batch)
                    yield batch
                    self._end_turn()
                    if self._boundary():
                        # The ranks change here: what is left is divided anew. First let
                        # go of the old iterator, and of its workers.
                        changed, source = True, iter(())
                        break
        finally:
            # Left by `break`: that step counts too, but is not a place to stop; the script goes on
            # after the loop, and would do so once more on resumption.
            self._end_turn()
            place.trained = True

    def _open(self, loader: Iterable[Batch]) -> tuple[Callable[[int], int], Iterator[Batch]]:
        """Begin to read a loader at the present place; restore the saved state there."""
        place = self._place
        begun_on = self._resume.manifest["world_size"] if self._resume else self.world_size
        self._elastic = elastic(loader)
        position, source = open_loader(
            loader,
            place,
            resized=begun_on != self.world_size,
            carried=place.carried,
            final=place.epoch == self._count - 1,
        )
        self._arrive()
        self._opened()
        return position, source

    def validation(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a validation, each a place to stop; resumption begins it anew.

        Every rank must run it (the ranks may have different numbers of batches). Inside the loop
        over :meth:`batches` it does not stop: the end of that iteration is the place to stop.

        Parameters
        ----------
        loader : iterable of batches

        Yields
        ------
        batch
            As the loader yields it.
        """
        if self._turn is not None or self._keeper is None:
            yield from loader
            return
        self._register()
        self._validations += 1
        if (self._place.phase, self._place.validation) == (self._phase, self._validations):
            self._arrive()
        place = dataclasses.replace(self._place, phase=self._phase, validation=self._validations)
        random = self._state.random()
        # All ranks must exchange equally often, also those with fewer batches.
        looks = self._ranks.smallest(len(loader) if isinstance(loader, Sized) else 0)
        try:
            for batch in loader:
                yield batch
                if looks > 0 or self.world_size == 1:
                    looks -= 1
                    self._look(place, random)
        finally:
            # Left by `break`: the other ranks still exchange.
            while looks > 0 and self.world_size > 1:
                looks -= 1
                self._look(place, random)

    @property
    def run_id(self) -> str:
        """Id of the run for an experiment tracker (wandb, MLflow): 32 hexadecimal digits.

        It is the same in every attempt of the job and on every rank, and differs between jobs.
        Without a checkpoint directory nothing keeps it: it is new each time, on each rank.
        """
        return self._keeper.run_id if self._keeper else self._run_id

    def report(self, **metrics: Any) -> None:
        """Report numbers of the training, such as loss and accuracy, to show for the job.

        It is cheap, and may be called in each step.

        Parameters
        ----------
        **metrics : number or tensor
            Metrics by name. Numbers on a device are fetched only when a report is written.
        """
        self._reporter.metrics(metrics)
        if self._keeper is None or self._reporter.registered or self.rank != 0:
            return
        again = self._repeated & metrics.keys()
        self._repeated |= metrics.keys()
        if again:
            # One report may come before the loop, or instead of it; several come from a loop.
            self._reporter.note(
                f"session.report({min(again)}=...) was called again, and no loop over "
                "session.batches(loader) has begun: nothing is saved, and the job cannot be "
                "suspended; write `for batch in session.batches(loader):` inside "
                "`for epoch in session.epochs(n):`"
            )

    def report_goodput(
        self,
        noise_scale: float,
        initial_batch: int,
        *,
        most_batch: int | None = None,
        least_per_gpu: int = 1,
        most_per_gpu: int | None = None,
        accumulates: bool = True,
        throughput: Sequence[float] | None = None,
        batch: int | None = None,
    ) -> None:
        """Report how much a larger batch is worth, for policies that divide GPUs by goodput.

        The last report holds, in later attempts too. The call is cheap, but a number on a device is
        fetched at once: call it only now and then.

        Parameters
        ----------
        noise_scale : float
            The present gradient noise scale of Pollux (eq. 5), in samples. A value that is negative
            or not a number, as measurements of few steps may be, is ignored.
        initial_batch : int
            Samples in a step, of all ranks, for which the training was tuned.
        most_batch : int, optional
            Most samples in a step; default 32 times the initial ones. Give `initial_batch` for a
            training that keeps its batch.
        least_per_gpu, most_per_gpu : int
            Fewest and most samples of a rank in a pass; the most that fits its memory, if known.
        accumulates : bool
            Whether a step may have several passes.
        throughput : sequence of float, optional
            Seven parameters, see :data:`hpcext.protocol.REPORT`. Without them they are fitted to
            the steps that the manager sees.
        batch : int, optional
            Samples in a step at present.

        Raises
        ------
        ValueError
            There is neither `throughput` nor a session that counts samples.
        """
        if throughput is None and not self._counts_samples:
            raise ValueError("report_goodput: needs throughput=, or Session(samples_per_step=...)")
        samples = {
            "initial_batch": initial_batch,
            "most_batch": most_batch,
            "least_per_gpu": least_per_gpu,
            "most_per_gpu": most_per_gpu,
            "batch": batch,
        }
        # As plain numbers: JSON cannot encode those of NumPy.
        self._reporter.goodput(
            noise_scale,
            {
                **{name: each and operator.index(each) for name, each in samples.items()},
                "accumulates": bool(accumulates),
                "throughput": None if throughput is None else list(map(float, throughput)),
            },
        )

    def finish(self) -> None:
        """Write the final checkpoint, so that a rerun trains no more.

        :meth:`epochs` calls it at its end. A script that stops early calls it itself.
        """
        self._end_turn()
        self._ranks.settle()
        if self._rehearsal is not None and self._rehearsal.checkpoint is not None:
            self._end_rehearsal()
            self._suspend(self._place, self._state.random())
        self._phase, self._validations = AFTER, 0
        self._place = Place(phase=AFTER, epoch=max(self._count, self._place.epoch))
        self._save_last()
        if self._keeper is not None:
            self._keeper.end()
        self._reporter.flush()

    def _join(self) -> Ranks:
        """Join the ranks of this job."""
        ranks = protocol.environ().get("WORLD_SIZE", "1")
        if ranks != "1":
            # Each process would take itself for the whole job and overwrite the checkpoints.
            raise ValueError(
                f"WORLD_SIZE={ranks}: this session is for one process; use that of "
                "hpcext.training.torch or hpcext.training.tensorflow"
            )
        return Ranks()

    def _make_state(self, objects: dict[str, Any]) -> State:
        return State(objects)

    def _make_keeper(self, store: Store) -> Keeper:
        return Keeper(store, self._state, self._ranks)

    def _facts(self) -> dict[str, Any]:
        """Return the session's entries for a manifest."""
        return {"done": self._done}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        self.step = manifest["step"]
        self._done = manifest["done"]
        self._place = Place.of(manifest)

    def _begin(self) -> None:
        self._state.check()
        self._refuse_missing()
        self._resume = self._keeper.find() if self._keeper else None
        self.resumed = self._resume is not None
        if self._resume is not None:
            self._restore_manifest(self._resume)
            self._restore_state(self._resume)
        elif self._seed is not None:
            self._state.seed(self._seed + self.rank)
        self._epoch_random = self._state.random()
        self._reporter.restored(self.step, self._done)
        atexit.register(self._reporter.flush)

    def _restore_manifest(self, checkpoint: Checkpoint) -> None:
        try:
            self._restore_facts(checkpoint.manifest)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(
                f"what its manifest says makes no sense ({type(error).__name__}: {error})",
                where=checkpoint.path,
                do="restore one from a backup, or remove it",
            ) from error

    def _boundary(self) -> bool:
        if not self._whole:
            # Some missing objects are found only after a step.
            self._whole = True
            self._refuse_missing(stepped=True)
        return super()._boundary()

    def _refuse_missing(self, *, stepped: bool = False) -> None:
        """Raise ValueError if the training has state that nobody saves."""
        if self._unsaved is None:
            return
        missing = self._state.missing(self._unsaved, stepped=stepped)
        if missing:
            raise ValueError(missing)

    def _register(self) -> None:
        """Tell the manager that suspensions are answered from now on: a place to stop is next."""
        self._reporter.register()

    def _first_batch(self, loader: Any, batch: Any) -> Seen:
        """Return what to compare with the other ranks of this attempt's first batch."""
        alone = self.world_size == 1 or self._keeper is None
        return Seen() if alone else first_batch(loader, batch)

    def _restore_state(self, checkpoint: Checkpoint) -> None:
        assert self._keeper is not None
        self._resume_random = self._keeper.load(checkpoint)
        if self._resume_random is not None:
            self._state.set_random(self._resume_random["now"])
        else:
            self._seed_anew()

    def _seed_anew(self) -> None:
        """Seed a rank that did not exist before, differently after each resize."""
        if self._seed is not None:
            entropy = np.random.SeedSequence((self._seed, self.rank, self.step))
            self._state.seed(int(entropy.generate_state(1)[0]))

    def _arrive(self) -> None:
        """Restore the state at the place where the checkpoint was written."""
        if self._resume is not None:
            self._restore_state(self._resume)
            if self._rehearsal is not None:
                self._rehearsal.mark(self.step)
        self._drop_resume()

    def _drop_resume(self) -> None:
        self._resume = None
        self._place.validation = 0

    def _begin_epoch(self, epoch: int) -> None:
        self._phase, self._validations = EPOCH, 0
        if self._resume is None or self._place.phase != EPOCH:
            self._drop_resume()
            self._place = Place(phase=EPOCH, epoch=epoch, carried=self._place.carried)
        elif self._resume_random is not None:
            self._state.set_random(self._resume_random["epoch"])
        self._epoch_random = self._state.random()

    def _end_turn(self) -> None:
        """End a step: count its samples, and report it."""
        if self._turn is None:
            return
        samples = self._turn()
        self._done += self._work(samples - self._place.samples)
        self._place.samples = samples
        self._place.batch += 1
        self._turn = None
        self.step += 1
        self._stepped = True
        if self._rehearsal is None or self._rehearsal.checkpoint is None:
            self._reporter.stepped(self.step, self._done)

    def _weight_of_batch(self) -> float:
        """Return the weight of this rank's mean gradient in this step."""
        return 1.0 if self._elastic is None else self._elastic.weight(self._turns - 1)

    def _samples_of_turn(self) -> int:
        """Return the number of samples of all ranks in this step."""
        batches = self._elastic
        assert batches is not None
        return batches.consumed(self._turns) - batches.consumed(self._turns - 1)

    def _work(self, samples: int) -> float:
        """Return the work that a step of `samples` samples adds, in the job's unit."""
        # The samples of an elastic loader are counted: their number changes with the ranks.
        known = self._counts_samples and self._elastic is not None
        return samples if known else self._step_work

    def _join_group(self) -> None:
        """Join the other ranks, if this process was started to join a training."""

    def _opened(self) -> None:
        """Take note of a newly opened loader."""
        self._register()
