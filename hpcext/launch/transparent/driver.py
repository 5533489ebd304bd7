"""NVIDIA's driver and CRIU: GPU memory is moved to host memory, which becomes part of the images.

A process whose memory the driver has moved has no GPU open any more, so that CRIU can write it and
its tree into images. A helper (:mod:`~hpcext.launch.transparent.driver_helper`) has the driver do
so and becomes CRIU. If any of that fails another one undoes what was done.

Tried on one GPU, an H200 with driver 580, and otherwise with a stand-in of the driver's functions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.launch import devices
from hpcext.launch.transparent import driver_api, driver_helper, gpus, opened, placement
from hpcext.launch.transparent.criu import (
    DUMP_LOG,
    GPU,
    OTHER_GPUS,
    Criu,
    begin,
    kill_below,
    waited_for,
)
from hpcext.launch.transparent.driver_steps import SCHEMA
from hpcext.launch.transparent.put_off import PutOffError, wait_until_free
from hpcext.process import Process

SAVE, GIVE_BACK, RETURN = "save", "give-back", "return"
"""What its helper does; each says what came of it in ``driver-ACTION.json`` of the attempt."""

NO_PLUGINS = "no-plugins"
"""An empty directory in that of the attempt."""

LIBRARIES = "LD_LIBRARY_PATH"

_MPS = b"CUDA_MPS_PIPE_DIRECTORY="


class DriverAndCriu:
    """NVIDIA's driver beside CRIU, as a :class:`~hpcext.launch.transparent.ways.Way`.

    Trees that use no GPU are CRIU's alone.

    Parameters
    ----------
    criu : Criu
    environ : Mapping[str, str]
        Says where libraries are.
    """

    name = "NVIDIA's driver and CRIU"
    stays = False
    part = 0.5

    def __init__(self, criu: Criu, environ: Mapping[str, str]) -> None:
        self._criu = criu
        self._environ = environ
        self.no_new_privs = criu.no_new_privs
        # The process whose GPU memory is saved, or is to be; 0 if the tree uses no GPU.
        self._pid = 0

    def probe(self) -> str:
        """Return why it cannot be used on this machine; empty if it seems that it can."""
        return self._criu.probe() or self.without()

    def without(self) -> str:
        """Return why the driver cannot be used; empty if it seems that it can."""
        try:
            driver_api.ask(driver_api.Driver.version, driver_api.LOOK_S)
            gpus.look()
        except OSError as error:
            return str(error)
        return ""

    def refuse(self, root: Process, tree_: Sequence[Process]) -> str:
        """Return why it cannot suspend such a tree; empty if it may be tried."""
        if why := self._criu.beyond(root, tree_):
            return why
        found = users(tree_)
        if any(not opened.is_nvidia(device) for device in found.values()):
            return self._criu.refuse(root, tree_)
        return refused(found)

    def suspend(
        self, root: Process, tree_: Sequence[Process], images: Path, work: Path, limit_s: float
    ) -> int:
        """Begin to move GPU memory, and then to write the tree into images."""
        self._pid = next(iter(users(tree_)), 0)
        if not self._pid:
            return self._criu.suspend(root, tree_, images, work, limit_s)
        dump = [*self._criu.dump(root.pid), *_no_plugins(work)]
        return self._help(
            SAVE,
            work,
            limit_s,
            tree=[each.pid for each in tree_],
            devices=devices.said(self._environ),
            images=str(images),
            criu=self._criu.words(dump, images, work, DUMP_LOG),
        )

    def judge(self, code: int, root: Process, images: Path, work: Path) -> str:
        """Return why a tree is not suspended although its helper has ended; empty if it is."""
        if self._pid and (why := not_saved(code, work)):
            return why
        return self._criu.judge(code, root, images, work)

    def facts(self, work: Path) -> dict[str, Any]:
        """Return what is to be noted beside the images: what was on which GPU."""
        return {GPU: said(work, SAVE)[GPU]} if self._pid else {}

    def undo(self, work: Path, limit_s: float) -> int | None:
        """Begin to give a process its GPU memory back; return the pid of the helper, if any."""
        before = said(work, SAVE)
        if not self._pid or before.get("untouched"):
            return None
        return self._help(GIVE_BACK, work, limit_s, gpu=before.get(GPU))

    def undone(self, code: int, work: Path) -> str:
        """Return why a process is stuck although that helper has ended; empty if it goes on."""
        return "" if code == 0 else str(said(work, GIVE_BACK).get("why") or how(code))

    def why_not(self, document: Mapping[str, Any], devices: str | None) -> str:
        """Return why the images cannot be used here; empty if they may, or NVML has to tell."""
        return "" if GPU in document else self._criu.why_not(document, devices)

    def resume(self, images: Path, work: Path, limit_s: float, document: Mapping[str, Any]) -> int:
        """Make the tree again, with its GPU memory, stopped; return the pid of its root."""
        if GPU not in document:
            return self._criu.resume(images, work, limit_s, document)
        saved = placement.Saved.parse(document[GPU])
        pairs = places(saved, self._environ)
        # What was there may be dying.
        wait_until_free(lambda: placement.lacking(saved, dict(pairs)))
        root = self._criu.remake(images, work, limit_s, _no_plugins(work))
        try:
            pid = self._help(RETURN, work, limit_s, pid=saved.pid, pairs=pairs)
            code = waited_for(pid, limit_s)
        except PutOffError:
            raise
        except OSError as error:
            # No process can be made, which is no fault of the images.
            kill_below()
            raise PutOffError(str(error)) from None
        if code == 0:
            return root
        kill_below()
        if code is None:
            raise PutOffError(f"NVIDIA's driver: it was not done in {limit_s:.0f} s")
        done = said(work, RETURN)
        why = f"NVIDIA's driver: {done.get('why') or how(code)}"
        # The process may have been stuck, and is gone; its images are as they were.
        raise PutOffError(why) if done.get("put_off") else OSError(why)

    def _help(self, action: str, work: Path, limit_s: float, **request: Any) -> int:
        environ = {**self._criu.environ(), **libraries()}
        return begin_helper(action, work, limit_s, environ, **{"pid": self._pid, **request})


# The helper.


def begin_helper(
    action: str, work: Path, limit_s: float, environ: Mapping[str, str], **request: Any
) -> int:
    """Start the helper; return its pid.

    Parameters
    ----------
    action : str
        ``save``, ``give-back`` or ``return``.
    work : pathlib.Path
        The directory of the attempt.
    limit_s : float
        Seconds for all of it.
    environ : Mapping[str, str]
        Its whole environment.
    **request
        What else it has to know.

    Raises
    ------
    OSError
        It cannot be started.
    """
    answer = work / _file(action)
    answer.unlink(missing_ok=True)
    known = {"action": action, "said": str(answer), "limit_s": limit_s, **request}
    words = [sys.executable, "-I", "-S", str(driver_helper.__file__), json.dumps(known)]
    return begin(words, environ, work)


def libraries() -> dict[str, str]:
    """Return the variable by which the libraries of the driver are found, if there is one."""
    path = protocol.environ().get(LIBRARIES)
    return {LIBRARIES: path} if path else {}


def said(work: Path, action: str) -> dict[str, Any]:
    """Return what the helper has said of an action; empty if nothing."""
    try:
        return documents.read_json(work / _file(action), SCHEMA)
    except (OSError, ValueError):
        return {}


def not_saved(code: int, work: Path) -> str:
    """Return why a helper that has ended has not moved GPU memory; empty if it has."""
    answer = said(work, SAVE)
    if why := answer.get("why"):
        return str(why)
    return "" if GPU in answer else f"NVIDIA's driver: {how(code)}"


def how(code: int) -> str:
    """Return how a helper ended that has said nothing."""
    ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return f"its helper ended too soon: {ended}"


# What uses GPUs, and which.


def places(saved: placement.Saved, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return which GPU takes the place of which; nothing if all are as before.

    Raises
    ------
    PutOffError
        The driver does not answer.
    OSError
        None can take their place.
    """
    try:
        now = gpus.look()
        driver_api.ask(driver_api.Driver.begin, driver_api.LOOK_S)
        version = driver_api.ask(driver_api.Driver.version, driver_api.LOOK_S)
    except OSError as error:
        raise PutOffError(str(error)) from None
    pairs = placement.pairs(saved, now, devices.said(environ))
    if pairs and version < driver_api.REMAPS:
        raise OSError(f"{OTHER_GPUS}, and drivers before 580 cannot restore onto others")
    return pairs


def users(processes: Sequence[Process]) -> dict[int, str]:
    """Return the pids of processes that have a GPU open, with the device."""
    found = ((each.pid, opened.gpu(each.pid)) for each in processes)
    return {pid: device for pid, device in found if device}


def refused(found: Mapping[int, str]) -> str:
    """Return why the driver cannot save processes that have a GPU open; empty if it may try."""
    if len(found) > 1:
        pids = " and ".join(map(str, sorted(found)[:2]))
        return (
            f"processes {pids} have a GPU open, and the driver's checkpoint is for one alone: "
            "several ranks, or loader workers that were forked once a GPU was in use"
        )
    for pid in found:
        if _by_mps(pid):
            return f"process {pid} uses a GPU by MPS, of which the driver saves nothing"
    return ""


def _by_mps(pid: int) -> bool:
    """Return whether a process has the address of an MPS daemon; NVML knows the others."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    where = (each.partition(b"=")[2] for each in variables if each.startswith(_MPS))
    return any(os.path.lexists(each + b"/control") for each in where)


def _no_plugins(work: Path) -> list[str]:
    """Return arguments by which CRIU has no plugins: that for CUDA would restore GPUs by itself."""
    empty = work / NO_PLUGINS
    empty.mkdir(mode=0o700, exist_ok=True)
    return ["--libdir", str(empty)]


def _file(action: str) -> str:
    return f"driver-{action}.json"
