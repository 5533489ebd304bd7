"""The internals of a Lightning trainer that the callback uses.

Lightning is published as ``lightning`` and as ``pytorch_lightning``: two copies of the same code
that are independent of each other. The one that the script has imported is used.
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
from hpcext.training.data.elastic_loader import ElasticLoader
from hpcext.training.ranks import Ranks
from hpcext.training.torch.ranks import TorchRanks

_OLD = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
_NAME = "pytorch_lightning" if _OLD else "lightning.pytorch"

pl: Any = importlib.import_module(_NAME)
_environments: Any = importlib.import_module(f"{_NAME}.plugins.environments")
_plugins: Any = importlib.import_module(f"{_NAME}.plugins.io")

FILE = "lightning.ckpt"
"""Name of Lightning's checkpoint: a file, or a directory with strategies that shard the state."""


def first_rank() -> int:
    """Return the rank of this process from the environment, before Lightning joins the ranks.

    Only a rank of 0 is certain, because Lightning's own launcher numbers the ranks of each node.
    """
    env = environ()
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        rank = whole(env.get(name))
        if rank is not None:
            return rank or (int(env.get("NODE_RANK", "0")) if name == "LOCAL_RANK" else 0)
    return 0


def ranks_of(trainer: Any) -> Ranks:
    """Return the ranks of a Lightning trainer.

    Raises
    ------
    RuntimeError
        The ranks form no process group of torch.distributed.
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
    """Return the newest checkpoint of Lightning's own requeueing under Slurm, or None."""
    if not _environments.SLURMEnvironment.detect():
        return None
    found = sorted(directory.glob("hpc_ckpt_*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    return found[-1] if found else None


def write(trainer: Any, draft: Path) -> None:
    """Make Lightning write its checkpoint into a directory; call it on every rank."""
    try:
        trainer.save_checkpoint(draft / FILE)
    except Exception:
        # The other ranks wait at a barrier after their own part.
        trainer.strategy.barrier("Suspend")
        raise
    writer = trainer.strategy.checkpoint_io
    if isinstance(writer, _plugins.AsyncCheckpointIO):
        # Waits for the running write; the next write starts the thread again.
        writer.teardown()


def close_loggers(trainer: Any) -> None:
    """Make the loggers write their buffers."""
    for logger in trainer.loggers:
        logger.save()
        logger.finalize("interrupted")


def hold_to(trainer: Any, loader: ElasticLoader) -> None:
    """Check that the training reads only this loader.

    Parameters
    ----------
    trainer : lightning.Trainer
    loader : ElasticLoader

    Raises
    ------
    TypeError
        It reads another loader.
    """
    if _loaders(trainer) not in ([], [loader]):
        raise TypeError(
            "Suspend.loader(): the training must read this loader and no other one; "
            "give it to trainer.fit(), or return it from train_dataloader()"
        )


def read_up_to(trainer: Any, *, resumed: bool) -> None:
    """Read up to the place in the epoch, with a warning, if the loader cannot resume.

    Parameters
    ----------
    trainer : lightning.Trainer
    resumed : bool
        Whether a checkpoint was restored.
    """
    loaders = _loaders(trainer)
    if all(hasattr(one, "state_dict") and hasattr(one, "load_state_dict") for one in loaders):
        return
    warn(
        "the training data is not from suspend.loader(): resumed in mid-epoch, a shuffled order "
        "is drawn anew, so that some samples are repeated or left out"
    )
    fetcher = trainer.fit_loop._data_fetcher
    if resumed and fetcher is not None and fetcher.iterator is not None:
        # Lightning continues its count of batches, but reads the loader from the start.
        for _ in range(trainer.fit_loop.epoch_loop.batch_progress.current.completed):
            if next(fetcher.iterator, None) is None:
                return


def _loaders(trainer: Any) -> list[Any]:
    source = trainer.fit_loop._combined_loader
    return list(source.flattened) if source is not None else []


def leave_in_validation(checkpoint: dict[str, Any], completed: int) -> None:
    """Change a checkpoint so that the running validation begins again on resumption.

    Parameters
    ----------
    checkpoint : dict
        The checkpoint that Lightning is about to write.
    completed : int
        Number of batches of all earlier validations.
    """
    # A loop that was left in mid-validation looks like this: it is run before the training goes on,
    # from its batch 0.
    begun = {"ready": completed + 1, "started": completed + 1}
    ended = {"processed": completed, "completed": completed}
    checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"] = {
        "total": {**begun, **ended},
        "current": dict.fromkeys((*begun, *ended), 0),
        "is_last_batch": False,
    }
