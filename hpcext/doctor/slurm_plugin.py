"""Checks of what hpcext-admin installs for Slurm: the plugin, and the rules in Lua."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hpcext import __version__
from hpcext.admin import manifest
from hpcext.batch import runner
from hpcext.batch.slurm.site import words
from hpcext.core.errors import InputError
from hpcext.doctor.checkup import Finding, run_python
from hpcext.numerals import whole
from hpcext.text import clean, listed, shown
from hpcext.textfiles import read_text

FLAG = "--hpcext-suspendable"
_INSTALL = "root runs hpcext-admin install slurm"
_LOADED = re.compile(r"^\s*(?:optional|required)\s+(\S*/hpcext\.so)(?:\s+(.*))?$", re.M)
_WITHOUT = "batch scripts must do what the flags would do"

_ASK = """\
import ctypes, os, sys
print(ctypes.c_uint.in_dll(ctypes.CDLL(sys.argv[1], os.RTLD_LAZY), "plugin_version").value)
"""
"""A program that prints the version of a plugin, which SPANK_PLUGIN of spank.h defines.

With RTLD_LAZY the functions of Slurm that the plugin calls stay unresolved.
"""

_SCRIPTS = {"JobSubmitPlugins": "job_submit.lua", "CliFilterPlugins": "cli_filter.lua"}


def plugin(config: Mapping[str, str], release: tuple[int, int], *, within_s: float) -> Finding:
    """Check that the plugin is loaded, was built for this Slurm, and is of this hpcext.

    Parameters
    ----------
    config : Mapping of str to str
        The settings that ``scontrol show config`` prints.
    release : (int, int)
        The release of Slurm, such as ``(24, 11)``.
    within_s : float
        Seconds to wait for a command.
    """
    name = "slurm plugin"
    works = FLAG in runner.everything_said(["sbatch", "--help"], timeout_s=within_s)
    found = _line_of_plugstack(config)
    if found is None:
        if works:
            return Finding(name, "note", "installed, of an unknown release", _INSTALL)
        says = f"not installed: {FLAG} and the other flags do not work, all commands do"
        return Finding(name, "note", says, f"{_INSTALL}, if you want them", _WITHOUT)
    path, options = found
    built = _built_for(path, within_s)
    if built is not None and built != release:
        says = "{} was built for Slurm {}.{:02}, and this is {}.{:02}".format(
            clean(str(path)), *built, *release
        )
        return Finding(name, "wrong", says, _INSTALL, "Slurm loads no plugin of another release")
    if not works:
        says = f"{clean(str(path))} is configured, but not loaded"
        return Finding(
            name, "wrong", says, f"check what sbatch says about it; {_INSTALL}", _WITHOUT
        )
    return _of_this_release(path, options)


def _built_for(path: Path, within_s: float) -> tuple[int, int] | None:
    """Return the release of Slurm that a plugin was built for; None if it cannot be loaded."""
    ended = run_python("-I", "-c", _ASK, str(path), within_s=within_s)
    number = whole(ended.stdout.strip())
    if ended.returncode or number is None:
        return None
    # SLURM_VERSION_NUM of slurm_version.h: a byte each for major, minor and micro.
    return number >> 16 & 0xFF, number >> 8 & 0xFF


def _of_this_release(path: Path, options: str) -> Finding:
    """Check that the loaded plugin is of this hpcext, and runs a command that exists."""
    name = "slurm plugin"
    command = dict(word.partition("=")[::2] for word in options.split()).get("command", "")
    if not os.access(command, os.X_OK):
        says = f"the command that it runs does not exist: {shown(command)}"
        return Finding(name, "wrong", says, _INSTALL, "jobs with these flags fail at their start")
    try:
        installed = manifest.load(path.parent, trusted=False)
    except (InputError, OSError):
        installed = None
    if installed is None:
        return Finding(name, "note", "loaded, of an unknown release", _INSTALL)
    if wrong := manifest.differs(installed):
        why = "the flags and the command that they run may not fit each other"
        return Finding(name, "wrong", clean(wrong), _INSTALL, why)
    return Finding(name, "ok", f"loaded, of hpcext {__version__}")


def _line_of_plugstack(config: Mapping[str, str]) -> tuple[Path, str] | None:
    """Return the plugin and its arguments from ``plugstack.conf``, or from an included file."""
    said = config.get("PlugStackConfig", "")
    # "(null)" is the default: slurm.conf(5), "plugstack.conf in the directory of slurm.conf".
    default = not said or said.startswith("(")
    main = _directory(config) / "plugstack.conf" if default else Path(said)
    for path in (main.parent / "plugstack.conf.d" / "hpcext.conf", main):
        try:
            found = _LOADED.search(read_text(path))
        except InputError:
            continue
        if found:
            return Path(found[1]), found[2] or ""
    return None


def rules(config: Mapping[str, str]) -> Finding:
    """Check that Slurm runs the site's Lua scripts, and that these load the rules of hpcext."""
    name = "slurm rules"
    missing = []
    for key, script in _SCRIPTS.items():
        if "lua" not in words(config.get(key, "")):
            missing.append(f"{key} has no lua")
            continue
        try:
            loads = f"hpcext/slurm/lua/{script}" in read_text(_directory(config) / script)
        except InputError as error:
            missing.append(f"{script}: {error.what}")
            continue
        if not loads:
            missing.append(f"{script} does not load that of hpcext")
    if not missing:
        return Finding(name, "ok", f"{listed(_SCRIPTS.values())} load those of hpcext")
    says = f"not active: {'; '.join(map(clean, missing))}"
    do = "hpcext-admin status slurm shows the missing lines, if you want the flags"
    why = "a mistake in a flag is found only when the job runs, not when it is submitted"
    return Finding(name, "note", says, do, why)


def _directory(config: Mapping[str, str]) -> Path:
    """Return the directory of ``slurm.conf``."""
    return Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent
