"""What hpcext puts into an LSF: an esub for ``bsub -a hpcext``, and a job starter for its queues.

Files of the site are never edited: what is to be added to them is shown.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcext.admin import sources
from hpcext.admin.edits import Edit, read
from hpcext.admin.install import Piece, Place
from hpcext.admin.trust import ROOT, check_command, check_word
from hpcext.core.errors import InputError
from hpcext.text import clean

STARTER = "hpcext-starter"
# The last is the one that users see.
SCRIPTS = (
    "hpcext-job-control",
    "echkpnt.hpcext",
    "erestart.hpcext",
    "elim.hpcext",
    STARTER,
    "esub.hpcext",
)


COMMAND_MARK = b"@HPCEXT@"
"""Stands in the scripts for the command."""

MAX_LEAD_MARK = b"@MAX_LEAD_S@"
"""Stands in them for the longest lead of a suspendable job."""

MAX_LEAD_S, MAX_LEADS_S = 600, (10, 86_400)
"""It, where a site does not say another; and what a site may say."""


@dataclass(frozen=True)
class Site:
    """Where things go.

    Attributes
    ----------
    serverdir : pathlib.Path
        ``LSF_SERVERDIR`` of ``lsf.conf``, where LSF looks for esubs.
    command : pathlib.Path or None
        ``hpcext`` as jobs run it; not needed to uninstall.
    root : pathlib.Path
        What stands for ``/``; no file names it.
    max_lead_s : int
        The longest lead that a job may ask for: a queue waits no longer for it.
    """

    serverdir: Path
    command: Path | None = None
    root: Path = ROOT
    max_lead_s: int = MAX_LEAD_S

    @property
    def home(self) -> Path:
        """The directory of our own; LSF_SERVERDIR belongs to one release of LSF, and so does it."""
        return self.serverdir / "hpcext"

    @property
    def place(self) -> Place:
        """Where the manifest is."""
        return Place(self.home, self.root)


def pieces(site: Site) -> list[Piece]:
    """All files, in the order in which they are to be put in place.

    Raises
    ------
    InputError
        There is no such directory, or its path cannot stand in ``lsb.queues``; or the command is
        not one that all users can run and only the owner of both can change.
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
    """A script as it is put in place: it calls that command, and looks for no other."""
    text = (sources.find() / "lsf_scripts" / name).read_bytes()
    text = text.replace(MAX_LEAD_MARK, b"%d" % max_lead_s)
    return text.replace(COMMAND_MARK, os.fsencode(command))


def left_to_do(site: Site) -> list[str]:
    """Lines for the site's own files, each under a heading that says where it belongs."""
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
    """What takes away the lines that name our scripts; jobs of such a queue would not start.

    Parameters
    ----------
    site : Site
    conf_dir : pathlib.Path
        Directory of ``lsb.queues``.
    """
    path = site.place.on_disk(conf_dir / "lsb.queues")
    before = read(path) or ""
    ours = re.compile("|".join(re.escape(f"{site.serverdir}/{name}") for name in SCRIPTS))
    lines = before.splitlines(keepends=True)
    after = "".join(line for line in lines if not ours.search(line.partition("#")[0]))
    return [Edit(path, before, after)] if before != after else []
