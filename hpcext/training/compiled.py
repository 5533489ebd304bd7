"""Where ``torch.compile`` keeps what it makes, in a process that no supervisor started.

Some of it is pickles, which are run when they are found again. PyTorch keeps them in
``/tmp/torchinductor_USER``, which anybody may have made first.
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
    """See to it that PyTorch's own place is this user's alone; else take a new one.

    A place that the user, or a supervisor, has said is left as it is.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: PLC0415

    place = Path(default_cache_dir())
    if _is_ours(place):
        return
    _use_no_headers()
    # It is set by PyTorch itself, too, when an optimizer is made.
    if protocol.environ().get(VARIABLE, str(place)) != str(place):
        return
    fresh = Path(tempfile.mkdtemp(prefix="hpcext-compiled-"))
    warn(f"{place} could be changed by others: torch.compile keeps what it makes in {fresh}")
    protocol.keep_compiled(fresh)
    atexit.register(_remove, fresh, os.getpid())


def _use_no_headers() -> None:
    """Have PyTorch (2.13) compile without headers that it finds compiled.

    It looks for them in that place in /tmp, whatever was said of the rest (``_HEADER_DIR``).
    """
    from torch._inductor import config  # noqa: PLC0415

    config.cpp_cache_precompile_headers = False
    config.aot_inductor.precompile_headers = False


def _remove(place: Path, pid: int) -> None:
    """Remove it where it was made, and not in a process that was forked."""
    if os.getpid() == pid:
        shutil.rmtree(place, ignore_errors=True)


def _is_ours(place: Path) -> bool:
    """Whether nobody else can write there; made if it is missing, so that nobody else makes it."""
    try:
        if not os.path.lexists(place):
            private.make(place)
        os.close(private.open_directory(place))
    except OSError:
        return False
    # What is open to a group may hold what it planted.
    return private.is_safe(place)
