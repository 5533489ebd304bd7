"""What the callback asks of a Lightning trainer, in one place.

Lightning is published as ``lightning`` and as ``pytorch_lightning``: two copies of the same code
that do not know each other. The one that the script has imported is used.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hpcext.numerals import whole
from hpcext.protocol import environ
from hpcext.training.checkpoint import warn
from hpcext.training.elastic_loader import ElasticLoader
from hpcext.training.ranks import Ranks
from hpcext.training.torch_ranks import TorchRanks

_OLD = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
_NAME = "pytorch_lightning" if _OLD else "lightning.pytorch"

pl: Any = importlib.import_module(_NAME)
_environments: Any = importlib.import_module(f"{_NAME}.plugins.environments")
_plugins: Any = importlib.import_module(f"{_NAME}.plugins.io")

FILE = "lightning.ckpt"
"""What Lightning writes: a file, or a directory with strategies that divide the state."""


def first_rank() -> int:
    """The rank of this process as the environment has it, before Lightning has met the others.

    Only whether it is 0 is certain: Lightning's own launcher numbers the ranks of each node.
    """
    env = environ()
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        rank = whole(env.get(name))
        if rank is not None:
            return rank or (int(env.get("NODE_RANK", "0")) if name == "LOCAL_RANK" else 0)
    return 0


def ranks_of(trainer: Any) -> Ranks:
    """The ranks that Lightning has brought together.

    Raises
    ------
    RuntimeError
        Not by a process group.
    """
    if trainer.world_size == 1:
        return Ranks()
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"Suspend: the strategy {type(trainer.strategy).__name__} has {trainer.world_size} "
            "ranks and no process group of torch.distributed; use ddp, fsdp or deepspeed"
        )
    return TorchRanks()


def requeued(directory: Path) -> Path | None:
    """What Lightning's own requeueing under Slurm saved last in a directory."""
    if not _environments.SLURMEnvironment.detect():
        return None
    found = sorted(directory.glob("hpc_ckpt_*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    return found[-1] if found else None


def write(trainer: Any, draft: Path) -> None:
    """Have Lightning write its checkpoint into a directory; on every rank."""
    try:
        trainer.save_checkpoint(draft / FILE)
    except Exception:
        # The others wait behind their own part.
        trainer.strategy.barrier("Suspend")
        raise
    writer = trainer.strategy.checkpoint_io
    if isinstance(writer, _plugins.AsyncCheckpointIO):
        # Waits for what is under way; the next one to write starts its thread again.
        writer.teardown()


def close_loggers(trainer: Any) -> None:
    """Have the loggers write what they have not written yet."""
    for logger in trainer.loggers:
        logger.save()
        logger.finalize("interrupted")


def hold_to(trainer: Any, loader: ElasticLoader) -> None:
    """The training reads this loader alone.

    Raises
    ------
    TypeError
        It reads another one.
    """
    if _loaders(trainer) not in ([], [loader]):
        raise TypeError(
            "Suspend.loader(): the training must read this loader and no other one; "
            "give it to trainer.fit(), or return it from train_dataloader()"
        )


def read_up_to(trainer: Any, *, resumed: bool) -> None:
    """Go to the place in the epoch by reading, where the loader cannot resume; with a warning."""
    loaders = _loaders(trainer)
    if all(hasattr(one, "state_dict") and hasattr(one, "load_state_dict") for one in loaders):
        return
    warn(
        "the training data is not from suspend.loader(): resumed in mid-epoch, a shuffled order "
        "is drawn anew, so that some samples are repeated or left out"
    )
    fetcher = trainer.fit_loop._data_fetcher
    if resumed and fetcher is not None and fetcher.iterator is not None:
        # Lightning goes on counting where it was, and begins to read anew.
        for _ in range(trainer.fit_loop.epoch_loop.batch_progress.current.completed):
            if next(fetcher.iterator, None) is None:
                return


def _loaders(trainer: Any) -> list[Any]:
    source = trainer.fit_loop._combined_loader
    return list(source.flattened) if source is not None else []
