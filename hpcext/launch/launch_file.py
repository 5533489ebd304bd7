"""The contents of ``launch.json`` for the supervisor of one node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcext import documents, private, protocol
from hpcext.allocation import Allocation, step_index
from hpcext.launch import devices
from hpcext.launch.leader import Leader, RemoteLeader
from hpcext.launch.native import Native

if TYPE_CHECKING:
    from hpcext.launch.container import Container
    from hpcext.launch.mps import Seat
    from hpcext.launch.transparent.saver import Transparent


def read(path: Path) -> dict[str, Any]:
    """Read what to run: a file of ours, in a directory that nobody else may write to.

    Parameters
    ----------
    path : pathlib.Path
        The attempt's directory.

    Raises
    ------
    OSError, ValueError
        The directory is not such, or the file says nothing.
    """
    directory = private.open_directory(path, without=0o022)
    try:
        name = Path(protocol.LAUNCH_FILE)
        return documents.read_json(name, protocol.LAUNCH, dir_fd=directory)
    finally:
        os.close(directory)


class Launch:
    """What to run on this node, and how.

    Parameters
    ----------
    document : Mapping
        ``launch.json``.
    index : int or None
        The index of this node; None if Slurm says it, or there is one node.

    Attributes
    ----------
    attempt, op : int
    argv : list of str
    cwd : str
    environ : dict
        Variables that the manager adds to the environment.
    index : int
    several : bool
        Whether the attempt is on several nodes.
    log : pathlib.Path
        Where the command prints on this node.
    gpus : int
        The number of GPUs of the attempt.
    kill_grace_s, suspend_timeout_s : float
    notices : bool
        Whether the batch system may send its notices to every process.
    node : dict
        This node, if the manager tells nodes apart itself, since the batch system's signals and
        shares do not reach them; else empty.
    stays : bool
        Whether processes may stay in memory here between two attempts.
    agent : bool
        Whether an agent has started us: it gave us the index of our node, and also tells us when
        to leave the node.
    """

    def __init__(self, document: Mapping[str, Any], index: int | None) -> None:
        self.attempt = int(document["attempt"])
        self.op = int(document["op"])
        self.argv = [str(word) for word in document["argv"]]
        self.cwd = str(document["cwd"])
        self.environ = dict(document["environ"])
        several = int(self.environ.get("HPCEXT_NUM_NODES", 1)) > 1
        self.index = (step_index() if several else 0) if index is None else index
        self.several = several or self.index > 0
        self.log = Path(document["log"])
        if self.index:
            self.log = self.log.with_name(f"log.node-{self.index}.txt")
        self.gpus = len(document["gpus"]) or int(self.environ.get("HPCEXT_NUM_GPUS", 0))
        self.kill_grace_s = float(document["kill_grace_s"])
        self.suspend_timeout_s = float(document["suspend_timeout_s"])
        self.notices = bool(document.get("notices"))
        nodes = document.get("nodes") or []
        self.node: dict[str, Any] = dict(nodes[self.index]) if nodes else {}
        self.agent = index is not None and not nodes
        self._leader = str(document.get("leader", "none"))
        self._checkpoint = document.get("checkpoint")
        self._container = document.get("container")
        self._mps = document.get("mps")
        self.stays = bool(document.get("stays"))

    def native(self, directory: Path, environ: Mapping[str, str]) -> Native | Transparent | None:
        """Return how the command saves by its own means; None if nothing is stated of that.

        Parameters
        ----------
        directory : pathlib.Path
            The directory of the attempt.
        environ : Mapping[str, str]
            That of the supervisor, without the manager's additions.
        """
        if self._checkpoint is None:
            return None
        if self._checkpoint.get("transparent"):
            # Imported here, since few attempts are suspended so, and the others need not load it.
            from hpcext.launch.transparent.saver import Transparent  # noqa: PLC0415

            return Transparent(
                directory,
                {"attempt": self.attempt, "op": self.op},
                self.log,
                {**environ, **self.environ},
                self.suspend_timeout_s,
                stays=self.stays,
            )
        return Native(self._checkpoint, Path(self.cwd), directory, self.index)

    def container(self, directory: Path) -> Container | None:
        """Return the container of the command; None if it runs in none.

        Parameters
        ----------
        directory : pathlib.Path
            The directory of the attempt.
        """
        if self._container is None:
            return None
        # Imported here, since few commands are in containers, and the others need not load it.
        from hpcext.launch import container  # noqa: PLC0415

        return container.Container(
            self._container, directory, self.cwd, attempt=self.attempt, index=self.index
        )

    def seat(self) -> Seat | None:
        """Return the way to the attempt's seat on a shared GPU, if that is where it runs."""
        if not self._mps:
            return None
        # Imported here, since few attempts share a GPU, and the others need not load this.
        from hpcext.launch import mps  # noqa: PLC0415

        return mps.Seat(self._mps)

    def nvidia(self) -> str | None:
        """Return its NVIDIA GPUs, as in ``CUDA_VISIBLE_DEVICES``; empty if it has none."""
        if not self.gpus or devices.name() != devices.CUDA:
            return ""
        return devices.said({**protocol.environ(), **self.environ})

    def leader(self, directory: Path) -> Leader | None:
        """Return the leader of the batch job, which must be watched; None if there is no leader.

        Parameters
        ----------
        directory : pathlib.Path
            The directory of the attempt.
        """
        if self.node:
            return Leader(RemoteLeader(directory), self.suspend_timeout_s)
        return Leader.of(self._leader, self.suspend_timeout_s)

    def place(self) -> dict[str, Any]:
        """Return where the batch system has put us, and on which GPUs, for ``supervisor.json``."""
        if self.node:
            return {"node": str(self.node["name"])}
        place = Allocation.from_environ()
        if place is None or not place.step:
            return {}
        gpus = [f"{place.node}:{index}" for index in place.gpus]
        return {"step": place.step, "node": place.node, "gpus": gpus}
