"""A command that saves by its own means: how it is asked, and how one knows that it has saved.

What is stated of it comes from its job (:mod:`hpcext.checkpointers`), in ``launch.json``. Nothing
counts as saved but that: a newer checkpoint that is whole, its exit value, or its call of
``scontrol requeue``; and in any case the empty process tree, which its supervisor sees to.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import documents, private
from hpcext.launch import tree, wholeness
from hpcext.launch.own_checkpoints import Found, OwnCheckpoints, newest_whole, same
from hpcext.process import Process

NOTICED_S = 5.0
"""A checkpoint that is no older than this, when a notice is heard, may be the answer to it."""

HEARD = "requeued"
"""The file in the attempt's directory that says that the command has asked to be requeued."""

_SCONTROL = """#!/bin/sh
# Made by hpcext: the command of this attempt says by `scontrol requeue` that it has saved, and is
# begun again by hpcext. Everything else is for the scontrol that was here before.
for word; do
    case $word in
        requeue|requeuehold) : >{heard} && exit 0; exit 1 ;;
        [!-]*) break ;;
    esac
done
PATH={path}
export PATH
exec scontrol "$@"
"""


class Native:
    """The way in which the command of one attempt saves, and what it has saved.

    Parameters
    ----------
    document : Mapping
        ``checkpoint`` of ``launch.json``.
    cwd : pathlib.Path
        Where the command runs.
    directory : pathlib.Path
        Of the attempt, in that of the job.
    index : int
        Of this node among those of the attempt.

    Attributes
    ----------
    plain : bool
        Whether it may be ended although nothing says that it has saved.
    signum : signal.Signals or None
        What asks it to save.
    noticed : bool
        Whether it was asked by the batch system, which sends its notice to every process.
    imaged, resident, lost, no_new_privs, declined, main, helper
        As of :class:`~hpcext.launch.transparent.saver.Transparent`: it is not saved as it is.
    """

    imaged = resident = lost = no_new_privs = False
    declined = main = 0
    helper: Process | None = None

    def __init__(
        self, document: Mapping[str, Any], cwd: Path, directory: Path, index: int = 0
    ) -> None:
        name = str(document.get("signal", ""))
        exits = document.get("exits")
        after_s = document.get("after_s")
        self.signum = signal.Signals[name] if name else None
        self._exits = None if exits is None else {int(each) for each in exits}
        self._pattern = str(document.get("file", ""))
        self._newer = bool(document.get("newer"))
        self._requeue = bool(document.get("requeue"))
        self._after_s = None if after_s is None else float(after_s)
        self._arguments = [str(each) for each in document.get("arguments", ())]
        self._resume = [str(each) for each in document.get("resume", ())]
        self._environ = {str(k): str(v) for k, v in document.get("environ", {}).items()}
        self.plain = self.signum is None and not self._newer
        self._directory = directory
        self._index = index
        self._files = OwnCheckpoints(self._pattern, cwd, directory.parent)
        # The newest checkpoint when the attempt began, and when it was asked to save; what was
        # written before this instant, in seconds since the epoch, is no answer to that.
        self._first: Found | None = None
        self._before: Found | None = None
        self._since = 0.0
        self._asked_s: float | None = None
        # Whether the batch system has asked it, by its notice.
        self.noticed = False
        # Who was asked, and who is theirs to tell.
        self._told: set[Process] = set()
        self._left: set[Process] = set()
        # Who of those that were asked is below others of the command, so that its end is not
        # theirs; and with which values these have ended, as far as it is known.
        self._inner: set[Process] = set()
        self._values: dict[Process, int] = {}
        # Checkpoints that were being written at the last look.
        self._open: set[str] = set()

    # The beginning.

    def resume(self, say: Callable[[str], object]) -> int | None:
        """Return None: the command itself goes on, from its checkpoint."""
        return None

    def begin(self, say: Callable[[str], object]) -> list[str]:
        """Note what there is already; return the arguments to be added to the command.

        Parameters
        ----------
        say : callable
            Writes a line into the log.

        Raises
        ------
        OSError
            It is not known what is older than the job, or could not be later.
        """
        found = self._files.begin(say, notes=self._index == 0)
        self._first = self._files.newest(found)
        if not self._resume:
            return self._arguments
        if self._first is not None:
            say(f"goes on from {self._first.path}")
            return [*self._arguments, *self._resumes(self._first)]
        if (older := newest_whole(found)) is not None:
            words = shlex.join(self._resumes(older))
            say(f"{older.path} is older than this job and not used; the command may have {words}")
        return self._arguments

    def _resumes(self, found: Found) -> list[str]:
        """Return the arguments by which the command goes on from a checkpoint."""
        values = {"{file}": str(found.path), "{directory}": str(found.path.parent)}
        return [_filled(word, values) for word in self._resume]

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to be added to the environment of the command.

        Raises
        ------
        OSError
            It could not be heard when it asks to be requeued.
        """
        added = {
            name: _filled(value, {"{pid}": str(os.getpid())})
            for name, value in self._environ.items()
            if name not in environ
        }
        if self._requeue:
            path = environ.get("PATH", os.defpath)
            programs = self._directory / "bin"
            private.make(programs)
            text = _SCONTROL.format(
                heard=shlex.quote(str(self._directory / HEARD)), path=shlex.quote(path)
            )
            documents.write_file(programs / "scontrol", text.encode(), mode=0o700)
            added["PATH"] = f"{programs}:{path}"
        return added

    # A suspension.

    def ask(
        self,
        below: Sequence[Process],
        root: int,
        hold: Callable[[Sequence[Process]], object] = lambda _: None,
    ) -> None:
        """Ask the processes that do something about the signal, each once.

        Those below one that does are its own to tell, as ranks are a launcher's. One that would be
        ended by the signal, since it has no handler yet, is asked when it has. One whose parent is
        gone may have been that of one that was asked and has ended, and is left.

        Parameters
        ----------
        below : sequence of Process
            All processes of the attempt.
        root : int
            The pid of their supervisor.
        hold : callable
            Called with those that are asked, before they are: stops the shells above them, so that
            no script goes on because they have saved and left.
        """
        if self._asked_s is None:
            self._before = self._begin_to_wait()
        if self.signum is None:
            return
        known = self._told | self._left
        new = [each for each in below if each not in known]
        hears = {each for each in new if tree.handles(each, self.signum)}
        # All of this is found out before one is told, since it may end at once.
        above = {each: tree.ancestors(each.pid, root) for each in new}
        orphans = not all(each.alive() for each in self._told)
        tells = {each.pid for each in hears | self._told}
        for process in new:
            orphan = orphans and not above[process] and process.pid != self.main
            if orphan or any(each.pid in tells for each in above[process]):
                # It stays so when the one above has saved and ended.
                self._left.add(process)
            elif process in hears:
                self._told.add(process)
        asked = [each for each in new if each in self._told]
        if not asked:
            return
        # What is in a step of Slurm's is the affair of its srun, which hears the signal, too.
        steps = {each for each in below if tree.program(each) == "srun"}
        alone = [each for each in asked if not steps or each in steps]
        self._inner.update(each for each in alone if not set(below).isdisjoint(above[each]))
        hold(alone)
        for process in asked:
            tree.send(process, self.signum)

    def notice(self, signums: Collection[int]) -> None:
        """Note that the batch system has sent signals to every process, perhaps some time ago.

        If one is that which asks this command to save, it may have done so, and be gone.
        """
        if self.signum not in signums or self._asked_s is not None:
            return
        self.noticed = True
        newest = self._begin_to_wait()
        if newest is not None and newest.at < time.time() - NOTICED_S:
            self._before = newest

    def _begin_to_wait(self) -> Found | None:
        """Note that it is asked now; return the newest checkpoint that it has."""
        self._asked_s = time.monotonic()
        newest = self._files.newest()
        if self._files.cut_off:
            # A later search may get further, and see what is there already.
            self._since = time.time() - NOTICED_S
        return newest

    def answering(self) -> bool:
        """Return whether a process that was asked still runs."""
        return any(process.alive() for process in self._told)

    def helper_ended(self, pid: int, code: int) -> bool:
        """Return False: nobody else saves it."""
        return False

    def leave(self) -> None:
        """Do nothing: what it saves is not in the memory of this machine."""

    def abandon(self) -> None:
        """Do nothing: only the command itself saves."""

    def may_go(self) -> bool:
        """Return whether it has saved, so that it can be ended and need not end by itself."""
        if self._exits is not None:
            return self._have_left() and self._said()
        if not self.plain:
            return self._asked_s is not None and self._said()
        if self._after_s is None:
            return True
        if self._asked_s is None:
            return False
        waited = time.monotonic() >= self._asked_s + self._after_s
        return waited or self._has_newer()

    def writing(self, below: Iterable[Process]) -> bool:
        """Return whether one of these processes is writing a checkpoint."""
        if not self._pattern:
            return False
        matches = {os.path.realpath(each.path) for each in self._files.all()}
        self._open = {
            path
            for process in below
            for path in wholeness.written_by(process)
            if path in matches or wholeness.beside(path, matches)
        }
        return bool(self._open)

    def _have_left(self) -> bool:
        """Return whether all that were asked have ended, below others, with values that are stated.

        The shells above are stopped meanwhile, and do not know of it.
        """
        if self._exits is None or not self._inner or self.answering():
            return False
        values = self._ends()
        return len(values) == len(self._inner) and all(map(self._states, values.values()))

    def _ends(self) -> dict[Process, int]:
        for process in self._inner - self._values.keys():
            if (value := tree.end_of(process)) is not None:
                self._values[process] = value
        return self._values

    def _states(self, exit_code: int) -> bool:
        """Return whether an exit code, negative for a signal, says that it has saved."""
        status = exit_code if exit_code >= 0 else 128 - exit_code
        return not self._exits or status in self._exits

    def _said(self) -> bool:
        """Return whether it has said that it has saved, in each way but its exit value."""
        if self._requeue and not os.path.lexists(self._directory / HEARD):
            return False
        return self._has_newer() if self._newer else True

    def _has_newer(self) -> bool:
        newest = self._files.newest()
        if newest is not None and newest.at < self._since:
            return False
        return newest is not None and not same(newest, self._before)

    # The end.

    def acknowledged(self, exit_code: int, *, cut_off: bool, released: bool) -> bool:
        """Return whether an attempt that was to be suspended, and has ended, has saved.

        Parameters
        ----------
        exit_code : int
            The command's, negative for a signal.
        cut_off : bool
            Whether the command was told to end, or killed, before it had ended.
        released : bool
            Whether that was done because it had saved, or might be ended all the same.
        """
        if self.plain or (cut_off and not released):
            return released
        if self._asked_s is None:
            return False
        if self._exits is not None and not (released and self._have_left()):
            asked = self._told or self.noticed
            if cut_off or not asked or not self._states(exit_code):
                return False
        return self._said()

    def went_on(self) -> bool:
        """Return whether the command may have ended well although its training has not.

        What started the training may take its end for that of its work, and go on.
        """
        if self._exits is None:
            return False
        values = [self._ends().get(each) for each in self._inner]
        # One that has ended with 0 and has not saved by that was done.
        return any(each is None or (each != 0 and self._states(each)) for each in values)

    def account(
        self, *, acknowledged: bool, cut_off: bool, ran_s: float, ended_at: float
    ) -> dict[str, Any]:
        """Return what is known of the work that is in no checkpoint, for ``exit.json``.

        Parameters
        ----------
        acknowledged : bool
            Whether it has saved, as :meth:`acknowledged` says.
        cut_off : bool
        ran_s : float
            How long the command ran. No more than that is lost, whatever clocks say.
        ended_at : float
            When it ended, in seconds since the epoch.
        """
        newest = self._files.newest()
        if cut_off and newest is not None and os.path.realpath(newest.path) in self._open:
            newest = None
        saved_at = None if newest is None or same(newest, self._first) else newest.at
        with contextlib.suppress(OSError):
            saved_at = max(saved_at or 0.0, os.stat(self._directory / HEARD).st_mtime)
        # Its own word, where it has one, holds for all that it had done until it left.
        word = self._newer or self._requeue or bool(self._exits)
        if acknowledged and word and (not cut_off or self._have_left()):
            saved_at = ended_at
        # The clock of the file system may be another one.
        lost_s = ran_s if saved_at is None else min(ran_s, max(0.0, ended_at - saved_at))
        known = saved_at is not None or bool(self._pattern)
        return {"saved": saved_at is not None, "lost_s": lost_s, "exact": known}


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
