"""Processes that stay in memory, stopped, while they are suspended, and leave NVIDIA's GPUs.

This needs nothing of a machine, but what uses a GPU needs NVIDIA's driver, which moves its memory
to host memory. The supervisor of the attempt stays as well, and becomes that of the next one
(:mod:`~hpcext.launch.transparent.residence`).

What the driver does was tried on a GPU together with CRIU; without it this is unverified there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.launch import devices, tree
from hpcext.launch.transparent import driver, opened, placement, residence
from hpcext.launch.transparent.criu import GPU, OTHER_GPUS, STOP_S, kill_below, waited_for
from hpcext.launch.transparent.manifest import RESIDENT
from hpcext.launch.transparent.put_off import PutOffError, wait_until_free
from hpcext.process import Process

_PAUSE_S = 0.01


class Resident:
    """Staying in memory, as a :class:`~hpcext.launch.transparent.ways.Way`.

    Parameters
    ----------
    environ : Mapping[str, str]
        Says which GPUs are visible, and where libraries are.
    """

    name = "staying in memory"
    part = 0.5
    stays = True
    no_new_privs = False

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        # The process whose GPU memory is moved, or is to be; 0 if the tree uses no GPU.
        self._pid = 0

    def probe(self) -> str:
        """Return nothing: it works everywhere."""
        return ""

    def refuse(self, root: Process, tree_: Sequence[Process]) -> str:
        """Return why it cannot suspend such a tree; empty if it may be tried."""
        users = driver.users(tree_)
        for pid, device in users.items():
            if not opened.is_nvidia(device):
                return f"process {pid} uses a GPU ({device}), whose memory would stay on it"
        return driver.refused(users)

    def suspend(
        self, root: Process, tree_: Sequence[Process], images: Path, work: Path, limit_s: float
    ) -> int | None:
        """Begin to move GPU memory; return None if there is none, so that no helper is needed."""
        self._pid = next(iter(driver.users(tree_)), 0)
        if not self._pid:
            return None
        return self._help(
            driver.SAVE,
            work,
            limit_s,
            pid=self._pid,
            tree=[each.pid for each in tree_],
            devices=devices.said(self._environ),
        )

    def judge(self, code: int, root: Process, images: Path, work: Path) -> str:
        """Stop a tree that has left its GPUs; return why it is not suspended, empty if it is."""
        if self._pid and (why := driver.not_saved(code, work)):
            return why
        until_s = time.monotonic() + STOP_S
        while True:
            found = tree.descendants(os.getpid())
            if all(tree.still(each.pid) for each in found):
                break
            if time.monotonic() > until_s:
                return "not all processes have stopped"
            for each in found:
                tree.send(each, signal.SIGSTOP)
            time.sleep(_PAUSE_S)
        if not root.alive():
            return "the command has ended"
        # One that had none before may have opened one meanwhile.
        for pid, device in driver.users(found).items():
            return f"process {pid} has a GPU open ({device})"
        return ""

    def facts(self, work: Path) -> dict[str, Any]:
        """Return who keeps the tree, and what was on which GPU."""
        gpu = {GPU: driver.said(work, driver.SAVE)[GPU]} if self._pid else {}
        return {RESIDENT: residence.here(), **gpu}

    def undo(self, work: Path, limit_s: float) -> int | None:
        """Begin to give a process its GPU memory back; return the pid of the helper, if any."""
        before = driver.said(work, driver.SAVE)
        if not self._pid or before.get("untouched"):
            return None
        return self._help(driver.GIVE_BACK, work, limit_s, pid=self._pid, gpu=before.get(GPU))

    def undone(self, code: int, work: Path) -> str:
        """Return why a process is stuck although that helper has ended; empty if it goes on."""
        answer = driver.said(work, driver.GIVE_BACK)
        return "" if code == 0 else str(answer.get("why") or driver.how(code))

    def why_not(self, document: Mapping[str, Any], devices: str | None) -> str:
        """Return why the tree cannot go on; empty if it may."""
        if RESIDENT not in document:
            return "it was written into images, and CRIU, which made them, does not work here"
        return residence.lost(document)

    def resume(self, images: Path, work: Path, limit_s: float, document: Mapping[str, Any]) -> int:
        """Give a tree that has stayed its GPU memory back; return the pid of its root."""
        root, keeper = residence.root(document), residence.keeper(document)
        if keeper != Process.me():
            raise PutOffError(f"its processes are kept by {keeper}, which was not asked for them")
        if GPU not in document:
            if document.get("devices") != devices.said(self._environ):
                raise PutOffError(f"{OTHER_GPUS}, and its processes have those of before")
            return root
        saved = placement.Saved.parse(document[GPU])
        try:
            pairs = driver.places(saved, self._environ)
        except OSError as error:
            # Its GPUs may be free the next time.
            raise PutOffError(str(error)) from None
        wait_until_free(lambda: placement.lacking(saved, dict(pairs)))
        for each in tree.descendants(os.getpid()):
            tree.send(each, signal.SIGCONT)
        pid = self._help(
            driver.GIVE_BACK, work, limit_s, pid=saved.pid, pairs=pairs, gpu=document[GPU]
        )
        code = waited_for(pid, limit_s)
        if code == 0:
            return root
        kill_below()
        why = f"it was not done in {limit_s:.0f} s"
        if code is not None:
            why = driver.said(work, driver.GIVE_BACK).get("why") or driver.how(code)
        raise OSError(f"NVIDIA's driver: {why}")

    def _help(self, action: str, work: Path, limit_s: float, **request: Any) -> int:
        environ = {"PATH": self._environ.get("PATH", os.defpath), "LANG": "C"}
        return driver.begin_helper(
            action, work, limit_s, {**environ, **driver.libraries()}, **request
        )
