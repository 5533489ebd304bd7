"""A check that a process which saves nothing can be suspended here as it is, and goes on."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcext import protocol
from hpcext.doctor import counter, driver
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.doctor.kept import Kept
from hpcext.launch.transparent.ways import ways

NAME = "transparent"

WITHIN_S = 3 * counter.WAIT_S
"""Seconds for one trial."""

_LOOK_S = 0.05

_DRIVER = "jobs that use it run on when they are to be suspended so: docs/transparent.md"
_INSTALL = (
    "install CRIU 4, with the capability CAP_CHECKPOINT_RESTORE for those who are not root: "
    "docs/transparent.md"
)


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Suspend a program as it is, and let it go on; so with one that uses a GPU."""
    _, criu = ways(protocol.environ())
    if why := criu.probe():
        yield from _in_memory(f"CRIU: {why}")
        return
    tried = _tried()
    if "failed" in tried:
        yield _nothing(str(tried["failed"]))
        return
    yield Finding(NAME, "ok", f"CRIU {criu.version()}: a program {_suspended(tried)}")
    yield from _with_a_gpu("NVIDIA's driver and CRIU")


def _in_memory(why: str) -> Iterator[Finding]:
    """Try the way without CRIU, which keeps processes in memory.

    Parameters
    ----------
    why : str
        Why there is no CRIU.
    """
    tried = _tried("stays")
    if "failed" in tried:
        yield _nothing(f"{why}; in memory: {tried['failed']}")
        return
    says = (
        f"without CRIU ({why}) what is suspended as it is stays in memory, or begins anew where "
        f"it cannot: a program {_suspended(tried)}"
    )
    yield Finding(NAME, "ok", says, f"to have it on disk, {_INSTALL}")
    yield from _with_a_gpu("NVIDIA's driver", "stays")


def _nothing(why: str) -> Finding:
    return Finding(NAME, "note", f"nothing can be suspended as it is: {why}", _INSTALL)


def _suspended(tried: Mapping[str, float | str]) -> str:
    return (
        f"was suspended as it is in {tried['suspend_s']:.1f} s, "
        f"and went on in {tried['resume_s']:.1f} s"
    )


def _with_a_gpu(what: str, *words: str) -> Iterator[Finding]:
    """Yield whether a program that uses a GPU can be suspended, if there is a driver.

    Parameters
    ----------
    what : str
        What does so.
    *words : str
        Further words for the trial.
    """
    why = driver.without()
    if why is None:
        return
    tried = {"failed": why} if why else _tried("gpu", *words)
    if "failed" in tried:
        says = f"what uses a GPU cannot be suspended as it is: {tried['failed']}"
        yield Finding(NAME, "note", says, _DRIVER)
    else:
        yield Finding(NAME, "ok", f"{what}: a program with memory on a GPU {_suspended(tried)}")


def _tried(*words: str) -> dict[str, float | str]:
    """Return what the trial prints, whose keeper ends it even if this process is killed."""
    directory = Path(tempfile.mkdtemp(prefix="hpcext-doctor-"))
    command = [sys.executable, "-m", counter.__name__, str(directory / "job"), *words]
    trial = Kept(command, directory)
    try:
        deadline = time.monotonic() + WITHIN_S
        while not trial.ended() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        said = trial.output()[-1:]
    finally:
        trial.end()
    try:
        return dict(json.loads(said[0]))
    except (IndexError, ValueError):
        return {"failed": said[0] if said else f"the trial did not end within {WITHIN_S:g} s"}
