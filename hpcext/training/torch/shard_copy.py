"""A copy of the shards of a rank, and where each of them is in its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from hpcext.training.redistribution import Division
from hpcext.training.restart_copies import Place, Told
from hpcext.training.torch.division import Held
from hpcext.training.torch.past import Past

_ALIGNED = 64


@dataclass
class Copy:
    """A copy of the shards as they were after some step.

    Attributes
    ----------
    place : Place
    past : Past
    tensors : list of Held
    own : torch.Tensor
        The bytes of this rank's shards.
    ward : int
        The rank of the same group whose bytes are here, too; -1 for none.
    kept : torch.Tensor or None
        Those bytes.
    work : Work or None
        Their transfer, while it is not known to have ended.
    """

    place: Place
    past: Past
    tensors: list[Held]
    own: torch.Tensor
    ward: int = -1
    kept: torch.Tensor | None = None
    work: dist.Work | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Of which step it is, and in which group it was made."""
        return self.past.step, self.place.group

    @property
    def told(self) -> Told:
        """What other ranks need to know."""
        return Told(*self.place, self.past.step, -1 if self.work is not None else self.ward)


@dataclass
class Layout:
    """Where the shards of a rank are in its bytes.

    Attributes
    ----------
    spans : list of (int, int, int)
        For each tensor: its first byte, its bytes, its rows.
    size : int
        All bytes.
    """

    spans: list[tuple[int, int, int]] = field(default_factory=list)
    size: int = 0

    @classmethod
    def of(cls, tensors: Sequence[Held], shards: int, place: Place) -> Layout:
        """Lay out the shards of the rank at some place.

        Parameters
        ----------
        tensors : sequence of Held
        shards : int
            Into how many shards a tensor is divided.
        place : Place
        """
        layout = cls()
        for each in tensors:
            division = Division(place.size, shards if each.divided else 1)
            layout._add(len(division.rows(place.rank, each.shape[0])), each.row_bytes)
        return layout

    def _add(self, rows: int, row_bytes: int) -> None:
        self.spans.append((self.size, rows * row_bytes, rows))
        self.size += -(-rows * row_bytes // _ALIGNED) * _ALIGNED

    def views(self, content: torch.Tensor, tensors: Sequence[Held]) -> list[torch.Tensor]:
        """Return the shards in some bytes."""
        return [
            content[start : start + size].view(each.dtype).view(rows, *each.shape[1:])
            for (start, size, rows), each in zip(self.spans, tensors, strict=True)
        ]
