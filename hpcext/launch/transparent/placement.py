"""Which GPUs hold what a process had on GPUs: those of before, or others that take their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcext.launch.transparent import gpus
from hpcext.launch.transparent.criu import OTHER_GPUS
from hpcext.launch.transparent.gpus import Gpu, size


class Saved(NamedTuple):
    """What a process had on GPUs.

    Attributes
    ----------
    pid : int
    models : dict
        The model of each GPU of the machine, by UUID.
    visible : list of str
        The UUIDs of the GPUs that the process saw.
    used : dict
        The bytes that it had on a GPU, by UUID.
    """

    pid: int
    models: dict[str, str]
    visible: list[str]
    used: dict[str, int]

    @classmethod
    def of(cls, pid: int, found: Sequence[Gpu], devices: str | None) -> Saved:
        """Return what a process has now.

        Parameters
        ----------
        pid : int
        found : sequence of Gpu
            All GPUs.
        devices : str or None
            As in ``CUDA_VISIBLE_DEVICES``.
        """
        return cls(
            pid,
            {gpu.uuid: gpu.model for gpu in found},
            [gpu.uuid for gpu in gpus.visible(found, devices)],
            {gpu.uuid: gpu.used[pid] for gpu in found if pid in gpu.used},
        )

    @classmethod
    def parse(cls, document: Any) -> Saved:
        """Return what :meth:`document` gave.

        Raises
        ------
        ValueError
            It gave something else.
        """
        try:
            found = cls(**document)
            numbers = {*map(type, (found.pid, *found.used.values()))}
            words = {*map(type, (*found.visible, *found.models.values()))}
        except (TypeError, AttributeError):
            numbers = words = set()
        if (numbers, words) != ({int}, {str}):
            raise ValueError("what was on GPUs is not known")
        return found

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return self._asdict()

    def total(self) -> int:
        """Return the bytes on all GPUs."""
        return sum(self.used.values())


def pairs(saved: Saved, now: Sequence[Gpu], devices: str | None) -> list[tuple[str, str]]:
    """Return which GPU takes the place of which, by UUID; nothing if all are as before.

    With pairs the driver wants one for each GPU of the machine.

    Parameters
    ----------
    saved : Saved
    now : sequence of Gpu
        All GPUs.
    devices : str or None
        As in ``CUDA_VISIBLE_DEVICES``.

    Raises
    ------
    OSError
        None can take their place.
    """
    seen = gpus.visible(now, devices)
    if set(saved.used) <= {gpu.uuid for gpu in seen}:
        return []
    if (len(now), len(seen)) != (len(saved.models), len(saved.visible)):
        raise OSError(f"{OTHER_GPUS}, and not as many")
    places = dict(zip(saved.visible, (gpu.uuid for gpu in seen), strict=True))
    if not set(saved.used) <= set(places):
        raise OSError(f"{OTHER_GPUS}, and one that it used was not among those")
    left = [gpu.uuid for gpu in now if gpu.uuid not in places.values()]
    others = [uuid for uuid in saved.models if uuid not in places]
    # Those of both stay what they are.
    places.update({uuid: uuid for uuid in others if uuid in left})
    left = [uuid for uuid in left if uuid not in places.values()]
    places.update(zip((uuid for uuid in others if uuid not in places), left, strict=True))
    models = {gpu.uuid: gpu.model for gpu in now}
    for old in saved.used:
        if models[places[old]] != saved.models[old]:
            what = f"a {models[places[old]]} in place of a {saved.models[old]}"
            raise OSError(f"{OTHER_GPUS}: {what}")
    return list(places.items())


def lacking(saved: Saved, places: Mapping[str, str], limit_s: float = gpus.LOOK_S) -> str:
    """Return which GPU has too little free memory for what was on another; empty if none has.

    Parameters
    ----------
    saved : Saved
    places : Mapping[str, str]
        The GPU that takes the place of one, by UUID; empty if none does.
    limit_s : float
        Seconds for the look.
    """
    try:
        now = {gpu.uuid: gpu for gpu in gpus.look(limit_s)}
    except OSError as error:
        return str(error)
    for old, needed in saved.used.items():
        gpu = now.get(places.get(old, old))
        if gpu is None:
            return f"{places.get(old, old)} is not there"
        if gpu.mig:
            return f"{gpu.uuid} is divided by MIG"
        if gpu.free < needed:
            return f"{gpu.uuid} has {size(gpu.free)} of memory free, and {size(needed)} are needed"
    return ""
