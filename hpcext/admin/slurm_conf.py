"""The lines that a site's own files of Slurm need: slurm.conf, plugstack.conf and Lua scripts.

These files are never edited. Lines that are missing or no longer needed are shown as diffs.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcext.admin import sources
from hpcext.admin.edits import Edit, added, read
from hpcext.admin.install import InstallLocation
from hpcext.batch.slurm.site import signal_at_preemption

SCRIPTS = ("job_submit.lua", "cli_filter.lua")
NAMES = ("slurm.conf", "plugstack.conf", *SCRIPTS)
HOOKS = {"Prolog": "prolog.d", "Epilog": "epilog.d"}
"""Settings that hold one name or pattern → our directory, which the pattern matches."""

_WHY = {
    "Prolog": "Prolog: prepares a node for a job of hpcext",
    "Epilog": "Epilog: ends what is left of a job on its node, and removes its files",
    "JobSubmitPlugins": "JobSubmitPlugins: slurmctld checks the options, however a job was "
    "submitted",
    "CliFilterPlugins": "CliFilterPlugins: sbatch says what is wrong with an option, and adds GPUs",
    "SlurmctldParameters": "SlurmctldParameters: a job is notified of its preemption, and saves "
    "in time",
    "PreemptParameters": "PreemptParameters: a job is notified of its preemption, and saves in "
    "time",
}
_WHY_INCLUDE = "include: has Slurm load the plugin, which has the options of sbatch"
_WHY_SCRIPT = (
    "the block at the end: loads the rules of hpcext; without them jobs are submitted as before"
)

_BLOCK = re.compile(r"^-- hpcext: the last lines of the file\..*?^end\n", re.M | re.S)


class Files(NamedTuple):
    """The site's files, and what they must name.

    Attributes
    ----------
    place : hpcext.admin.install.InstallLocation
    conf_dir : pathlib.Path
        The directory of ``slurm.conf``.
    command : str
        ``hpcext`` as jobs run it.
    release : str
        The release of Slurm, such as ``22.05.8``.
    """

    place: InstallLocation
    conf_dir: Path
    command: str = ""
    release: str = ""

    def path(self, name: str) -> Path:
        """Return where one of the files is on this machine."""
        return self.place.on_disk(self.conf_dir / name)


def settings(files: Files) -> list[tuple[str, str]]:
    """Return the settings that ``slurm.conf`` must have, as keys and values."""
    hooks = [(key, f"{files.conf_dir}/{folder}/*") for key, folder in HOOKS.items()]
    major, minor, *_ = (int(part) for part in files.release.split("."))
    notice = signal_at_preemption((major, minor))
    return [*hooks, ("JobSubmitPlugins", "lua"), ("CliFilterPlugins", "lua"), notice]


def lacking(files: Files) -> list[Edit]:
    """Return the edits that add the missing lines, in the order in which to apply them."""
    edits = [_plugstack(files), *(_script(files, name) for name in SCRIPTS), _slurm_conf(files)]
    return [edit for edit in edits if edit.before != edit.after]


def _plugstack(files: Files) -> Edit:
    path = files.path("plugstack.conf")
    before = read(path)
    if before is not None and re.search(r"^\s*include\s.*plugstack\.conf\.d/", before, re.M):
        return Edit(path, before, before)
    include = f"include {files.conf_dir}/plugstack.conf.d/*.conf"
    return Edit(path, before, added(before, [include]), why=(_WHY_INCLUDE,))


def _script(files: Files, name: str) -> Edit:
    path = files.path(name)
    before = read(path)
    if before is not None and f"{files.place.home}/lua/{name}" in before:
        return Edit(path, before, before)
    # Slurm refuses a script without the functions that it calls.
    start = before or _BLOCK.sub("", (sources.find() / "site_configs/slurm" / name).read_text())
    after = added(start, snippet(files.place.home, files.command, name))
    return Edit(path, before, after, why=(_WHY_SCRIPT,))


def snippet(home: Path, command: str, name: str) -> list[str]:
    """Return the lines to append to a Lua script of the site; their errors refuse no job.

    Parameters
    ----------
    home : pathlib.Path
        The directory of our own files.
    command : str
    name : str
        The name of the script.
    """
    load = f'assert(loadfile("{home}/lua/{name}"))'
    if name == "cli_filter.lua":
        body = [f'local settings = {{command = "{command}"}}', f"{load}(settings)"]
    else:
        body = [f"{load}()"]
    return [
        "-- hpcext: the last lines of the file. Whatever is wrong with hpcext, jobs are submitted.",
        "do",
        "    local done, why = pcall(function()",
        *(f"        {line}" for line in body),
        "    end)",
        "    if not done then",
        '        slurm.log_error("hpcext: no rules: %s", tostring(why))',
        "    end",
        "end",
    ]


def _slurm_conf(files: Files) -> Edit:
    path = files.path("slurm.conf")
    before = read(path)
    after, first, why = before or "", [], []
    for key, value in settings(files):
        found = list(_setting(after, key))
        if any(value in each[2].split(",") for each in found):
            continue
        why.append(_WHY[key])
        if not found or not found[0][2]:
            after = added(after, [f"{key}={value}"])
            continue
        # A second line of one key would replace the first.
        old, new = found[0][2], value
        if key in HOOKS:
            first.append(f"link {old} into {files.conf_dir}/{HOOKS[key]}")
        else:
            new = f"{old},{value}"
        after = after[: found[0].start(2)] + new + after[found[0].end(2) :]
    return Edit(path, before, after, "; ".join(first), tuple(why))


def unneeded(files: Files) -> list[Edit]:
    """Return edits that remove the other lines that :func:`lacking` had added.

    These lines do no harm without hpcext, and the site's own scripts may need them by now.
    """
    edits = []
    path = files.path("plugstack.conf")
    if (before := read(path)) is not None:
        line = f"include {files.conf_dir}/plugstack.conf.d/*.conf\n"
        edits.append(Edit(path, before, before.replace(line, "")))
    path = files.path("slurm.conf")
    if (before := read(path)) is not None:
        after = before
        for key, value in settings(files):
            for found in reversed(list(_setting(after, key))):
                values = found[2].split(",")
                if key in HOOKS or value not in values:
                    continue
                rest = ",".join(each for each in values if each != value)
                start, end = found.span(2)
                if not rest:
                    start, end = found.start(), after.find("\n", end) + 1 or len(after)
                after = after[:start] + rest + after[end:]
        edits.append(Edit(path, before, after))
    return [edit for edit in edits if edit.before != edit.after]


def _setting(text: str, key: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"^([ \t]*{key}[ \t]*=[ \t]*)([^\s#]*)", text, re.M | re.I)


def has(text: str | None, key: str, value: str) -> bool:
    """Return whether a ``slurm.conf`` has this value of a key, alone or among others.

    Parameters
    ----------
    text : str or None
        The content of the file, if there is one.
    key, value : str
    """
    return any(value in found[2].split(",") for found in _setting(text or "", key))


def naming(files: Files, ours: Collection[str]) -> list[Edit]:
    """Return edits that remove the lines that name our files, and would fail without them.

    Parameters
    ----------
    files : Files
    ours : Collection of str
        Paths that are about to be removed.
    """
    edits = []
    for name in NAMES:
        path = files.path(name)
        before = read(path)
        if before is None:
            continue
        text, mark = before, "#"
        if name in SCRIPTS:
            text, mark = _without_block(before, f"{files.place.home}/lua/{name}"), "--"
        lines = text.splitlines(keepends=True)
        kept = [line for line in lines if not _names(files, line.partition(mark)[0], ours)]
        edits.append(Edit(path, before, "".join(kept)))
    return [edit for edit in edits if edit.before != edit.after]


def _without_block(text: str, lua: str) -> str:
    """Remove our block as a whole, but only if it loads a file that is to be removed."""
    return _BLOCK.sub(lambda block: "" if lua in block[0] else block[0], text)


def _names(files: Files, line: str, ours: Collection[str]) -> bool:
    if any(path in line for path in ours):
        return True
    for key, folder in HOOKS.items():
        for found in _setting(line, key):
            there = (
                f"{files.conf_dir}/{folder}/{each.name}" for each in files.path(folder).glob("*")
            )
            meant = {each for each in there if fnmatch.fnmatch(each, found[2])}
            # A pattern that also matches other files stays, because these must still run.
            if meant and meant <= set(ours):
                return True
    return False
