"""The terms on which a harvester takes nodes, from flags and settings."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hpcext import backends
from hpcext.batch.leasing import Idle, Leasing
from hpcext.checks import check_range
from hpcext.config import Settings
from hpcext.core.errors import InputError
from hpcext.harvest.leases import Terms
from hpcext.jobfields import MAX_GPUS


def nodes_of(leasing: Leasing, partition: str) -> Mapping[str, Idle]:
    """Return the nodes of a partition, or of a queue.

    Raises
    ------
    InputError
        It has no nodes.
    """
    nodes = leasing.idle(partition)
    if not nodes:
        raise InputError(
            f"{partition} has no nodes, or is not a partition",
            where="--partition",
            do="see sinfo, or bqueues and bhosts",
        )
    return nodes


def make_terms(
    args: argparse.Namespace, settings: Settings, *, batch: str = "", **more: Any
) -> Terms:
    """Make the terms on which nodes are taken, from flags and settings.

    Parameters
    ----------
    args : argparse.Namespace
        Has ``partition``, ``gpus_per_node``, ``slots`` and ``rest``, which are None or empty if
        not given.
    settings : Settings
    batch : str
        Name of the batch system; that of the settings by default.
    **more
        Further fields of the terms.

    Raises
    ------
    InputError
        There is no such partition, or a number is missing, too large, or given twice.
    """
    chosen = batch or backends.choose(settings.batch).name
    partition = args.partition or settings.harvest_partition
    if not partition:
        raise InputError(
            "no partition",
            where="--partition",
            valid="one whose jobs all others preempt",
            do="give it, or set harvest_partition",
        )
    nodes = nodes_of(backends.leasing(chosen), partition)
    if args.slots is not None and args.gpus_per_node is not None:
        raise InputError("cannot be given with --gpus-per-node", where="--slots")
    # The commonest number of GPUs per node; the larger one of two that are equally common.
    common = Counter(node.gpus for node in nodes.values()).most_common()
    usual = max(gpus for gpus, times in common if times == common[0][1])
    slots, wanted = args.slots, settings.harvest_gpus
    if slots is None and args.gpus_per_node is None and not usual and isinstance(wanted, int):
        slots = wanted
    flag = "--slots" if slots is not None else "--gpus-per-node"
    gpus = slots if slots is not None else args.gpus_per_node
    if gpus is None:
        gpus = wanted if isinstance(wanted, int) else usual
    if gpus == 0 and args.gpus_per_node is None:
        raise InputError(
            f"the nodes of {partition} have no GPUs",
            where="--slots",
            do="give a number of slots, or set harvest_gpus",
        )
    check_range(flag, gpus, 1, MAX_GPUS)
    return Terms(
        partition=partition,
        system=chosen,
        options=(*shlex.split(settings.harvest_options), *args.rest),
        gpus=gpus,
        logical=slots is not None,
        share=settings.harvest_share,
        broker=settings.broker,
        **more,
    )
