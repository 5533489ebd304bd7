"""Ends what runs on a node of the tests' Slurm, as when the node goes down."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def end(root: Path, node: str = "") -> None:
    """Kill the step daemons of a node, or of all, and all that they run.

    Parameters
    ----------
    root : pathlib.Path
        Of the cluster.
    node : str
        Empty: of all nodes, and what else asks this cluster.
    """
    conf = str(root / "etc" / "slurm.conf").encode()
    mark = f"SLURMD_NODENAME={node}".encode() if node else b"SLURM_CONF=" + conf
    found: set[psutil.Process] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            words = (path / "environ").read_bytes().split(b"\0")
            title = (path / "cmdline").read_bytes()
            stepd = title.startswith(b"slurmstepd") and (
                not node or f"{root}/spool/{node}".encode() in _open_files(path)
            )
            if conf in b"\0".join(words) and (stepd or mark in words):
                one = psutil.Process(int(path.name))
                # An agent's trainers do not know that they run in Slurm.
                found |= {one, *one.children(recursive=True)}
    # Who sees another one die first would have time to say so: on a node that goes down nobody has.
    for one in sorted(found, key=lambda each: each.pid):
        with contextlib.suppress(psutil.Error):
            one.suspend()
    for one in found:
        with contextlib.suppress(psutil.Error):
            one.kill()


def _open_files(path: Path) -> bytes:
    names = []
    for link in (path / "fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(link))
    return "\n".join(names).encode()
