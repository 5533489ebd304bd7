"""Virtual machine rooms with a Slurm."""

from __future__ import annotations

import random
from typing import Any

from virtual import batch_room, shell
from virtual.slurm import Order, Partition, Site, Slurm
from virtual.slurm_commands import Commands
from virtual.slurm_faults import SlurmFaults

from hpcext.batch.slurm import reads as slurm_reads
from hpcext.batch.slurm import requeued


class SlurmRoom(batch_room.BatchRoom):
    """One seed: a pilot in a job of a Slurm."""

    batch, kind_of_faults = "slurm", SlurmFaults
    options = ("--partition=batch",)
    lost_s = 30.0

    def _set_up(self, chance: random.Random) -> None:
        requeued._requeue_delay_s.cache_clear()
        slurm_reads.reads.cache_clear()
        site = Site(
            cycle_s=2.0, periodic_s=chance.choice([5.0, 30.0]), lost_s=self.lost_s,
            requeue_s=chance.choice([10.0, 60.0]), keep_s=60.0,
            release=chance.choice([(22, 5), (24, 11)]),
        )  # fmt: skip
        self.controller = Slurm(
            self.kernel, self.workers, self._partitions(), site, shell.script, gpus=self.gpus
        )
        self.commands = Commands(self.controller)

    def _partitions(self) -> list[Partition]:
        return [
            Partition("batch", 10, self.grace_s),
            Partition("urgent", 100, preempted=False),
        ]

    def _main_order(self, **what: Any) -> Order:
        return Order(partition="urgent", exclusive=True, limit_s=300.0, **what)


class HarvestRoom(batch_room.HarvestRoom, SlurmRoom):
    """One seed: a harvester of nodes of a Slurm."""

    def _partitions(self) -> list[Partition]:
        # Without grace an agent is not told before its srun is, which then kills it.
        self.grace_s = self.grace_s or 30.0
        return [*super()._partitions(), Partition("harvest", 1, self.grace_s)]
