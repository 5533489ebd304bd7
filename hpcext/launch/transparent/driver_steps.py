"""What the helper does that has NVIDIA's driver move GPU memory, and move it back.

:mod:`~hpcext.launch.transparent.driver_helper` is its program. Each step has a limit of time, and
is proved before the next: by the state of the process in the driver, by NVML, and by ``/proc``.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

from hpcext import documents
from hpcext.launch.transparent import driver_api, gpus, opened, placement, room, threads
from hpcext.launch.transparent.driver_api import (
    CHECKPOINTED,
    LOCKED,
    NOT_READY,
    OUT_OF_MEMORY,
    RUNNING,
    DriverError,
)
from hpcext.process import Process

SCHEMA = "hpcext.driver/1"

LOCK_PART, LOCK_S = 0.25, 30.0
"""The part of the time, and the most seconds, in which the work on GPUs comes to its end."""

GONE_S = 5.0
"""Seconds in which NVML has noticed that a process has left its GPUs."""

_MARGIN_S = 5.0
_PAUSE_S = 0.1


class _FailedError(Exception):
    """The error that it was not done.

    Attributes
    ----------
    facts : dict
        What else is to be said.
    """

    def __init__(self, why: str, **facts: bool) -> None:
        super().__init__(why)
        self.facts = facts


class Helper:
    """One request.

    Its keys are ``action``, the ``pid`` of the process, ``limit_s`` for all of it, and ``said``,
    the file for what came of it; and those that an action needs.

    Parameters
    ----------
    request : dict
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._pid = int(request["pid"])
        self._limit_s = float(request["limit_s"])
        self._until_s = time.monotonic() + self._limit_s

    def do(self) -> int:
        """Do what is asked for; return the exit status."""
        actions = {"save": self._save, "give-back": self._give_back, "return": self._return}
        try:
            actions[self._request["action"]]()
        except _FailedError as error:
            self._say(why=str(error), **error.facts)
            return 1
        except OSError as error:
            self._say(why=str(error))
            return 1
        return 0

    def _say(self, **facts: Any) -> None:
        documents.write_json(Path(self._request["said"]), {"schema": SCHEMA, **facts})

    def _left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    def _ask(self, question: Any, limit_s: float | None = None) -> Any:
        return driver_api.ask(question, self._left_s() if limit_s is None else limit_s)

    # Save: lock the process, move its GPU memory, and become CRIU, if that is to write the tree.

    def _save(self) -> None:
        try:
            self._examine()
        except OSError as error:
            raise _FailedError(str(error), untouched=True) from None
        self._lock()
        # Until then it may have taken more.
        saved = self._measure(self._look())
        state = self._ask(lambda driver: driver.checkpoint(self._pid))
        if state != CHECKPOINTED:
            raise OSError(f"after its checkpoint the process is {driver_api.said(state)}")
        self._prove_gone()
        self._say(gpu=saved.document())
        if self._request.get("criu"):
            self._become_criu()

    def _become_criu(self) -> NoReturn:
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):
            # Python ignores them, and what it becomes would do so too.
            signal.signal(signum, signal.SIG_DFL)
        words = list(self._request["criu"])
        environ = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        os.execve(words[0], words, environ)

    def _examine(self) -> None:
        """Look for reasons against it, and do nothing.

        Raises
        ------
        OSError
            There is one.
        """
        pid, found = self._pid, self._look()
        for gpu in found:
            if pid in gpu.mps:
                raise OSError(f"process {pid} uses a GPU by MPS, of which the driver saves nothing")
            if pid in gpu.used and gpu.mig:
                raise OSError(f"{gpu.uuid} is divided by MIG, of which the driver saves nothing")
            for other in self._request["tree"]:
                if other != pid and other in {*gpu.used, *gpu.mps}:
                    raise OSError(f"processes {pid} and {other} both use GPUs")
        self._measure(found)
        # On their return all but one of its threads have to be held.
        if self._request.get("criu") and (why := threads.refused(pid)):
            raise OSError(why)
        state = self._ask(lambda driver: driver.state(pid))
        if state != RUNNING:
            raise OSError(f"process {pid} is {driver_api.said(state)} in NVIDIA's driver")

    def _measure(self, found: list[gpus.Gpu]) -> placement.Saved:
        """Return what the process has on GPUs, if it fits into the machine.

        Raises
        ------
        OSError
            It does not, or is not known.
        """
        pid = self._pid
        saved = placement.Saved.of(pid, found, self._request["devices"])
        if not saved.used:
            raise OSError(
                f"process {pid} has a GPU open, and NVML knows nothing that it has there: it has "
                "not begun, only looks at GPUs, or is in another pid namespace"
            )
        images = Path(self._request["images"]) if self._request.get("criu") else None
        if why := room.lacking(pid, saved.total(), images, self._request["tree"]):
            raise OSError(why)
        return saved

    def _look(self) -> list[gpus.Gpu]:
        return gpus.look(min(gpus.LOOK_S, self._left_s()))

    def _lock(self) -> None:
        limit_s = min(LOCK_S, LOCK_PART * self._limit_s)
        try:
            state = self._ask(lambda driver: driver.lock(self._pid, limit_s), limit_s + _MARGIN_S)
        except DriverError as error:
            if error.code == NOT_READY:
                what = f"its work on GPUs did not end within {limit_s:.0f} s"
                raise OSError(f"{what} ({error})") from None
            raise
        if state != LOCKED:
            raise OSError(f"after it was locked the process is {driver_api.said(state)}")

    def _prove_gone(self) -> None:
        """Wait until nothing of the job is on a GPU.

        Raises
        ------
        OSError
            Something is.
        """
        until_s = time.monotonic() + GONE_S
        while why := self._still_there():
            if time.monotonic() > until_s:
                raise OSError(why)
            time.sleep(_PAUSE_S)

    def _still_there(self) -> str:
        for gpu in self._look():
            for pid in self._request["tree"]:
                if pid in gpu.used:
                    return f"process {pid} still has {gpus.size(gpu.used[pid])} on {gpu.uuid}"
        for pid in self._request["tree"]:
            if device := opened.gpu(pid):
                return f"process {pid} still has {device} open"
        return ""

    # Give back: undo that, however far it came, or later, perhaps on other GPUs.

    def _give_back(self) -> None:
        process = Process.of(self._pid)
        if process is None:
            return
        try:
            state = self._ask(lambda driver: driver.state(self._pid))
            if state == CHECKPOINTED:
                self._wait_for_room()
                pairs = self._request.get("pairs") or []
                state = self._ask(lambda driver: driver.restore(self._pid, pairs))
            if state == LOCKED:
                state = self._ask(lambda driver: driver.unlock(self._pid))
        except OSError:
            if process.alive():
                raise
            return
        if state != RUNNING and process.alive():
            raise OSError(f"the process is {driver_api.said(state)}")

    def _wait_for_room(self) -> None:
        """Wait for as much free memory as it had: to try without is to have it stuck for ever."""
        gpu, places = self._request.get("gpu"), dict(self._request.get("pairs") or [])
        while gpu is not None and (why := self._lacking(placement.Saved.parse(gpu), places)):
            if self._left_s() <= 0:
                raise OSError(why)
            time.sleep(_PAUSE_S)

    def _lacking(self, saved: placement.Saved, places: dict[str, str]) -> str:
        return placement.lacking(saved, places, min(gpus.LOOK_S, max(1.0, self._left_s())))

    # Return: give its memory to a process that CRIU has made again, and that is stopped.

    def _return(self) -> None:
        pid, pairs = self._pid, self._request["pairs"]
        held = threads.Held(pid, self._ask(lambda driver: driver.thread(pid)))
        try:
            state = self._ask(lambda driver: driver.restore(pid, pairs))
        except DriverError as error:
            # Another may have taken the memory just then. What hangs may not do so later.
            put_off = error.code in {0, OUT_OF_MEMORY}
            raise _FailedError(str(error), put_off=put_off) from None
        if state == LOCKED:
            state = self._ask(lambda driver: driver.unlock(pid))
        if state != RUNNING:
            raise OSError(f"the process is {driver_api.said(state)}")
        held.stop()
