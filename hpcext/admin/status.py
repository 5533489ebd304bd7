"""The state of an installation: which files are intact, and what is left to do."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpcext.admin import broker, manifest, slurm_conf
from hpcext.admin.edits import Edit, as_json, read, read_ours
from hpcext.admin.install import InstallLocation, checksum_on_disk
from hpcext.admin.lsf import STARTER
from hpcext.admin.manifest import Manifest
from hpcext.admin.slurm_conf import HOOKS, Files
from hpcext.admin.trust import ROOT
from hpcext.batch import runner, slurm
from hpcext.batch.lsf.queues import parse_queues, queues_command
from hpcext.batch.slurm import site as slurm_site
from hpcext.core.errors import BatchError
from hpcext.harvest import leave, ways
from hpcext.harvest.ways.local import Local
from hpcext.text import clean

ANSWER_S = 20.0
"""Seconds to wait for the answer of a batch system, because a person waits for it."""

DAMAGE = ("changed", "missing")


class DaemonStep(NamedTuple):
    """What must be done with a daemon.

    Attributes
    ----------
    daemon : str
    do : str
        A command; empty if the daemon could not be asked.
    why : str
        The reason, or why it could not be asked.
    """

    daemon: str
    do: str
    why: str


@dataclass(frozen=True)
class Status:
    """The state of an installation.

    Attributes
    ----------
    hpcext : str
        The version that was installed; empty if nothing is installed.
    built_for : str
        The release of Slurm that the plugin was built for.
    runs : str
        The release of Slurm that runs here; empty if it is unknown.
    files : tuple of (str, pathlib.Path)
        The state and path of each file: ``whole``, ``changed``, ``missing``, ``edited`` (settings),
        ``unread`` (only root can), or ``foreign``, which is one in our directory that is not ours.
    left : tuple of Edit
        The lines that files of the site lack.
    steps : tuple of DaemonStep
    """

    hpcext: str
    built_for: str = ""
    runs: str = ""
    files: tuple[tuple[str, Path], ...] = ()
    left: tuple[Edit, ...] = ()
    steps: tuple[DaemonStep, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the plugin was built for this release of Slurm, X.Y, as it must be (spank(8))."""
        return not self.runs or self.runs.split(".")[:2] == self.built_for.split(".")[:2]

    @property
    def whole(self) -> bool:
        """Whether every file is as it was installed, and fits this release of Slurm."""
        damaged = any(state in DAMAGE for state, _ in self.files)
        return bool(self.hpcext) and self.fits and not damaged

    @property
    def complete(self) -> bool:
        """Whether hpcext is in use: all is intact, and files of the site lack no line."""
        return self.whole and not self.left

    def as_json(self) -> dict[str, Any]:
        """Return the state as a document."""
        return {
            "schema": "hpcext.status-of-installation/1",
            "whole": self.whole,
            "complete": self.complete,
            "hpcext": self.hpcext,
            "built_for": self.built_for,
            "runs": self.runs,
            "files": [{"state": state, "path": str(path)} for state, path in self.files],
            "left": as_json(self.left),
            "daemons": [step._asdict() for step in self.steps],
        }


def of_slurm(place: InstallLocation) -> Status:
    """Examine an installation by ``hpcext-admin install slurm``; change nothing."""
    installed = place.installed(trusted=False)
    if installed is None:
        return Status("", files=tuple(_foreign(place, Manifest())))
    runs, facts, steps = "", {}, []
    # A package for other machines has nothing to do with the Slurm of this one.
    if place.root == ROOT:
        try:
            runs = _number(runner.run(slurm.version_command(), timeout_s=ANSWER_S))
            said = runner.run(
                slurm_site.config_command(), environ=slurm.epoch_times(), timeout_s=ANSWER_S
            )
            facts = slurm_site.parse_config(said)
        except BatchError as error:
            steps.append(DaemonStep("slurmctld", "", clean(error.what)))
    files = slurm_files(place, installed, release=runs)
    left: list[Edit] = []
    # Without hpcext.conf, which names the command, the rules cannot be written.
    if files and files.release and files.command:
        left = slurm_conf.lacking(files)
        steps += _slurm_steps(files, facts) if facts else []
    return Status(
        installed.hpcext,
        installed.built_for,
        runs,
        tuple(_files(place, installed)),
        tuple(left),
        tuple(steps),
    )


def slurm_files(place: InstallLocation, installed: Manifest, release: str = "") -> Files | None:
    """Return the site's files that belong to an installation; None if it has no ``hpcext.conf``.

    Parameters
    ----------
    place : InstallLocation
    installed : Manifest
    release : str
        The release of Slurm; by default the one that the plugin was built for.
    """
    for name in installed.files:
        path = Path(name)
        if path.parts[-2:] == ("plugstack.conf.d", "hpcext.conf"):
            found = re.search(r"\bcommand=(\S+)", read_ours(place.on_disk(path)) or "")
            command = found[1] if found else ""
            return Files(place, path.parents[1], command, release or installed.built_for)
    return None


def _number(text: str) -> str:
    """Return the number of a release in an output such as ``slurm-wlm 22.05.8``."""
    slurm.parse_version(text)
    return text.split()[1]


def _slurm_steps(files: Files, facts: Mapping[str, str]) -> Iterator[DaemonStep]:
    """Yield steps for daemons that have not read the settings of slurm.conf yet."""
    text = read(files.path("slurm.conf"))
    for key, value in slurm_conf.settings(files):
        # Slurm 24.11 writes Prolog[0] for Prolog.
        now = ",".join(said for name, said in facts.items() if name.partition("[")[0] == key)
        if not slurm_conf.has(text, key, value) or value in now.split(","):
            continue
        if key == "JobSubmitPlugins":
            yield DaemonStep("slurmctld", "systemctl restart slurmctld", f"{key} has a new plugin")
        else:
            daemons = "slurmd" if key in HOOKS else "slurmctld"
            yield DaemonStep(
                daemons, "scontrol reconfigure", f"{key} has {value} in slurm.conf alone"
            )
    yield from _lua_steps(files, facts)


def _lua_steps(files: Files, facts: Mapping[str, str]) -> Iterator[DaemonStep]:
    """Yield a step if our rules are newer than those that slurmctld has read.

    slurmctld reads the script of the site again only if that file is newer, not if our rules are.
    """
    site = files.path("job_submit.lua")
    lua = files.place.on_disk(files.place.home / "lua")
    if "lua" not in facts.get("JobSubmitPlugins", "").split(","):
        return
    try:
        known = max(float(facts.get("BOOT_TIME", "")), site.stat().st_mtime)
        newest = max(each.stat().st_mtime for each in lua.iterdir())
    except (OSError, ValueError):
        return
    if newest > known:
        yield DaemonStep(
            "slurmctld", f"touch {site}", "rules of hpcext are newer than those it has read"
        )


def of_lsf(place: InstallLocation, serverdir: Path) -> Status:
    """Examine an installation by ``hpcext-admin install lsf``; change nothing.

    Parameters
    ----------
    place : InstallLocation
    serverdir : pathlib.Path
        ``LSF_SERVERDIR``, as queues name it.
    """
    installed = place.installed(trusted=False)
    if installed is None:
        return Status("", files=tuple(_foreign(place, Manifest())))
    steps = []
    if place.root == ROOT:
        try:
            said = runner.run(queues_command(), timeout_s=ANSWER_S)
            queues = parse_queues(said)
            if not any(f"{serverdir}/{STARTER}" in queue.starter for queue in queues):
                why = f"no queue has {serverdir}/{STARTER}"
                steps.append(DaemonStep("mbatchd", "badmin reconfig", why))
        except BatchError as error:
            steps.append(DaemonStep("mbatchd", "", clean(error.what)))
    files = tuple(_files(place, installed))
    return Status(installed.hpcext, files=files, steps=tuple(steps))


def of_broker(place: InstallLocation, socket: Path = leave.SOCKET) -> Status:
    """Examine an installation by ``hpcext-admin install broker``; change nothing.

    Parameters
    ----------
    place : InstallLocation
    socket : pathlib.Path
        Where the broker answers.
    """
    installed = place.installed(trusted=False)
    if installed is None:
        return Status("", files=tuple(_foreign(place, Manifest())))
    steps: tuple[DaemonStep, ...] = ()
    if place.root == ROOT:
        try:
            ways.status(Local(socket))
        except leave.BrokerError as error:
            do = "systemctl enable --now hpcext-broker, or see systemctl status hpcext-broker"
            steps = (DaemonStep("hpcext-broker", do, clean(str(error))),)
    files = tuple(
        ("edited" if state == "changed" and broker.is_settings(path) else state, path)
        for state, path in _files(place, installed)
    )
    return Status(installed.hpcext, files=files, steps=steps)


def _files(place: InstallLocation, installed: Manifest) -> Iterator[tuple[str, Path]]:
    for name, known in installed.files.items():
        path = Path(name)
        try:
            found = checksum_on_disk(place, path)
        except PermissionError:
            yield "unread", path
            continue
        state = "missing" if found is None else "whole" if found in known else "changed"
        yield state, path
    yield from _foreign(place, installed)


def _foreign(place: InstallLocation, installed: Manifest) -> Iterator[tuple[str, Path]]:
    """Yield the files in our directory that we have not installed."""
    ours = {*installed.files, *installed.directories, str(place.home / manifest.NAME)}
    for found in sorted(place.on_disk(place.home).rglob("*")):
        path = ROOT / found.relative_to(place.root)
        if str(path) not in ours and not stat.S_ISDIR(found.lstat().st_mode):
            yield "foreign", path
