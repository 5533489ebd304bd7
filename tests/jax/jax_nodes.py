"""Runs a JAX script on several nodes, all of them this machine, as their supervisors would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import Run, Started
from nursery import JAX, Fork, Nursery
from tf_harness import TensorFlowJob

SCRIPT = str(Path(__file__).parent / "train_jax.py")


class Nurseries:
    """As many as launchers run at once."""

    def __init__(self) -> None:
        self._all: list[Nursery] = []

    def of(self, count: int) -> Sequence[Nursery]:
        """So many that have nothing to do."""
        while len(self._all) < count:
            self._all.append(Nursery(JAX))
        return self._all[:count]

    def close(self) -> None:
        """End them."""
        for nursery in self._all:
            nursery.close()


class NodesJob(TensorFlowJob):
    """A job whose number of nodes may be another one in each attempt.

    Attributes
    ----------
    nodes : list of Fork
        The launchers of the last attempt, by node.
    codes : list of int
        How they ended.
    """

    def __init__(self, nurseries: Nurseries, path: Path, *args: str, **environ: str) -> None:
        super().__init__(None, path, SCRIPT, *args, **environ)
        self._nurseries = nurseries
        self._size = 1
        self.nodes: list[Fork] = []
        self.codes: list[int | None] = []

    def start(self, *args: str, attempt: int | None = None, **environ: str) -> Started:
        told = self.begin(attempt)._replace(num_gpus=self.workers, num_nodes=self._size)
        if self._size > 1:
            told = told._replace(rendezvous="127.0.0.1:20123")
        told.report_dir.chmod(0o700)
        self.nodes = [
            nursery.start(
                [str(self.script), *self.args, *args],
                {
                    **self.environ,
                    **told.environ(),
                    **environ,
                    "HPCEXT_NODE_INDEX": str(index),
                },
                told.report_dir / f"output-{index}",
                ranks=0,
                launcher=True,
            )
            for index, nursery in enumerate(self._nurseries.of(self._size))
        ]
        return self.nodes[0]

    def finish(self, process: Started) -> Run:
        run = super().finish(process)
        for node in self.nodes[1:]:
            run.output += node.communicate()[0]
        self.codes = [node.returncode for node in self.nodes]
        return run

    def on_nodes(self, nodes: int, *args: str, workers: int = 1) -> Run:
        """Run an attempt on so many nodes, of so many workers each."""
        self._size, self.workers = nodes, workers
        return self.run(*args)
