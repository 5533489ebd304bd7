"""The GPUs of an attempt as they change: ``launch.json``, ``rescale.json``, ``rescaled.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.core.facts import Rescaled
from hpcext.core.values import Action
from hpcext.text import clean

Read = Callable[[str, str], dict[str, Any] | None]
"""Name and schema of a file of the attempt → its content, if it is there and belongs to it."""

_WHY_CHARS = 200
_NAME_CHARS = 300
_MOST_GPUS = 100_000
_MAX_STALL_S = 1e6


class Sizes:
    """The number of GPUs of an attempt: requests changes of it, and reads what it has.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    identity : Action
        Any action on it.
    read : Read
    """

    def __init__(self, directory: Path, identity: Action, read: Read) -> None:
        self._directory = directory
        self._identity = identity
        self._read = read
        self._heard = 0

    def request(
        self,
        resize: int,
        gpus: Sequence[str],
        devices: str,
        nodes: Sequence[int] = (),
        lost: Sequence[str] = (),
    ) -> None:
        """Write down what the attempt is to have.

        Parameters
        ----------
        resize : int
            The number of the change.
        gpus : sequence of str
            ``HOST:INDEX``; those that it keeps come first, in the present order.
        devices : str
            What to make visible to new ranks.
        nodes : sequence of int
            Of each GPU, the index of its node; empty if all are on one.
        lost : sequence of str
            Those of its GPUs whose nodes are lost, with the ranks there.

        Raises
        ------
        OSError
            Nothing is requested.
        """
        document = {
            "schema": protocol.RESCALE,
            "attempt": self._identity.attempt,
            "op": self._identity.op,
            "resize": resize,
            "gpus": list(gpus),
            "had": self.had(),
            "devices": devices,
            "nodes": list(nodes) or [0] * len(gpus),
            "lost": list(lost),
        }
        documents.write_json(self._directory / protocol.RESCALE_FILE, document)

    def requested(self) -> int:
        """Return the number of the last change that was requested."""
        return _number(self._read(protocol.RESCALE_FILE, protocol.RESCALE))

    def requested_gpus(self) -> tuple[str, ...]:
        """Return the GPUs of the last change that was requested; none if none was."""
        return _gpus(self._read(protocol.RESCALE_FILE, protocol.RESCALE) or {})

    def had(self) -> tuple[str, ...]:
        """Return the GPUs that it has by its last answer."""
        answer = self._read(protocol.RESCALED_FILE, protocol.RESCALED) or {}
        launch = self._read(protocol.LAUNCH_FILE, protocol.LAUNCH) or {}
        return _gpus(answer) or _gpus(launch)

    def held(self) -> tuple[str, ...]:
        """Return the GPUs that it may use: those of both sizes until it has answered a change."""
        answer = self._read(protocol.RESCALED_FILE, protocol.RESCALED)
        requested = self._read(protocol.RESCALE_FILE, protocol.RESCALE)
        now = self.had()
        if _number(requested) <= _number(answer):
            return now
        return tuple(dict.fromkeys((*now, *_gpus(requested or {}))))

    def nodes(self) -> Mapping[str, int]:
        """Return the node's index of each GPU that it may use."""
        answer = self._read(protocol.RESCALED_FILE, protocol.RESCALED) or {}
        launch = self._read(protocol.LAUNCH_FILE, protocol.LAUNCH) or {}
        requested = self._read(protocol.RESCALE_FILE, protocol.RESCALE) or {}
        hosts = dict.fromkeys(gpu.rpartition(":")[0] for gpu in _gpus(launch))
        order = {host: index for index, host in enumerate(hosts)}
        first = {gpu: order[gpu.rpartition(":")[0]] for gpu in _gpus(launch)}
        known = {**first, **_indices(requested), **_indices(answer)}
        return {gpu: known.get(gpu, 0) for gpu in self.held()}

    def news(self) -> Rescaled | None:
        """Return what it has answered since the last call."""
        answer = self._read(protocol.RESCALED_FILE, protocol.RESCALED) or {}
        number = _number(answer)
        if number <= self._heard:
            return None
        self._heard = number
        return Rescaled(
            self._identity.job,
            self._identity.op,
            number,
            _gpus(answer),
            ok=answer.get("ok") is True,
            stall_s=_seconds(answer),
            why=clean(str(answer.get("why", "")))[:_WHY_CHARS],
        )


def _number(document: dict[str, Any] | None) -> int:
    number = (document or {}).get("resize")
    return number if type(number) is int and number > 0 else 0


def _seconds(document: dict[str, Any]) -> float | None:
    stall_s = document.get("stall_s")
    if not isinstance(stall_s, int | float) or isinstance(stall_s, bool):
        return None
    return float(stall_s) if 0 <= stall_s <= _MAX_STALL_S else None


def _indices(document: dict[str, Any]) -> dict[str, int]:
    nodes = document.get("nodes")
    listed = nodes if isinstance(nodes, list) else []
    return {
        gpu: index
        for gpu, index in zip(_gpus(document), listed, strict=False)
        if type(index) is int
    }


def gpu_names(named: Sequence[object]) -> tuple[str, ...]:
    """Return names of GPUs that a training may have written, so that they can be kept and shown."""
    return tuple(clean(str(name)[:_NAME_CHARS]) for name in named[:_MOST_GPUS])


def _gpus(document: dict[str, Any]) -> tuple[str, ...]:
    named = document.get("gpus")
    return gpu_names(named) if isinstance(named, list) else ()
