"""The cache directory of ``torch.compile`` in a process without a supervisor.

The cache holds pickles, which run code when they are loaded. PyTorch keeps it in
``/tmp/torchinductor_USER``, which any user may have created first.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from hpcext import private, protocol
from hpcext.training.checkpoint import warn

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_safe() -> None:
    """Make sure that PyTorch's cache directory is private to this user; else use a new one.

    A directory that the user or a supervisor has set is not changed.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: PLC0415

    place = Path(default_cache_dir())
    if _is_private(place):
        return
    _use_no_headers()
    # PyTorch itself sets it too, when an optimizer is made.
    if protocol.environ().get(VARIABLE, str(place)) != str(place):
        return
    fresh = Path(tempfile.mkdtemp(prefix="hpcext-compiled-"))
    warn(f"other users could change {place}, so torch.compile uses {fresh} as its cache")
    protocol.keep_compiled(fresh)
    atexit.register(_remove, fresh, os.getpid())


def _use_no_headers() -> None:
    """Make PyTorch (2.13) compile without precompiled headers.

    It searches for them in the directory in /tmp, whatever the cache directory is
    (``_HEADER_DIR``).
    """
    from torch._inductor import config  # noqa: PLC0415

    config.cpp_cache_precompile_headers = False
    config.aot_inductor.precompile_headers = False


def _remove(place: Path, pid: int) -> None:
    """Remove a directory in the process that made it, but not in one that was forked."""
    if os.getpid() == pid:
        shutil.rmtree(place, ignore_errors=True)


def _is_private(place: Path) -> bool:
    """Return whether only this user can write there; create the directory if missing."""
    try:
        if not os.path.lexists(place):
            private.make(place)
        os.close(private.open_directory(place))
    except OSError:
        return False
    # A directory in which a group may write may contain planted files.
    return private.is_safe(place)
