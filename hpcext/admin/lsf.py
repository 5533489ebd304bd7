"""The files that hpcext adds to an LSF: an esub for ``bsub -a hpcext``, and a job starter.

Files of the site are never edited; the lines to add to them are printed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcext.admin import sources
from hpcext.admin.edits import Edit, read
from hpcext.admin.install import InstallLocation, Piece
from hpcext.admin.trust import ROOT, check_command, check_word
from hpcext.core.errors import InputError
from hpcext.text import clean

STARTER = "hpcext-starter"
# The esub is the last, because users reach the others through it.
SCRIPTS = (
    "hpcext-job-control",
    "echkpnt.hpcext",
    "erestart.hpcext",
    "elim.hpcext",
    STARTER,
    "esub.hpcext",
)


COMMAND_MARK = b"@HPCEXT@"
"""The placeholder of the command in the scripts."""

MAX_LEAD_MARK = b"@MAX_LEAD_S@"
"""The placeholder of the longest lead of a suspendable job in the scripts."""

MAX_LEAD_S, MAX_LEADS_S = 600, (10, 86_400)
"""The default of the longest lead, in seconds, and the range that a site may choose from."""


@dataclass(frozen=True)
class Site:
    """The directories and options of an installation for LSF.

    Attributes
    ----------
    serverdir : pathlib.Path
        ``LSF_SERVERDIR`` of ``lsf.conf``, where LSF looks for esubs.
    command : pathlib.Path or None
        ``hpcext`` as jobs run it; not needed to uninstall.
    root : pathlib.Path
        The directory that stands for ``/`` while a package is built.
    max_lead_s : int
        The longest lead that a job may ask for, and for which a queue waits.
    """

    serverdir: Path
    command: Path | None = None
    root: Path = ROOT
    max_lead_s: int = MAX_LEAD_S

    @property
    def home(self) -> Path:
        """The directory of our own files, for one release of LSF."""
        return self.serverdir / "hpcext"

    @property
    def place(self) -> InstallLocation:
        """The location of the installation."""
        return InstallLocation(self.home, self.root)


def pieces(site: Site) -> list[Piece]:
    """Return all files, in the order in which they are to be installed.

    Raises
    ------
    InputError
        The directory does not exist, or ``lsb.queues`` cannot hold its path; or the command is not
        one that all users can run and only the owner of both can change.
    """
    where = clean(str(site.serverdir))
    if site.root == ROOT and not site.serverdir.is_dir():
        raise InputError(
            "no such directory", where=where, valid="LSF_SERVERDIR, as lsf.conf has it"
        )
    check_word(site.serverdir)
    command = check_command(site.command, (site.serverdir,), is_there=site.root == ROOT)
    scripts = ((name, script(name, command, site.max_lead_s)) for name in SCRIPTS)
    return [Piece(site.serverdir / name, data, 0o755) for name, data in scripts]


def script(name: str, command: Path, max_lead_s: int = MAX_LEAD_S) -> bytes:
    """Return a script as it is installed, with the command's absolute path written into it.

    Parameters
    ----------
    name : str
        One of :data:`SCRIPTS`.
    command : pathlib.Path
    max_lead_s : int
        The longest lead, in seconds.
    """
    text = (sources.find() / "lsf_scripts" / name).read_bytes()
    text = text.replace(MAX_LEAD_MARK, b"%d" % max_lead_s)
    return text.replace(COMMAND_MARK, os.fsencode(command))


def left_to_do(site: Site) -> list[str]:
    """Return the lines to add to files of the site, under headings that say where."""
    control = site.serverdir / "hpcext-job-control"
    return [
        "add to each queue of lsb.queues whose jobs may be suspendable:",
        f"    JOB_STARTER = command . {site.serverdir}/hpcext-starter; %USRCMD",
        f"    JOB_CONTROLS = SUSPEND[{control} suspend] RESUME[{control} resume]",
        "    REQUEUE_EXIT_VALUES = 85",
        "add to lsb.params, or preempted jobs keep their GPUs:",
        "    PREEMPTABLE_RESOURCES = ngpus_physical",
        "then: badmin reconfig",
    ]


def naming(site: Site, conf_dir: Path) -> list[Edit]:
    """Return the edit that removes the lines that name our scripts, if there are any.

    Jobs of a queue that names a missing script would not start.

    Parameters
    ----------
    site : Site
    conf_dir : pathlib.Path
        The directory of ``lsb.queues``.
    """
    path = site.place.on_disk(conf_dir / "lsb.queues")
    before = read(path) or ""
    ours = re.compile("|".join(re.escape(f"{site.serverdir}/{name}") for name in SCRIPTS))
    lines = before.splitlines(keepends=True)
    after = "".join(line for line in lines if not ours.search(line.partition("#")[0]))
    return [Edit(path, before, after)] if before != after else []
