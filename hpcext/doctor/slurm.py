"""What there is of Slurm: a controller that answers, our plugin, a partition for harvesters."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcext import __version__
from hpcext.admin import manifest
from hpcext.batch import runner, slurm, slurm_idle
from hpcext.checks import read_text
from hpcext.core.errors import BatchError, InputError
from hpcext.doctor.checkup import Asked, Finding
from hpcext.text import clean, shown

ANSWER_S = 20.0
"""So long a question waits: somebody sits in front of it."""

FLAG = "--hpcext-suspendable"
_INSTALL = "root runs hpcext-admin install slurm"
_LOADED = re.compile(r"^\s*(?:optional|required)\s+(\S*/hpcext\.so)(?:\s+(.*))?$", re.M)


def check(asked: Asked) -> Iterator[Finding]:
    """All of it; what needs the controller is left out where that does not answer."""
    if not (shutil.which("scontrol") and shutil.which("sbatch")):
        yield Finding("slurm", "note", "no commands of Slurm on this machine")
        return
    try:
        version = runner.run(slurm.version_command(), timeout_s=ANSWER_S).strip()
        runner.run(["scontrol", "ping"], timeout_s=ANSWER_S)
    except BatchError as error:
        says = f"commands are there, and no controller answers: {clean(error.what)}"
        yield Finding("slurm", "wrong", says, "is SLURM_CONF right, and slurmctld up?")
        return
    yield Finding("slurm", "ok", f"{clean(version)}, its controller answers")
    facts = slurm.parse_config(runner.run(slurm.config_command(), timeout_s=ANSWER_S))
    yield _plugin(facts)
    yield _harvest(asked, facts)


def _plugin(facts: Mapping[str, str]) -> Finding:
    name = "slurm plugin"
    works = FLAG in runner.everything_said(["sbatch", "--help"], timeout_s=ANSWER_S)
    found = _line_of_plugstack(facts)
    if found is None:
        if works:
            return Finding(name, "note", "there, of a release that is not known", _INSTALL)
        says = f"not installed: {FLAG} and the other flags do not work, all commands do"
        return Finding(name, "note", says, f"{_INSTALL}, if you want them")
    path, words = found
    if not works:
        says = f"{clean(str(path))} is configured, and not loaded"
        return Finding(name, "wrong", says, f"see what sbatch says of it; {_INSTALL}")
    return _release(path, words)


def _release(path: Path, words: str) -> Finding:
    """Whether the plugin that is loaded fits, and runs a command that is there."""
    name = "slurm plugin"
    command = dict(word.partition("=")[::2] for word in words.split()).get("command", "")
    if not os.access(command, os.X_OK):
        says = f"the command that it runs is not there: {shown(command)}"
        return Finding(name, "wrong", says, _INSTALL)
    try:
        installed = manifest.load(path.parent, trusted=False)
    except (InputError, OSError):
        installed = None
    if installed is None:
        return Finding(name, "note", "loaded, of a release that is not known", _INSTALL)
    if installed.hpcext != __version__:
        says = f"it is of hpcext {installed.hpcext}, this is {__version__}"
        return Finding(name, "wrong", clean(says), _INSTALL)
    return Finding(name, "ok", f"loaded, of hpcext {__version__}")


def _line_of_plugstack(facts: Mapping[str, str]) -> tuple[Path, str] | None:
    """Our plugin and its words, as ``plugstack.conf`` or a file that it includes has them."""
    base = Path(facts.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent
    main = Path(facts.get("PlugStackConfig") or base / "plugstack.conf")
    for path in (main.parent / "plugstack.conf.d" / "hpcext.conf", main):
        try:
            found = _LOADED.search(read_text(path))
        except InputError:
            continue
        if found:
            return Path(found[1]), found[2] or ""
    return None


def _harvest(asked: Asked, facts: Mapping[str, str]) -> Finding:
    name = "harvest_partition"
    partition = asked.settings.harvest_partition if asked.settings else ""
    if not partition:
        do = "set it, if there is a partition whose jobs all others preempt"
        return Finding(name, "note", "not set: harvesters must be told --partition", do)
    text = runner.run(slurm_idle.idle_command(partition), timeout_s=ANSWER_S)
    nodes = slurm_idle.parse_idle(text)
    if not nodes:
        says = f"{shown(partition)} has no nodes, or is no partition"
        return Finding(name, "wrong", says, "see sinfo, and set another one")
    if facts.get("PreemptType", "") in {"preempt/none", "(null)", ""}:
        says = f"{shown(partition)}: nothing preempts its jobs (PreemptType)"
        return Finding(
            name, "wrong", says, "an administrator sets PreemptType, see docs/harvest.md"
        )
    idle = sum(node.idle for node in nodes.values())
    return Finding(name, "ok", f"{shown(partition)}: {len(nodes)} nodes, {idle} idle now")
