"""What hpcext puts into a Slurm installation: the SPANK plugin, rules in Lua, prolog and epilog.

Files of the site are never edited: what is to be added to them is shown.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcext.admin import sources
from hpcext.admin.install import Piece
from hpcext.admin.trust import check_command
from hpcext.checks import read_text
from hpcext.core.errors import HpcextError, InputError
from hpcext.text import clean

PREFIX = Path("/usr/local")
CONF_DIR = Path("/etc/slurm")
INCLUDE = Path("/usr/include")
BUILD_S = 300
BUILT = {"hpcext.so": 0o644, "hpcext-batch": 0o755}
"""What the Makefile of the plugin makes; they must lie side by side."""

LUA = ("rules.lua", "job_submit.lua", "cli_filter.lua")
_SAID_CHARS = 400


@dataclass(frozen=True)
class Site:
    """Where things go.

    Attributes
    ----------
    prefix : pathlib.Path
    conf_dir : pathlib.Path
        Directory of ``slurm.conf``.
    include : pathlib.Path
        Directory that has ``slurm/spank.h``.
    command : pathlib.Path or None
        ``hpcext`` as jobs and users run it; not needed to uninstall.
    """

    prefix: Path = PREFIX
    conf_dir: Path = CONF_DIR
    include: Path = INCLUDE
    command: Path | None = None

    @property
    def home(self) -> Path:
        """The directory of our own."""
        return self.prefix / "lib" / "hpcext" / "slurm"


def release(include: Path) -> str:
    """The release of Slurm that the headers are of, as ``22.05.8``.

    Raises
    ------
    InputError
        There are none.
    """
    for name in ("slurm_version.h", "slurm.h"):
        path = include / "slurm" / name
        if path.exists():
            found = re.search(r"SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{6})", read_text(path))
            if found:
                major, minor, micro = bytes.fromhex(found[1])
                return f"{major}.{minor:02}.{micro}"
    raise InputError(
        "no headers of Slurm",
        where=str(include / "slurm"),
        valid="a directory with slurm/spank.h",
        do="install libslurm-dev (Debian) or slurm-devel (RPM), or give --include DIR",
    )


def pieces(site: Site) -> list[Piece]:
    """All files, in the order in which they are to be put in place.

    Raises
    ------
    InputError
        The command is not one that all users can run and only root can change.
    HpcextError
        The plugin does not compile.
    """
    command = check_command(site.command, (site.home, site.conf_dir))
    source = sources.find()
    hooks = source / "spank_hooks"
    found = [
        Piece(site.home / name, data, BUILT[name])
        for name, data in _built(hooks, site.include).items()
    ]
    found += [Piece(site.home / "lua" / name, (hooks / "lua" / name).read_bytes()) for name in LUA]
    for kind in ("prolog", "epilog"):
        data = (hooks / kind / f"hpcext-{kind}").read_bytes()
        found.append(Piece(site.conf_dir / f"{kind}.d" / "50-hpcext", data, 0o755))
    found += manual_pages(source / "man", site.prefix / "share" / "man")
    # The last: before it is there, no command of Slurm sees any of the others.
    text = f"optional {site.home}/hpcext.so command={command}\n"
    found.append(Piece(site.conf_dir / "plugstack.conf.d" / "hpcext.conf", text.encode()))
    return found


def _built(hooks: Path, include: Path) -> dict[str, bytes]:
    """Compile the plugin; the sources may be where nobody can write."""
    release(include)
    make = shutil.which("make")
    if make is None:
        raise InputError("make is not installed", do="install make and a C compiler")
    flags = "" if include == INCLUDE else f"SLURM_CPPFLAGS=-I{include}"
    with tempfile.TemporaryDirectory(prefix="hpcext-build-") as build:
        words = [make, "-s", "-C", str(hooks), f"BUILD={build}", "all", *filter(None, [flags])]
        ended = subprocess.run(
            words,
            # What root happens to have set (CC, CFLAGS, MAKEFLAGS) is not for this.
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_S,
            check=False,
        )
        if ended.returncode:
            lines = ended.stderr.splitlines()
            said = [line for line in lines if "error:" in line] or lines[-1:]
            raise HpcextError(
                f"the plugin does not compile: {clean('; '.join(said))[:_SAID_CHARS]}",
                where=str(hooks),
                do="are make, a C compiler and the headers of this Slurm installed?",
            )
        return {name: (Path(build) / name).read_bytes() for name in BUILT}


def manual_pages(pages: Path, to: Path) -> list[Piece]:
    """The manual pages; none where docutils, which makes them, is not installed."""
    try:
        import docutils.core  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError:
        return []
    found = []
    for page in sorted(pages.glob("*.rst")):
        text = docutils.core.publish_string(
            page.read_text(encoding="utf-8"),
            writer="manpage",
            settings_overrides={"input_encoding": "utf-8", "output_encoding": "utf-8"},
        )
        found.append(Piece(to / f"man{page.stem[-1]}" / page.stem, text))
    return found


# What is left to the administrator.


def left_to_do(site: Site) -> list[str]:
    """Lines that the site's own files lack, each under a heading that says where it belongs."""
    conf = site.conf_dir
    lines = []
    include = f"include {conf}/plugstack.conf.d/*.conf"
    if not _has(conf / "plugstack.conf", r"^\s*include\s.*plugstack\.conf\.d/"):
        lines += [f"add to {conf}/plugstack.conf:", f"    {include}"]
    missing = [f"    {line}" for line in _missing_settings(site)]
    if missing:
        lines += [f"add to {conf}/slurm.conf:", *missing]
    for name in ("job_submit.lua", "cli_filter.lua"):
        if not _has(conf / name, re.escape(f"{site.home}/lua/{name}")):
            lines.append(f"add to the end of {conf}/{name}:")
            lines += [f"    {line}" for line in snippet(site, name)]
    if lines:
        lines.append("then: scontrol reconfigure, or restart slurmctld if a plugin is new to it")
    return lines


def _missing_settings(site: Site) -> list[str]:
    """What ``slurm.conf`` lacks."""
    major, minor, _ = (int(part) for part in release(site.include).split("."))
    # 22.05 does not start with what later releases want (slurm.conf(5)).
    if (major, minor) <= (22, 5):
        notice = "SlurmctldParameters=preempt_send_user_signal"
    else:
        notice = "PreemptParameters=send_user_signal"
    file, conf = site.conf_dir / "slurm.conf", site.conf_dir
    found = []
    for line in (
        f"Prolog={conf}/prolog.d/*",
        f"Epilog={conf}/epilog.d/*",
        "JobSubmitPlugins=lua",
        "CliFilterPlugins=lua",
        notice,
    ):
        key, _, value = line.partition("=")
        if _has(file, rf"^\s*{key}\s*=(.*[,\s])?{re.escape(value)}\s*(,|#|$)"):
            continue
        # A second line of one key would replace the first.
        is_set = _has(file, rf"^\s*{key}\s*=")
        found.append(f"{line}      ({key} is set: let it have this, too)" if is_set else line)
    return found


def snippet(site: Site, name: str) -> list[str]:
    """The last lines of the site's Lua script: whatever is wrong with us, jobs are submitted."""
    load = f'assert(loadfile("{site.home}/lua/{name}"))'
    if name == "cli_filter.lua":
        body = [f'local settings = {{command = "{site.command}"}}', f"{load}(settings)"]
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


def _has(path: Path, pattern: str) -> bool:
    """Is a line there already? What cannot be read, or is not root's, is taken not to have it."""
    try:
        return re.search(pattern, read_text(path, must_be_roots=True), re.M | re.I) is not None
    except InputError:
        return False
