"""The transparent suspension of one attempt, in the place of a command's own way to save.

To its supervisor it looks as :class:`~hpcext.launch.native.Native` does. Where no way works on the
machine the command is ended all the same, and is begun again from the beginning: that is said at
its start and after its end.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.launch import devices, tree
from hpcext.launch.transparent import no_io_uring, residence
from hpcext.launch.transparent.manifest import RESIDENT, Images, resume_s
from hpcext.launch.transparent.put_off import PutOffError
from hpcext.launch.transparent.resident import Resident
from hpcext.launch.transparent.told import Told
from hpcext.launch.transparent.ways import Way, choose
from hpcext.process import Process

AGAIN_S = 5.0
"""Seconds until a suspension that may not be declined is tried again."""

UNDO_S = 60.0
"""The least seconds in which a suspension that has failed must be undone."""


class Transparent:
    """The suspension of a command as it is, and its return.

    Parameters
    ----------
    directory : pathlib.Path
        Of the attempt.
    identity : Mapping
        ``attempt`` and ``op``.
    log : pathlib.Path
        Where the command prints.
    environ : Mapping[str, str]
        That of the command.
    timeout_s : float
        Seconds for a suspension.
    stays : bool
        Whether processes may stay in memory here while they are suspended.

    Attributes
    ----------
    plain : bool
        Whether it may be ended at any time, as nothing of it can be saved.
    signum : None
    noticed : bool
        No signal asks for it.
    main : int
        The pid of the command.
    no_new_privs : bool
        Whether the command must not be able to gain privileges.
    imaged : bool
        Whether all processes have stopped, and are in images: they must never go on.
    resident : bool
        Whether they have stopped and stay in memory, for the next attempt.
    lost : bool
        Whether they can neither be suspended nor go on: they must be ended.
    """

    signum: signal.Signals | None = None
    noticed = False

    def __init__(
        self,
        directory: Path,
        identity: Mapping[str, int],
        log: Path,
        environ: Mapping[str, str],
        timeout_s: float,
        *,
        stays: bool = False,
    ) -> None:
        self._directory = directory
        self._told = Told(directory, identity, log)
        self._images = Images(directory.parent, log)
        self._devices = devices.said(environ)
        self._timeout_s = self._limit_s = timeout_s
        self._environ = environ
        self._way: Way | None = None
        self._why_none = ""
        self._stays = stays
        self.plain = True
        self.no_new_privs = self.imaged = self.resident = self.lost = False
        self.main = 0
        # The work before this attempt: what goes on in it, and what was given up.
        self._before_s = self._given_up_s = 0.0
        self._began_s = time.monotonic()
        self._helper: Process | None = None
        self._root: Process | None = None
        self._taken_s = self._until_s = self._again_s = 0.0
        self._late = False
        # Why a suspension has failed that is being undone.
        self._undoes = ""

    # The beginning.

    def resume(self, say: Callable[[str], object]) -> int | None:
        """Let suspended processes go on; return the pid of their root, or None to begin anew.

        Parameters
        ----------
        say : callable
            Called with what the user should know.

        Raises
        ------
        PutOffError
            It cannot be tried now. The images are kept.
        """
        document = self._images.read()
        stayed = document is not None and RESIDENT in document
        self._choose(stayed=stayed)
        if document is None:
            if self._way is None:
                self._told.note(f"cannot be suspended as it is ({self._why_none}): {_ANEW}", say)
            return None
        self._before_s = _seconds(document.get("trained_s"))
        self._told.began_as = str(document.get("began_as", self._told.began_as))
        why, pid = self._why_not(document), None
        # Before they run: whoever has to kill them knows them by that.
        self._told.tell()
        if not why and self._way is not None:
            try:
                self._images.prepare_return(document)
                limit_s = resume_s(document)
                pid = self._way.resume(self._images.path, self._directory, limit_s, document)
            except PutOffError:
                self._images.put_off(document)
                raise
            except (OSError, ValueError) as error:
                why = str(error)
        if pid is not None:
            # Before they run: nothing that they do from here on is ever done again.
            self._images.remove()
            say(f"goes on where it was suspended, after {self._before_s:.1f} s of work")
            self._began_s = time.monotonic()
            _let_go_on()
            return pid
        if stayed:
            residence.sweep(self._directory.parent, document)
            self._choose()
        self._given_up_s, self._before_s = self._before_s, 0.0
        self._told.began_as = str(self._directory)
        self._images.remove()
        what = f"{self._given_up_s:.1f} s of work are lost"
        if "trained_s" not in document:
            what = "all of its work is lost"
        why = f"cannot go on where it was suspended ({why})"
        self._told.note(f"{why}: {what}, and it begins anew", say)
        return None

    def begin(self, say: Callable[[str], object]) -> list[str]:
        """Return the arguments to be added to the command: none."""
        self._began_s = time.monotonic()
        return []

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to be added to its environment."""
        if self._way is None or self._way.stays:
            return {}
        return no_io_uring.variables(environ, self._directory.parent)

    def _why_not(self, document: Mapping[str, Any]) -> str:
        if self._way is None:
            return self._why_none
        if why := document.get("unreadable"):
            return str(why)
        return self._way.why_not(document, self._devices) or self._images.changed(document)

    def _choose(self, *, stayed: bool = False) -> None:
        """Choose the way in which it is suspended, or goes on if it has stayed in memory."""
        self._way, self._why_none = choose(self._environ, stays=self._stays)
        if stayed:
            self._way = Resident(self._environ)
        self._limit_s = self._timeout_s * (1.0 if self._way is None else self._way.part)
        self.plain = self._way is None
        self.no_new_privs = self._way is not None and self._way.no_new_privs

    # A suspension.

    @property
    def declined(self) -> int:
        """The number of suspensions that have failed, so that the command goes on."""
        return self._told.declined

    @property
    def helper(self) -> Process | None:
        """The program that writes the images at this moment; it is no process of the job."""
        return self._helper

    def ask(self, below: Sequence[Process], root: int, hold: object = None) -> None:
        """Begin to write the images, unless that has begun; end it where it takes too long.

        Parameters
        ----------
        below : sequence of Process
            All processes of the attempt, parents before children.
        root, hold
            As of :meth:`hpcext.launch.native.Native.ask`; not used.
        """
        if self._way is None or self.imaged or self.resident or self.lost:
            return
        if self._helper is not None:
            if time.monotonic() >= self._until_s and not self._late:
                self._late = True
                tree.send(self._helper, signal.SIGKILL)
        elif time.monotonic() >= self._again_s and below:
            if self._undoes:
                self._undo(self._undoes)
            else:
                self._save(self._way, below)

    def _save(self, way: Way, below: Sequence[Process]) -> None:
        self._root = next((each for each in below if each.pid == self.main), None)
        if self._root is None:
            self._decline("the command itself has ended, and others of its processes have not")
            return
        if why := way.refuse(self._root, below) or self._images.forbidden():
            self._decline(why)
            return
        try:
            images = self._images.prepare()
            pid = way.suspend(self._root, below, images, self._directory, self._limit_s)
        except OSError as error:
            self._decline(str(error))
            return
        if pid is None:
            self._judge(way, 0)
        else:
            self._helped(pid, self._limit_s)

    def helper_ended(self, pid: int, code: int) -> bool:
        """Judge what the helper has done, if it was that which has ended."""
        if self._helper is None or pid != self._helper.pid:
            return False
        self._helper = None
        if self._way is None or self._root is None:
            return True
        late = f"it was not done in {self._taken_s:.0f} s" if self._late else ""
        if self._undoes:
            if why := late or self._way.undone(code, self._directory):
                self._lose(why)
            else:
                self._decline(self._undoes)
            return True
        self._judge(self._way, code, late)
        return True

    def _judge(self, way: Way, code: int, why: str = "") -> None:
        """Find out whether all is suspended; if not, undo what was done."""
        assert self._root is not None
        why = why or way.judge(code, self._root, self._images.new, self._directory)
        if not why:
            try:
                self._images.commit({**self._facts(), **way.facts(self._directory)})
                self.imaged, self.resident = not way.stays, way.stays
            except (OSError, ValueError) as error:
                why = f"the images cannot be kept: {error}"
        if why:
            # One that was killed may have left some of them stopped.
            self._images.discard(tree.descendants(os.getpid()))
            _let_go_on()
            self._undo(why)
        elif self.resident:
            self._told.note(_STAYS.format(pid=self._root.pid))

    def _helped(self, pid: int, limit_s: float) -> None:
        """Note that a helper has begun."""
        # It may have ended already, but not been reaped.
        self._helper = Process.of(pid) or Process(pid, 0)
        self._taken_s, self._until_s = limit_s, time.monotonic() + limit_s
        self._late = False

    def _undo(self, why: str) -> None:
        """Have a tree go on that was not suspended, and decline its suspension."""
        assert self._way is not None
        self._undoes = why
        limit_s = max(UNDO_S, self._limit_s)
        try:
            pid = self._way.undo(self._directory, limit_s)
        except OSError:
            # No process can be made at this moment.
            self._again_s = time.monotonic() + AGAIN_S
            return
        if pid is None:
            self._decline(why)
        else:
            self._helped(pid, limit_s)

    def _lose(self, why: str) -> None:
        """Give up processes that can neither be suspended nor go on."""
        self.lost = True
        self._images.forbid(f"all of its work was lost by that once: {self._undoes}")
        what = f"cannot be suspended ({self._undoes}), nor go on ({why}): it is ended, "
        self._told.note(f"{what}all of its work is lost, and it begins anew")

    def leave(self) -> None:
        """Learn that it is to leave this machine for good, so that nothing can stay here."""
        if self._way is not None and self._way.stays and not self.resident:
            self._way, self.plain = None, True
            self._told.note(f"cannot stay in memory, as its allocation ends: {_ANEW}")

    def abandon(self) -> None:
        """Give up the images that are being written, since the processes are to end."""
        helper, self._helper = self._helper, None
        if helper is not None:
            tree.send(helper, signal.SIGKILL)
            self._images.discard(tree.descendants(os.getpid()))

    def notice(self, signums: Collection[int]) -> None:
        """Do nothing: the processes ignore it."""

    def answering(self) -> bool:
        """Return whether images are being written."""
        return self._helper is not None

    def may_go(self) -> bool:
        """Return whether it may be ended now although nothing of it is saved."""
        return self.plain

    def writing(self, below: Iterable[Process]) -> bool:
        """Return whether it writes a checkpoint of its own: it has none."""
        return False

    def _facts(self) -> dict[str, Any]:
        return {
            "root": self.main,
            "began_as": self._told.began_as,
            "trained_s": self._before_s + time.monotonic() - self._began_s,
            "devices": self._devices,
        }

    def _decline(self, why: str) -> None:
        self._undoes = ""
        self._told.decline(why)
        self._again_s = time.monotonic() + AGAIN_S

    # The end.

    def acknowledged(self, exit_code: int, *, cut_off: bool, released: bool) -> bool:
        """Return whether an attempt that was to be suspended, and has ended, is suspended.

        Parameters
        ----------
        exit_code : int
        cut_off : bool
        released : bool
            As those of :meth:`hpcext.launch.native.Native.acknowledged`.
        """
        return self.imaged or self.resident or ((self.plain or self.lost) and released)

    def went_on(self) -> bool:
        """Return False: no process has to end by itself."""
        return False

    def account(
        self, *, acknowledged: bool, cut_off: bool, ran_s: float, ended_at: float
    ) -> dict[str, Any]:
        """Return what is known of the work that is lost, for ``exit.json``.

        Parameters
        ----------
        acknowledged : bool
        cut_off : bool
        ran_s, ended_at : float
            As those of :meth:`hpcext.launch.native.Native.account`.
        """
        saved = self.imaged or self.resident
        lost_s = self._given_up_s + (0.0 if saved else self._before_s + ran_s)
        kept_s = self._before_s + ran_s if saved else 0.0
        found = {"saved": saved, "lost_s": lost_s, "exact": True, "anew": not saved}
        return {**found, "kept_s": kept_s}


_STAYS = (
    "stays in the memory of this machine while it is suspended, process {pid}, until it goes on or "
    "is cancelled"
)

_ANEW = "a suspension ends it, all of its work is lost, and it begins anew"


def _let_go_on() -> None:
    """Have all processes below this one go on."""
    for process in tree.descendants(os.getpid()):
        tree.send(process, signal.SIGCONT)


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0
