"""The trainings that a process makes one after the other, each in a directory of its own.

A manager gives a job one directory of checkpoints. The first training of a process has that, and
one that begins when others are complete has a directory in it, so that it neither goes on from
their checkpoints nor replaces them. A resumed script makes the same trainings again, in the same
order: those that are complete are so at once.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from hpcext.protocol import Attempt
from hpcext.training.checkpoint import FURTHER, Checkpoint, CheckpointError
from hpcext.training.checkpoint.position import AFTER
from hpcext.training.ranks import Ranks
from hpcext.training.reports import Reporter


class Succession:
    """The trainings of this process in one attempt."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._complete: dict[Path, tuple[int, float]] = {}
        self._named: dict[str, Path] = {}

    def place(self, attempt: Attempt, named: str) -> Path:
        """Return the directory of the next training.

        Parameters
        ----------
        attempt : Attempt
        named : str
            The directory in which the script would save without a manager, or empty. Trainings that
            would share one do so here, too: the later one goes on where the other ended.
        """
        if attempt != self._attempt:
            self._attempt, self._complete, self._named = attempt, {}, {}
        place, number = attempt.checkpoint_dir, 1
        while place in self._complete:
            number += 1
            place = attempt.checkpoint_dir / f"{FURTHER}{number}"
        return self._named.setdefault(named, place) if named else place

    def complete(self, place: Path, step: int, done: float) -> None:
        """Record that the training in a directory is complete.

        Parameters
        ----------
        place : pathlib.Path
        step : int
            Its steps.
        done : float
            Its work.
        """
        self._complete[place] = step, done

    def is_complete(self, place: Path) -> bool:
        """Return whether the training in a directory is complete."""
        return place in self._complete

    def before(self, place: Path) -> tuple[int, float]:
        """Return the steps and the work of the complete trainings in other directories."""
        others = [each for at, each in self._complete.items() if at != place]
        return sum(step for step, _ in others), sum(done for _, done in others)


here = Succession()
"""The trainings of this process."""


class Turn:
    """The turn of one training in the succession of its process.

    Parameters
    ----------
    attempt : Attempt or None
        None: there is no manager, so that each training saves where its script says.
    checkpoint_dir : path-like, optional
        Where the script would save without a manager.

    Attributes
    ----------
    directory : pathlib.Path or None
        Where it saves, if it does.
    first : bool
        Whether no other training comes before it in this attempt.
    before : (int, float)
        Steps and work of those that come before it.
    command : str
        A fingerprint of the command that this process runs, by which two are told apart.
    """

    def __init__(self, attempt: Attempt | None, checkpoint_dir: str | Path | None) -> None:
        self._attempt = attempt
        self._over = False
        self._found: Checkpoint | None = None
        self.before: tuple[int, float] = 0, 0.0
        self.directory = Path(checkpoint_dir) if checkpoint_dir else None
        self.first = True
        if attempt is not None:
            self.directory = here.place(attempt, str(checkpoint_dir or ""))
            self.first = self.directory == attempt.checkpoint_dir
            self.before = here.before(self.directory)
        words = "\0".join(sys.argv).encode(errors="replace")
        self.command = hashlib.sha256(words).hexdigest()[:16]

    def found(self, checkpoint: Checkpoint | None) -> None:
        """Take note of the checkpoint from which the training goes on, if there is one."""
        if checkpoint is not None and checkpoint.manifest.get("phase") == AFTER:
            self._found = checkpoint
            self.complete(checkpoint.manifest["step"], checkpoint.manifest["done"])

    def complete(self, step: int, done: float) -> None:
        """Record that the training is complete, so that the next one has a place of its own.

        Parameters
        ----------
        step : int
        done : float
        """
        self._over = True
        if self._attempt is not None and self.directory is not None:
            here.complete(self.directory, step, done)

    def enter(self, ranks: Ranks, reporter: Reporter, *, left: bool) -> None:
        """Check, as the training is about to make steps, that the place is its own.

        Parameters
        ----------
        ranks : Ranks
        reporter : Reporter
        left : bool
            Whether there are steps left, if it goes on from a checkpoint of its end.

        Raises
        ------
        CheckpointError
            On every rank alike: another training was completed there.
        """
        if self.directory is None:
            return
        if self._attempt is not None and here.is_complete(self.directory) and not self._over:
            raise CheckpointError(
                "another training of this process has been completed there in the meantime",
                where=self.directory,
                do="make each session when the training before it is complete",
            )
        if self._found is None or left:
            return
        manifest = self._found.manifest
        mine = self._attempt is not None and manifest["attempt"] == self._attempt.attempt
        # Launchers may give other ranks other arguments.
        alike = ranks.rank != 0 or manifest.get("command", self.command) == self.command
        if mine and not ranks.smallest(int(alike)):
            raise CheckpointError(
                "another command of this attempt has completed its training there, so that this "
                "one would train nothing",
                where=self.directory,
                do="make each training a job of its own, or all of them in one script",
            )
        if ranks.rank == 0:
            reporter.note(
                f"{self.directory}: the training was complete before, after step "
                f"{manifest['step']}; no more steps are made"
            )
