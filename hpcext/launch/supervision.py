"""The attempts that one process supervises: one, or several of a job whose processes stay."""

from __future__ import annotations

import os
from pathlib import Path

from hpcext import documents
from hpcext.launch import stderr
from hpcext.launch.launch_file import read
from hpcext.launch.supervisor import NOT_STARTED, Supervisor

TAKEN = 75
"""Exit code if another supervisor has this attempt already: nothing was run."""


def supervise(directory: str, index: int | None = None) -> int:
    """Run the attempt that a directory describes.

    If its processes stay in memory when it is suspended, run the next one as well.

    Parameters
    ----------
    directory : str
        The attempt's, with ``launch.json`` in it.
    index : int, optional
        The index of this node among those of the attempt; by default the one that Slurm says, or 0.

    Returns
    -------
    int
        Exit code: 85 if the attempt was suspended, else the command's (128 + signal if killed);
        75 if another supervisor has the attempt, 71 if nothing could be run.
    """
    # Not Path.resolve: what is written down is what the manager calls it.
    path = Path(os.path.abspath(directory))
    code, stays = _supervise(path, index)
    if not stays:
        return code
    # Imported here, since few attempts are suspended so, and the others need not load it.
    from hpcext.launch.transparent import residence  # noqa: PLC0415

    while (following := residence.following(path.parent)) is not None:
        code, _ = _supervise(following, index, keeps=True)
    return code


def _supervise(path: Path, index: int | None, *, keeps: bool = False) -> tuple[int, bool]:
    """Run one attempt; return its exit code, and whether its processes stay."""
    try:
        supervisor = Supervisor(path, read(path), index, keeps=keeps)
        if not supervisor.claim():
            return TAKEN, False
        supervisor.start()
    except documents.UNFIT as error:
        stderr.say(f"nothing was run: {type(error).__name__}: {error}")
        return NOT_STARTED, False
    return supervisor.attend(), supervisor.stays
