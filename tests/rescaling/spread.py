"""A training over several nodes, all of them this machine, that a test resizes itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from nursery import Fork, Nursery
from resized import TRAIN, Training

from hpcext import documents, protocol
from hpcext.process import Process
from hpcext.rendezvous import SHARED


class Nurseries:
    """As many as launchers run at once."""

    def __init__(self) -> None:
        self._all: list[Nursery] = []

    def one(self) -> Nursery:
        """One that has nothing to do."""
        found = next((nursery for nursery in self._all if nursery.free), None)
        if found is None:
            found = Nursery()
            self._all.append(found)
        return found

    def close(self) -> None:
        """End them."""
        for nursery in self._all:
            nursery.close()


class Spread(Training):
    """One attempt of ``train.py`` with a rank on each of its nodes.

    Parameters
    ----------
    path : pathlib.Path
    *argv : str
        Arguments of ``train.py``.
    nodes : int
        How many to begin with.
    attempt : int
    nurseries : Nurseries
        Whose forks its processes are.
    """

    def __init__(
        self, path: Path, *argv: str, nodes: int, nurseries: Nurseries, attempt: int = 1
    ) -> None:
        self.path = path
        self.reports = path / f"attempt-{attempt}"
        self.reports.mkdir()
        self.attempt = protocol.Attempt(
            job_id="1",
            attempt=attempt,
            op=attempt,
            checkpoint_dir=path / "checkpoints",
            report_dir=self.reports,
            num_gpus=1,
            num_nodes=nodes,
            rendezvous="127.0.0.1:20123",
            notify=Process.me(),
            notices=True,
        )
        self.asked = 0
        self.nodes = list(range(nodes))
        self.wanted = self.nodes
        self._argv = argv
        self._nurseries = nurseries
        self.launchers: dict[int, Fork] = {}
        for index in self.nodes:
            self.begin(index)
        self.process = self.launchers[0]

    def begin(self, index: int) -> None:
        """Start the launcher of a node."""
        environ = {
            **self.attempt.environ(),
            "HPCEXT_NODE_INDEX": str(index),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(TRAIN), str(self.path), *self._argv]
        output = self.reports / f"output-{index}"
        nursery = self._nurseries.one()
        self.launchers[index] = nursery.start(command, environ, output, ranks=0, launcher=True)

    def lose(self, *nodes: int) -> None:
        """Kill all of some nodes at once, as the end of a lease without notice does."""
        for index in nodes:
            there = psutil.Process(self.launchers[index].pid)
            for process in (there, *there.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def change(self, nodes: Sequence[int], *, begin: bool = True, lost: Sequence[int] = ()) -> None:
        """Ask for other nodes, and start the launchers of the new ones."""
        self.asked += 1
        self.wanted = list(nodes)
        document = {
            "schema": protocol.RESCALE,
            "attempt": self.attempt.attempt,
            "op": self.attempt.op,
            "resize": self.asked,
            "gpus": [f"n{index}:0" for index in nodes],
            "had": [f"n{index}:0" for index in self.nodes],
            "devices": "",
            "nodes": list(nodes),
            "lost": [f"n{index}:0" for index in lost],
        }
        documents.write_json(self.reports / protocol.RESCALE_FILE, document)
        for index in nodes:
            if index not in self.launchers and begin:
                self.begin(index)
        self.process.send_signal(protocol.NEWS_SIGNAL)

    def meeting_places(self) -> Iterator[Path]:
        """As the base class has it."""
        return (self.reports / SHARED).glob("group.json")

    def settled(self) -> dict[str, object]:
        """The answer to the last question."""
        answer = self.answer()
        self.nodes = self.wanted if answer["ok"] else self.nodes
        return answer

    def ended(self, index: int) -> int:
        """Wait for the launcher of a node; its exit code."""
        output, _ = self.launchers[index].communicate(timeout=500)
        code = self.launchers[index].returncode
        assert code is not None
        self.output = output
        return code

    def kill(self) -> None:
        """Leave nothing."""
        for process in self.launchers.values():
            process.kill()
            process.wait()
