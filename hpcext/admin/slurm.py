"""The files that hpcext adds to a Slurm: the SPANK plugin, rules in Lua, prolog and epilog.

Files of the site are never edited; the lines to add to them are printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcext.admin import sources
from hpcext.admin.install import InstallLocation, Piece
from hpcext.admin.slurm_conf import Files
from hpcext.admin.trust import ROOT, check_command, check_trusted, check_word
from hpcext.core.errors import HpcextError, InputError
from hpcext.extras import need
from hpcext.text import clean
from hpcext.textfiles import read_text

USR = Path("/usr/local")
CONF_DIR = Path("/etc/slurm")
INCLUDE = Path("/usr/include")
BUILD_S = 300
BUILT = {"hpcext.so": 0o644, "hpcext-batch": 0o755}
"""The files that the plugin's Makefile builds, and their modes; all in one directory."""

LUA = ("rules.lua", "job_submit.lua", "cli_filter.lua")
_SAID_CHARS = 400
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Site:
    """The directories and options of an installation for Slurm.

    Attributes
    ----------
    usr : pathlib.Path
        The directory of ``lib`` and ``share``.
    conf_dir : pathlib.Path
        The directory of ``slurm.conf``.
    include : pathlib.Path
        The directory that has ``slurm/spank.h``.
    command : pathlib.Path or None
        ``hpcext`` as jobs and users run it; not needed to uninstall.
    root : pathlib.Path
        The directory that stands for ``/`` while a package is built.
    manual : bool
        Whether to install manual pages.
    """

    usr: Path = USR
    conf_dir: Path = CONF_DIR
    include: Path = INCLUDE
    command: Path | None = None
    root: Path = ROOT
    manual: bool = True

    @property
    def home(self) -> Path:
        """The directory of our own files."""
        return self.usr / "lib" / "hpcext" / "slurm"

    @property
    def place(self) -> InstallLocation:
        """The location of the installation."""
        return InstallLocation(self.home, self.root)

    @property
    def files(self) -> Files:
        """The site's own files, and what they must name."""
        return Files(self.place, self.conf_dir, str(self.command), release(self.include))


def release(include: Path) -> str:
    """Return the release of Slurm that headers belong to, such as ``22.05.8``.

    Raises
    ------
    InputError
        There are no headers, or others than root can change them.
    """
    check_word(include)
    for name in ("slurm_version.h", "slurm.h"):
        path = include / "slurm" / name
        check_trusted(path)
        if path.exists():
            found = re.search(r"SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{6})", read_text(path))
            if found:
                major, minor, micro = bytes.fromhex(found[1])
                return f"{major}.{minor:02}.{micro}"
    raise InputError(
        "Slurm's headers were not found",
        where=str(include / "slurm"),
        valid="a directory with slurm/spank.h",
        do="install libslurm-dev (Debian) or slurm-devel (RPM), or give --include DIR",
    )


def pieces(site: Site) -> list[Piece]:
    """Return all files, in the order in which they are to be installed.

    Raises
    ------
    InputError
        The command is not one that all users can run and only root can change.
    HpcextError
        The plugin does not compile.
    """
    command = check_command(site.command, (site.home, site.conf_dir), is_there=site.root == ROOT)
    source = sources.find()
    hooks = source / "spank_hooks"
    found = [
        Piece(site.home / name, data, BUILT[name])
        for name, data in _build(hooks, site.include).items()
    ]
    found += [Piece(site.home / "lua" / name, (hooks / "lua" / name).read_bytes()) for name in LUA]
    for kind in ("prolog", "epilog"):
        data = (hooks / kind / f"hpcext-{kind}").read_bytes()
        found.append(Piece(site.conf_dir / f"{kind}.d" / "50-hpcext", data, 0o755))
    if site.manual:
        found += manual_pages(source / "man", site.usr / "share" / "man")
    # The last, because it makes the commands of Slurm load the others.
    text = f"optional {site.home}/hpcext.so command={command}\n"
    found.append(Piece(site.conf_dir / "plugstack.conf.d" / "hpcext.conf", text.encode()))
    return found


def _build(hooks: Path, include: Path) -> dict[str, bytes]:
    """Compile the plugin outside its source directory, which may be read-only."""
    release(include)
    # Checked before make reads it, since it includes the others.
    check_trusted(include / "slurm" / "spank.h")
    # -isystem: with -I, warnings in the headers would fail our build (-Werror).
    flags = [] if include == INCLUDE else [f"SLURM_CPPFLAGS=-isystem {include}"]
    for path in _headers(_make(hooks, "headers", *flags), hooks):
        # slurmstepd runs the compiled plugin as root.
        check_trusted(path)
    with tempfile.TemporaryDirectory(prefix="hpcext-build-") as build:
        _make(hooks, f"BUILD={build}", "all", *flags)
        return {name: (Path(build) / name).read_bytes() for name in BUILT}


def _headers(rules: str, hooks: Path) -> set[Path]:
    """Return the files that the compiler reads besides our own, from rules made by ``cc -M``."""
    words = (word for word in rules.split() if word != "\\" and not word.endswith(":"))
    paths = {Path(os.path.normpath(hooks / word)) for word in words}
    return {path for path in paths if path.parent != hooks}


def _make(hooks: Path, *words: str) -> str:
    """Run make on the sources of the plugin; return what it prints."""
    make = shutil.which("make", path=_PATH)
    if make is None:
        raise InputError("make is not installed", do="install make and a C compiler")
    ended = subprocess.run(
        [make, "-s", "-C", str(hooks), *words],
        # Without variables that root happens to have set (CC, CFLAGS, MAKEFLAGS).
        env={"PATH": _PATH, "LC_ALL": "C"},
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
            do="make sure that make, a C compiler and the headers of this Slurm are installed",
        )
    return ended.stdout


def manual_pages(pages: Path, to: Path) -> list[Piece]:
    """Return the manual pages, converted by docutils.

    Parameters
    ----------
    pages : pathlib.Path
        The directory of their sources.
    to : pathlib.Path
        The directory of ``man1`` and the like.
    """
    core, manpage = need("docutils.core"), need("docutils.writers.manpage")
    found = []
    for page in sorted(pages.glob("*.rst")):
        text = core.publish_string(
            page.read_text(encoding="utf-8"),
            writer=manpage.Writer(),  # docutils takes a name only from 0.22 on
            settings_overrides={"input_encoding": "utf-8", "output_encoding": "utf-8"},
        )
        found.append(Piece(to / f"man{page.stem[-1]}" / page.stem, text))
    return found
