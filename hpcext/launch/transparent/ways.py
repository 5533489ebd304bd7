"""The ways in which a process tree that saves nothing can be suspended as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hpcext.launch.transparent.criu import Criu
from hpcext.process import Process


class Way(Protocol):
    """A way to suspend a process tree. Nothing of it is believed without proof.

    Attributes
    ----------
    name : str
    no_new_privs : bool
        Whether the tree must not be able to gain privileges, as by ``sudo``.
    """

    name: str
    no_new_privs: bool

    def probe(self) -> str:
        """Return why it cannot be used on this machine; empty if it seems that it can."""

    def refuse(self, root: Process, tree: Sequence[Process]) -> str:
        """Return why it cannot suspend such a tree; empty if it may be tried."""

    def suspend(self, root: Process, images: Path, work: Path) -> int:
        """Begin to suspend a tree; return the pid of the helper that does so.

        Parameters
        ----------
        root : Process
            The root of the tree.
        images : pathlib.Path
            An empty directory for what it writes.
        work : pathlib.Path
            A directory for its logs.

        Raises
        ------
        OSError
            No helper can be started.
        """

    def judge(self, code: int, root: Process, images: Path, work: Path) -> str:
        """Return why a tree is not suspended although its helper has ended; empty if it is.

        One that is suspended has stopped, and everything that it consists of is in the images.

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

    def resume(self, images: Path, work: Path, limit_s: float) -> int:
        """Make a suspended tree again; return the pid of its root, a child of ours.

        It is stopped, so that nothing is done twice if this fails: SIGCONT lets it go on.

        Parameters
        ----------
        images : pathlib.Path
            The directory of the images.
        work : pathlib.Path
            The directory of logs and other files of the helper.
        limit_s : float
            Seconds after which it has failed.

        Raises
        ------
        OSError
            It was not begun again.
        PutOffError
            It cannot be tried now; the images are as they were.
        """


def ways(environ: Mapping[str, str]) -> list[Way]:
    """Return all ways in the order in which they are tried.

    Parameters
    ----------
    environ : Mapping[str, str]
        Says where programs are.
    """
    return [Criu(environ)]


def choose(environ: Mapping[str, str]) -> tuple[Way | None, str]:
    """Return the first way that can be used here; if there is none, why not."""
    reasons = []
    for way in ways(environ):
        why = way.probe()
        if not why:
            return way, ""
        reasons.append(f"{way.name}: {why}")
    return None, "; ".join(reasons)
