"""What LSF tells a job about itself ("Environment variables set for job execution")."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcext import protocol
from hpcext.allocation import JobId
from hpcext.launch import devices as visible
from hpcext.numerals import whole
from hpcext.text import shown

log = logging.getLogger(__name__)


class LsfJob(NamedTuple):
    """The LSF job in which this process runs.

    Attributes
    ----------
    id : int
    element : int
        The index in a job array; 0 for other jobs.
    file : str
        The name of the job's file in the spool, which contains the instant of its submission; empty
        if it is unknown. Ids are used again some day, but not with the same instant.
    hosts : tuple of (str, int)
        Its hosts in order, with the slots on each.
    devices : tuple of str
        Its GPUs on this host, if LSF states them.
    requeues : bool
        Whether the exit code :data:`hpcext.protocol.EXIT_SUSPENDED` requeues it.
    output : str
        The file of its output; empty if it is unknown.
    restarts : str
        The checkpoint directory of the job that it continues (brestart); empty if none.
    number : str
        A number that differs each time that the job begins, if its script sets it.
    """

    id: int
    element: int
    file: str
    hosts: tuple[tuple[str, int], ...]
    devices: tuple[str, ...]
    requeues: bool
    output: str
    restarts: str
    number: str

    @classmethod
    def from_environ(cls) -> LsfJob | None:
        """Return the job in which this process runs; None outside LSF."""
        env = protocol.environ()
        job_id = whole(env.get("LSB_JOBID"))
        if not job_id:
            return None
        devices = (visible.said(env) or "").split(",")
        again = str(protocol.EXIT_SUSPENDED)
        return cls(
            id=job_id,
            element=whole(env.get("LSB_JOBINDEX")) or 0,
            file=os.path.basename(env.get("LSB_JOBFILENAME", "")),
            hosts=_hosts(env),
            devices=tuple(each for each in devices if each not in {"", "-1", "NoDevFiles"}),
            requeues=again in env.get("LSB_EXIT_REQUEUE", "").split(),
            output=env.get("LSB_OUTPUTFILE", ""),
            restarts=env.get("LSB_CHKPNT_DIR", "") if env.get("LSB_RESTART") == "Y" else "",
            number=env.get("HPCEXT_ALLOCATION", ""),
        )

    @property
    def name(self) -> JobId:
        """Its unique name in commands of LSF."""
        return f"{self.id}[{self.element}]" if self.element else self.id

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of its GPUs on this host, if LSF states them."""
        return tuple(index for index in map(whole, self.devices) if index is not None)


def _hosts(env: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return hosts and slots, from a file if LSF has written one, else from variables."""
    found: Counter[str] = Counter()
    file = env.get("LSB_DJOB_HOSTFILE", "")
    if file:
        try:
            found.update(Path(file).read_text(encoding="utf-8").split())
        except (OSError, UnicodeDecodeError) as error:
            log.warning("LSB_DJOB_HOSTFILE=%s: %s", shown(file), error)
    words = env.get("LSB_MCPU_HOSTS", "").split()
    counts = [count for count in map(whole, words[1::2]) if count is not None]
    if not found and len(counts) == len(words[1::2]):
        for name, count in zip(words[::2], counts, strict=False):
            found[name] += count
    found = +found or Counter(env.get("LSB_HOSTS", "").split())
    return tuple(found.items())


def of_element() -> dict[str, str]:
    """Return the variables that distinguish this element of a job array."""
    found = protocol.environ().items()
    return {name: said for name, said in found if name.startswith("LSB_JOBINDEX")}


def environ_of_others() -> dict[str, str]:
    """Return our environment without the variables of our own job, for submitting other jobs.

    Variables that begin with LSB_DEFAULT are settings of the user, and stay.
    """
    of_job = {"LS_EXEC_T", "LS_JOBPID", "LS_SUBCWD"}
    return {
        name: value
        for name, value in protocol.environ().items()
        if name not in of_job and (name.startswith("LSB_DEFAULT") or not name.startswith("LSB_"))
    }
