"""The session for PyTorch: one process, or DistributedDataParallel under torchrun.

Five lines make a script suspendable and resumable::

    from hpcext.training.torch import Session

    session = Session(model=model, optimizer=optimizer, scheduler=scheduler)
    model = session.parallel(model)
    for epoch in session.epochs(5):
        for x, y in session.batches(loader):
            ...
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from hpcext.training.ranks import Ranks
from hpcext.training.session import Session as BaseSession
from hpcext.training.torch_ranks import join, own_device
from hpcext.training.torch_state import TorchState


class Session(BaseSession):
    """Makes a PyTorch training loop resumable; see :class:`hpcext.training.session.Session`.

    Under torchrun it joins the process group, unless the script has done so before (then make the
    session after ``init_process_group``; :meth:`parallel` is not needed if the script wraps its
    model itself).

    Parameters
    ----------
    deterministic : bool
        Bit-identical weights however often training is interrupted at one number of ranks:
        deterministic algorithms, DDP without the rebuilding of its buckets after the first step,
        and the number of threads that the training began with. Slower.
    **options
        Those of the base class, and what to save by name: ``model=``, ``optimizer=``,
        ``scheduler=``, ``scaler=``, generators, anything with ``state_dict`` and
        ``load_state_dict``.

    Attributes
    ----------
    device : torch.device
        What this rank computes on.
    """

    def __init__(self, *, deterministic: bool = False, **options: Any) -> None:
        self.device = own_device()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._deterministic = deterministic
        if deterministic:
            # cuBLAS reads it when it is first used; PyTorch refuses to go on without.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        super().__init__(**options)

    def parallel(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on this rank's device, and in DistributedDataParallel if there are others.

        Optimizers that the session holds follow. The ranks average their gradients; each gets a
        part of the batch.
        """
        model.to(self.device)
        cast(TorchState, self._state).follow(model)
        if self.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        cuda = self.device.type == "cuda"
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if cuda else None,
            # Else the buckets are rebuilt after the first step, once per attempt: gradients
            # are then added in another order, and differ in the last bit.
            find_unused_parameters=self._deterministic,
        )

    def _join(self) -> Ranks:
        return join(self.device)

    def _make_state(self, objects: dict[str, Any]) -> TorchState:
        return TorchState(objects)

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "threads": torch.get_num_threads()}

    def _restore_facts(self, manifest: Mapping[str, Any]) -> None:
        super()._restore_facts(manifest)
        if self._deterministic:
            # Sums over another number of threads differ in the last bit.
            torch.set_num_threads(manifest["threads"])
