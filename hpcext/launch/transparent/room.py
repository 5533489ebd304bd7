"""The room on a machine for what a suspension moves: host memory, and space on a disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcext.launch.transparent.gpus import size
from hpcext.numerals import whole

_CGROUPS = Path("/sys/fs/cgroup")
_V2, _V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
_CACHE = re.compile(r"^(?:total_)?inactive_file ([0-9]{1,18})$", re.MULTILINE)


def lacking(pid: int, needed: int, images: Path | None, tree: Iterable[int]) -> str:
    """Return what is too little to move a process's GPU memory; empty if nothing is.

    Parameters
    ----------
    pid : int
    needed : int
        Bytes of its GPU memory.
    images : pathlib.Path or None
        Where images of it are to be; None if there will be none.
    tree : iterable of int
        The pids of all processes that are to be in them.
    """
    left = host_memory(pid)
    if left is not None and left < needed:
        return f"{size(needed)} of GPU memory do not fit into {size(left)} of free host memory"
    if images is None:
        return ""
    own = sum(_kilobytes(f"/proc/{each}/status", ("RssAnon", "RssShmem")) for each in tree)
    disk = os.statvfs(images)
    free, wanted = disk.f_bavail * disk.f_frsize, needed + 1024 * own
    if free < wanted:
        return f"images of {size(wanted)} do not fit on the disk, where {size(free)} are free"
    return ""


def host_memory(pid: int, root: Path = _CGROUPS) -> int | None:
    """Return how many bytes a process can allocate, on the machine and by its cgroups.

    Parameters
    ----------
    pid : int
    root : pathlib.Path
        Where cgroups are mounted.

    Returns
    -------
    int or None
        None if that is not known.
    """
    machine = _kilobytes("/proc/meminfo", ("MemAvailable",))
    known = [1024 * machine] if machine else []
    return min([*known, *left(_read(Path(f"/proc/{pid}/cgroup")), root)], default=None)


def left(groups: str, root: Path = _CGROUPS) -> Iterator[int]:
    """Yield what each cgroup with a limit leaves: Linux, admin-guide/cgroup-v2.rst.

    Parameters
    ----------
    groups : str
        ``/proc/PID/cgroup``.
    root : pathlib.Path
        Where cgroups are mounted.
    """
    for line in groups.splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        version1 = "memory" in names.split(",")
        if names and not version1:
            continue
        most, now = _V1 if version1 else _V2
        top = root / "memory" if version1 else root
        # In a container the path may be that of the outside; then its root is the group itself.
        group = top / path.lstrip("/")
        while group.is_relative_to(top):
            limit, used = whole(_read(group / most).strip()), whole(_read(group / now).strip())
            if limit is not None and used is not None:
                cache = _CACHE.search(_read(group / "memory.stat"))
                yield max(0, limit - used + (int(cache[1]) if cache else 0))
            if group == top:
                break
            group = group.parent


def _kilobytes(path: str, names: Iterable[str]) -> int:
    """Return the sum of such lines as ``MemAvailable: 123 kB``; proc(5)."""
    lines = (line.split() for line in _read(Path(path)).splitlines())
    found = {words[0].rstrip(":"): whole(words[1]) for words in lines if len(words) > 1}
    return sum(found.get(name) or 0 for name in names)


def _read(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
