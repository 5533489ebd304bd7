"""The manager's side of modules that are imported once: :mod:`hpcext.launch.preload`."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcext.executors.nursery import PADDING, Nursery
from hpcext.launch import devices, environment
from hpcext.launch import preload as program
from hpcext.preloading import interpreter

MOST = 8
"""Nurseries that are kept, as each may hold hundreds of MB; the one longest unused ends."""

ROOM = "." * 65536
"""Room for the environment of a command; its words have that of a supervisor."""

_Key = tuple[tuple[str, ...], tuple[str, ...], str, tuple[tuple[str, str], ...]]


class Preloaded:
    """Nurseries with modules, one for each interpreter, environment and working directory.

    The first attempt of a job starts one, and begins as usual.
    """

    def __init__(self) -> None:
        self._nurseries: collections.OrderedDict[_Key, Nursery] = collections.OrderedDict()

    def of(self, launch: Mapping[str, Any]) -> Nursery:
        """Return what begins the supervisor of an attempt.

        Parameters
        ----------
        launch : Mapping
            Its launch file.
        """
        modules, argv = launch["preload"], launch["argv"]
        words = argv[: interpreter(argv)]
        own = _of_job(launch["environ"])
        key = (tuple(words), tuple(modules), str(launch["cwd"]), tuple(sorted(own.items())))
        if key not in self._nurseries:
            self._nurseries[key] = _nursery(words, launch, own)
            if len(self._nurseries) > MOST:
                self._nurseries.popitem(last=False)[1].close()
        self._nurseries.move_to_end(key)
        return self._nurseries[key]

    def look(self) -> None:
        """See which have failed."""
        for nursery in self._nurseries.values():
            nursery.look()

    def close(self) -> None:
        """End all of them; what they have forked lives on."""
        while self._nurseries:
            self._nurseries.popitem()[1].close()


def _of_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are the same in all attempts of a job."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("HPCEXT_") and name not in devices.NAMES
    }


def _nursery(words: Sequence[str], launch: Mapping[str, Any], own: Mapping[str, str]) -> Nursery:
    environ = {**environment.DEFAULTS, **os.environ, **own, program.PADDING: ROOM}
    return Nursery(
        lambda fd: [*words, program.__file__, str(fd), PADDING, *launch["preload"]],
        environ=environ,
        cwd=launch["cwd"],
        after=0,
    )
