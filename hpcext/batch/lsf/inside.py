"""What LSF tells a job of itself: "Environment variables set for job execution"."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcext import protocol
from hpcext.launch import devices as visible
from hpcext.numerals import whole
from hpcext.protocol import JobId
from hpcext.text import shown

log = logging.getLogger(__name__)


class LsfJob(NamedTuple):
    """The job of LSF that this process runs in.

    Attributes
    ----------
    id : int
    element : int
        Of a job array; 0 for other jobs.
    file : str
        Name of the job's file in the spool, which holds the instant of its submission; empty
        where LSF does not say it. Ids begin anew some day.
    hosts : tuple of (str, int)
        Its hosts in their order, and the slots on each.
    devices : tuple of str
        GPUs on this host, where LSF says them.
    requeues : bool
        That it exits with :data:`hpcext.protocol.EXIT_SUSPENDED` puts it back into the queue.
    output : str
        The file that its output is to be in; empty where LSF does not say it.
    restarts : str
        The checkpoint directory of the job that it goes on with (brestart); empty if with none.
    number : str
        Differs each time that the job is begun, where its script says it.
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
        """The one that this process runs in; None outside LSF."""
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
        """What LSF's commands call it, and no other."""
        return f"{self.id}[{self.element}]" if self.element else self.id

    @property
    def indices(self) -> tuple[int, ...]:
        """Of its GPUs on this host, as far as LSF says them by numbers."""
        return tuple(index for index in map(whole, self.devices) if index is not None)


def _hosts(env: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Hosts by what says them: a file where there are too many for a variable."""
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
    """The variables that tell this element of a job array from the others."""
    found = protocol.environ().items()
    return {name: said for name, said in found if name.startswith("LSB_JOBINDEX")}


def environ_of_others() -> dict[str, str]:
    """Our environment without what LSF told us of our own job; what begins with LSB_DEFAULT are
    settings of a user."""
    of_job = {"LS_EXEC_T", "LS_JOBPID", "LS_SUBCWD"}
    return {
        name: value
        for name, value in protocol.environ().items()
        if name not in of_job and (name.startswith("LSB_DEFAULT") or not name.startswith("LSB_"))
    }
