"""The ways in which a process tree that saves nothing can be suspended as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcext.launch.transparent.criu import Criu
from hpcext.launch.transparent.driver import DriverAndCriu
from hpcext.launch.transparent.resident import Resident
from hpcext.process import Process


class Way(Protocol):
    """A way to suspend a process tree. Nothing of it is believed without proof.

    Attributes
    ----------
    name : str
    no_new_privs : bool
        Whether the tree must not be able to gain privileges, as by ``sudo``.
    stays : bool
        Whether the tree stays in memory, and there are no images.
    part : float
        The part of the time for a suspension in which it has to be done; the rest is for undoing.
    """

    name: str
    stays: bool
    no_new_privs: bool
    part: float

    def probe(self) -> str:
        """Return why it cannot be used on this machine; empty if it seems that it can."""

    def refuse(self, root: Process, tree: Sequence[Process]) -> str:
        """Return why it cannot suspend such a tree; empty if it may be tried."""

    def suspend(
        self, root: Process, tree: Sequence[Process], images: Path, work: Path, limit_s: float
    ) -> int | None:
        """Begin to suspend a tree; return the pid of the helper that does so, None if none does.

        Parameters
        ----------
        root : Process
            The root of the tree.
        tree : sequence of Process
            All that is in it.
        images : pathlib.Path
            An empty directory for what it writes.
        work : pathlib.Path
            A directory for its logs.
        limit_s : float
            Seconds after which it is given up.

        Raises
        ------
        OSError
            No helper can be started.
        """

    def judge(self, code: int, root: Process, images: Path, work: Path) -> str:
        """Return why a tree is not suspended although its helper has ended; empty if it is.

        One that is suspended has stopped, and everything that it consists of is in the images, or
        stays in memory.

        Parameters
        ----------
        code : int
            The exit code of the helper; -N if signal N ended it.
        root : Process
            The root of the tree.
        images : pathlib.Path
            The directory of the images.
        work : pathlib.Path
            The directory of logs and other files of the helper.
        """

    def facts(self, work: Path) -> dict[str, Any]:
        """Return what :meth:`resume` will have to know of a tree that is suspended."""

    def undo(self, work: Path, limit_s: float) -> int | None:
        """Begin to undo a suspension that has failed; return the pid of the helper that does so.

        All processes of the tree have been sent SIGCONT.

        Parameters
        ----------
        work : pathlib.Path
            The directory of logs and other files of the helper.
        limit_s : float
            Seconds after which it is given up.

        Returns
        -------
        int or None
            None if there is nothing more to undo.

        Raises
        ------
        OSError
            No helper can be started.
        """

    def undone(self, code: int, work: Path) -> str:
        """Return why a tree cannot go on although that helper has ended; empty if it goes on."""

    def why_not(self, document: Mapping[str, Any], devices: str | None) -> str:
        """Return why images cannot be used on the GPUs of an attempt; empty if they may.

        Parameters
        ----------
        document : Mapping
            What is noted beside the images.
        devices : str or None
            As in ``CUDA_VISIBLE_DEVICES``.
        """

    def resume(self, images: Path, work: Path, limit_s: float, document: Mapping[str, Any]) -> int:
        """Make a suspended tree again; return the pid of its root, a child of ours.

        It is stopped, so that nothing is done twice if this fails: SIGCONT lets it go on. One that
        has stayed in memory cannot do anything twice.

        Parameters
        ----------
        images : pathlib.Path
            The directory of the images.
        work : pathlib.Path
            The directory of logs and other files of the helper.
        limit_s : float
            Seconds after which it has failed.
        document : Mapping
            What is noted beside the images.

        Raises
        ------
        OSError
            It was not begun again.
        PutOffError
            It cannot be tried now; the images are as they were.
        """


def ways(environ: Mapping[str, str]) -> tuple[DriverAndCriu, Criu]:
    """Return all ways in the order in which they are tried; the first one needs the second.

    Parameters
    ----------
    environ : Mapping[str, str]
        Says where programs are, and which GPUs are visible.
    """
    criu = Criu(environ)
    return DriverAndCriu(criu, environ), criu


def choose(environ: Mapping[str, str], *, stays: bool = False) -> tuple[Way | None, str]:
    """Return the first way that can be used here; if there is none, why not.

    Parameters
    ----------
    environ : Mapping[str, str]
        As in :func:`ways`.
    stays : bool
        Whether processes may stay in memory. Images are preferred: they need no memory, and are
        still there when an allocation has ended.
    """
    driver, criu = ways(environ)
    if why := criu.probe():
        return (Resident(environ), "") if stays else (None, f"{criu.name}: {why}")
    if why := driver.without():
        criu.without_driver = why
        return criu, ""
    return driver, ""
