"""The environment of the command of an attempt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpcext import protocol
from hpcext.launch import devices, trackers
from hpcext.launch.launch_file import Launch

DEFAULTS = {"OMP_NUM_THREADS": "1"}
"""As torchrun sets it for its workers, so that one process and several compute alike."""


def of_command(
    launch: Launch, own: Mapping[str, str], compiled: Mapping[str, str]
) -> dict[str, str]:
    """Return the complete environment of a command: its supervisor's, with all additions.

    Parameters
    ----------
    launch : Launch
        The attempt's launch file, with the manager's additions.
    own : Mapping of str to str
        The supervisor's additions, which take precedence over all others.
    compiled : Mapping of str to str
        Where compiled code is kept, unless the user has said that.

    Raises
    ------
    ValueError
        The host does not have the GPUs of the node.
    """
    environ = trackers.without_inherited(protocol.environ())
    if devices.name() in launch.environ:
        environ = devices.without(environ)
    environ.update(launch.environ)
    environ.update(own)
    if (positions := launch.node.get("gpus")) is not None:
        visible = _devices(environ, positions)
        environ = {**devices.without(environ), **devices.naming(visible)}
    environ[protocol.RESTART_STEP_VARIABLE] = trackers.restart_step(launch)
    for name, value in {**compiled, **trackers.variables(launch, environ), **DEFAULTS}.items():
        environ.setdefault(name, value)
    # What has this is found by its environment, as a sweep needs it: setproctitle, which Ray and
    # vLLM use, would write the title over that.
    environ.setdefault("SPT_NOENV", "1")
    # torchrun kills, after 30 s by default, ranks that are still saving (torch/distributed/
    # launcher/api.py reads this as an int).
    timeout_s = math.ceil(launch.suspend_timeout_s)
    environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(timeout_s))
    return environ


def added(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a command's environment has beside that of this machine.

    These variables have to hold in a container, too, whose image may set others: those of the job
    and of its attempt, and which GPUs there are.

    Parameters
    ----------
    launch : Launch
    environ : Mapping of str to str
        The complete environment of the command.
    """
    here = protocol.environ()
    return {
        name: value
        for name, value in environ.items()
        if name in launch.environ
        or name.startswith("HPCEXT_")
        or name in devices.NAMES
        # The programs of this machine are not those of the image.
        or (name != "PATH" and here.get(name) != value)
    }


def _devices(environ: Mapping[str, str], positions: Sequence[int]) -> str:
    """Return the GPUs to make visible: some of those that this host has for us."""
    said = devices.said(environ)
    # Without such a variable they are all GPUs that are visible.
    there = said.split(",") if said else [str(each) for each in range(max(positions) + 1)]
    if max(positions) >= len(there):
        raise ValueError(
            f"GPU number {max(positions)} was requested, but {devices.name()} lists only {said}"
        )
    return ",".join(there[each] for each in positions)
