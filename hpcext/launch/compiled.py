"""The cache of ``torch.compile``: pickles and libraries, which the next attempt runs.

It is beside the checkpoint directory of the job, which may be copied and never holds code that is
run. It is private to this user, and stays from attempt to attempt until the job has completed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpcext import private, protocol

FOLDER = "compiled"


class Compiled:
    """The cache of one attempt on one node.

    Parameters
    ----------
    environ : Mapping of str to str
        The variables that the attempt is given.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        checkpoints = environ.get("HPCEXT_CHECKPOINT_DIR", "")
        self._beside = Path(checkpoints).with_name(FOLDER) if checkpoints else None
        self._own: Path | None = None

    def variables(self) -> dict[str, str]:
        """Return the variables that say where the cache is, after making its directory.

        If others could take the job's directory away, as in the folder of a group, the cache is a
        new directory that goes with this attempt.

        Raises
        ------
        OSError
            No directory can be made.
        """
        if self._beside is None:
            return {}
        if private.is_safe(self._beside.parent):
            private.make(self._beside)
            return protocol.compiled(self._beside)
        # Imported here, as few attempts need it.
        import tempfile  # noqa: PLC0415

        self._own = self._own or Path(tempfile.mkdtemp(prefix="hpcext-compiled-"))
        return protocol.compiled(self._own)

    def end(self, *, completed: bool) -> None:
        """Remove what is no longer needed."""
        for path in (self._own, self._beside if completed else None):
            if path is not None and os.path.lexists(path):
                # Imported here, as the start of each attempt would wait for it.
                import shutil  # noqa: PLC0415

                shutil.rmtree(path, ignore_errors=True)
