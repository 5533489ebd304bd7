"""What LSF tells a job of itself: "Environment variables set for job execution"."""

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
    """The job of LSF that this process runs in.

    Attributes
    ----------
    id : int
    element : int
        The index in a job array; 0 for other jobs.
    file : str
        Name of the job's file in the spool, which holds the instant of its submission; empty if LSF
        does not say it. Ids are used again some day, but not with the same instant.
    hosts : tuple of (str, int)
        Its hosts in their order, and the slots on each.
    devices : tuple of str
        GPUs on this host, if LSF says them.
    requeues : bool
        Whether the exit code :data:`hpcext.protocol.EXIT_SUSPENDED` requeues it.
    output : str
        The file that gets its output; empty if LSF does not say it.
    restarts : str
        The checkpoint directory of the job that it goes on with (brestart); empty for none.
    number : str
        Differs each time that the job is begun, if its script says it.
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
        """Return the job that this process runs in; None outside LSF."""
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
        """Its name in LSF's commands, which no other job has."""
        return f"{self.id}[{self.element}]" if self.element else self.id

    @property
    def indices(self) -> tuple[int, ...]:
        """Its GPUs on this host, as far as LSF says them by numbers."""
        return tuple(index for index in map(whole, self.devices) if index is not None)


def _hosts(env: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return hosts and slots, from a file if there are too many hosts for a variable."""
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
    """Return the variables that tell this element of a job array from the others."""
    found = protocol.environ().items()
    return {name: said for name, said in found if name.startswith("LSB_JOBINDEX")}


def environ_of_others() -> dict[str, str]:
    """Return our environment without what LSF has told us of our own job.

    Variables that begin with LSB_DEFAULT are settings of the user, and stay.
    """
    of_job = {"LS_EXEC_T", "LS_JOBPID", "LS_SUBCWD"}
    return {
        name: value
        for name, value in protocol.environ().items()
        if name not in of_job and (name.startswith("LSB_DEFAULT") or not name.startswith("LSB_"))
    }
