"""The files of the site's broker: a unit of systemd, its settings, and the directory of its state.

The settings belong to the site once they were edited: they are neither replaced nor removed then.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from hpcext.admin import install, sources
from hpcext.admin.edits import read_ours
from hpcext.admin.install import FileChange, InstallLocation, Piece, checksum_on_disk
from hpcext.admin.manifest import Manifest, digest
from hpcext.admin.trust import ROOT, check_command, check_word
from hpcext.core.errors import InputError
from hpcext.text import clean, shown

ACCOUNT = "hpcext-broker"
USR = Path("/usr/local")
CONF_DIR = Path("/etc/hpcext")
UNIT_DIR = Path("/etc/systemd/system")
STATE_DIR = Path("/var/lib/hpcext-broker")
UNIT = "hpcext-broker.service"
SETTINGS = "broker.toml"
PROGRAM, FLAG = "hpcext-broker", "--broker"

UNSEEN = ("home", "root")
"""Directories of ``/`` that the unit hides from the service (``ProtectHome``)."""

PROGRAMS = {"slurm": "squeue", "lsf": "bjobs"}
"""A command of each batch system that the service runs."""

SERVICE_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where the unit looks for commands."""

_STATE_ROOT = Path("/var/lib")
"""Where systemd makes the directories of services (systemd.exec(5), ``StateDirectory``)."""

_TEMPLATE = """\
# Settings of hpcext-broker: which user may have how many idle nodes. All keys: hpcext-broker(8).
# Check this file:          hpcext-broker run --file {path} --check
# Have the broker read it:  systemctl reload hpcext-broker

# The partition, or the queue of LSF, that harvesters use. A broker is for one.
partition = "{partition}"
batch = "{batch}"
state_dir = "{state_dir}"

# Where harvesters on other hosts ask: a port, with MUNGE, or a directory that hosts share.
# listen = ["munge://0.0.0.0:7420", "drop:///shared/hpcext-broker"]

# Users who see all users in hpcext-broker status, beside root.
administrators = []

# Weights times the fair share of the batch system (sshare, or bqueues -r). Without it: these alone.
# shares = "batch"

# What users have whom no other table names. They have nodes in proportion to their weights. Users
# of a higher priority have all that they want first. A limit is the most nodes of one user.
[everybody]
weight = 1
priority = 0
# limit = 64

# Members of a group of the system; the first group of this file counts for weights. All members
# together have at most so many nodes.
# [groups.physics]
# weight = 2
# together = 256

# The same of all users of an account of Slurm.
# [accounts.thesis]
# together = 32

# Nodes of which users may have less: by their names, or by the kind of GPU that the batch system
# shows. A node is of the first class here that fits.
# [classes.a100]
# nodes = "gpu[001-016]"

# One user.
# [users.ann]
# weight = 4
# limit = 128
# limits = {{ a100 = 4 }}

# Nodes that a user, or all members of a group or an account together, have before all others.
# [[reservations]]
# user = "ann"
# nodes = 16
# from = 2026-12-01T08:00:00
# to = 2026-12-01T18:00:00
"""


@dataclass(frozen=True)
class Site:
    """The directories and options of an installation of the broker.

    Attributes
    ----------
    partition : str
        That harvesters use; not needed to uninstall.
    batch : str
        The batch system.
    command : pathlib.Path or None
        ``hpcext-broker`` as the service runs it; not needed to uninstall.
    account : str
        Whose process the service is.
    state_dir : pathlib.Path
        The directory of its journal.
    usr : pathlib.Path
        The directory of ``lib``, for the manifest.
    conf_dir, unit_dir : pathlib.Path
        The directories of the settings, and of the unit.
    root : pathlib.Path
        The directory that stands for ``/`` while a package is built.
    """

    partition: str = ""
    batch: str = "slurm"
    command: Path | None = None
    account: str = ACCOUNT
    state_dir: Path = STATE_DIR
    usr: Path = USR
    conf_dir: Path = CONF_DIR
    unit_dir: Path = UNIT_DIR
    root: Path = ROOT

    @property
    def place(self) -> InstallLocation:
        """The location of the installation."""
        return InstallLocation(self.usr / "lib" / "hpcext" / "broker", self.root)

    @property
    def settings(self) -> Path:
        """The administrator's file."""
        return self.conf_dir / SETTINGS

    @property
    def unit(self) -> Path:
        """The unit file."""
        return self.unit_dir / UNIT


def is_settings(path: Path) -> bool:
    """Return whether a file of an installation is the administrator's."""
    return path.name == SETTINGS


def plan(site: Site) -> list[FileChange]:
    """Return the changes of an installation, in order; the directory of the state is the last.

    Raises
    ------
    InputError
        The account cannot be used, others can change a path, or a file is in the way.
    """
    check(site)
    place = site.place
    # It names users: others read their own line in hpcext-broker status.
    mode = 0o640 if site.root == ROOT else 0o644
    pieces = [Piece(site.settings, settings(site), mode), Piece(site.unit, unit(site))]
    if edited(site):
        del pieces[0]
    changes = [
        each
        for each in install.plan(place, pieces)
        # Edited, it is no file of ours any more.
        if not (each.verb == "changed" and is_settings(each.path))
    ]
    return [*changes, *_directory(site)]


def check(site: Site) -> None:
    """Refuse options with which no broker would run.

    Raises
    ------
    InputError
        There is no such account, it is root's, or a path or a name cannot be used.
    """
    for path in (site.conf_dir, site.unit_dir, site.state_dir):
        check_word(path)
    if not re.fullmatch(r"[^\s,\"\\\x00-\x1f\x7f]{1,256}", site.partition):
        raise InputError(shown(site.partition), where="--partition", valid="one name")
    if not re.fullmatch(r"[a-z_][a-z0-9_.-]{0,31}", site.account):
        raise InputError(shown(site.account), where="--account", valid="the name of an account")
    where = f"--account {site.account}"
    # A package is built where its account need not be.
    uid = 0 if site.account == "root" else _uid(site.account) if site.root == ROOT else None
    if uid == 0:
        raise InputError(
            "is root, and the broker needs no right of root",
            where=where,
            valid="an account of its own",
        )
    if site.account == "nobody":
        raise InputError("is an account of others, too", where=where, valid="an account of its own")
    is_there = site.root == ROOT
    command = check_command(site.command, is_there=is_there, name=PROGRAM, flag=FLAG)
    if command.parts[1] in UNSEEN:
        raise InputError(
            f"the service does not see /{command.parts[1]} (ProtectHome)",
            where=clean(str(command)),
            do=f"install hpcext elsewhere, such as below /opt, and give {FLAG} PATH",
        )


def _uid(account: str) -> int:
    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        raise InputError(
            "no such account",
            where=f"--account {account}",
            do="make it: useradd --system --no-create-home --shell /usr/sbin/nologin " + account,
        ) from None


def settings(site: Site) -> bytes:
    """Return the administrator's file as it is installed: equal parts for all."""
    text = _TEMPLATE.format(
        path=site.settings, partition=site.partition, batch=site.batch, state_dir=site.state_dir
    )
    return text.encode()


def edited(site: Site) -> bool:
    """Return whether there is a file of settings that is not as any installation has left it."""
    found = checksum_on_disk(site.place, site.settings)
    installed = site.place.installed() or Manifest()
    known = installed.files.get(str(site.settings), [])
    return found is not None and found not in (*known, digest(settings(site)))


def unit(site: Site) -> bytes:
    """Return the unit, for this account, this program and this directory.

    Raises
    ------
    HpcextError
        The one that comes with hpcext is missing.
    """
    text = (sources.find() / "site_configs" / "systemd" / "system" / UNIT).read_text("utf-8")
    text = text[text.index("[Unit]") :]
    state = f"ReadWritePaths={site.state_dir}"
    if _STATE_ROOT in site.state_dir.parents:
        name = site.state_dir.relative_to(_STATE_ROOT)
        state = f"StateDirectory={name}\nStateDirectoryMode=0700"
    lines = {
        r"User=.*": f"User={site.account}",
        r"ExecStart=.*": f"ExecStart={site.command} run --file {site.settings}",
        r"StateDirectory=.*\nStateDirectoryMode=.*": state,
    }
    for line, ours in lines.items():
        text, count = re.subn(rf"^{line}$", ours.replace("\\", r"\\"), text, flags=re.MULTILINE)
        assert count == 1, line
    first = "# Installed by hpcext-admin, which replaces it: change it by systemctl edit."
    return f"{first}\n{text}".encode()


def _directory(site: Site) -> list[FileChange]:
    """Return what is to be done with the directory of the state.

    Raises
    ------
    InputError
        It is there, and not the account's; or others than root could change what is above it.
    """
    if site.root != ROOT:
        # systemd makes it where the package is installed.
        return []
    site.place.check(site.state_dir.parent)
    where = clean(str(site.state_dir))
    try:
        facts = site.state_dir.lstat()
    except FileNotFoundError:
        return [FileChange("make", site.state_dir)]
    except OSError as error:
        raise InputError(error.strerror or str(error), where=where) from None
    if not stat.S_ISDIR(facts.st_mode):
        raise InputError("is no directory", where=where, do="move it away, or give --state-dir")
    if facts.st_uid != _uid(site.account):
        raise InputError(
            f"belongs to uid {facts.st_uid}",
            where=where,
            valid=f"a directory of {site.account}",
            do=f"chown -R {site.account} {where}, or give --state-dir",
        )
    return [FileChange("keep", site.state_dir)]


def apply(site: Site, changes: Sequence[FileChange]) -> None:
    """Carry out the changes of :func:`plan`.

    Raises
    ------
    OSError
        For example, the disk is full, or we are not root.
    """
    place = site.place
    ours = [each for each in changes if each.path != site.state_dir]
    install.apply(place, ours)
    if site.root != ROOT:
        return
    account = pwd.getpwnam(site.account)
    if any(each.piece and is_settings(each.path) for each in ours):
        os.chown(site.settings, -1, account.pw_gid)
    if changes[-1].verb == "make":
        installed = place.installed() or Manifest()
        known = {*installed.directories, *_missing(site.state_dir)}
        place.save(replace(installed, directories=sorted(known)))
        for above in reversed(_missing(site.state_dir.parent)):
            os.mkdir(above, 0o755)
        os.mkdir(site.state_dir, 0o700)
        os.chown(site.state_dir, account.pw_uid, account.pw_gid)
    os.chmod(site.state_dir, 0o700)


def _missing(path: Path) -> list[str]:
    return [str(each) for each in (path, *path.parents) if not each.exists()]


def plan_removal(site: Site) -> list[FileChange]:
    """Return the changes of an uninstallation, in order: settings that were edited stay.

    Raises
    ------
    InputError
        Nothing is installed there.
    """
    found = install.plan_removal(site.place, "--usr")
    return [each for each in found if not (each.verb == "changed" and is_settings(each.path))]


def settings_of(installed: Manifest) -> Path:
    """Return the settings of an installation: beside the site's others, once they were edited."""
    found = (Path(each) for each in installed.files if is_settings(Path(each)))
    return next(found, CONF_DIR / SETTINGS)


def account_of(site: Site) -> str:
    """Return the account of the unit that is installed; empty if there is none."""
    found = re.search(r"^User=(\S+)$", read_ours(site.place.on_disk(site.unit)) or "", re.MULTILINE)
    return found[1] if found else ""


def left_to_do(site: Site) -> list[str]:
    """Return what the administrator is to do after an installation."""
    found = [f"weights, priorities and limits: edit {site.settings}"]
    if site.root == ROOT and _is_hidden(site):
        found.append(f"{site.account} cannot read it: chgrp to its group, and chmod 640")
    program = PROGRAMS[site.batch]
    if site.root == ROOT and shutil.which(program, path=SERVICE_PATH) is None:
        found.append(
            f"{program} is not in {SERVICE_PATH}: systemctl edit {UNIT}, and give the service "
            f"the variables with which it is found, such as Environment=PATH=..."
        )
    if site.batch == "slurm":
        found.append(
            "if slurm.conf has PrivateData=jobs: sacctmgr add user "
            f"{site.account} account=root adminlevel=operator"
        )
    return [*found, "then: systemctl daemon-reload; systemctl enable --now hpcext-broker"]


def _is_hidden(site: Site) -> bool:
    """Return whether the service could not read its settings."""
    try:
        facts, account = site.settings.stat(), pwd.getpwnam(site.account)
    except FileNotFoundError:
        return False
    if facts.st_uid == account.pw_uid:
        return not facts.st_mode & 0o400
    return not facts.st_mode & (0o040 if facts.st_gid == account.pw_gid else 0o004)
